/** Prints the instruction set in use and, per prompt, the whole row of logprobs. */
import { createEngine, firstPlan, loadAddon, loadModel, readInput } from '../fixtures/native-model.mjs';

const input = await readInput();
const addon = loadAddon(input.model);
const info = addon.info();
const model = await loadModel(addon, input.model, 1);
const vocab = input.model.spec.vocabSize;
const rows = [];
for (const tokens of input.prompts) {
  const engine = createEngine(addon, model, input.model, { maxLogprobs: vocab });
  const plan = firstPlan(0, 0, tokens, { logprobs: vocab });
  plan.pages = Int32Array.from(
    Array.from({ length: Math.ceil(tokens.length / 16) }, (_, page) => [0, page, page]).flat(),
  );
  const result = await engine.step(plan);
  const row = new Array(vocab).fill(null);
  result.topIds.forEach((id, index) => (row[id] = result.topLogprobs[index]));
  rows.push(row);
  engine.close();
}
model.close();
process.stdout.write(JSON.stringify({ info, rows }));
