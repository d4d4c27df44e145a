/** The fields that steer the chat template, shared by chat completions and /tokenize. */
import { reservedNames } from '../../control/sessions/reserved-names.ts';
import type { PromptInput } from '../../control/sessions/session.ts';
import type { RequestMessage } from '../../schemas/chat-completion.ts';
import { ApiError } from '../errors.ts';
import { toMessages } from './messages.ts';

const UNTRUSTED_TEMPLATE =
  'Chat template is passed with request, but --trust-request-chat-template is not set. ' +
  'Refused request with untrusted chat template.';

export interface RenderFields {
  add_generation_prompt?: boolean;
  continue_final_message?: boolean;
  add_special_tokens?: boolean;
  chat_template_kwargs?: Record<string, unknown> | null;
  tools?: unknown[] | null;
  documents?: Record<string, unknown>[] | null;
  reasoning_effort?: string | null;
  chat_template?: string | null;
}

export interface TemplateRules {
  /** Requests may bring a chat template. */
  trustsTemplates: boolean;
  /** Variables that the server sets where a request does not. */
  defaultTemplateKwargs: Record<string, unknown>;
}

export function checkContinuation(
  fields: Pick<RenderFields, 'continue_final_message' | 'add_generation_prompt'>,
): void {
  if (fields.continue_final_message !== true || fields.add_generation_prompt !== true) return;
  const message = 'Cannot set both `continue_final_message` and `add_generation_prompt` to True.';
  throw new ApiError('invalid_parameter', message, 'continue_final_message');
}

/** `fields` have passed checkContinuation. */
export function toChatPrompt(messages: RequestMessage[], fields: RenderFields, rules: TemplateRules): PromptInput {
  const chatTemplate = fields.chat_template ?? null;
  if (chatTemplate !== null && !rules.trustsTemplates) {
    throw new ApiError('invalid_parameter', UNTRUSTED_TEMPLATE, 'chat_template');
  }
  const continueFinalMessage = fields.continue_final_message ?? false;
  return {
    kind: 'chat',
    messages: toMessages(messages),
    render: {
      // Absent counts as false beside continue_final_message, else as true.
      addGenerationPrompt: fields.add_generation_prompt ?? !continueFinalMessage,
      continueFinalMessage,
      addSpecialTokens: fields.add_special_tokens ?? false,
      tools: fields.tools ?? null,
      documents: fields.documents ?? null,
      chatTemplate,
      templateKwargs: {
        ...rules.defaultTemplateKwargs,
        ...reasoningKwargs(fields.reasoning_effort ?? null),
        ...checkKwargs(fields.chat_template_kwargs ?? {}),
      },
    },
  };
}

/** The template's variables for an effort; what the caller says in chat_template_kwargs wins. */
function reasoningKwargs(effort: string | null): Record<string, unknown> {
  return effort === null ? {} : { reasoning_effort: effort, enable_thinking: effort !== 'none' };
}

function checkKwargs(kwargs: Record<string, unknown>): Record<string, unknown> {
  const found = reservedNames(kwargs);
  if (found.length === 0) return kwargs;
  const message = `Found unexpected chat template kwargs from request: {${found.map((name) => `'${name}'`).join(', ')}}`;
  throw new ApiError('invalid_parameter', message, 'chat_template_kwargs');
}
