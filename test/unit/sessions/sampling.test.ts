import { describe, expect, it } from 'vitest';
import { resolveSampling, type SamplingContext } from '../../../src/control/sessions/sampling.ts';
import { SessionError, type SamplingRequest } from '../../../src/control/sessions/session.ts';
import type { SamplingSpec } from '../../../src/control/engine/native.ts';
import { SAMPLING } from '../../fixtures/generation-input.ts';

const REQUEST: SamplingRequest = { ...SAMPLING, seed: 7n, maxTokens: 10 };

const LIMITS: SamplingContext = {
  promptTokens: 20,
  maxModelLen: 100,
  vocabSize: 1000,
  generation: { eosTokenIds: [5] },
  wordForms: [],
};

function first(request: Partial<SamplingRequest>, limits: Partial<SamplingContext> = {}): SamplingSpec {
  const [spec] = resolveSampling({ ...REQUEST, ...request }, { ...LIMITS, ...limits });
  if (!spec) throw new Error('no spec');
  return spec;
}

function refusal(request: Partial<SamplingRequest>, limits: Partial<SamplingContext> = {}): SessionError {
  try {
    first(request, limits);
  } catch (error) {
    if (error instanceof SessionError) return error;
    throw error;
  }
  throw new Error('accepted');
}

const DEFAULTS = { eosTokenIds: [5], temperature: 0.6, topP: 0.9, topK: 40, minP: 0.05 };

