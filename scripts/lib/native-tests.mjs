/** The native tests: CMake builds without Node, run by ctest; once as shipped, once under sanitizers. */
import { spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fromRoot, nativeBuild, root } from './paths.mjs';
import { runQuietly } from './step.mjs';

// Where nvcc is, the tests and benchmarks for a device are built too, without a warning, and run where there is one (scripts/gpu-check).
// The addon's own build compiles the kernels for all targets; one is enough here.
const FOR_DEVICES = ['-DTANDEM_CUDA=ON', '-DTANDEM_GPU_TESTS=ON', '-DTANDEM_CUDA_TARGETS=80-real'];

const BUILDS = [
  { name: 'native tests', folder: 'native-test', sanitize: 'OFF', options: FOR_DEVICES, env: {} },
  {
    name: 'native tests under ASan and UBSan',
    folder: 'native-test-asan',
    sanitize: 'ON',
    options: ['-DTANDEM_CUDA=OFF'],
    env: { UBSAN_OPTIONS: 'print_stacktrace=1', ASAN_OPTIONS: 'detect_stack_use_after_return=1' },
  },
];

/** The plain tests run on the very library of the addon. */
function core(sanitize) {
  return sanitize === 'ON' ? '' : path.join(nativeBuild, 'libcore.a');
}

async function configureAndBuild({ folder, sanitize, options: own }) {
  const build = fromRoot(folder);
  const options = ['-DTANDEM_TESTS=ON', ...own, `-DTANDEM_SANITIZE=${sanitize}`, `-DTANDEM_CORE=${core(sanitize)}`];
  await runQuietly('cmake', ['-S', root, '-B', build, ...options]);
  await runQuietly('cmake', ['--build', build, '--parallel', String(availableParallelism())]);
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
  const args = ['--test-dir', fromRoot(folder), '--output-on-failure', '--timeout', '300'];
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
