/** The addon in worker threads that end, are terminated while stepping, loading or compiling, or simply leave. Prints what they sampled. */
import { Worker } from 'node:worker_threads';
import { createEngine, firstPlan, loadAddon, loadModel, readInput } from '../fixtures/native-model.mjs';

const description = await readInput();
const addon = loadAddon(description);
const model = await loadModel(addon, description);
const engine = createEngine(addon, model, description);
const here = (await engine.step(firstPlan(0, 0, [1, 2, 3]))).tokens[0];
const sampled = [here];

async function run(manner, delayMs) {
  const worker = new Worker(new URL('native-worker.mjs', import.meta.url), { workerData: { description, manner } });
  const ended = new Promise((resolve) => worker.once('exit', resolve));
  sampled.push(await new Promise((resolve, reject) => worker.once('message', resolve).once('error', reject)));
  if (manner === 'step' || manner === 'load' || manner === 'compile') {
    await new Promise((resolve) => setTimeout(resolve, delayMs));
    await worker.terminate();
  }
  await ended;
}

for (let round = 0; round < 4; round++) {
  await Promise.all([run('finish', 0), run('step', round * 3), run('load', round * 3), run('leave', 0)]);
}
// A pool's thread that comes back to an environment which has just gone.
for (let round = 0; round < 24; round++) await run('compile', (round % 8) * 4);
sampled.push((await engine.step(firstPlan(1, 1, [1, 2, 3]))).tokens[0]);
engine.close();
model.close();
process.stdout.write(JSON.stringify(sampled));
