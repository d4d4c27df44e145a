/** llama.cpp through node-llama-cpp in a process of its own: sequences of one context, batched by it automatically. */
import { serveCalls } from '../lib/worker.mjs';
import { batchedRate, DECODE_OUTPUT, DECODE_PROMPT } from './cases.mjs';

let model;
let threads;

/** One context per kind of case and attention variant, made when first used: each has just the sequences that it needs. */
const contexts = new Map();

async function contextFor({ kind, n, flashAttention }) {
  const key = `${kind}/${n}/${flashAttention}`;
  if (!contexts.has(key)) {
    const sequences = kind === 'decode' ? n : 1;
    const contextSize = kind === 'decode' ? DECODE_PROMPT + DECODE_OUTPUT + 16 : n + 16;
    const batching = { dispatchSchedule: 'nextCycle', itemPrioritizationStrategy: 'maximumParallelism' };
    // 512 is llama.cpp's own micro-batch.
    const options = { sequences, contextSize, batchSize: 512, flashAttention, batching };
    const context = await model.createContext({ ...options, threads: { ideal: threads, min: threads } });
    contexts.set(
      key,
      Array.from({ length: sequences }, () => context.getSequence()),
    );
  }
  return contexts.get(key);
}

async function stream(sequence, ids, maxTokens) {
  const result = { ids: [], times: [] };
  for await (const token of sequence.evaluate(ids, { temperature: 0, yieldEogToken: true })) {
    result.times.push(performance.now());
    result.ids.push(token);
    if (result.ids.length >= maxTokens) break;
  }
  return result;
}

async function generate(sequences, prompts, maxTokens) {
  for (const sequence of sequences) await sequence.clearHistory();
  return Promise.all(prompts.map((ids, index) => stream(sequences[index], ids, maxTokens)));
}

serveCalls({
  async load({ gguf, threads: count }) {
    threads = count;
    const { getLlama } = await import('../peers/node_modules/node-llama-cpp/dist/index.js');
    const options = { gpu: false, build: 'never', skipDownload: true, progressLogs: false, logLevel: 'error' };
    const llama = await getLlama({ ...options, maxThreads: threads });
    model = await llama.loadModel({ modelPath: gguf });
    const features = llama.systemInfo.split('|').map((part) => part.replace('CPU :', '').trim());
    const used = features.filter((part) => part.endsWith('= 1')).map((part) => part.replace(' = 1', ''));
    return { variant: `llama.cpp ${llama.llamaCppRelease.release} ${used.join(' ')}` };
  },

  async greedy({ prompts, count }) {
    const sequences = await contextFor({ kind: 'prefill', n: 512, flashAttention: false });
    const results = [];
    for (const ids of prompts) results.push(...(await generate(sequences, [ids], count)));
    return results.map(({ ids }) => ids);
  },

  async decode({ prompts, flashAttention }) {
    const sequences = await contextFor({ kind: 'decode', n: prompts.length, flashAttention });
    const streams = await generate(sequences, prompts, DECODE_OUTPUT);
    return batchedRate(streams.map(({ times }) => times));
  },

  async prefill({ prompts, flashAttention }) {
    const sequences = await contextFor({ kind: 'prefill', n: prompts[0].length, flashAttention });
    await sequences[0].clearHistory();
    const begin = performance.now();
    const { times } = await stream(sequences[0], prompts[0], 1);
    return prompts[0].length / ((times[0] - begin) / 1000);
  },
});
