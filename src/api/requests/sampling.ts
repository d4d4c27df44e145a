/** Cross-field rules of the sampling fields, and their form for sessions. */
import { repetitionRule, type RepetitionRule } from '../../control/sessions/repetition.ts';
import type { SamplingRequest } from '../../control/sessions/session.ts';
import type { SamplingFields } from '../../schemas/sampling-fields.ts';
import { ApiError } from '../errors.ts';

const LARGEST_TOP_K = 2 ** 31 - 1;
/** Every entry is looked at in every step. */
const MAX_BIASED_TOKENS = 4096;

export interface SamplingLimits {
  vocabSize: number;
  /** -1 = the whole vocabulary. */
  maxLogprobs: number;
  /** Sequences that slots and queue can hold at all. */
  maxChoices: number;
}

/** As asked for: null = none, -1 = the whole vocabulary. */
export interface LogprobCounts {
  top: number | null;
  prompt: number | null;
}

export interface LengthLimit {
  maxTokens: number | null;
  field: SamplingRequest['maxTokensField'];
  /** More than there is room for means as many as there is room for; absent: it is refused. */
  fits?: true;
}

export function toSampling(
  body: SamplingFields,
  length: LengthLimit,
  logprobs: LogprobCounts,
  limits: SamplingLimits,
): SamplingRequest {
  checkChoices(body, limits);
  checkMinTokens(body, length);
  return {
    n: body.n ?? 1,
    temperature: body.temperature ?? null,
    topP: body.top_p ?? null,
    topK: toTopK(body.top_k ?? null),
    minP: body.min_p ?? null,
    seed: body.seed === undefined || body.seed === null ? null : BigInt(body.seed),
    maxTokens: length.maxTokens,
    maxTokensField: length.field,
    fitsMaxTokens: length.fits ?? false,
    minTokens: body.min_tokens ?? 0,
    stop: toStop(body.stop),
    stopTokenIds: toStopIds(body.stop_token_ids ?? [], limits.vocabSize),
    includeStopInOutput: body.include_stop_str_in_output ?? false,
    ignoreEos: body.ignore_eos ?? false,
    skipSpecialTokens: body.skip_special_tokens ?? true,
    topLogprobs: logprobs.top,
    promptLogprobs: logprobs.prompt,
    logprobsMode: body.logprobs_mode ?? 'raw',
    frequencyPenalty: body.frequency_penalty ?? 0,
    presencePenalty: body.presence_penalty ?? 0,
    repetitionPenalty: body.repetition_penalty ?? null,
    logitBias: toLogitBias(body.logit_bias ?? {}),
    badWords: [...new Set(body.bad_words ?? [])],
    allowedTokenIds: body.allowed_token_ids ?? null,
    beamSearch: body.use_beam_search === true ? { lengthPenalty: body.length_penalty ?? 1 } : null,
    repetition: toRepetition(body.repetition_detection ?? null),
  };
}

function checkChoices(body: SamplingFields, limits: SamplingLimits): void {
  const n = body.n ?? 1;
  if (n > 1 && body.temperature === 0 && body.use_beam_search !== true) {
    throw new ApiError('invalid_parameter', `n must be 1 when using greedy sampling, got ${n}.`, 'n');
  }
  if (n > limits.maxChoices) {
    const message = `n must be at most ${limits.maxChoices} (--max-num-seqs plus --max-waiting-requests), got ${n}.`;
    throw new ApiError('invalid_parameter', message, 'n');
  }
}

function checkMinTokens(body: SamplingFields, length: LengthLimit): void {
  const minTokens = body.min_tokens ?? 0;
  if (length.maxTokens === null || minTokens <= length.maxTokens) return;
  const message = `min_tokens must be less than or equal to ${length.field}=${length.maxTokens}, got ${minTokens}.`;
  throw new ApiError('invalid_parameter', message, 'min_tokens');
}

function toTopK(topK: number | null): number | null {
  if (topK === null) return null;
  return topK === -1 ? 0 : Math.min(topK, LARGEST_TOP_K);
}

/** Keys are ids as text; all that are not are named. */
function toLogitBias(bias: Record<string, number>): Map<number, number> {
  const keys = Object.keys(bias);
  if (keys.length > MAX_BIASED_TOKENS) {
    throw new ApiError('invalid_parameter', `logit_bias must have at most ${MAX_BIASED_TOKENS} entries.`, 'logit_bias');
  }
  const bad = keys.filter((key) => !/^-?\d{1,15}$/.test(key.trim()));
  if (bad.length > 0) {
    const named = bad.slice(0, 10).map((key) => JSON.stringify(key.slice(0, 40)));
    throw new ApiError(
      'invalid_parameter',
      `logit_bias has keys that are not token ids: ${named.join(', ')}`,
      'logit_bias',
    );
  }
  return new Map(Object.entries(bias).map(([key, value]) => [Number(key), value]));
}

function toRepetition(fields: SamplingFields['repetition_detection']): RepetitionRule | null {
  if (!fields) return null;
  return repetitionRule(fields.max_pattern_size ?? 0, fields.min_pattern_size ?? 0, fields.min_count ?? 0);
}

function toStop(stop: SamplingFields['stop']): string[] {
  if (stop === undefined || stop === null) return [];
  return [...new Set(typeof stop === 'string' ? [stop] : stop)];
}

function toStopIds(ids: number[], vocabSize: number): number[] {
  const outside = ids.find((id) => id < 0 || id >= vocabSize);
  if (outside !== undefined) {
    const message = `stop_token_ids contains out-of-vocab token id ${outside}. Vocabulary size: ${vocabSize}`;
    throw new ApiError('invalid_parameter', message, 'stop_token_ids');
  }
  return [...new Set(ids)];
}

export function checkLogprobCounts(counts: LogprobCounts, limits: SamplingLimits): void {
  checkLogprobCount(counts.top, 'sample', 'logprobs', limits);
  checkLogprobCount(counts.prompt, 'prompt', 'prompt_logprobs', limits);
}

function checkLogprobCount(count: number | null, of: string, param: string, limits: SamplingLimits): void {
  const wanted = count === -1 ? limits.vocabSize : (count ?? 0);
  if (limits.maxLogprobs === -1 || wanted <= limits.maxLogprobs) return;
  const message = `Requested ${of} logprobs of ${wanted}, which is greater than max allowed: ${limits.maxLogprobs}`;
  throw new ApiError('invalid_parameter', message, param);
}

/** A stream has no place for alternatives of the prompt's tokens. */
export function checkPromptLogprobs(body: SamplingFields): void {
  if (body.stream !== true || (body.prompt_logprobs ?? 0) === 0) return;
  const message = '`prompt_logprobs` are not available when `stream=True`.';
  throw new ApiError('invalid_parameter', message, 'prompt_logprobs');
}

/** `{}` without stream passes; anything in it does not. */
export function checkStreamOptions(body: SamplingFields): void {
  if (body.stream === true || !body.stream_options || Object.keys(body.stream_options).length === 0) return;
  throw new ApiError('invalid_parameter', 'Stream options can only be defined when `stream=True`.', 'stream_options');
}
