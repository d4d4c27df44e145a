/** A text completion body, checked completely: one generation per prompt. */
import type { GenerationInput, PromptInput } from '../../control/sessions/session.ts';
import { MAX_PROMPTS, validateCompletion, type CompletionRequest } from '../../schemas/completion.ts';
import { ApiError } from '../errors.ts';
import type { RequestContext } from './chat-request.ts';
import { requireModel } from './model-name.ts';
import { refuseNotBuilt } from './not-built.ts';
import { toOutputOptions, type OutputOptions } from './output-options.ts';
import { checkLogprobCount, checkStreamOptions, toSampling } from './sampling.ts';

/** max_tokens of a text completion where none is given (the OpenAI default). */
const DEFAULT_MAX_TOKENS = 16;

export interface TextRequest {
  /** One per prompt, in order; choice index = prompt index * n + choice. */
  inputs: GenerationInput[];
  n: number;
  output: OutputOptions;
  /** The prompt's text comes before the generated text. */
  echo: boolean;
  requestId: string | undefined;
}

export function readCompletionRequest(raw: unknown, context: RequestContext): TextRequest {
  const body = validateCompletion(raw);
  checkStreamOptions(body);
  checkCompletionFields(body);
  const { echo, ...rest } = body;
  refuseNotBuilt(rest);
  const prompts = toPrompts(body, context);
  requireModel(body.model, context.servedNames);
  const topLogprobs = body.logprobs ?? null;
  if (topLogprobs !== null) checkLogprobCount(topLogprobs, context.limits);
  const length = { maxTokens: body.max_tokens ?? DEFAULT_MAX_TOKENS, field: 'max_tokens' } as const;
  const sampling = toSampling(body, length, topLogprobs, context.limits);
  checkSequenceCount(prompts.length * sampling.n, context.limits.maxChoices);
  return {
    inputs: prompts.map((prompt) => ({
      prompt,
      reply: null,
      sampling,
      truncatePromptTokens: body.truncate_prompt_tokens ?? null,
      priority: body.priority ?? 0,
      tenant: context.tenant,
    })),
    n: sampling.n,
    output: toOutputOptions(body, context.forceIncludeUsage),
    echo: echo ?? false,
    requestId: body.request_id,
  };
}

function checkCompletionFields(body: CompletionRequest): void {
  if (body.echo === true && body.logprobs !== undefined && body.logprobs !== null) {
    throw new ApiError('not_built', '`echo` together with `logprobs` is not supported by this server yet.', 'echo');
  }
  const bestOf = body.best_of ?? null;
  if (bestOf !== null && bestOf !== (body.n ?? 1)) {
    throw new ApiError('not_built', '`best_of` other than `n` is not supported by this server.', 'best_of');
  }
}

function checkSequenceCount(count: number, most: number): void {
  if (count <= most) return;
  const message = `The prompts times n make ${count} sequences; this server takes at most ${most} at once.`;
  throw new ApiError('invalid_parameter', message, 'prompt');
}

function toPrompts(body: CompletionRequest, context: RequestContext): PromptInput[] {
  const { prompt } = body;
  const addSpecialTokens = body.add_special_tokens ?? true;
  if (typeof prompt === 'string') return [{ kind: 'text', text: prompt, addSpecialTokens }];
  if (prompt.length === 0) throw new ApiError('invalid_parameter', 'prompt must not be an empty list.', 'prompt');
  if (prompt.every((item) => typeof item === 'number')) return [toIds(prompt, context)];
  if (prompt.length > MAX_PROMPTS) {
    throw new ApiError('invalid_parameter', `prompt may hold at most ${MAX_PROMPTS} prompts.`, 'prompt');
  }
  if (prompt.every((item) => typeof item === 'string')) {
    return prompt.map((text) => ({ kind: 'text', text, addSpecialTokens }));
  }
  if (prompt.every((item) => Array.isArray(item))) return prompt.map((ids) => toIds(ids, context));
  throw new ApiError(
    'invalid_parameter',
    'prompt must be a text, a list of texts, a list of ids or a list of these.',
    'prompt',
  );
}

function toIds(ids: number[], context: RequestContext): PromptInput {
  const { vocabSize } = context.limits;
  const outside = ids.find((id) => id < 0 || id >= vocabSize);
  if (outside === undefined) return { kind: 'ids', ids };
  const message = `prompt contains out-of-vocab token id ${outside}. Vocabulary size: ${vocabSize}`;
  throw new ApiError('invalid_parameter', message, 'prompt');
}
