/** The native tests: CMake builds without Node, run by ctest; once as shipped, once under sanitizers. They print nothing themselves. */
import { availableParallelism, constants } from 'node:os';
import { withCuda } from './native.mjs';
import { fromRoot, nativeBuild, root } from './paths.mjs';
import { outputOf, runQuietly } from './step.mjs';

// Where nvcc is, the tests and benchmarks for a device are built too, without a warning, and run where there is one (scripts/gpu-check).
// The kernels themselves are the addon's, compiled for all targets; one is enough for the rest.
const cuda = withCuda() ? 'ON' : 'OFF';
const FOR_DEVICES = [`-DTANDEM_CUDA=${cuda}`, `-DTANDEM_GPU_TESTS=${cuda}`, '-DTANDEM_CUDA_TARGETS=80-real'];
const PLAIN = fromRoot('native-test');

/** The plain tests run on the very libraries of the addon. */
const PLAIN_BUILD = {
  name: 'native tests',
  folder: PLAIN,
  options: ['-DTANDEM_SANITIZE=OFF', `-DTANDEM_ADDON_BUILD=${nativeBuild}`, ...FOR_DEVICES],
  env: {},
};

/** The sanitized ones compile what they test, and share the tests' own code with the plain ones, whose build comes first. */
const SANITIZED_BUILD = {
  name: 'native tests under ASan and UBSan',
  folder: fromRoot('native-test-asan'),
  options: ['-DTANDEM_SANITIZE=ON', `-DTANDEM_TEST_BUILD=${PLAIN}`, '-DTANDEM_CUDA=OFF'],
  env: {
    UBSAN_OPTIONS: 'print_stacktrace=1',
    ASAN_OPTIONS: 'detect_stack_use_after_return=1:allocator_may_return_null=1',
  },
  priority: constants.priority.PRIORITY_LOW,
};

async function configureAndBuild({ folder, options, priority }) {
  await runQuietly('cmake', ['-S', root, '-B', folder, '-DTANDEM_TESTS=ON', ...options], { priority });
  await runQuietly('cmake', ['--build', folder, '--parallel', String(availableParallelism())], { priority });
}

/** Counts of ctest's line per test: `3/9 Test #3: name ......   Passed    0.01 sec`. */
export function countCtest(output) {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  for (const line of output.split('\n')) {
    const outcome = /^\s*\d+\/\d+ Test\s+#\d+: .*?(Passed(?=\s+[\d.]+ sec)|\*\*\*\s*\w+)/.exec(line)?.[1];
    if (outcome === undefined) continue;
    if (outcome === 'Passed') counts.passed++;
    else if (outcome.endsWith('Skipped')) counts.skipped++;
    else counts.failed++;
  }
  return counts;
}

async function runCtest({ folder, ...options }) {
  const args = ['--test-dir', folder, '--output-on-failure', '--timeout', '300'];
  args.push('--parallel', String(availableParallelism()));
  const { output, code } = await outputOf('ctest', args, options);
  const counts = countCtest(output);
  const ran = counts.passed + counts.failed;
  // A crash of ctest itself, or no tests at all, is a failure, not a silence.
  if (ran === 0 || (code !== 0 && counts.failed === 0)) counts.failed++;
  return { counts, output: counts.failed > 0 ? output : '' };
}

/** What a build and its tests come to, and what to show of it. */
async function buildAndTest(build) {
  let result;
  try {
    await configureAndBuild(build);
    result = await runCtest(build);
  } catch (error) {
    result = { counts: { passed: 0, failed: 1, skipped: 0 }, output: error.message };
  }
  const { passed, failed } = result.counts;
  const shown = result.output === '' ? '' : `${result.output}\n`;
  return { counts: result.counts, report: `${shown}  ${build.name}: ${passed} passed, ${failed} failed` };
}

/** Builds and runs the native tests as shipped. */
export function plainTests() {
  return buildAndTest(PLAIN_BUILD);
}

/** The same under sanitizers, after plainTests(); with what other processes leave of the machine. */
export function sanitizedTests() {
  return buildAndTest(SANITIZED_BUILD);
}
