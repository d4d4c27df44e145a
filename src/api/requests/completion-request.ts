/** A text completion body, checked completely: one generation per prompt. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import { fillPrompt } from '../../control/sessions/fill-in-middle.ts';
import type { GenerationInput, PromptInput } from '../../control/sessions/session.ts';
import {
  MAX_PROMPTS,
  validateCompletion,
  validateCompletionSampling,
  type CompletionRequest,
} from '../../schemas/completion.ts';
import { ApiError } from '../errors.ts';
import { withExactNumbers } from '../exact-json.ts';
import type { RequestContext } from './chat-request.ts';
import { toGenerationFields } from './generation-fields.ts';
import { toConstraint } from './constraint.ts';
import { toKvTransfer } from './kv-transfer.ts';
import { requireModel } from './model-name.ts';
import { refuseNotBuilt } from './not-built.ts';
import { toOutputOptions, type OutputOptions } from './output-options.ts';
import { toPriority } from './priority.ts';
import {
  checkLogprobCounts,
  checkPromptLogprobs,
  checkStreamOptions,
  toSampling,
  type LengthLimit,
} from './sampling.ts';

/** max_tokens of a text completion where none is given (the OpenAI default). */
const DEFAULT_MAX_TOKENS = 16;

export interface TextRequest {
  /** One per prompt, in order; choice index = prompt index * n + choice. */
  inputs: GenerationInput[];
  n: number;
  output: OutputOptions;
  model: ResolvedModel;
  /** The prompt's text comes before the generated text. */
  echo: boolean;
  /** As asked for; null = none, -1 = the whole vocabulary. */
  promptLogprobs: number | null;
  requestId: string | undefined;
}

export function readCompletionRequest(raw: unknown, context: RequestContext): TextRequest {
  const body = withExactNumbers(validateCompletion(raw), raw);
  checkStreamOptions(body);
  checkPromptLogprobs(body);
  const priority = toPriority(body, context);
  checkCompletionFields(body);
  refuseNotBuilt(body);
  const echo = body.echo ?? false;
  const prompts = toPrompts(body, context).map((prompt) => withSuffix(prompt, body, context));
  const constraint = toConstraint(body, 'none');
  const model = requireModel(context.model, body.model);
  validateCompletionSampling(body);
  const topLogprobs = body.logprobs ?? (model.trainable ? 0 : null);
  const promptLogprobs = body.prompt_logprobs ?? null;
  checkLogprobCounts({ top: topLogprobs, prompt: promptLogprobs }, context.limits);
  const logprobs = { top: topLogprobs, prompt: deepest(promptLogprobs, echo ? topLogprobs : null) };
  const length = lengthLimit(body.max_tokens ?? null);
  const sampling = toSampling(body, length, logprobs, context.limits);
  const kvTransfer = toKvTransfer(body, context, logprobs.prompt !== null);
  if (kvTransfer !== null && prompts.length > 1) {
    const message = 'kv_transfer_params: one prompt can be transferred at a time.';
    throw new ApiError('invalid_parameter', message, 'kv_transfer_params');
  }
  const fields = toGenerationFields(body, model, context);
  checkSequenceCount(prompts.length * sampling.n, context.limits.maxChoices);
  return {
    inputs: prompts.map((prompt) => ({
      prompt,
      reply: null,
      sampling,
      constraint,
      truncatePromptTokens: body.truncate_prompt_tokens ?? null,
      priority,
      kvTransfer,
      ...fields,
    })),
    n: sampling.n,
    output: toOutputOptions(body, context.forceIncludeUsage, model),
    model,
    echo,
    promptLogprobs,
    requestId: body.request_id,
  };
}

/** A default is held to what there is room for: nobody is refused for what they did not ask for. */
function lengthLimit(maxTokens: number | null): LengthLimit {
  if (maxTokens !== null) return { maxTokens, field: 'max_tokens' };
  return { maxTokens: DEFAULT_MAX_TOKENS, field: 'max_tokens', fits: true };
}

function checkCompletionFields(body: CompletionRequest): void {
  if (body.max_tokens === 0 && body.echo !== true) {
    throw new ApiError('invalid_parameter', 'max_tokens must be at least 1, got 0 (0 needs `echo`).', 'max_tokens');
  }
  const bestOf = body.best_of ?? null;
  if (bestOf !== null && bestOf !== (body.n ?? 1)) {
    throw new ApiError('not_built', '`best_of` other than `n` is not supported by this server.', 'best_of');
  }
}

/** With a suffix the model fills the middle. */
function withSuffix(prompt: PromptInput, body: CompletionRequest, { fillTokens }: RequestContext): PromptInput {
  const suffix = body.suffix ?? '';
  if (suffix === '') return prompt;
  const refuse = (message: string): never => {
    throw new ApiError('invalid_parameter', message, 'suffix');
  };
  if (fillTokens === null)
    return refuse("`suffix` needs fill-in-the-middle tokens, which this model's tokenizer lacks.");
  if (prompt.kind !== 'text') return refuse('`suffix` needs a prompt that is text.');
  if (body.echo === true) return refuse('`suffix` and `echo` cannot be used together.');
  return { ...prompt, text: fillPrompt(fillTokens, prompt.text, suffix) };
}

function deepest(a: number | null, b: number | null): number | null {
  if (a === null || b === null) return a ?? b;
  return a === -1 || b === -1 ? -1 : Math.max(a, b);
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
