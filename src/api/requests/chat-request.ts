/** A chat body, checked completely and turned into a generation plus the shape its answer shall have. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { FillTokens } from '../../control/sessions/fill-in-middle.ts';
import type { GenerationInput } from '../../control/sessions/session.ts';
import {
  validateChatCompletion,
  validateChatSampling,
  type ChatCompletionRequest,
} from '../../schemas/chat-completion.ts';
import { ApiError } from '../errors.ts';
import { withExactNumbers } from '../exact-json.ts';
import { toConstraint } from './constraint.ts';
import { requireModel } from './model-name.ts';
import { toMessages } from './messages.ts';
import type { ArgumentCheck } from './extension-arguments.ts';
import { toGenerationFields } from './generation-fields.ts';
import { toKvTransfer, type TransferRules } from './kv-transfer.ts';
import { refuseNotBuilt } from './not-built.ts';
import { checkContinuation, toChatPrompt, type TemplateRules } from './render.ts';
import { toOutputOptions, type OutputOptions } from './output-options.ts';
import { toPriority, type PriorityRules } from './priority.ts';
import { toReplyOptions } from './tools.ts';
import {
  checkLogprobCounts,
  checkPromptLogprobs,
  checkStreamOptions,
  toSampling,
  type LengthLimit,
  type LogprobCounts,
  type SamplingLimits,
} from './sampling.ts';

export interface RequestContext extends TemplateRules, TransferRules, PriorityRules {
  limits: SamplingLimits;
  /** What the request's `model` names; null: nothing that exists. */
  model: ResolvedModel | null;
  tenant: string;
  /** The server sends usage with every chunk. */
  forceIncludeUsage: boolean;
  extensions: ArgumentCheck;
  /** Of the model's tokenizer; null = it has none. */
  fillTokens: FillTokens | null;
}

export interface ChatRequest {
  input: GenerationInput;
  output: OutputOptions;
  model: ResolvedModel;
  requestId: string | undefined;
  /** Role of the reply: the last message's when it is continued. */
  role: string;
  /** Comes before the reply's text in every choice. */
  echo: string;
}

/** Order of checks: shapes, rules between fields, model, its template, then how to sample. */
export function readChatRequest(raw: unknown, context: RequestContext): ChatRequest {
  const body = withExactNumbers(validateChatCompletion(raw), raw);
  checkStreamOptions(body);
  checkTopLogprobs(body);
  checkPromptLogprobs(body);
  const priority = toPriority(body, context);
  refuseNotBuilt(body);
  checkContinuation(body);
  const reply = toReplyOptions(body);
  const constraint = toConstraint(body, reply.tools);
  const model = requireModel(context.model, body.model);
  const prompt = toChatPrompt(body.messages, body, context);
  validateChatSampling(body);
  const logprobs = logprobCounts(body, model);
  checkLogprobCounts(logprobs, context.limits);
  const role = replyRole(body);
  return {
    input: {
      prompt,
      reply,
      sampling: toSampling(body, lengthLimit(body), logprobs, context.limits),
      constraint,
      truncatePromptTokens: body.truncate_prompt_tokens ?? null,
      priority,
      kvTransfer: toKvTransfer(body, context, logprobs.prompt !== null),
      ...toGenerationFields(body, model, context),
    },
    output: toOutputOptions(body, context.forceIncludeUsage, model),
    model,
    requestId: body.request_id,
    role,
    echo: body.echo === true ? echoText(body, role) : '',
  };
}

function checkTopLogprobs(body: ChatCompletionRequest): void {
  const count = body.top_logprobs ?? 0;
  if (count === 0 || body.logprobs === true) return;
  throw new ApiError('invalid_parameter', 'when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs');
}

/** echo scores the prompt too, as deep as the reply, unless the caller says how deep. */
function logprobCounts(body: ChatCompletionRequest, model: ResolvedModel): LogprobCounts {
  const wanted = body.logprobs ?? model.trainable;
  const echoed = body.echo === true ? (body.top_logprobs === undefined ? 0 : body.top_logprobs) : null;
  return { top: wanted ? (body.top_logprobs ?? 0) : null, prompt: body.prompt_logprobs ?? echoed };
}

/** The last message's text, where the reply goes on in its role. */
function echoText(body: ChatCompletionRequest, role: string): string {
  const last = body.messages.at(-1);
  if (last === undefined || last.role !== role) return '';
  const content = toMessages([last])[0]?.content ?? '';
  return typeof content === 'string' ? content : content.map((part) => String(part['text'])).join('\n');
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
