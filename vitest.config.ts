import { defineConfig } from 'vitest/config';

// Worker threads and child processes of the product run compiled JavaScript: `npm test` builds dist/ first.
export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    environment: 'node',
    pool: 'forks',
    // The tests share the machine with the engine's own threads.
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 180_000,
    teardownTimeout: 30_000,
    passWithNoTests: false,
    allowOnly: false,
  },
});
