import { existsSync } from 'node:fs';
import { expect, test } from 'vitest';
import { workerFile } from '../../src/control/worker-file.ts';

test('entries of threads are found, and a missing build is told', () => {
  for (const entry of ['sessions/render-worker', 'store/sqlite-worker', 'training/intake/intake-worker'])
    expect(existsSync(workerFile(entry))).toBe(true);
  expect(() => workerFile('sessions/no-worker')).toThrow('sessions/no-worker.js is not built: run `npm run build`.');
});
