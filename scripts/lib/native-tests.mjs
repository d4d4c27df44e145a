/** The native tests: CMake builds without Node, run by ctest; once as shipped, once under sanitizers. */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { withCuda } from './native.mjs';
import { fromRoot, nativeBuild, root } from './paths.mjs';
import { runQuietly } from './step.mjs';

// Where nvcc is, the tests and benchmarks for a device are built too, without a warning, and run where there is one (scripts/gpu-check).
// The kernels themselves are the addon's, compiled for all targets; one is enough for the rest.
const cuda = withCuda() ? 'ON' : 'OFF';
const FOR_DEVICES = [`-DTANDEM_CUDA=${cuda}`, `-DTANDEM_GPU_TESTS=${cuda}`, '-DTANDEM_CUDA_TARGETS=80-real'];
const PLAIN = fromRoot('native-test');

/** The plain tests run on the very libraries of the addon; the sanitized ones compile what they test, and share the tests' own code. */
const BUILDS = [
  {
    name: 'native tests',
    folder: PLAIN,
    options: ['-DTANDEM_SANITIZE=OFF', `-DTANDEM_ADDON_BUILD=${nativeBuild}`, ...FOR_DEVICES],
    env: {},
  },
  {
    name: 'native tests under ASan and UBSan',
    folder: fromRoot('native-test-asan'),
    options: ['-DTANDEM_SANITIZE=ON', `-DTANDEM_TEST_BUILD=${PLAIN}`, '-DTANDEM_CUDA=OFF'],
    env: {
      UBSAN_OPTIONS: 'print_stacktrace=1',
      ASAN_OPTIONS: 'detect_stack_use_after_return=1:allocator_may_return_null=1',
    },
  },
];

async function configureAndBuild({ folder, options }) {
  await runQuietly('cmake', ['-S', root, '-B', folder, '-DTANDEM_TESTS=ON', ...options]);
  await runQuietly('cmake', ['--build', folder, '--parallel', String(availableParallelism())]);
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

function runCtest({ folder, env }) {
  const args = ['--test-dir', folder, '--output-on-failure', '--timeout', '300'];
  args.push('--parallel', String(availableParallelism()));
  const options = { cwd: root, env: { ...process.env, ...env }, encoding: 'utf8', maxBuffer: 256 << 20 };
  const result = spawnSync('ctest', args, options);
  const counts = countCtest(result.stdout ?? '');
  const ran = counts.passed + counts.failed;
  // A crash of ctest itself, or no tests at all, is a failure, not a silence.
  if (ran === 0 || (result.status !== 0 && counts.failed === 0)) counts.failed++;
  if (counts.failed > 0) console.log(`${result.stdout ?? ''}${result.stderr ?? ''}`);
  return counts;
}

/** Builds and runs every native test; yields the counts of each build. */
export async function* nativeTests() {
  for (const build of BUILDS) {
    let counts;
    try {
      await configureAndBuild(build);
      counts = runCtest(build);
    } catch (error) {
      console.log(error.message);
      counts = { passed: 0, failed: 1, skipped: 0 };
    }
    console.log(`  ${build.name}: ${counts.passed} passed, ${counts.failed} failed`);
    yield counts;
  }
}
