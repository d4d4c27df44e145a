/** Fields that chat and text completions share: one definition of types, bounds and error sentences. */
import { array, boolean, integer, nullable, number, object, oneOf, string, type JsonSchema } from './json-schema.ts';
import { kvTransferParams, type KvTransferParams } from './kv-transfer.ts';

/** Most stop strings of one request, and characters of one: each is compared with every piece of text. */
const MAX_STOP_STRINGS = 64;
const MAX_STOP_LENGTH = 1024;
/** Most stop ids of one request; the engine takes 1024 with the model's own. */
const MAX_STOP_TOKEN_IDS = 512;
/** Most bad words of one request. */
const MAX_BAD_WORDS = 512;
/** Choices of one request, as the OpenAI API bounds them. */
const MAX_CHOICES = 128;

export interface StreamOptions {
  include_usage?: boolean | null;
  continuous_usage_stats?: boolean | null;
}

export interface RepetitionDetection {
  max_pattern_size?: number;
  min_pattern_size?: number;
  min_count?: number;
}

export interface SamplingFields {
  model?: string | null;
  max_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  frequency_penalty?: number | null;
  presence_penalty?: number | null;
  repetition_penalty?: number | null;
  length_penalty?: number;
  logit_bias?: Record<string, number> | null;
  seed?: number | bigint | null;
  stop?: string | string[] | null;
  stop_token_ids?: number[] | null;
  include_stop_str_in_output?: boolean;
  ignore_eos?: boolean;
  min_tokens?: number;
  skip_special_tokens?: boolean;
  spaces_between_special_tokens?: boolean;
  n?: number | null;
  stream?: boolean | null;
  stream_options?: StreamOptions | null;
  user?: string | null;
  request_id?: string;
  add_special_tokens?: boolean;
  truncate_prompt_tokens?: number | null;
  prompt_logprobs?: number | null;
  allowed_token_ids?: number[] | null;
  bad_words?: string[] | null;
  use_beam_search?: boolean;
  echo?: boolean;
  priority?: number;
  response_format?: Record<string, unknown> | null;
  structured_outputs?: Record<string, unknown> | null;
  repetition_detection?: RepetitionDetection | null;
  kv_transfer_params?: KvTransferParams | null;
  engine_xargs?: Record<string, unknown> | null;
  vllm_xargs?: Record<string, unknown> | null;
  cache_salt?: string | null;
  logprobs_mode?: 'raw' | 'temperature' | 'processed' | null;
  return_tokens_as_token_ids?: boolean | null;
  return_token_ids?: boolean | null;
}

const penalty = (name: string): JsonSchema =>
  nullable(number({ minimum: -2, maximum: 2 }, `${name} must be in [-2, 2], got {value}.`));

/** `name`: what the field is called. */
export function stopStrings(name: string): JsonSchema {
  const errorText = { minLength: `${name} cannot contain an empty string.` };
  const items = { ...string({ minLength: 1, maxLength: MAX_STOP_LENGTH }), errorText };
  return array(items, { maxItems: MAX_STOP_STRINGS });
}

const stop: JsonSchema = {
  ...stopStrings('stop'),
  type: ['string', 'array', 'null'],
  minLength: 1,
  maxLength: MAX_STOP_LENGTH,
  errorText: { minLength: 'stop cannot contain an empty string.' },
};

// A misspelt key would leave the answer free, or open in another way than was meant: unknown ones are refused.
const structuredOutputs = nullable(
  object({
    additionalProperties: false,
    properties: {
      json: { type: ['string', 'object', 'null'] },
      regex: nullable(string()),
      choice: nullable(array(string())),
      grammar: nullable(string()),
      json_object: nullable(boolean()),
      disable_fallback: boolean(),
      disable_any_whitespace: boolean(),
      disable_additional_properties: boolean(),
      whitespace_pattern: nullable(string()),
      structural_tag: nullable(string()),
      _backend: nullable(string()),
      _backend_was_auto: boolean(),
    },
  }),
);

