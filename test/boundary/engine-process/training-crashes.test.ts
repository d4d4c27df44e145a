/** An engine that trains and serves nobody: what it has trained counts for it when it crashes. */
import { it } from 'vitest';
import { config, supervise, until } from './harness.ts';

const FACTOR = { layer: 0, module: 'q' as const, rank: 1, a: new Float32Array(8), b: new Float32Array(8) };
const ROW = { tokens: Int32Array.of(1), segments: Int32Array.of(0, 1, -1, 0), targets: Int32Array.of(-1) };

it('is not given up while it finishes work for a trainer between its crashes', async () => {
  const supervisor = supervise({ config: config() });
  try {
    for (let crashes = 1; crashes <= 6; crashes++) {
      const session = await supervisor.openTrainer({ weights: { scale: 1, factors: [FACTOR] }, optimizer: null });
      await session.forward(ROW, 'current');
      // Between two pieces of work, when no trainer is busy.
      process.kill(supervisor.pid as number, 'SIGKILL');
      await until(() => supervisor.restarts === crashes);
      session.close();
    }
    await until(() => supervisor.state === 'ready');
  } finally {
    await supervisor.close();
  }
});
