/** The client's sampling wishes + the model's defaults -> what native code gets. Refused here is what the model or the prompt decides. */
import { randomBytes } from 'node:crypto';
import type { SamplingSpec } from '../engine/native.ts';
import type { GenerationDefaults } from '../models/model.ts';
import { SessionError, type SamplingRequest } from './session.ts';
import { resolveControls } from './token-controls.ts';
import type { WordForm } from './word-forms.ts';

export interface SamplingContext {
  promptTokens: number;
  maxModelLen: number;
  vocabSize: number;
  generation: GenerationDefaults;
  /** Of the request's bad words. */
  wordForms: readonly WordForm[];
}

/** Native code takes at most this many stop ids. */
const MAX_STOP_IDS = 1024;
/** Smaller ones but 0 are raised to it, as in vLLM: they overflow. */
const MIN_TEMPERATURE = 0.01;

function refuse(message: string, param: string): never {
  throw new SessionError('bad_request', message, param);
}

/** One spec per choice: they differ in `seed` or `choice` only, from which native code derives its noise. */
export function resolveSampling(request: SamplingRequest, context: SamplingContext): SamplingSpec[] {
  const shape = resolveShape(request, context.generation, context.vocabSize);
  if (shape.temperature === 0 && request.n > 1 && request.beamSearch === null)
    refuse(`n must be 1 when using greedy sampling, got ${request.n}.`, 'n');
  const maxTokens = resolveMaxTokens(request, context);
  if (request.minTokens > maxTokens) {
    const limit = `${request.maxTokensField}=${maxTokens}`;
    refuse(`min_tokens must be less than or equal to ${limit}, got ${request.minTokens}.`, 'min_tokens');
  }
  const spec = {
    ...shape,
    maxTokens,
    minTokens: request.minTokens,
    ...resolveEnds(request, context),
    logprobs: request.topLogprobs === null ? -1 : logprobCount(request.topLogprobs, context.vocabSize),
    ...resolveControls(request, context.wordForms, context.generation, context.vocabSize),
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
  if (temperature === 0) return { temperature: 0, topP: 1, topK: 0, minP: 0 };
  const topK = request.topK ?? generation.topK ?? 0;
  return {
    temperature: Math.max(temperature, MIN_TEMPERATURE),
    topP: request.topP ?? generation.topP ?? 1,
    topK: topK < 1 || topK >= vocabSize ? 0 : topK,
    minP: request.minP ?? generation.minP ?? 0,
  };
}

function resolveMaxTokens(request: SamplingRequest, context: SamplingContext): number {
  const { promptTokens, maxModelLen, generation } = context;
  const left = maxModelLen - promptTokens;
  const longest = `This model's maximum context length is ${maxModelLen} tokens.`;
  if (left < 1) {
    const message = `${longest} However, your request has ${promptTokens} input tokens. Please reduce the length of the input messages.`;
    throw new SessionError('context_length', message, 'input_tokens');
  }
  const { maxTokens, maxTokensField: field } = request;
  if (maxTokens === null) return Math.min(left, generation.maxNewTokens ?? left);
  // The engine scores a prompt on its way to a token.
  if (maxTokens === 0) return 1;
  if (maxTokens > left && request.fitsMaxTokens) return left;
  if (maxTokens > left) {
    const total = promptTokens + maxTokens;
    const reason =
      maxTokens > maxModelLen
        ? `${field}=${maxTokens} cannot be greater than max_model_len=${maxModelLen}. ${longest}`
        : `${longest} However, you requested ${maxTokens} output tokens and your prompt contains ${promptTokens} input tokens, for a total of ${total} tokens. Please reduce the length of the input or of the output.`;
    throw new SessionError('context_length', reason, field);
  }
  return maxTokens;
}

/** EOS that does not end a reply may not come before min_tokens either, as in vLLM. */
function resolveEnds(request: SamplingRequest, context: SamplingContext): Pick<SamplingSpec, 'stopIds' | 'barredIds'> {
  const ids = new Set([...context.generation.eosTokenIds, ...request.stopTokenIds]);
  if (ids.size > MAX_STOP_IDS)
    refuse(`stop_token_ids must hold at most ${MAX_STOP_IDS} ids, EOS ids included.`, 'stop_token_ids');
  if (!request.ignoreEos) return { stopIds: Int32Array.from(ids) };
  const stopIds = Int32Array.from(new Set(request.stopTokenIds));
  return { stopIds, barredIds: Int32Array.from(ids).filter((id) => !stopIds.includes(id)) };
}

/** `asked`: -1 = the whole vocabulary. */
export function logprobCount(asked: number, vocabSize: number): number {
  return asked === -1 ? vocabSize : Math.min(asked, vocabSize);
}