describe('sampling', () => {
  it.each<[string, Partial<SamplingRequest>, Partial<SamplingContext>, Partial<SamplingSpec>]>([
    ['the plain defaults', {}, {}, { temperature: 1, topP: 1, topK: 0, minP: 0, logprobs: -1, maxTokens: 10 }],
    ["the model's defaults", {}, { generation: DEFAULTS }, { temperature: 0.6, topP: 0.9, topK: 40, minP: 0.05 }],
    [
      'wishes before defaults',
      { temperature: 1, topP: 1, topK: 0, minP: 0 },
      { generation: DEFAULTS },
      { temperature: 1, topP: 1, topK: 0, minP: 0 },
    ],
    [
      'greedy forces the rest off',
      { temperature: 0 },
      { generation: DEFAULTS },
      { temperature: 0, topP: 1, topK: 0, minP: 0 },
    ],
    ['minus zero is greedy', { temperature: -0 }, {}, { temperature: 0 }],
    ['tiny is raised', { temperature: 1e-300, topK: 5 }, {}, { temperature: 0.01, topK: 5 }],
    ['small is raised', { temperature: 0.001 }, {}, { temperature: 0.01 }],
    ['a small default is raised', {}, { generation: { eosTokenIds: [], temperature: 1e-6 } }, { temperature: 0.01 }],
    ['top_k -1 is off', { topK: -1 }, { generation: DEFAULTS }, { topK: 0 }],
    ['top_k beyond the vocabulary is off', { topK: 1000 }, {}, { topK: 0 }],
    ['a negative seed as unsigned bits', { seed: -1n }, {}, { seed: 2n ** 64n - 1n }],
    ['the whole context where nothing is said', { maxTokens: null }, {}, { maxTokens: 80 }],
    ['as much as fits where more may be said', { maxTokens: 101, fitsMaxTokens: true }, {}, { maxTokens: 80 }],
    ['what was said where it fits', { maxTokens: 80, fitsMaxTokens: true }, {}, { maxTokens: 80 }],
    [
      "the model's own length",
      { maxTokens: null },
      { generation: { eosTokenIds: [], maxNewTokens: 30 } },
      { maxTokens: 30 },
    ],
    [
      "the model's own length, cut",
      { maxTokens: null },
      { generation: { eosTokenIds: [], maxNewTokens: 300 } },
      { maxTokens: 80 },
    ],
    ['a length that just fits', { maxTokens: 80 }, {}, { maxTokens: 80 }],
    ['stop ids with EOS', { stopTokenIds: [9, 9, 5] }, {}, { stopIds: Int32Array.of(5, 9) }],
    ['stop ids without EOS', { stopTokenIds: [9], ignoreEos: true }, {}, { stopIds: Int32Array.of(9) }],
    [
      'penalties',
      { frequencyPenalty: 0.5, presencePenalty: -1, repetitionPenalty: 1.2 },
      {},
      { frequencyPenalty: 0.5, presencePenalty: -1, repetitionPenalty: 1.2 },
    ],
    [
      'a repetition penalty too small for single precision',
      { repetitionPenalty: 1e-308 },
      {},
      { repetitionPenalty: 1e-30 },
    ],
    ['one too large for it', { repetitionPenalty: 1e308 }, {}, { repetitionPenalty: 1e30 }],
    [
      "the model's repetition penalty",
      {},
      { generation: { ...DEFAULTS, repetitionPenalty: 1.3 } },
      { repetitionPenalty: 1.3 },
    ],
    [
      'a bias, cut at 100',
      {
        logitBias: new Map([
          [7, 1000],
          [3, -0.5],
        ]),
      },
      {},
      { biasIds: Int32Array.of(7, 3), biasValues: Float32Array.of(100, -0.5) },
    ],
    ['allowed ids, ascending and once', { allowedTokenIds: [9, 2, 9] }, {}, { allowedIds: Int32Array.of(2, 9) }],
    [
      'forms of bad words',
      { badWords: ['x'] },
      { wordForms: [{ word: 0, ids: Int32Array.of(4, 5) }] },
      { badWords: [Int32Array.of(4, 5)] },
    ],
    ['EOS among the ends', { stopTokenIds: [7] }, {}, { stopIds: Int32Array.of(5, 7) }],
    [
      'EOS that ends nothing, but waits for min_tokens',
      { stopTokenIds: [7], ignoreEos: true },
      {},
      { stopIds: Int32Array.of(7), barredIds: Int32Array.of(5) },
    ],
    [
      'EOS as a stop id of the request',
      { stopTokenIds: [5], ignoreEos: true },
      {},
      { stopIds: Int32Array.of(5), barredIds: new Int32Array(0) },
    ],
    ['logprobs of the sampled token', { topLogprobs: 0 }, {}, { logprobs: 0 }],
    ['all logprobs', { topLogprobs: -1 }, {}, { logprobs: 1000 }],
    ['no more logprobs than tokens', { topLogprobs: 2000 }, {}, { logprobs: 1000 }],
  ])('%s', (_, request, limits, expected) => {
    expect(first(request, limits)).toMatchObject(expected);
  });

  it('gives choice i the seed + i, and without a seed its own number', () => {
    const specs = resolveSampling({ ...REQUEST, n: 3, seed: -1n }, LIMITS);
    expect(specs.map(({ seed, choice }) => [seed, choice])).toEqual([[2n ** 64n - 1n, 0], [0n, 0], [1n, 0]]); // prettier-ignore
    const unseeded = resolveSampling({ ...REQUEST, n: 3, seed: null }, LIMITS);
    expect(new Set(unseeded.map(({ seed }) => seed)).size).toBe(1);
    expect(unseeded.map(({ choice }) => choice)).toEqual([0, 1, 2]);
  });

  it('draws a 64-bit seed where none is given', () => {
    const seeds = Array.from({ length: 20 }, () => first({ seed: null }).seed);
    expect(new Set(seeds).size).toBe(20);
    expect(seeds.some((seed) => seed > 2n ** 60n)).toBe(true);
    expect(seeds.every((seed) => seed >= 0n && seed < 2n ** 64n)).toBe(true);
  });

  it.each<[Partial<SamplingRequest>, Partial<SamplingContext>, string, string, string]>([
    [{ n: 3, temperature: 0 }, {}, 'bad_request', 'n must be 1 when using greedy sampling, got 3.', 'n'],
    [{ n: 3 }, { generation: { eosTokenIds: [], temperature: 0 } }, 'bad_request', 'greedy', 'n'],
    [{}, { promptTokens: 100 }, 'context_length', 'maximum context length is 100 tokens', 'input_tokens'],
    [{}, { promptTokens: 5000 }, 'context_length', 'your request has 5000 input tokens', 'input_tokens'],
    [{ maxTokens: 81 }, {}, 'context_length', 'maximum context length is 100 tokens', 'max_tokens'],
    [
      { maxTokens: 101, maxTokensField: 'max_completion_tokens' },
      {},
      'context_length',
      'max_completion_tokens=101 cannot be greater than max_model_len=100',
      'max_completion_tokens',
    ],
    [
      { minTokens: 11 },
      {},
      'bad_request',
      'min_tokens must be less than or equal to max_tokens=10, got 11.',
      'min_tokens',
    ],
    [
      { minTokens: 11, maxTokensField: 'max_output_tokens' },
      {},
      'bad_request',
      'min_tokens must be less than or equal to max_output_tokens=10, got 11.',
      'min_tokens',
    ],
    [
      { stopTokenIds: Array.from({ length: 1025 }, (_, i) => i) },
      { vocabSize: 5000 },
      'bad_request',
      'at most 1024',
      'stop_token_ids',
    ],
    [
      {
        logitBias: new Map([
          [1000, 1],
          [-3, 1],
        ]),
      },
      {},
      'bad_request',
      '[1000, -3] in logit_bias contain out-of-vocab token ids. Vocabulary size: 1000',
      'logit_bias',
    ],
    [{ allowedTokenIds: [1000] }, {}, 'bad_request', 'out-of-vocab', 'allowed_token_ids'],
    [
      { badWords: ['x'] },
      { wordForms: [{ word: 0, ids: new Int32Array(0) }] },
      'bad_request',
      'has no tokens',
      'bad_words',
    ],
  ])('refuses %j', (request, limits, code, message, param) => {
    const error = refusal(request, limits);
    expect(error).toMatchObject({ code, param });
    expect(error.message).toContain(message);
    expect(error.message.length).toBeLessThan(400);
  });
});
