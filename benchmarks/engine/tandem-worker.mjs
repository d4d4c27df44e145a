/** Tandem's engine (scheduler and addon, no HTTP, no second process) in a process of its own. */
import { createLocalEngine } from '../../dist/control/engine/local.js';
import { loadModel } from '../../dist/control/models/load.js';
import { serveCalls } from '../lib/worker.mjs';
import { batchedRate, DECODE_OUTPUT } from './cases.mjs';
import { engineConfig, KV_CACHE_BYTES } from '../lib/engine-config.mjs';

let engine;
let adapters = [];

const GREEDY = { temperature: 0, topP: 1, topK: 0, minP: 0, seed: 0n, choice: 0, minTokens: 0, logprobs: -1 };

/**
 * Runs the prompts together to their full length, on the base model or spread over `refs`; returns each one's ids and
 * the times at which they came.
 */
function generate(prompts, maxTokens, refs = []) {
  const streams = prompts.map(() => ({ ids: [], times: [] }));
  const sampling = { ...GREEDY, maxTokens, stopIds: new Int32Array() };
  return new Promise((resolve, reject) => {
    let open = prompts.length;
    const requests = prompts.map((ids, index) => ({
      promptIds: Int32Array.from(ids),
      sampling,
      priority: 0,
      tenant: 'bench',
      adapter: refs[index % refs.length] ?? null,
    }));
    engine.submit(requests, (index, output) => {
      const now = performance.now();
      for (const id of output.tokens) {
        streams[index].ids.push(id);
        streams[index].times.push(now);
      }
      if (output.finish === 'error') reject(new Error(output.error));
      else if (output.finish && --open === 0) resolve(streams);
    });
  });
}

serveCalls({
  async load({ directory, threads, maxBatchTokens, maxModelLen, sequences, kvCacheBytes = KV_CACHE_BYTES }) {
    const model = await loadModel(directory);
    const sizes = { maxSequences: sequences, maxBatchTokens, maxModelLen };
    engine = await createLocalEngine({ ...engineConfig(model, threads, sizes), kvCacheBytes });
    return { variant: `Tandem ${engine.info.isa}`, tokenizer: model.tokenizerSize };
  },

  async greedy({ prompts, count }) {
    const streams = [];
    for (const ids of prompts) streams.push(...(await generate([ids], count)));
    return streams.map(({ ids }) => ids);
  },

  /** Loads adapters; tells whether each changes what the first prompt says. */
  async adapters({ folders, prompts }) {
    adapters = folders.map((directory, index) => ({ version: String(index), directory }));
    for (const adapter of adapters) await engine.loadAdapter(adapter);
    const said = async (refs) => String((await generate(prompts.slice(0, 1), 16, refs))[0].ids);
    const base = await said([]);
    let changed = true;
    for (const adapter of adapters) changed &&= (await said([adapter])) !== base;
    return { changed };
  },

  async decode({ prompts, count = DECODE_OUTPUT, adapters: adapted = false }) {
    const streams = await generate(prompts, count, adapted ? adapters : []);
    return batchedRate(streams.map(({ times }) => times));
  },

  async prefill({ prompts }) {
    const begin = performance.now();
    const [{ times }] = await generate(prompts, 1);
    return prompts[0].length / ((times[0] - begin) / 1000);
  },
});
