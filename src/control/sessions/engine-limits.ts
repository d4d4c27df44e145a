/** What an engine below the sessions lacks: requests that ask for it are refused by the field's name. */
import type { SamplingSpec } from '../engine/native.ts';
import type { ToolMode } from './parsers/create-parser.ts';
import { SessionError, type GenerationInput } from './session.ts';

export interface EngineLimits {
  /** Throws SessionError before anything of the request is computed. */
  checkInput(input: GenerationInput): void;
  /** What follows from the request and the model's defaults together. */
  checkSampling(sampling: SamplingSpec): void;
  /** `param`: the field that makes a grammar necessary. */
  refuseGrammar(param: string): never;
}

const ENGINE = "this model's engine (llama.cpp)";

function refuse(what: string, param: string): never {
  throw new SessionError('bad_request', `\`${param}\` is not supported: ${ENGINE} ${what}.`, param);
}

/** Required, or one by its name. */
function mustCall(tools: ToolMode): boolean {
  return tools !== 'none' && tools !== 'auto';
}

/** The field, what the engine lacks for it, and whether the input asks for that. */
const UNSUPPORTED: readonly [param: string, what: string, asks: (input: GenerationInput) => boolean][] = [
  ['logprobs', 'gives no log-probabilities', ({ sampling }) => sampling.topLogprobs !== null],
  [
    'prompt_logprobs',
    'scores no prompts (`echo` of a chat asks for it too)',
    ({ sampling }) => sampling.promptLogprobs !== null,
  ],
  ['use_beam_search', 'gives no log-probabilities', ({ sampling }) => sampling.beamSearch !== null],
  ['allowed_token_ids', 'has no such mask', ({ sampling }) => sampling.allowedTokenIds !== null],
  ['bad_words', 'has no such mask', ({ sampling }) => sampling.badWords.length > 0],
  ['model', 'serves no adapters', ({ adapter }) => adapter !== null],
  ['cache_salt', 'has no prefix cache', ({ cacheSalt }) => cacheSalt !== null],
  ['kv_transfer_params', 'transfers no KV blocks', ({ kvTransfer }) => kvTransfer !== null],
  ['tool_choice', 'follows no grammars', ({ reply }) => reply !== null && mustCall(reply.tools)],
  ['engine_xargs', 'runs no extensions', ({ extensionArguments }) => extensionArguments !== null],
];

export const LLAMA_LIMITS: EngineLimits = {
  checkInput: (input) => {
    for (const [param, what, asks] of UNSUPPORTED) if (asks(input)) refuse(what, param);
    if (input.constraint) LLAMA_LIMITS.refuseGrammar(input.constraint.param);
  },
  checkSampling: ({ repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 }) => {
    if (repetitionPenalty === 1) return;
    const other = presencePenalty !== 0 ? 'presence_penalty' : frequencyPenalty !== 0 ? 'frequency_penalty' : null;
    if (other === null) return;
    const message = `\`${other}\` cannot be used together with a repetition_penalty of ${repetitionPenalty}: ${ENGINE} has one history for both.`;
    throw new SessionError('bad_request', message, other);
  },
  refuseGrammar: (param) => refuse('follows no grammars', param),
};
