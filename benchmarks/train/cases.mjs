/** What is trained: adapters, optimizer and rows, the same for both. */
import { randomFrom } from '../lib/stats.mjs';

export const RANK = 8;
export const ALPHA = 16;
/** The projections that carry factors: of models with experts those of attention. */
export const modulesOf = ({ experts }) => ['q', 'k', 'v', 'o', ...(experts ? [] : ['gate', 'up', 'down'])];
export const ADAMW = { learningRate: 5e-6, beta1: 0.9, beta2: 0.99, eps: 1e-8, weightDecay: 0.1, maxGradNorm: 0.1 };

export const ROW = 512;
export const GROUP = { size: 8, prompt: 400, completion: 100 };

function randomTokens(vocab, count, seed) {
  const random = randomFrom(seed);
  return Array.from({ length: count }, () => Math.floor(random() * vocab));
}

/** One sequence, every token but the first predicted. */
export function plainRow(vocab, length, seed) {
  const tokens = randomTokens(vocab, length, seed);
  return { tokens, segments: [0, length, -1, 0], targets: [...tokens.slice(1), -1] };
}

/** A prompt and completions: as one row that shares the prompt, and as rows of their own. Completions alone are predicted. */
export function groupRows(vocab, seed) {
  const prompt = randomTokens(vocab, GROUP.prompt, seed);
  const completions = Array.from({ length: GROUP.size }, (_, i) => randomTokens(vocab, GROUP.completion, seed + 1 + i));
  const none = new Array(GROUP.prompt).fill(-1);
  const shared = { tokens: [...prompt], segments: [0, GROUP.prompt, -1, 0], targets: [...none] };
  for (const completion of completions) {
    shared.segments.push(shared.tokens.length, GROUP.completion, 0, GROUP.prompt);
    shared.tokens.push(...completion);
    shared.targets.push(...completion.slice(1), -1);
  }
  const apart = completions.map((completion) => ({
    tokens: [...prompt, ...completion],
    segments: [0, GROUP.prompt + GROUP.completion, -1, 0],
    targets: [...none, ...completion.slice(1), -1],
  }));
  return { shared: [shared], apart };
}
