/** Tandem's native trainer (no server) in a process of its own. */
import { readFileSync } from 'node:fs';
import { loadNative } from '../../dist/control/engine/native.js';
import { loadModel } from '../../dist/control/models/load.js';
import { serveCalls } from '../lib/worker.mjs';
import { ADAMW } from './cases.mjs';
import { weightsOf } from './factors.mjs';

let trainer;
/** Duration of every slice of the last measurement in milliseconds. */
let slices = [];

async function finish(micros) {
  for (;;) {
    const begin = performance.now();
    const done = await trainer.slice(micros);
    slices.push(performance.now() - begin);
    if (done) return;
  }
}

/** One row: its mean -logprob; its gradient is added. */
async function learn({ tokens, segments, targets }, count, micros) {
  trainer.forward(
    { tokens: Int32Array.from(tokens), segments: Int32Array.from(segments), targets: Int32Array.from(targets) },
    'current',
  );
  await finish(micros);
  const { logprobs } = trainer.scores();
  trainer.backward(Float32Array.from(targets, (target) => (target < 0 ? 0 : -1 / count)));
  await finish(micros);
  return -logprobs.reduce((sum, value) => sum + value, 0) / count;
}

serveCalls({
  async load({ directory, threads, maxRowTokens, recompute }) {
    const { spec, files, tensors } = await loadModel(directory);
    const model = await loadNative().loadModel(spec, files, tensors, { dtype: 'bfloat16', threads });
    const options = { maxRowTokens, maxRowBytes: 8 * 2 ** 30, recompute };
    trainer = await loadNative().createTrainer(model, options, { weights: weightsOf(spec), optimizer: null });
    return { variant: `Tandem ${loadNative().info().isa}${recompute ? ', recompute' : ''}` };
  },

  /** Forward and backward of the rows, one optimizer step. Seconds, those of all CPUs, and the loss of the first row before it. */
  async step({ rows, micros = 10_000 }) {
    slices = [];
    const begin = performance.now();
    const cpu = process.cpuUsage();
    let loss;
    for (const row of rows) {
      const count = row.targets.filter((target) => target >= 0).length;
      const found = await learn(row, count, micros);
      loss ??= found;
    }
    trainer.optimize(ADAMW);
    await finish(micros);
    const { user, system } = process.cpuUsage(cpu);
    const seconds = (performance.now() - begin) / 1000;
    return { seconds, cpu: (user + system) / 1e6, loss, slices };
  },

  /** Bytes of the largest resident set so far. */
  async memory() {
    return Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync('/proc/self/status', 'utf8'))[1]) * 1024;
  },
});