const responseFormatProperties = {
  type: { type: 'string', enum: ['text', 'json_object', 'json_schema', 'structural_tag'] },
  json_schema: nullable(object()),
  format: nullable(object()),
  structures: nullable(array(object())),
  triggers: nullable(array(string())),
} satisfies Record<string, JsonSchema>;

const responseFormat = nullable(object({ required: ['type'], properties: responseFormatProperties }));

const repetitionDetection = nullable(
  object({
    additionalProperties: false,
    properties: { max_pattern_size: integer(), min_pattern_size: integer(), min_count: integer() },
  }),
);

/** Texts, numbers and lists of these; nothing nested. */
const extensionArguments = nullable(
  object({
    additionalProperties: { type: ['string', 'number', 'array'], items: { type: ['string', 'number'] } },
  }),
);

const streamOptionsProperties = {
  include_usage: nullable(boolean()),
  continuous_usage_stats: nullable(boolean()),
} satisfies Record<keyof StreamOptions, JsonSchema>;

const streamOptions = nullable(object({ properties: streamOptionsProperties }));

/** Of objects in the body that clients of other servers extend: the keys that mean something. Others are accepted and named in a header. */
export const NESTED_FIELDS: Readonly<Record<string, ReadonlySet<string>>> = {
  stream_options: new Set(Object.keys(streamOptionsProperties)),
  response_format: new Set(Object.keys(responseFormatProperties)),
  'response_format.json_schema': new Set(['name', 'description', 'schema', 'strict', 'json_schema']),
};

/** All that OpenAI's libraries and vLLM name; what they mean is the template's affair, but for `none`. */
export const reasoningEffort = oneOf('none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max');

/** Alphabetical within what belongs together; the not-built table says which of them only take their default yet. */
export const samplingProperties: Record<keyof SamplingFields, JsonSchema> = {
  model: nullable(string()),
  max_tokens: nullable(integer({ minimum: 1 }, 'max_tokens must be at least 1, got {value}.')),
  min_tokens: integer({ minimum: 0 }, 'min_tokens must be greater than or equal to 0, got {value}.'),
  n: {
    ...nullable(integer({ minimum: 1, maximum: MAX_CHOICES })),
    errorText: {
      minimum: 'n must be at least 1, got {value}.',
      maximum: `n must be at most ${MAX_CHOICES}, got {value}.`,
    },
  },
  temperature: nullable(number({ minimum: 0 }, 'temperature must be non-negative, got {value}.')),
  top_p: nullable(number({ exclusiveMinimum: 0, maximum: 1 }, 'top_p must be in (0, 1], got {value}.')),
  top_k: nullable(integer({ minimum: -1 }, 'top_k must be 0 (disable), or at least 1, got {value}.')),
  min_p: nullable(number({ minimum: 0, maximum: 1 }, 'min_p must be in [0, 1], got {value}.')),
  seed: { int64: true },
  frequency_penalty: penalty('frequency_penalty'),
  presence_penalty: penalty('presence_penalty'),
  repetition_penalty: nullable(
    number({ exclusiveMinimum: 0 }, 'repetition_penalty must be greater than zero, got {value}.'),
  ),
  length_penalty: number(),
  logit_bias: nullable(object({ additionalProperties: { type: 'number' } })),
  stop,
  stop_token_ids: nullable(array(integer(), { maxItems: MAX_STOP_TOKEN_IDS })),
  include_stop_str_in_output: boolean(),
  ignore_eos: boolean(),
  skip_special_tokens: boolean(),
  // No decoder that is supported writes a space between special tokens, so both values give the same text.
  spaces_between_special_tokens: boolean(),
  stream: nullable(boolean()),
  stream_options: streamOptions,
  user: nullable(string()),
  request_id: string(),
  add_special_tokens: boolean(),
  truncate_prompt_tokens: nullable(integer({ minimum: -1 })),
  prompt_logprobs: nullable(integer({ minimum: -1 }, '`prompt_logprobs` must be a positive value or -1, got {value}.')),
  allowed_token_ids: {
    ...nullable(array(integer(), { minItems: 1 })),
    errorText: { minItems: 'allowed_token_ids is not None and empty!' },
  },
  bad_words: nullable(
    array(
      {
        ...string({ minLength: 1, maxLength: MAX_STOP_LENGTH }),
        errorText: { minLength: 'bad_words cannot contain an empty string.' },
      },
      { maxItems: MAX_BAD_WORDS },
    ),
  ),
  use_beam_search: boolean(),
  echo: boolean(),
  priority: integer(),
  response_format: responseFormat,
  structured_outputs: structuredOutputs,
  repetition_detection: repetitionDetection,
  kv_transfer_params: kvTransferParams,
  engine_xargs: extensionArguments,
  vllm_xargs: extensionArguments,
  cache_salt: {
    ...nullable(string({ minLength: 1 })),
    errorText: { minLength: "Parameter 'cache_salt' must be a non-empty string if provided." },
  },
  logprobs_mode: { type: ['string', 'null'], enum: ['raw', 'temperature', 'processed', null] },
  return_tokens_as_token_ids: nullable(boolean()),
  return_token_ids: nullable(boolean()),
};

