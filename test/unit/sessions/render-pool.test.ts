/** Requests whose client has left before their turn are not rendered. */
import { expect, test } from 'vitest';
import { RenderPool } from '../../../src/control/sessions/render-pool.ts';
import { STARTER } from '../../fixtures/starter.ts';

test('what was cancelled while it waited is dropped; what comes after is rendered', async () => {
  const pool = await RenderPool.start({
    modelPath: STARTER,
    maxModelLen: 1024,
    workers: 1,
    timeoutMs: 30_000,
  });
  try {
    const text = (value: string) => ({ kind: 'text', text: value, addSpecialTokens: false }) as const;
    const abort = new AbortController();
    const left = Array.from({ length: 50 }, (_, at) => pool.run(text(`word ${at}`), abort.signal));
    const after = pool.run(text('hello'));
    abort.abort();
    const settled = await Promise.allSettled(left);
    expect(settled.filter((result) => result.status === 'rejected').length).toBeGreaterThanOrEqual(49);
    expect((await after).length).toBeGreaterThan(0);
  } finally {
    await pool.close();
  }
});
