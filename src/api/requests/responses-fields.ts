/** Fields of the Responses API that are refused, and those that other fields of a chat stand for. */
import type { ContentConstraint, ReplyOptions } from '../../control/sessions/session.ts';
import type { ResponsesRequest, TextFormat } from '../../schemas/responses.ts';
import { shorten } from '../../schemas/shorten.ts';
import { ApiError } from '../errors.ts';
import { toConstraint } from './constraint.ts';
import { refuse } from './refuse.ts';

const LOGPROBS = 'message.output_text.logprobs';
const ENCRYPTED = 'reasoning.encrypted_content';

/** What may be asked for. Of those after the first two there is nothing here that could have them. */
const INCLUDABLE: ReadonlySet<string> = new Set([
  LOGPROBS,
  ENCRYPTED,
  'file_search_call.results',
  'web_search_call.results',
  'web_search_call.action.sources',
  'message.input_image.image_url',
  'computer_call_output.output.image_url',
  'code_interpreter_call.outputs',
]);

export interface Included {
  logprobs: boolean;
  encryptedContent: boolean;
}

export function toIncluded(body: ResponsesRequest): Included {
  const include = body.include ?? [];
  const unknown = include.findIndex((name) => !INCLUDABLE.has(name));
  if (unknown >= 0) {
    const at = `include[${unknown}]`;
    const message = `${at}: ${JSON.stringify(shorten(include[unknown] ?? '', 64))} cannot be included.`;
    throw new ApiError('invalid_parameter', message, at);
  }
  const logprobs = include.includes(LOGPROBS);
  if ((body.top_logprobs ?? 0) > 0 && !logprobs) {
    refuse(`\`top_logprobs\` needs \`include\` with ${JSON.stringify(LOGPROBS)}.`, 'top_logprobs');
  }
  return { logprobs, encryptedContent: include.includes(ENCRYPTED) };
}

const isNull = (value: unknown): boolean => value === null;
const among =
  (...values: unknown[]) =>
  (value: unknown): boolean =>
    value === null || values.includes(value);

/** By name: what asks for nothing that is not there, and what is told to whoever asks for more. */
const LIMITED: Readonly<Record<string, { takes: (value: unknown) => boolean; message: string }>> = {
  background: { takes: among(false), message: '`background` is not supported: ask for a stream.' },
  conversation: {
    takes: isNull,
    message: '`conversation` is not supported: use `previous_response_id`, or send all items.',
  },
  prompt: { takes: isNull, message: '`prompt` is not supported: this server stores no prompt templates.' },
  context_management: {
    takes: (value) => value === null || (Array.isArray(value) && value.length === 0),
    message: '`context_management` is not supported.',
  },
  service_tier: { takes: among('auto', 'default'), message: '`service_tier` must be "auto" or "default".' },
  prompt_cache_retention: {
    takes: among('in_memory'),
    message: '`prompt_cache_retention` must be "in_memory": cached prompts are kept nowhere else.',
  },
};

export function refuseLimited(body: ResponsesRequest): void {
  for (const [field, { takes, message }] of Object.entries(LIMITED)) {
    const value = (body as Record<string, unknown>)[field];
    if (value !== undefined && !takes(value)) throw new ApiError('not_built', message, field);
  }
  if (body.stream_options?.include_obfuscation === true) {
    const message = '`stream_options.include_obfuscation` is not supported: events carry no padding.';
    throw new ApiError('not_built', message, 'stream_options.include_obfuscation');
  }
  for (const field of ['summary', 'generate_summary'] as const) {
    const summary = body.reasoning?.[field] ?? 'auto';
    if (summary === 'auto') continue;
    const at = `reasoning.${field}`;
    const message = `Summaries are not made: the thoughts come whole. \`${at}\` may be "auto", got "${summary}".`;
    throw new ApiError('not_built', message, at);
  }
}

/** Empty ones ask for nothing that a stream could say. */
export function checkStreaming(body: ResponsesRequest): void {
  if (body.stream === true || Object.keys(body.stream_options ?? {}).length === 0) return;
  refuse('`stream_options` need `stream` true.', 'stream_options');
}

/** `text.format` or `structured_outputs`, whose places errors name. */
export function toTextConstraint(body: ResponsesRequest, tools: ReplyOptions['tools']): ContentConstraint | null {
  const format = body.text?.format ?? null;
  const fields = { response_format: toResponseFormat(format), structured_outputs: body.structured_outputs ?? null };
  const constraint = toConstraint(fields, tools);
  if (constraint?.param !== 'response_format') return constraint;
  return { ...constraint, param: format?.type === 'json_schema' ? 'text.format.schema' : 'text.format' };
}

function toResponseFormat(format: TextFormat | null): Record<string, unknown> | null {
  if (format === null || format.type === 'text') return null;
  const { type, name, schema } = format;
  if (type !== 'json_schema') return { type };
  if (name === undefined) refuse('text.format.name: Field required (missing)', 'text.format.name');
  if (schema === undefined) refuse('text.format.schema: Field required (missing)', 'text.format.schema');
  return { type, json_schema: { name, schema } };
}

/** Variables of the chat template. */
export function templateKwargs(body: ResponsesRequest): Record<string, unknown> {
  const verbosity = body.text?.verbosity ?? null;
  return { ...(verbosity === null ? {} : { verbosity }), ...body.chat_template_kwargs };
}