/** Fields that mean the same in every form of a chat: those of the Messages API are these. */
export const CHAT_FIELDS = [
  'model',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'frequency_penalty',
  'presence_penalty',
  'repetition_penalty',
  'logit_bias',
  'seed',
  'stop_token_ids',
  'ignore_eos',
  'min_tokens',
  'skip_special_tokens',
  'spaces_between_special_tokens',
  'stream',
  'request_id',
  'allowed_token_ids',
  'bad_words',
  'priority',
  'structured_outputs',
  'engine_xargs',
  'vllm_xargs',
  'cache_salt',
] as const satisfies readonly (keyof SamplingFields)[];

export type ChatFields = Pick<SamplingFields, (typeof CHAT_FIELDS)[number]>;

export function propertiesOf<Name extends keyof SamplingFields>(names: readonly Name[]): Record<Name, JsonSchema> {
  return Object.fromEntries(names.map((name) => [name, samplingProperties[name]])) as Record<Name, JsonSchema>;
}

/** How to sample. What these may hold matters once there is a model to sample from; their types matter at once. */
const SAMPLING: ReadonlySet<string> = new Set([
  'n',
  'max_tokens',
  'max_completion_tokens',
  'max_output_tokens',
  'min_tokens',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'frequency_penalty',
  'presence_penalty',
  'repetition_penalty',
  'stop',
  'stop_sequences',
  'stop_token_ids',
  'bad_words',
  'allowed_token_ids',
]);

const BOUNDS: ReadonlySet<string> = new Set([
  'minimum',
  'maximum',
  'exclusiveMinimum',
  'minLength',
  'maxLength',
  'minItems',
  'maxItems',
]);

/**
 * Two schemas for one body, since rules between fields and the model's name are told between them: all fields, and
 * what those of sampling may hold.
 */
export function splitSampling(schema: JsonSchema): { shape: JsonSchema; sampling: JsonSchema } {
  const fields = Object.entries(schema.properties ?? {});
  const shapes = fields.map(([name, field]) => [name, SAMPLING.has(name) ? withoutBounds(field) : field]);
  const values = fields.filter(([name]) => SAMPLING.has(name));
  return {
    shape: { ...schema, properties: Object.fromEntries(shapes) as Record<string, JsonSchema> },
    sampling: { type: 'object', properties: Object.fromEntries(values) },
  };
}

function withoutBounds(schema: JsonSchema): JsonSchema {
  const kept = Object.fromEntries(Object.entries(schema).filter(([keyword]) => !BOUNDS.has(keyword))) as JsonSchema;
  return schema.items === undefined ? kept : { ...kept, items: withoutBounds(schema.items) };
}
