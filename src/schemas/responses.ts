/** Body of POST /v1/responses. Items of `input` and tools are read where they are translated, which names each place. */
import { array, boolean, integer, nullable, object, oneOf, string, type JsonSchema } from './json-schema.ts';
import {
  CHAT_FIELDS,
  propertiesOf,
  reasoningEffort,
  splitSampling,
  type SamplingFields,
  type StreamOptions,
} from './sampling-fields.ts';
import { compileBody, SchemaError } from './validator.ts';

/** As many as messages of a chat. */
export const MAX_ITEMS = 16_384;
/** OpenAI's bounds of `metadata`. */
const MAX_METADATA_KEYS = 16;
const MAX_METADATA_KEY_LENGTH = 64;
const MAX_METADATA_VALUE_LENGTH = 512;

/** Fields that mean the same as in a chat. */
const SHARED = [
  ...CHAT_FIELDS,
  'stop',
  'include_stop_str_in_output',
  'user',
  'repetition_detection',
  'logprobs_mode',
] as const satisfies readonly (keyof SamplingFields)[];

type SharedFields = Pick<SamplingFields, (typeof SHARED)[number]>;

export interface TextFormat {
  type: string;
  name?: string;
  description?: string | null;
  schema?: Record<string, unknown>;
  strict?: boolean | null;
}

export interface TextConfig {
  format?: TextFormat | null;
  verbosity?: string | null;
}

export interface ReasoningConfig {
  effort?: string | null;
  summary?: string | null;
  generate_summary?: string | null;
}

export type ToolChoice = string | Record<string, unknown>;

export interface ResponsesRequest extends SharedFields {
  input?: string | Record<string, unknown>[] | null;
  instructions?: string | null;
  previous_response_id?: string | null;
  max_output_tokens?: number | null;
  tools?: Record<string, unknown>[] | null;
  tool_choice?: ToolChoice | null;
  parallel_tool_calls?: boolean | null;
  max_tool_calls?: number | null;
  text?: TextConfig | null;
  reasoning?: ReasoningConfig | null;
  top_logprobs?: number | null;
  include?: string[] | null;
  stream_options?: (StreamOptions & { include_obfuscation?: boolean | null }) | null;
  store?: boolean | null;
  metadata?: Record<string, string> | null;
  truncation?: string | null;
  service_tier?: string | null;
  safety_identifier?: string | null;
  prompt_cache_key?: string | null;
  prompt_cache_retention?: string | null;
  background?: boolean | null;
  conversation?: unknown;
  prompt?: unknown;
  context_management?: unknown[] | null;
  chat_template?: string | null;
  chat_template_kwargs?: Record<string, unknown> | null;
}

/** Which of its types this server has is asked where tools are translated. */
const toolProperties = {
  type: string(),
  name: nullable(string()),
  description: nullable(string()),
  parameters: nullable(object()),
  strict: nullable(boolean()),
};
const namespaced = nullable(array(object({ required: ['type'], properties: toolProperties })));
const tool = object({ required: ['type'], properties: { ...toolProperties, tools: namespaced } });

const formatProperties = {
  type: { type: 'string', enum: ['text', 'json_object', 'json_schema'] },
  name: { ...string({ minLength: 1 }), errorText: { minLength: 'text.format.name must not be empty.' } },
  description: nullable(string()),
  schema: object(),
  strict: nullable(boolean()),
} satisfies Record<keyof TextFormat, JsonSchema>;

const textProperties = {
  format: nullable(object({ required: ['type'], properties: formatProperties })),
  verbosity: oneOf('low', 'medium', 'high'),
} satisfies Record<keyof TextConfig, JsonSchema>;

const reasoningProperties = {
  effort: reasoningEffort,
  summary: oneOf('auto', 'concise', 'detailed'),
  generate_summary: oneOf('auto', 'concise', 'detailed'),
} satisfies Record<keyof ReasoningConfig, JsonSchema>;

/** What the answer and its events repeat. */
const label = string({ maxLength: 1024 });

const streamOptionsProperties = { include_obfuscation: nullable(boolean()) };

const metadata = nullable(
  object({
    maxProperties: MAX_METADATA_KEYS,
    additionalProperties: string({ maxLength: MAX_METADATA_VALUE_LENGTH }),
  }),
);

const properties: Record<keyof ResponsesRequest, JsonSchema> = {
  ...propertiesOf(SHARED),
  input: { type: ['string', 'array', 'null'], items: object(), maxItems: MAX_ITEMS },
  instructions: nullable(string()),
  previous_response_id: nullable(string({ minLength: 1, maxLength: 512 })),
  max_output_tokens: nullable(integer({ minimum: 1 }, 'max_output_tokens must be at least 1, got {value}.')),
  tools: nullable(array(tool)),
  tool_choice: { type: ['string', 'object', 'null'] },
  parallel_tool_calls: nullable(boolean()),
  max_tool_calls: nullable(integer({ minimum: 1 }, 'max_tool_calls must be at least 1, got {value}.')),
  text: nullable(object({ properties: textProperties })),
  reasoning: nullable(object({ properties: reasoningProperties })),
  top_logprobs: nullable(integer({ minimum: 0 }, 'top_logprobs must be at least 0, got {value}.')),
  include: nullable(array(string(), { maxItems: 32 })),
  stream_options: nullable(object({ properties: streamOptionsProperties })),
  store: nullable(boolean()),
  metadata,
  truncation: oneOf('auto', 'disabled'),
  service_tier: nullable(string()),
  user: nullable(label),
  safety_identifier: nullable(label),
  prompt_cache_key: nullable(label),
  prompt_cache_retention: nullable(string()),
  background: nullable(boolean()),
  conversation: {},
  prompt: {},
  context_management: nullable(array({})),
  chat_template: nullable(string()),
  chat_template_kwargs: nullable(object()),
};

/** Of objects in the body: the keys that mean something. */
export const RESPONSES_NESTED_FIELDS: Readonly<Record<string, ReadonlySet<string>>> = {
  text: new Set(Object.keys(textProperties)),
  'text.format': new Set(Object.keys(formatProperties)),
  reasoning: new Set(Object.keys(reasoningProperties)),
  stream_options: new Set(Object.keys(streamOptionsProperties)),
};

export const responsesFields: ReadonlySet<string> = new Set(Object.keys(properties));

const { shape, sampling } = splitSampling({ type: 'object', properties });
const checkShape = compileBody<ResponsesRequest>(shape);
const checkSampling = compileBody<ResponsesRequest>(sampling);

export function validateResponses(body: unknown): ResponsesRequest {
  const request = named(() => checkShape(body));
  const long = Object.keys(request.metadata ?? {}).find((key) => key.length > MAX_METADATA_KEY_LENGTH);
  if (long === undefined) return request;
  throw new SchemaError('range', 'metadata', `Keys of metadata may have ${MAX_METADATA_KEY_LENGTH} characters.`);
}

/** Of a body that has passed validateResponses. */
export function validateResponsesSampling(body: ResponsesRequest): void {
  named(() => checkSampling(body));
}

/** Places in lists as clients of this endpoint know them: `input[2]`. */
function named<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (!(error instanceof SchemaError) || error.param === null) throw error;
    const place = error.param.replace(/\.(\d+)(?=\.|$)/g, '[$1]');
    throw new SchemaError(
      error.kind,
      place,
      error.message.replace(error.param, () => place),
    );
  }
}
