/** Fields of the Messages API that are refused, and those that other fields of a chat stand for. */
import type { ContentConstraint, ReplyOptions } from '../../control/sessions/session.ts';
import type { CountTokensRequest, LimitedField, MessagesRequest } from '../../schemas/messages.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ApiError } from '../errors.ts';
import { toConstraint } from './constraint.ts';

const isNull = (value: unknown): boolean => value === null;
const isEmpty = (value: unknown): boolean => isNull(value) || (Array.isArray(value) && value.length === 0);

/** By name: what asks for nothing that is not there. */
const LIMITED: Readonly<Record<LimitedField, (value: unknown) => boolean>> = {
  container: isNull,
  mcp_servers: isEmpty,
  context_management: keepsContext,
  speed: (value) => isNull(value) || value === 'standard',
  inference_geo: isNull,
  compaction: isNull,
  fallbacks: isEmpty,
  fallback_credit_token: isNull,
  thread: isNull,
  billing_policy: isNull,
  diagnostics: isNull,
  user_profile_id: isNull,
  workspace_id: isNull,
};

export function refuseLimited(body: CountTokensRequest): void {
  for (const [field, takes] of Object.entries(LIMITED)) {
    if (!Object.hasOwn(body, field) || takes((body as unknown as Record<string, unknown>)[field])) continue;
    throw new ApiError('not_built', `${field} is not supported by this server.`, field);
  }
}

/** Thoughts are kept as they are sent: an edit that keeps all of them changes nothing. */
function keepsContext(value: unknown): boolean {
  if (value === null) return true;
  if (!isPlainObject(value) || Object.keys(value).some((key) => key !== 'edits')) return false;
  const edits = value['edits'] ?? [];
  const keepsAll = (edit: unknown) =>
    isPlainObject(edit) && edit['type'] === 'clear_thinking_20251015' && edit['keep'] === 'all';
  return Array.isArray(edits) && edits.every(keepsAll);
}

/** Variables of the chat template. */
export function templateKwargs(body: CountTokensRequest): Record<string, unknown> {
  const { thinking, output_config: config } = body;
  const effort = config?.effort ?? null;
  return {
    ...(thinking ? { enable_thinking: thinking.type !== 'disabled' } : {}),
    ...(effort === null ? {} : { reasoning_effort: effort }),
    ...body.chat_template_kwargs,
  };
}

/** `output_config.format`, which was `output_format` before, or `structured_outputs`, whose places errors name. */
export function toFormatConstraint(body: MessagesRequest, tools: ReplyOptions['tools']): ContentConstraint | null {
  const current = body.output_config?.format ?? null;
  const old = body.output_format ?? null;
  if (current !== null && old !== null) {
    const message = 'output_format: give it as output_config.format alone.';
    throw new ApiError('invalid_parameter', message, 'output_format');
  }
  const format = current ?? old;
  const response_format = format && { type: 'json_schema', json_schema: { name: 'output', schema: format.schema } };
  const constraint = toConstraint({ response_format, structured_outputs: body.structured_outputs ?? null }, tools);
  if (constraint?.param !== 'response_format') return constraint;
  return { ...constraint, param: current === null ? 'output_format.schema' : 'output_config.format.schema' };
}
