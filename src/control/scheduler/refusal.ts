import type { SamplingSpec } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import type { SchedulerOptions } from './admission.ts';
import { pagesFor } from './pages.ts';

/** Native code takes no more. */
const MAX_BAD_WORDS = 100_000;
const NO_IDS = new Int32Array(0);
const NO_VALUES = new Float32Array(0);

/** Why a request can never run, or null. Native code would refuse it too, but with everything else that is in its step. */
export function refusal(request: SequenceRequest, options: SchedulerOptions): string | null {
  const { promptIds, resumeIds, sampling } = request;
  if (!(promptIds instanceof Int32Array) || !(resumeIds instanceof Int32Array))
    return 'Token ids must be an Int32Array.';
  if (promptIds.length < 1) return 'The prompt is empty.';
  if (promptIds.length >= options.maxModelLen) {
    return `The prompt has ${promptIds.length} tokens, which leaves no room for an answer in the context of ${options.maxModelLen}.`;
  }
  const badId = [promptIds, resumeIds].flatMap((ids) => ids.find((id) => id < 0 || id >= options.vocabSize) ?? []);
  if (badId.length > 0) return `Token id ${badId[0]} is outside of the vocabulary of ${options.vocabSize}.`;
  const length = Math.min(promptIds.length + sampling.maxTokens, options.maxModelLen);
  if (pagesFor(length - 1) > options.pages) {
    return `A sequence of ${length} tokens needs ${pagesFor(length - 1)} KV pages, and there are ${options.pages}.`;
  }
  return fieldRefusal(request, options) ?? samplingRefusal(sampling, options) ?? controlsRefusal(sampling, options);
}

function fieldRefusal(request: SequenceRequest, options: SchedulerOptions): string | null {
  const { priority, tenant, adapter = null, cacheSalt = null, promptLogprobs = -1, promptScored = 0 } = request;
  const checks: [keyof SequenceRequest, boolean][] = [
    ['priority', Number.isFinite(priority)],
    ['tenant', typeof tenant === 'string'],
    ['adapter', adapter === null || (typeof adapter.version === 'string' && adapter.version !== '')],
    ['cacheSalt', cacheSalt === null || typeof cacheSalt === 'string'],
    ['promptLogprobs', whole(promptLogprobs, -1) && promptLogprobs <= options.maxLogprobs],
    ['promptScored', whole(promptScored, 0)],
  ];
  const wrong = checks.find(([, fine]) => !fine);
  return wrong ? `The request's ${wrong[0]} is out of range.` : null;
}

function samplingRefusal(sampling: SamplingSpec, options: SchedulerOptions): string | null {
  const { barredIds = NO_IDS } = sampling;
  const checks: [keyof SamplingSpec, boolean][] = [
    ['temperature', within(sampling.temperature, 0, Number.MAX_VALUE)],
    ['topP', within(sampling.topP, 0, 1) && sampling.topP > 0],
    ['topK', whole(sampling.topK, 0)],
    ['minP', within(sampling.minP, 0, 1)],
    ['seed', typeof sampling.seed === 'bigint'],
    ['choice', whole(sampling.choice, 0)],
    ['maxTokens', whole(sampling.maxTokens, 1)],
    ['minTokens', whole(sampling.minTokens, 0)],
    ['stopIds', idsWithin(sampling.stopIds, options.vocabSize) && sampling.stopIds.length <= 1024],
    ['barredIds', idsWithin(barredIds, options.vocabSize) && barredIds.length <= 1024],
    ['logprobs', whole(sampling.logprobs, -1) && sampling.logprobs <= options.maxLogprobs],
  ];
  const wrong = checks.find(([, fine]) => !fine);
  return wrong ? `The sampling parameter ${wrong[0]} is out of range.` : null;
}

/** The optional controls; see SamplingSpec. */
function controlsRefusal(sampling: SamplingSpec, { vocabSize }: SchedulerOptions): string | null {
  const { frequencyPenalty = 0, presencePenalty = 0, repetitionPenalty = 1, logprobsMode = 'raw' } = sampling;
  const { biasIds = NO_IDS, biasValues = NO_VALUES, allowedIds = NO_IDS, badWords = [] } = sampling;
  const checks: [keyof SamplingSpec, boolean][] = [
    ['logprobsMode', ['raw', 'temperature', 'processed'].includes(logprobsMode)],
    ['frequencyPenalty', within(frequencyPenalty, -2, 2)],
    ['presencePenalty', within(presencePenalty, -2, 2)],
    ['repetitionPenalty', within(repetitionPenalty, 0, Number.MAX_VALUE) && repetitionPenalty > 0],
    ['biasIds', idsWithin(biasIds, vocabSize)],
    ['biasValues', biasValues instanceof Float32Array && biasValues.length === biasIds.length],
    ['biasValues', biasValues.every((value) => within(value, -100, 100))],
    ['allowedIds', idsWithin(allowedIds, vocabSize)],
    ['allowedIds', allowedIds.every((id, index) => index === 0 || id >= (allowedIds[index - 1] as number))],
    ['badWords', Array.isArray(badWords) && badWords.length <= MAX_BAD_WORDS],
    ['badWords', badWords.every((word) => idsWithin(word, vocabSize) && word.length > 0)],
  ];
  const wrong = checks.find(([, fine]) => !fine);
  return wrong ? `The sampling parameter ${wrong[0]} is out of range.` : null;
}

function within(value: number, low: number, high: number): boolean {
  return value >= low && value <= high;
}

function whole(value: number, low: number): boolean {
  return Number.isInteger(value) && within(value, low, 2 ** 31 - 1);
}

function idsWithin(ids: Int32Array, vocabSize: number): boolean {
  return ids instanceof Int32Array && ids.every((id) => id >= 0 && id < vocabSize);
}
