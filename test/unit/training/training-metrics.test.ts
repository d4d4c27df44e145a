/** What /metrics says of training when no job runs any more. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { RowRefusedError } from '../../../src/control/engine/training.ts';
import { createModel, finished, group, startPlane, type Plane } from './plane.ts';

const JOBS = '/v1/preview/training-jobs';

let plane: Plane;
beforeAll(async () => {
  plane = await startPlane();
}, 120_000);
afterAll(() => plane?.end());

test.each(['cancelled', 'failed'])('a job that is %s has no time left in /metrics', async (end) => {
  const { id: modelId } = await createModel(plane, `left-${end}`);
  const left = async () =>
    /^tandem_training_eta_seconds (\S+)$/m.exec(await (await plane.call('/metrics')).text())?.[1];
  const steps = { packed_sequence_length: 32, logprob_calculation_chunk_size: 32 };
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  const taken = plane.engine_.optimized.length;
  plane.engine_.beforeCall = async () => {
    if (plane.engine_.optimized.length === taken) return;
    await held;
    if (end === 'failed') throw new RowRefusedError('no row is taken any more');
  };
  try {
    const groups = [group([1, 0]), group([2, 0]), group([3, 0])];
    const job = String(
      (await plane.ok(JOBS, { model_id: modelId, trajectory_groups: groups, experimental_config: steps }))['id'],
    );
    await expect.poll(async () => Number(await left())).toBeGreaterThan(0);
    const cancelling = end === 'cancelled' ? plane.json(`${JOBS}/${job}/cancel`, { method: 'POST' }) : null;
    // The run has let its session go: it does not end by itself before the cancel comes.
    if (cancelling) await expect.poll(() => plane.engine_.open).toBe(0);
    release();
    await cancelling;
    expect((await finished(plane, job)).at(-1)?.type).toBe('training_failed');
    await expect.poll(left).toBe('0');
  } finally {
    release();
    plane.engine_.beforeCall = () => undefined;
  }
});
