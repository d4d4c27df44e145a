/**
 * llama.cpp through the native layer of node-llama-cpp, in a process of its own. The batches are put together here, as llama.cpp's own
 * llama-batched-bench does it: node-llama-cpp's scheduling over event loop turns would leave the sequence that was sampled last out of
 * each batch (7 of 8 streams per step), which says nothing about llama.cpp.
 */
import { mkdtempSync, symlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { serveCalls } from '../lib/worker.mjs';
import { batchedRate, DECODE_OUTPUT, DECODE_PROMPT } from './cases.mjs';

const PEERS = path.resolve(import.meta.dirname, '../peers/node_modules');
const BINARIES = path.join(PEERS, '@node-llama-cpp/linux-x64/bins/linux-x64');
/** llama.cpp's own batch and micro-batch. */
const BATCH = 512;

let model;
let threads;
let LlamaSampler;

/** One context per kind of case and attention variant, made when first used: each has just the sequences that it needs. */
const contexts = new Map();

async function contextFor({ kind, n, flashAttention }) {
  const key = `${kind}/${n}/${flashAttention}`;
  if (!contexts.has(key)) {
    const sequences = kind === 'decode' ? n : 1;
    const contextSize = kind === 'decode' ? DECODE_PROMPT + DECODE_OUTPUT + 16 : n + 16;
    const options = { sequences, contextSize, batchSize: BATCH, flashAttention };
    const context = await model.createContext({ ...options, threads: { ideal: threads, min: threads } });
    const samplers = Array.from({ length: sequences }, () => {
      const sampler = new LlamaSampler(model);
      sampler.applyConfig({ temperature: 0 });
      return sampler._sampler;
    });
    context._ctx.setThreads(threads);
    contexts.set(key, { native: context._ctx, samplers });
  }
  return contexts.get(key);
}

/** Feeds each sequence its tokens in full batches and samples greedily after the last of each. */
async function feed({ native, samplers }, pieces) {
  const sampled = [];
  let waiting = pieces.map(({ ids, position }, sequence) => ({ ids, position, sequence }));
  while (waiting.length > 0) {
    const batch = [];
    let room = BATCH;
    for (const piece of waiting) {
      if (room === 0) break;
      const count = Math.min(room, piece.ids.length);
      batch.push({ piece, count });
      room -= count;
    }
    native.initBatch(BATCH - room);
    const ready = [];
    for (const { piece, count } of batch) {
      const ends = count === piece.ids.length;
      const logits = Uint32Array.from(ends ? [count - 1] : []);
      const tokens = Uint32Array.from(piece.ids.slice(0, count));
      const [index] = native.addToBatch(piece.sequence, piece.position, tokens, logits);
      if (ends) ready.push({ sequence: piece.sequence, index });
      piece.ids = piece.ids.slice(count);
      piece.position += count;
    }
    await native.decodeBatch();
    const tokens = await Promise.all(ready.map(({ sequence, index }) => native.sampleToken(index, samplers[sequence])));
    ready.forEach(({ sequence }, at) => (sampled[sequence] = tokens[at]));
    waiting = waiting.filter(({ ids }) => ids.length > 0);
  }
  return sampled;
}

/** All prompts together to the same length; the ids of each stream and the times (ms) at which they came. */
async function generate(context, prompts, maxTokens) {
  prompts.forEach((_, sequence) => context.native.disposeSequence(sequence));
  const streams = prompts.map(() => ({ ids: [], times: [] }));
  let pieces = prompts.map((ids) => ({ ids, position: 0 }));
  for (let step = 0; step < maxTokens; step++) {
    const tokens = await feed(context, pieces);
    const now = performance.now();
    streams.forEach(({ ids, times }, sequence) => {
      ids.push(tokens[sequence]);
      times.push(now);
    });
    pieces = prompts.map((ids, sequence) => ({ ids: [tokens[sequence]], position: ids.length + step }));
  }
  return streams;
}

/** Loads one of llama.cpp's CPU back-ends (haswell: AVX2) before node-llama-cpp picks the best one that the machine can run. */
function forceBackend(name) {
  const folder = mkdtempSync(path.join(tmpdir(), 'llama-backend-'));
  const file = `libggml-cpu-${name}.so`;
  symlinkSync(path.join(BINARIES, file), path.join(folder, file));
  createRequire(import.meta.url)(path.join(BINARIES, 'llama-addon.node')).loadBackends(folder);
}

serveCalls({
  async load({ gguf, threads: count, backend }) {
    threads = count;
    if (backend) forceBackend(backend);
    const { getLlama } = await import(path.join(PEERS, 'node-llama-cpp/dist/index.js'));
    ({ LlamaSampler } = await import(path.join(PEERS, 'node-llama-cpp/dist/evaluator/LlamaContext/LlamaSampler.js')));
    const options = { gpu: false, build: 'never', skipDownload: true, progressLogs: false, logLevel: 'error' };
    const llama = await getLlama({ ...options, maxThreads: threads });
    model = await llama.loadModel({ modelPath: gguf });
    const features = llama.systemInfo.split('|').map((part) => part.replace('CPU :', '').trim());
    const used = features.filter((part) => part.endsWith('= 1')).map((part) => part.replace(' = 1', ''));
    return { variant: `llama.cpp ${llama.llamaCppRelease.release} ${used.join(' ')}` };
  },

  async greedy({ prompts, count }) {
    const context = await contextFor({ kind: 'prefill', n: 512, flashAttention: false });
    const results = [];
    for (const ids of prompts) results.push(...(await generate(context, [ids], count)));
    return results.map(({ ids }) => ids);
  },

  async decode({ prompts, flashAttention }) {
    const context = await contextFor({ kind: 'decode', n: prompts.length, flashAttention });
    const streams = await generate(context, prompts, DECODE_OUTPUT);
    return batchedRate(streams.map(({ times }) => times));
  },

  async prefill({ prompts, flashAttention }) {
    const context = await contextFor({ kind: 'prefill', n: prompts[0].length, flashAttention });
    const begin = performance.now();
    const [{ times }] = await generate(context, prompts, 1);
    return prompts[0].length / ((times[0] - begin) / 1000);
  },
});
