/** Loads the addon in a worker thread and steps until it is told to end, or is terminated. */
import { parentPort, workerData } from 'node:worker_threads';
import { createEngine, firstPlan, loadAddon, loadModel, nextPlan } from '../fixtures/native-model.mjs';

const addon = loadAddon(workerData.description);
const model = await loadModel(addon, workerData.description);
const engine = createEngine(addon, model, workerData.description);
const tokens = [(await engine.step(firstPlan(0, 0, [1, 2, 3]))).tokens[0]];
parentPort.postMessage(tokens[0]);
if (workerData.manner === 'finish') {
  engine.close();
  model.close();
} else if (workerData.manner === 'step') {
  for (let page = 0; ; page = (page + 1) % 64) {
    engine.step(firstPlan(1, page, [1, 2, 3])).catch(() => {});
    await engine.step(nextPlan(0, tokens.length)).catch(() => {});
  }
} else if (workerData.manner === 'compile') {
  const source = { kind: 'regex', text: '(a|b|cd){1,40}[0-9]+x*' };
  const spaces = { anySpace: true, space: '', onlyDeclared: false };
  const options = { mode: 'generate', assertFormats: false, draft7: false, ...spaces, seconds: 10 };
  for (;;)
    await Promise.all([addon.compileGrammar(source, options).result, addon.compileGrammar(source, options).result]);
} else if (workerData.manner === 'load') {
  for (;;) await Promise.all([loadModel(addon, workerData.description), loadModel(addon, workerData.description)]);
}
