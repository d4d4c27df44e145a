/** What is measured, and the prompts; both engines get the same token ids. */
import { randomFrom } from '../lib/stats.mjs';

/** Prompt and output of the decode cases without a context: short, so that it is the weights and not the context that is read. */
export const DECODE_PROMPT = 16;
export const DECODE_OUTPUT = 64;

export const cases = [
  { kind: 'decode', n: 1 },
  { kind: 'decode', n: 8 },
  { kind: 'decode', n: 32 },
  { kind: 'decode', n: 1, context: 4096 },
  { kind: 'decode', n: 8, context: 1024 },
  { kind: 'prefill', n: 512 },
  { kind: 'prefill', n: 2048 },
];

export function caseName(format, { kind, n, context }) {
  return `engine/${format}/${kind}/${n}${context ? `/context-${context}` : ''}`;
}

/** Ids of ordinary tokens; another seed gives another prompt, so that nothing is found in a prefix cache. */
export function prompt(shape, length, seed) {
  const random = randomFrom(seed);
  // The first 256 ids are bytes, the last few are special tokens.
  const words = shape.tokenizer - 300;
  return Array.from({ length }, () => 257 + Math.floor(random() * (words - 257)));
}

/**
 * One prompt per stream of a case in a round. Of those with a context all but the last tokens are the same in every
 * round: both engines keep them.
 */
export function promptsOf(shape, { kind, n, context = 0 }, round) {
  const seed = round * 100_003 + n * 101 + (kind === 'decode' ? 7 : 0);
  if (kind === 'prefill') return [prompt(shape, n, seed)];
  return Array.from({ length: n }, (_, stream) => [
    ...prompt(shape, context, 31 * n + stream),
    ...prompt(shape, DECODE_PROMPT, seed * 64 + stream),
  ]);
}

/**
 * Tokens per second of streams that decode together. Each stream is the list of times (ms) at which its tokens came.
 * Counted from when the last stream has its first token until the first one is complete: only full batches count.
 */
export function batchedRate(streams) {
  const begin = Math.max(...streams.map((times) => times[0]));
  const end = Math.min(...streams.map((times) => times.at(-1)));
  const tokens = streams.flat().filter((time) => time > begin && time <= end).length;
  return tokens / ((end - begin) / 1000);
}
