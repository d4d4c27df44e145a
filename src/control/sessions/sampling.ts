/** The client's sampling wishes + the model's defaults -> what native code gets, with every refusal that is left. */
import { randomBytes } from 'node:crypto';
import type { SamplingSpec } from '../engine/native.ts';
import type { GenerationDefaults } from '../models/model.ts';
import { SessionError, type SamplingRequest } from './session.ts';
import { resolveControls } from './token-controls.ts';
import type { WordForm } from './word-forms.ts';

export interface SamplingLimits {
  promptTokens: number;
  maxModelLen: number;
  vocabSize: number;
  /** -1 = the whole vocabulary may be asked for. */
  maxLogprobs: number;
  generation: GenerationDefaults;
  /** Of the request's bad words. */
  wordForms: readonly WordForm[];
}

/** Choices of one request; the queue bounds their tokens. */
export const MAX_CHOICES = 128;
/** Native code takes at most this many stop ids. */
const MAX_STOP_IDS = 1024;
const MAX_STOP_STRINGS = 1024;
const MAX_STOP_CHARS = 65_536;
/** Below it sampling is greedy, as in vLLM; up to MIN_TEMPERATURE it is raised to that. */
const GREEDY_BELOW = 1e-5;
const MIN_TEMPERATURE = 0.01;

function refuse(message: string, param: string): never {
  throw new SessionError('bad_request', message, param);
}

/** One spec per choice: they differ in `seed` or `choice` only, from which native code derives its noise. */
export function resolveSampling(request: SamplingRequest, limits: SamplingLimits): SamplingSpec[] {
  if (request.n < 1) refuse(`n must be at least 1, got ${request.n}.`, 'n');
  if (request.n > MAX_CHOICES) refuse(`n must be at most ${MAX_CHOICES}, got ${request.n}.`, 'n');
  checkStops(request.stop);
  const shape = resolveShape(request, limits.generation, limits.vocabSize);
  if (shape.temperature === 0 && request.n > 1 && request.beamSearch === null)
    refuse(`n must be 1 when using greedy sampling, got ${request.n}.`, 'n');
  const maxTokens = resolveMaxTokens(request, limits);
  if (request.minTokens > maxTokens) {
    refuse(`min_tokens must be less than or equal to max_tokens=${maxTokens}, got ${request.minTokens}.`, 'min_tokens');
  }
  const spec = {
    ...shape,
    maxTokens,
    minTokens: request.minTokens,
    stopIds: resolveStopIds(request, limits),
    logprobs: resolveLogprobs(request.topLogprobs, limits),
    ...resolveControls(request, limits.wordForms, limits.generation, limits.vocabSize),
  };
  const noise = noiseOf(request.seed);
  return Array.from({ length: request.n }, (_, choice) => ({ ...spec, ...noise(choice) }));
}

/** Choice i of a seeded request is what seed + i gives alone, as in vLLM. */
function noiseOf(seed: bigint | null): (choice: number) => Pick<SamplingSpec, 'seed' | 'choice'> {
  if (seed !== null) return (choice) => ({ seed: BigInt.asUintN(64, seed + BigInt(choice)), choice: 0 });
  const random = randomBytes(8).readBigUInt64LE();
  return (choice) => ({ seed: random, choice });
}

type Shape = Pick<SamplingSpec, 'temperature' | 'topP' | 'topK' | 'minP'>;

function resolveShape(request: SamplingRequest, generation: GenerationDefaults, vocabSize: number): Shape {
  const temperature = request.temperature ?? generation.temperature ?? 1;
  if (temperature < GREEDY_BELOW) return { temperature: 0, topP: 1, topK: 0, minP: 0 };
  const topK = request.topK ?? generation.topK ?? 0;
  return {
    temperature: Math.max(temperature, MIN_TEMPERATURE),
    topP: request.topP ?? generation.topP ?? 1,
    topK: topK < 1 || topK >= vocabSize ? 0 : topK,
    minP: request.minP ?? generation.minP ?? 0,
  };
}

function resolveMaxTokens(request: SamplingRequest, limits: SamplingLimits): number {
  const { promptTokens, maxModelLen, generation } = limits;
  const left = maxModelLen - promptTokens;
  const context = `This model's maximum context length is ${maxModelLen} tokens.`;
  if (left < 1) {
    const message = `${context} However, your request has ${promptTokens} input tokens. Please reduce the length of the input messages.`;
    throw new SessionError('context_length', message, 'input_tokens');
  }
  const { maxTokens, maxTokensField: field } = request;
  if (maxTokens === null) return Math.min(left, generation.maxNewTokens ?? left);
  if (maxTokens < 0) refuse(`${field} must be at least 1, got ${maxTokens}.`, field);
  // The engine scores a prompt on its way to a token.
  if (maxTokens === 0) return 1;
  if (maxTokens > left) {
    const total = promptTokens + maxTokens;
    const reason =
      maxTokens > maxModelLen
        ? `${field}=${maxTokens} cannot be greater than max_model_len=${maxModelLen}. ${context}`
        : `${context} However, you requested ${maxTokens} output tokens and your prompt contains ${promptTokens} input tokens, for a total of ${total} tokens. Please reduce the length of the input or of the output.`;
    throw new SessionError('context_length', reason, field);
  }
  return maxTokens;
}

function resolveStopIds(request: SamplingRequest, limits: SamplingLimits): Int32Array {
  const outside = request.stopTokenIds.filter((id) => id < 0 || id >= limits.vocabSize || !Number.isInteger(id));
  if (outside.length > 0) {
    const named = outside.slice(0, 10).join(', ');
    refuse(
      `stop_token_ids [${named}] contain out-of-vocab token ids. Vocabulary size: ${limits.vocabSize}`,
      'stop_token_ids',
    );
  }
  const ids = new Set([...(request.ignoreEos ? [] : limits.generation.eosTokenIds), ...request.stopTokenIds]);
  if (ids.size > MAX_STOP_IDS)
    refuse(`stop_token_ids must hold at most ${MAX_STOP_IDS} ids, EOS ids included.`, 'stop_token_ids');
  return Int32Array.from(ids);
}

type LogprobLimits = Pick<SamplingLimits, 'maxLogprobs' | 'vocabSize'>;

function resolveLogprobs(topLogprobs: number | null, limits: LogprobLimits): number {
  return topLogprobs === null ? -1 : logprobCount(topLogprobs, limits, 'sample', 'logprobs');
}

export function resolvePromptLogprobs(count: number, limits: LogprobLimits): number {
  return logprobCount(count, limits, 'prompt', 'prompt_logprobs');
}

/** `count`: -1 = the whole vocabulary. */
function logprobCount(count: number, { maxLogprobs, vocabSize }: LogprobLimits, of: string, param: string): number {
  const wanted = count === -1 ? vocabSize : count;
  if (maxLogprobs !== -1 && wanted > maxLogprobs) {
    refuse(`Requested ${of} logprobs of ${wanted}, which is greater than max allowed: ${maxLogprobs}`, param);
  }
  return Math.min(wanted, vocabSize);
}

function checkStops(stops: readonly string[]): void {
  if (stops.includes('')) refuse('stop cannot contain an empty string.', 'stop');
  if (stops.length > MAX_STOP_STRINGS) refuse(`stop must hold at most ${MAX_STOP_STRINGS} strings.`, 'stop');
  const chars = stops.reduce((sum, stop) => sum + stop.length, 0);
  if (chars > MAX_STOP_CHARS) refuse(`stop must hold at most ${MAX_STOP_CHARS} characters in all.`, 'stop');
}
