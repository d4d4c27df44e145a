/** llama.cpp in a process of its own, asked for one measurement at a time. */
import { serveCalls } from '../lib/worker.mjs';
import { batchedRate, DECODE_OUTPUT, DECODE_PROMPT } from './cases.mjs';
import { loadLlama } from './llama-native.mjs';

let llama;

/** One context per kind of case and attention variant, made when first used: each has just the sequences that it needs. */
const contexts = new Map();

async function contextFor({ kind, n, context = 0, flashAttention }) {
  const key = `${kind}/${n}/${context}/${flashAttention}`;
  if (!contexts.has(key)) {
    const sequences = kind === 'decode' ? n : 1;
    const contextSize = kind === 'decode' ? context + DECODE_PROMPT + DECODE_OUTPUT + 16 : n + 16;
    contexts.set(key, await llama.createContext({ sequences, contextSize, flashAttention }));
  }
  return contexts.get(key);
}

/** Feeds every sequence its tokens; what was sampled after each, in order. */
async function feed(context, pieces) {
  const sampled = new Map();
  let left = pieces;
  while (left.length > 0) {
    for (const [sequence, token] of await context.step(left)) sampled.set(sequence, token);
    left = left.filter(({ ids }) => ids.length > 0);
  }
  return pieces.map(({ sequence }) => sampled.get(sequence));
}

/**
 * All prompts together to the same length; the ids of each stream and the times (ms) at which they came. Their first `common` tokens are
 * the same at every call with this context, and are fed at the first one only.
 */
async function generate(context, prompts, maxTokens, common = 0) {
  const streams = prompts.map(() => ({ ids: [], times: [] }));
  let pieces = prompts.map((ids, sequence) => {
    const position = context.keep(sequence, common);
    return { sequence, position, ids: ids.slice(position) };
  });
  for (let step = 0; step < maxTokens; step++) {
    const tokens = await feed(context, pieces);
    const now = performance.now();
    streams.forEach(({ ids, times }, sequence) => {
      ids.push(tokens[sequence]);
      times.push(now);
    });
    pieces = prompts.map((ids, sequence) => ({ sequence, position: ids.length + step, ids: [tokens[sequence]] }));
  }
  return streams;
}

serveCalls({
  async load(options) {
    llama = await loadLlama(options);
    return { variant: llama.variant };
  },

  async greedy({ prompts, count }) {
    const context = await contextFor({ kind: 'prefill', n: 512, flashAttention: false });
    const results = [];
    for (const ids of prompts) results.push(...(await generate(context, [ids], count)));
    return results.map(({ ids }) => ids);
  },

  async decode({ prompts, context: common, flashAttention }) {
    const context = await contextFor({ kind: 'decode', n: prompts.length, context: common, flashAttention });
    const streams = await generate(context, prompts, DECODE_OUTPUT, common);
    return batchedRate(streams.map(({ times }) => times));
  },

  async prefill({ prompts, flashAttention }) {
    const context = await contextFor({ kind: 'prefill', n: prompts[0].length, flashAttention });
    const begin = performance.now();
    const [{ times }] = await generate(context, prompts, 1);
    return prompts[0].length / ((times[0] - begin) / 1000);
  },
});
