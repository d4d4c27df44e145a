/** A body of the Messages API, checked completely and turned into the generation that a chat would be. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import { SessionError, type GenerationInput, type PromptInput } from '../../control/sessions/session.ts';
import {
  validateCountTokens,
  validateMessages,
  validateMessagesSampling,
  type CountTokensRequest,
  type MessagesRequest,
} from '../../schemas/messages.ts';
import { ApiError } from '../errors.ts';
import { withExactNumbers } from '../exact-json.ts';
import type { RequestContext } from './chat-request.ts';
import { toGenerationFields } from './generation-fields.ts';
import { toConversation } from './messages-conversation.ts';
import { refuseLimited, templateKwargs, toFormatConstraint } from './messages-fields.ts';
import { toChatTools } from './messages-tools.ts';
import { requireModel } from './model-name.ts';
import { toPriority } from './priority.ts';
import { reworded } from './refuse.ts';
import { toChatPrompt, type TemplateRules } from './render.ts';
import { toSampling } from './sampling.ts';
import { toReplyOptions } from './tools.ts';

export interface MessagesWishes {
  body: MessagesRequest;
  input: GenerationInput;
  model: ResolvedModel;
}

/** Order of checks as for a chat. */
export function readMessagesRequest(raw: unknown, context: RequestContext): MessagesWishes {
  const body = withExactNumbers(validateMessages(raw), raw);
  const priority = toPriority(body, context);
  refuseLimited(body);
  const tools = toChatTools(body);
  const reply = toReplyOptions({ messages: [], stream: body.stream ?? null, ...tools });
  const constraint = toFormatConstraint(body, reply.tools);
  const model = requireModel(context.model, body.model);
  const prompt = promptOf(body, tools, context);
  validateMessagesSampling(body);
  const sampled = { ...body, stop: body.stop_sequences ?? null };
  const length = { maxTokens: body.max_tokens, field: 'max_tokens', fits: true } as const;
  const logprobs = { top: model.trainable ? 0 : null, prompt: null };
  const input: GenerationInput = {
    prompt,
    reply,
    sampling: toSampling(sampled, length, logprobs, context.limits),
    constraint,
    truncatePromptTokens: null,
    priority,
    kvTransfer: null,
    ...toGenerationFields(body, model, context),
  };
  return { body, input, model };
}

/** `model`: what the body names; null: nothing that exists. */
export function readCountRequest(raw: unknown, model: ResolvedModel | null, rules: TemplateRules): PromptInput {
  const body = withExactNumbers(validateCountTokens(raw), raw);
  refuseLimited(body);
  const tools = toChatTools(body);
  // For its refusals: what is counted is a message that can be sent.
  toReplyOptions({ messages: [], ...tools });
  requireModel(model, body.model);
  return promptOf(body, tools, rules);
}

function promptOf(
  body: CountTokensRequest,
  { tools }: ReturnType<typeof toChatTools>,
  rules: TemplateRules,
): PromptInput {
  const { messages, continues } = toConversation(body);
  const fields = {
    tools,
    continue_final_message: continues,
    chat_template: body.chat_template ?? null,
    chat_template_kwargs: templateKwargs(body),
  };
  return toChatPrompt(messages, fields, rules);
}

const CONTINUES = 'continue_final_message';
/** By these words clients know that they must shorten a conversation. */
const TOO_LONG = 'prompt is too long: ';

/** What a tool of a chat has in its function. */
const TOOL_FIELD = /^(tools\.\d+)\.function\.(\w+)/;

/** Errors of what is shared with chats name this endpoint's fields. */
export function messagesTerms(error: unknown): unknown {
  if (!(error instanceof ApiError || error instanceof SessionError)) return error;
  const { message, param } = error;
  const [tool, at, field] = TOOL_FIELD.exec(param ?? '') ?? [];
  if (param !== null && tool !== undefined) {
    const place = `${at}.${field === 'parameters' ? 'input_schema' : field}`;
    return reworded(
      error,
      message.replace(tool, () => place),
      param.replace(tool, place),
    );
  }
  if (error.code === 'context_length' && param !== 'max_tokens') return reworded(error, TOO_LONG + message, null);
  if (param !== CONTINUES) return error;
  const own = message.replace(`${CONTINUES} is set but`, 'messages: the reply continues a last assistant message, but');
  return reworded(error, own, 'messages');
}
