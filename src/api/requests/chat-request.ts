/** A chat body, checked completely and turned into a generation plus the shape its answer shall have. */
import type { GenerationInput } from '../../control/sessions/session.ts';
import { validateChatCompletion, type ChatCompletionRequest } from '../../schemas/chat-completion.ts';
import { ApiError } from '../errors.ts';
import { requireModel } from './model-name.ts';
import { refuseNotBuilt } from './not-built.ts';
import { toChatPrompt } from './render.ts';
import { toOutputOptions, type OutputOptions } from './output-options.ts';
import { toReplyOptions } from './tools.ts';
import {
  checkLogprobCount,
  checkStreamOptions,
  toSampling,
  type LengthLimit,
  type SamplingLimits,
} from './sampling.ts';

export interface RequestContext {
  limits: SamplingLimits;
  servedNames: string[];
  tenant: string;
  /** The server sends usage with every chunk. */
  forceIncludeUsage: boolean;
}

export interface ChatRequest {
  input: GenerationInput;
  output: OutputOptions;
  requestId: string | undefined;
  /** Role of the reply: the last message's when it is continued. */
  role: string;
}

/** Order of checks: schema, rules between fields, model, then the ranges that depend on the model. */
export function readChatRequest(raw: unknown, context: RequestContext): ChatRequest {
  const body = validateChatCompletion(raw);
  checkStreamOptions(body);
  checkTopLogprobs(body);
  refuseNotBuilt(body);
  const prompt = toChatPrompt(body.messages, body);
  const reply = toReplyOptions(body);
  requireModel(body.model, context.servedNames);
  const topLogprobs = body.logprobs === true ? (body.top_logprobs ?? 0) : null;
  if (topLogprobs !== null) checkLogprobCount(topLogprobs, context.limits);
  return {
    input: {
      prompt,
      reply,
      sampling: toSampling(body, lengthLimit(body), topLogprobs, context.limits),
      truncatePromptTokens: body.truncate_prompt_tokens ?? null,
      priority: body.priority ?? 0,
      tenant: context.tenant,
    },
    output: toOutputOptions(body, context.forceIncludeUsage),
    requestId: body.request_id,
    role: replyRole(body),
  };
}

function checkTopLogprobs(body: ChatCompletionRequest): void {
  const count = body.top_logprobs ?? 0;
  if (count === 0 || body.logprobs === true) return;
  throw new ApiError('invalid_parameter', 'when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs');
}

function lengthLimit(body: ChatCompletionRequest): LengthLimit {
  const completion = body.max_completion_tokens ?? null;
  if (completion !== null) return { maxTokens: completion, field: 'max_completion_tokens' };
  return { maxTokens: body.max_tokens ?? null, field: 'max_tokens' };
}

function replyRole(body: ChatCompletionRequest): string {
  const addsPrompt = body.add_generation_prompt ?? !(body.continue_final_message ?? false);
  return addsPrompt ? 'assistant' : (body.messages.at(-1)?.role ?? 'assistant');
}
