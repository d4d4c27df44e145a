/** Penalties, bias, allowed ids and bad words: the client's wishes -> what native code gets. Neutral ones are left out. */
import type { SamplingSpec } from '../engine/native.ts';
import type { GenerationDefaults } from '../models/model.ts';
import { SessionError, type SamplingRequest } from './session.ts';
import { MAX_WORD_FORMS, MAX_WORD_TOKENS, type WordForm } from './word-forms.ts';

const BIAS_LIMIT = 100;
/** A logit times or through a penalty beyond these is no longer finite in single precision; nearer ones decide everything already. */
const LEAST_REPETITION_PENALTY = 1e-30;
const MOST_REPETITION_PENALTY = 1e30;

export type TokenControls = Pick<
  SamplingSpec,
  | 'logprobsMode'
  | 'frequencyPenalty'
  | 'presencePenalty'
  | 'repetitionPenalty'
  | 'biasIds'
  | 'biasValues'
  | 'allowedIds'
  | 'badWords'
>;

export function resolveControls(
  request: SamplingRequest,
  wordForms: readonly WordForm[],
  generation: GenerationDefaults,
  vocabSize: number,
): TokenControls {
  const controls: TokenControls = {};
  if (request.logprobsMode !== 'raw') controls.logprobsMode = request.logprobsMode;
  if (request.frequencyPenalty !== 0) controls.frequencyPenalty = request.frequencyPenalty;
  if (request.presencePenalty !== 0) controls.presencePenalty = request.presencePenalty;
  const wanted = request.repetitionPenalty ?? generation.repetitionPenalty ?? 1;
  const repetition = Math.min(Math.max(wanted, LEAST_REPETITION_PENALTY), MOST_REPETITION_PENALTY);
  if (repetition !== 1) controls.repetitionPenalty = repetition;
  if (request.logitBias.size > 0) Object.assign(controls, resolveBias(request.logitBias, vocabSize));
  if (request.allowedTokenIds) controls.allowedIds = resolveAllowed(request.allowedTokenIds, vocabSize);
  if (request.badWords.length > 0) controls.badWords = resolveBadWords(request.badWords, wordForms);
  return controls;
}

/** Values beyond +-100 count as +-100. */
function resolveBias(
  bias: ReadonlyMap<number, number>,
  vocabSize: number,
): Pick<TokenControls, 'biasIds' | 'biasValues'> {
  const outside = [...bias.keys()].filter((id) => id >= vocabSize || id < 0);
  if (outside.length > 0) {
    const message = `token_id(s) [${outside.slice(0, 10).join(', ')}] in logit_bias contain out-of-vocab token ids. Vocabulary size: ${vocabSize}`;
    throw new SessionError('bad_request', message, 'logit_bias');
  }
  const values = [...bias.values()].map((value) => Math.min(Math.max(value, -BIAS_LIMIT), BIAS_LIMIT));
  return { biasIds: Int32Array.from(bias.keys()), biasValues: Float32Array.from(values) };
}

function resolveAllowed(ids: readonly number[], vocabSize: number): Int32Array {
  if (ids.some((id) => id < 0 || id >= vocabSize)) {
    throw new SessionError('bad_request', 'allowed_token_ids contains out-of-vocab token id!', 'allowed_token_ids');
  }
  return Int32Array.from(new Set(ids)).sort();
}

function resolveBadWords(words: readonly string[], forms: readonly WordForm[]): Int32Array[] {
  const refuse = (message: string): never => {
    throw new SessionError('bad_request', message, 'bad_words');
  };
  if (forms.length > MAX_WORD_FORMS) refuse(`bad_words must have at most ${MAX_WORD_FORMS} tokenised forms.`);
  for (const { word, ids } of forms) {
    const shown = JSON.stringify((words[word] ?? '').slice(0, 40));
    if (ids.length === 0) refuse(`bad_words: ${shown} has no tokens.`);
    if (ids.length > MAX_WORD_TOKENS) refuse(`bad_words: ${shown} has more than ${MAX_WORD_TOKENS} tokens.`);
  }
  return forms.map((form) => form.ids);
}
