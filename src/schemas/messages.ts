/**
 * Bodies of POST /v1/messages and /v1/messages/count_tokens. Content blocks and tools are read where they are translated, which names each
 * place.
 */
import { array, boolean, integer, nullable, object, oneOf, string, type JsonSchema } from './json-schema.ts';
import {
  CHAT_FIELDS,
  propertiesOf,
  samplingProperties,
  splitSampling,
  stopStrings,
  type ChatFields,
} from './sampling-fields.ts';
import { compileBody } from './validator.ts';

/** As many as messages of a chat. */
const MAX_MESSAGES = 16_384;

export interface Message {
  role: 'user' | 'assistant' | 'system';
  content: string | Record<string, unknown>[];
}

export interface ThinkingConfig {
  type: 'enabled' | 'adaptive' | 'disabled';
  budget_tokens?: number | null;
  display?: 'summarized' | 'omitted' | null;
}

export interface OutputFormat {
  type: 'json_schema';
  schema: Record<string, unknown>;
}

export interface OutputConfig {
  effort?: string | null;
  format?: OutputFormat | null;
}

export interface MessagesToolChoice {
  type: 'auto' | 'any' | 'tool' | 'none';
  name?: string | null;
  disable_parallel_tool_use?: boolean | null;
}

/** What makes a prompt. */
export interface CountTokensRequest {
  model?: string | null;
  messages: Message[];
  system?: string | Record<string, unknown>[] | null;
  tools?: Record<string, unknown>[] | null;
  tool_choice?: MessagesToolChoice | null;
  thinking?: ThinkingConfig | null;
  output_config?: OutputConfig | null;
  output_format?: OutputFormat | null;
  chat_template?: string | null;
  chat_template_kwargs?: Record<string, unknown> | null;
  /** Prefixes are cached without being asked for. */
  cache_control?: Record<string, unknown> | null;
}

export interface MessagesRequest extends ChatFields, CountTokensRequest {
  max_tokens: number;
  stop_sequences?: string[] | null;
  metadata?: { user_id?: string | null } | null;
  service_tier?: 'auto' | 'standard_only' | null;
}

/** Refused unless they ask for nothing: `refuseLimited` says what that is. */
const LIMITED = [
  'container',
  'mcp_servers',
  'context_management',
  'speed',
  'inference_geo',
  'compaction',
  'fallbacks',
  'fallback_credit_token',
  'thread',
  'billing_policy',
  'diagnostics',
  'user_profile_id',
  'workspace_id',
] as const;

export type LimitedField = (typeof LIMITED)[number];

const textOrBlocks: JsonSchema = { type: ['string', 'array'], items: object() };

const message = object({
  required: ['role', 'content'],
  properties: {
    role: { type: 'string', enum: ['user', 'assistant', 'system'] },
    content: textOrBlocks,
  } satisfies Record<keyof Message, JsonSchema>,
});

const thinking = nullable(
  object({
    required: ['type'],
    properties: {
      type: { type: 'string', enum: ['enabled', 'adaptive', 'disabled'] },
      budget_tokens: nullable(integer({ minimum: 1 }, 'thinking.budget_tokens must be at least 1, got {value}.')),
      display: oneOf('summarized', 'omitted'),
    } satisfies Record<keyof ThinkingConfig, JsonSchema>,
  }),
);

const formatProperties = {
  type: { type: 'string', enum: ['json_schema'] },
  schema: object(),
} satisfies Record<keyof OutputFormat, JsonSchema>;

const outputFormat = nullable(object({ required: ['type', 'schema'], properties: formatProperties }));

const outputConfigProperties = {
  effort: oneOf('low', 'medium', 'high', 'xhigh', 'max'),
  format: outputFormat,
} satisfies Record<keyof OutputConfig, JsonSchema>;

const toolChoiceProperties = {
  type: { type: 'string', enum: ['auto', 'any', 'tool', 'none'] },
  name: nullable(string()),
  disable_parallel_tool_use: nullable(boolean()),
} satisfies Record<keyof MessagesToolChoice, JsonSchema>;

const limited = Object.fromEntries(LIMITED.map((name) => [name, {}])) as Record<LimitedField, JsonSchema>;

const counted: Record<keyof CountTokensRequest | LimitedField, JsonSchema> = {
  model: samplingProperties.model,
  messages: {
    ...array(message, { minItems: 1, maxItems: MAX_MESSAGES }),
    errorText: { minItems: 'messages: at least one message is required.' },
  },
  system: nullable(textOrBlocks),
  tools: nullable(array(object())),
  tool_choice: nullable(object({ required: ['type'], properties: toolChoiceProperties })),
  thinking,
  output_config: nullable(object({ properties: outputConfigProperties })),
  output_format: outputFormat,
  chat_template: nullable(string()),
  chat_template_kwargs: nullable(object()),
  cache_control: nullable(object()),
  ...limited,
};

const properties: Record<keyof MessagesRequest | LimitedField, JsonSchema> = {
  ...propertiesOf(CHAT_FIELDS),
  ...counted,
  max_tokens: integer({ minimum: 1 }, 'max_tokens must be at least 1, got {value}.'),
  stop_sequences: nullable(stopStrings('stop_sequences')),
  metadata: nullable(object({ properties: { user_id: nullable(string()) } })),
  service_tier: oneOf('auto', 'standard_only'),
};

/** Of objects in the body: the keys that mean something. `budget_tokens` is a wish that nothing holds a model to. */
export const MESSAGES_NESTED_FIELDS: Readonly<Record<string, ReadonlySet<string>>> = {
  thinking: new Set(['type', 'display']),
  output_config: new Set(Object.keys(outputConfigProperties)),
  'output_config.format': new Set(Object.keys(formatProperties)),
  output_format: new Set(Object.keys(formatProperties)),
  tool_choice: new Set(Object.keys(toolChoiceProperties)),
  metadata: new Set(['user_id']),
};

export const messagesFields: ReadonlySet<string> = new Set(Object.keys(properties));
export const countTokensFields: ReadonlySet<string> = new Set(Object.keys(counted));

const { shape, sampling } = splitSampling({ type: 'object', required: ['max_tokens', 'messages'], properties });

export const validateMessages = compileBody<MessagesRequest>(shape);

/** Of a body that has passed validateMessages. */
export const validateMessagesSampling = compileBody<MessagesRequest>(sampling);

export const validateCountTokens = compileBody<CountTokensRequest>({
  type: 'object',
  required: ['messages'],
  properties: counted,
});
