/** A body of the Responses API, checked completely and turned into the generation that a chat would be. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import { SessionError, type GenerationInput } from '../../control/sessions/session.ts';
import type { RequestMessage } from '../../schemas/chat-completion.ts';
import { validateResponses, validateResponsesSampling, type ResponsesRequest } from '../../schemas/responses.ts';
import { ApiError } from '../errors.ts';
import { withExactNumbers } from '../exact-json.ts';
import type { RequestContext } from './chat-request.ts';
import { toExtensionArguments } from './extension-arguments.ts';
import { requireModel } from './model-name.ts';
import { toPriority } from './priority.ts';
import { toChatPrompt } from './render.ts';
import {
  checkStreaming,
  refuseLimited,
  templateKwargs,
  toIncluded,
  toTextConstraint,
  type Included,
} from './responses-fields.ts';
import { toChatTools, type ChatTools } from './responses-tools.ts';
import { checkLogprobCounts, toSampling } from './sampling.ts';
import { toReplyOptions } from './tools.ts';

/** What can be said of a request before its conversation is known. */
export interface ResponsesWishes {
  /** As it came, but checked: what the answer repeats. */
  body: ResponsesRequest;
  included: Included;
  model: ResolvedModel;
  /** All of the generation but the messages. */
  toInput: (messages: RequestMessage[]) => GenerationInput;
}

/** Order of checks as for a chat. */
export function readResponsesRequest(raw: unknown, context: RequestContext): ResponsesWishes {
  const body = validateResponses(raw);
  const exact = withExactNumbers(body);
  checkStreaming(body);
  const included = toIncluded(body);
  const priority = toPriority(body, context);
  refuseLimited(body);
  const tools = toChatTools(exact);
  const reply = toReplyOptions({ messages: [], ...tools });
  const constraint = toTextConstraint(exact, reply.tools);
  const model = requireModel(context.model, body.model);
  validateResponsesSampling(body);
  const top = included.logprobs || model.trainable ? (body.top_logprobs ?? 0) : null;
  const logprobs = { top, prompt: null };
  checkLogprobCounts(logprobs, context.limits);
  const length = { maxTokens: body.max_output_tokens ?? null, field: 'max_output_tokens' } as const;
  const fixed = {
    reply,
    sampling: toSampling(body, length, logprobs, context.limits),
    constraint,
    truncatePromptTokens: null,
    priority,
    tenant: context.tenant,
    cacheSalt: body.cache_salt ?? null,
    kvTransfer: null,
    extensionArguments: toExtensionArguments(body, context.extensions),
    adapter: model.adapter,
    modelDefaults: !model.trainable,
  };
  const toInput = (messages: RequestMessage[]) => ({
    ...fixed,
    prompt: toChatPrompt(messages, renderFields(exact, tools), context),
  });
  return { body, included, model, toInput };
}

function renderFields(body: ResponsesRequest, { tools }: ChatTools): Parameters<typeof toChatPrompt>[1] {
  return {
    tools,
    reasoning_effort: body.reasoning?.effort ?? null,
    chat_template: body.chat_template ?? null,
    chat_template_kwargs: templateKwargs(body),
  };
}

/** Fields of a chat by the names that they have here. */
const NAMES: ReadonlyMap<string | null, string> = new Map([
  ['messages', 'input'],
  ['logprobs', 'top_logprobs'],
  ['type', 'input'],
]);

/** Errors of what is shared with chats name this endpoint's fields. */
export function ownTerms(error: unknown): unknown {
  if (!(error instanceof ApiError || error instanceof SessionError)) return error;
  const param = NAMES.get(error.param);
  if (param === undefined) return error;
  if (error instanceof SessionError) return new SessionError(error.code, error.message, param, error.retryAfterSeconds);
  return new ApiError(error.code, error.message, param, error.retryAfterSeconds);
}
