import { configDefaults, defineConfig } from 'vitest/config';

/**
 * Of these, the files of a worker share one process and its modules: loading them anew for each file took a third of their CPU time. They keep
 * no state in modules, and mock none; servers and engines have processes of their own.
 */
const SHARED = ['test/unit/**/*.test.ts', 'test/api/**/*.test.ts', 'test/e2e/**/*.test.ts'];

// Worker threads and child processes of the product run compiled JavaScript: `npm test` builds dist/ first.
export default defineConfig({
  test: {
    environment: 'node',
    pool: 'forks',
    // The tests share the machine with the engine's own threads.
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 180_000,
    // By default one second, which a busy machine takes for anything.
    expect: { poll: { timeout: 20_000 } },
    teardownTimeout: 30_000,
    passWithNoTests: false,
    allowOnly: false,
    projects: [
      {
        extends: true,
        test: { name: 'shared', include: SHARED, isolate: false, setupFiles: ['test/unit/clean-up.ts'] },
      },
      {
        extends: true,
        test: { name: 'isolated', include: ['test/**/*.test.ts'], exclude: [...configDefaults.exclude, ...SHARED] },
      },
    ],
  },
});
