/** A body of the Responses API, checked completely and turned into the generation that a chat would be. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import { SessionError, type GenerationInput } from '../../control/sessions/session.ts';
import type { RequestMessage } from '../../schemas/chat-completion.ts';
import { validateResponses, validateResponsesSampling, type ResponsesRequest } from '../../schemas/responses.ts';
import { ApiError } from '../errors.ts';
import { withExactNumbers } from '../exact-json.ts';
import type { RequestContext } from './chat-request.ts';
import { toGenerationFields } from './generation-fields.ts';
import { requireModel } from './model-name.ts';
import { toPriority } from './priority.ts';
import { reworded } from './refuse.ts';
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
  /** Where each tool that the model knows stands in the request. */
  toolPlaces: readonly string[];
  /** All of the generation but the messages. */
  toInput: (messages: RequestMessage[]) => GenerationInput;
}

/** Order of checks as for a chat. */
export function readResponsesRequest(raw: unknown, context: RequestContext): ResponsesWishes {
  const body = validateResponses(raw);
  const exact = withExactNumbers(body, raw);
  checkStreaming(body);
  const included = toIncluded(body);
  const priority = toPriority(body, context);
  refuseLimited(body);
  const { places: toolPlaces, ...tools } = toChatTools(exact);
  const reply = toReplyOptions({ messages: [], stream: body.stream ?? null, ...tools });
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
    kvTransfer: null,
    ...toGenerationFields(body, model, context),
  };
  const toInput = (messages: RequestMessage[]) => ({
    ...fixed,
    prompt: toChatPrompt(messages, renderFields(exact, tools), context),
  });
  return { body, included, model, toolPlaces, toInput };
}

function renderFields(body: ResponsesRequest, { tools }: Pick<ChatTools, 'tools'>): Parameters<typeof toChatPrompt>[1] {
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

const TOOL_FIELD = /^tools\.(\d+)\.function(?=\.)/;

/** Errors of what is shared with chats name this endpoint's fields. */
export function ownTerms(error: unknown, toolPlaces: readonly string[] = []): unknown {
  if (!(error instanceof ApiError || error instanceof SessionError)) return error;
  const tool = TOOL_FIELD.exec(error.param ?? '');
  const place = toolPlaces[Number(tool?.[1])];
  const inTerms = (text: string) => (tool && place !== undefined ? text.replace(tool[0], () => place) : text);
  // Their number is checked before a session sees them; what a session refuses is that there are any, which `include` asks for.
  if (error instanceof SessionError && error.param === 'logprobs')
    return reworded(error, error.message.replace('`logprobs`', '`include`'), 'include');
  const param = NAMES.get(error.param) ?? (error.param === null ? null : inTerms(error.param));
  if (param === error.param) return error;
  return reworded(error, inTerms(error.message), param);
}
