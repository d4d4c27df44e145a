/** Bodies of POST /tokenize: a text, or messages put through the chat template. */
import { chatCompletionSchema, type RequestMessage } from './chat-completion.ts';
import { boolean, nullable, object, string, type JsonSchema } from './json-schema.ts';
import { compileBody } from './validator.ts';

export interface TokenizeRequest {
  model?: string | null;
  prompt?: string;
  messages?: RequestMessage[];
  /** Default true for a prompt, false for messages (the template writes its own). */
  add_special_tokens?: boolean;
  add_generation_prompt?: boolean;
  continue_final_message?: boolean;
  chat_template?: string | null;
  chat_template_kwargs?: Record<string, unknown> | null;
  tools?: unknown[] | null;
  documents?: Record<string, unknown>[] | null;
  reasoning_effort?: string | null;
  return_token_strs?: boolean | null;
}

export interface TokenizeResponse {
  count: number;
  max_model_len: number;
  tokens: number[];
  token_strs: string[] | null;
}

const properties: Record<keyof TokenizeRequest, JsonSchema> = {
  model: nullable(string()),
  prompt: string(),
  messages: chatCompletionSchema.properties?.['messages'] ?? {},
  add_special_tokens: boolean(),
  add_generation_prompt: boolean(),
  continue_final_message: boolean(),
  chat_template: nullable(string()),
  chat_template_kwargs: nullable(object()),
  tools: chatCompletionSchema.properties?.['tools'] ?? {},
  documents: chatCompletionSchema.properties?.['documents'] ?? {},
  reasoning_effort: chatCompletionSchema.properties?.['reasoning_effort'] ?? {},
  return_token_strs: nullable(boolean()),
};

const tokenizeSchema: JsonSchema = { type: 'object', properties };

export const validateTokenize = compileBody<TokenizeRequest>(tokenizeSchema);

/** What means something beside messages. */
export const tokenizeFields: ReadonlySet<string> = new Set(Object.keys(properties));

/** Beside a text, which no template is asked for. */
export const tokenizeTextFields: ReadonlySet<string> = new Set<keyof TokenizeRequest>([
  'model',
  'prompt',
  'add_special_tokens',
  'return_token_strs',
]);
