/** Body of POST /v1/chat/completions. */
import { array, boolean, integer, nullable, object, string, type JsonSchema } from './json-schema.ts';
import { reasoningEffort, samplingProperties, splitSampling, type SamplingFields } from './sampling-fields.ts';
import { compileBody } from './validator.ts';

/** Bounds the template's work; far above any conversation that fits a context. */
const MAX_MESSAGES = 16_384;

export interface MessagePart {
  type: string;
  [key: string]: unknown;
}

export interface RequestMessage {
  role: string;
  content?: string | null | (string | MessagePart)[];
  name?: string | null;
  [key: string]: unknown;
}

export interface ChatCompletionRequest extends SamplingFields {
  messages: RequestMessage[];
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  top_logprobs?: number | null;
  tools?: unknown[] | null;
  tool_choice?: string | Record<string, unknown> | null;
  parallel_tool_calls?: boolean | null;
  reasoning_effort?: string | null;
  include_reasoning?: boolean;
  add_generation_prompt?: boolean;
  continue_final_message?: boolean;
  documents?: Record<string, unknown>[] | null;
  chat_template?: string | null;
  chat_template_kwargs?: Record<string, unknown> | null;
  mm_processor_kwargs?: Record<string, unknown> | null;
}

const part: JsonSchema = {
  type: ['string', 'object'],
  required: ['type'],
  properties: { type: string(), text: nullable(string()), refusal: nullable(string()), thinking: nullable(string()) },
};

const toolCall = object({
  required: ['function'],
  properties: {
    id: nullable(string()),
    type: string(),
    function: object({
      required: ['name'],
      properties: { name: string(), arguments: { type: ['string', 'object', 'null'] } },
    }),
  },
});

const message = object({
  required: ['role'],
  properties: {
    role: { ...string({ minLength: 1, maxLength: 256 }) },
    content: { type: ['string', 'array', 'null'], items: part },
    name: nullable(string()),
    tool_calls: nullable(array(toolCall)),
    tool_call_id: nullable(string()),
    function_call: nullable(object({ properties: { name: string(), arguments: string() } })),
    reasoning: nullable(string()),
    reasoning_content: nullable(string()),
  },
});

const tool = object({
  required: ['type', 'function'],
  properties: {
    type: { type: 'string', enum: ['function'] },
    function: object({
      required: ['name'],
      properties: {
        name: { ...string({ minLength: 1 }), errorText: { minLength: 'The name of a tool must not be empty.' } },
        description: nullable(string()),
        parameters: nullable(object()),
        strict: nullable(boolean()),
      },
    }),
  },
});

const properties: Record<keyof ChatCompletionRequest, JsonSchema> = {
  ...samplingProperties,
  messages: array(message, { maxItems: MAX_MESSAGES }),
  max_completion_tokens: nullable(integer({ minimum: 1 }, 'max_completion_tokens must be at least 1, got {value}.')),
  logprobs: nullable(boolean()),
  top_logprobs: nullable(integer({ minimum: -1 }, '`top_logprobs` must be a positive value or -1.')),
  tools: {
    ...nullable(array(tool, { minItems: 1 })),
    errorText: { minItems: '`tools` must not be an empty array. Omit the field instead.' },
  },
  tool_choice: { type: ['string', 'object', 'null'] },
  parallel_tool_calls: nullable(boolean()),
  reasoning_effort: reasoningEffort,
  include_reasoning: boolean(),
  add_generation_prompt: boolean(),
  continue_final_message: boolean(),
  documents: nullable(array(object())),
  chat_template: nullable(string()),
  chat_template_kwargs: nullable(object()),
  mm_processor_kwargs: nullable(object()),
};

export const chatCompletionSchema: JsonSchema = { type: 'object', required: ['messages'], properties };

const { shape, sampling } = splitSampling(chatCompletionSchema);

export const validateChatCompletion = compileBody<ChatCompletionRequest>(shape);

/** Of a body that has passed validateChatCompletion. */
export const validateChatSampling = compileBody<ChatCompletionRequest>(sampling);

/** Body keys that mean something; any other is accepted, ignored and named in a response header. */
export const chatCompletionFields: ReadonlySet<string> = new Set(Object.keys(properties));
