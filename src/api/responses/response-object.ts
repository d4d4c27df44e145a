/** A response object: what repeats the request, how it ended, what it took. */
import type { ChoiceFinish, Generation } from '../../control/sessions/session.ts';
import type { ResponseHead, ResponseUsage } from '../../schemas/response-object.ts';
import type { ResponsesRequest } from '../../schemas/responses.ts';

/** What a response is known by before anything has been generated. */
export interface ResponseIdentity {
  id: string;
  createdAt: number;
  model: string;
  store: boolean;
  serviceTier: 'default' | 'priority';
}

export function openHead(identity: ResponseIdentity, body: ResponsesRequest): ResponseHead {
  return {
    id: identity.id,
    object: 'response',
    created_at: identity.createdAt,
    completed_at: null,
    status: 'in_progress',
    background: false,
    error: null,
    incomplete_details: null,
    instructions: body.instructions ?? null,
    max_output_tokens: body.max_output_tokens ?? null,
    max_tool_calls: body.max_tool_calls ?? null,
    metadata: body.metadata ?? {},
    model: identity.model,
    parallel_tool_calls: body.parallel_tool_calls ?? true,
    previous_response_id: body.previous_response_id ?? null,
    prompt_cache_key: body.prompt_cache_key ?? null,
    reasoning: { effort: body.reasoning?.effort ?? null, summary: body.reasoning?.summary ?? null },
    safety_identifier: body.safety_identifier ?? null,
    service_tier: identity.serviceTier,
    store: identity.store,
    temperature: body.temperature ?? null,
    text: { format: body.text?.format ?? { type: 'text' }, verbosity: body.text?.verbosity ?? 'medium' },
    tool_choice: body.tool_choice ?? 'auto',
    tools: (body.tools ?? []).map(shownTool),
    top_logprobs: body.top_logprobs ?? 0,
    top_p: body.top_p ?? null,
    truncation: body.truncation ?? 'disabled',
    usage: null,
    user: body.user ?? null,
  };
}

function shownTool({ type, name, description, ...tool }: Record<string, unknown>): Record<string, unknown> {
  const { parameters, strict, tools } = tool;
  if (Array.isArray(tools)) return { type, name, description: description ?? null, tools: tools.map(shownTool) };
  return { type, name, description: description ?? null, parameters: parameters ?? null, strict: strict ?? false };
}

/** How the generation ended; no other reasons are known to strict clients than that of `length`. */
export function endOf(finish: ChoiceFinish): Pick<ResponseHead, 'status' | 'incomplete_details'> {
  if (finish === 'stop' || finish === 'tool_calls') return { status: 'completed', incomplete_details: null };
  const reason = finish === 'length' ? 'max_output_tokens' : finish;
  return { status: 'incomplete', incomplete_details: { reason } };
}

export function closedHead(head: ResponseHead, finish: ChoiceFinish, generation: Generation): ResponseHead {
  const ended = endOf(finish);
  const completed_at = ended.status === 'completed' ? Math.floor(Date.now() / 1000) : null;
  return { ...head, ...ended, completed_at, usage: responseUsage(generation) };
}

export function failedHead(head: ResponseHead, code: string, message: string): ResponseHead {
  return { ...head, status: 'failed', error: { code, message } };
}

function responseUsage(generation: Generation): ResponseUsage {
  const { promptTokens, completionTokens, reasoningTokens, cachedTokens } = generation.usage();
  const output = completionTokens[0] ?? 0;
  return {
    input_tokens: promptTokens,
    input_tokens_details: { cached_tokens: cachedTokens },
    output_tokens: output,
    output_tokens_details: { reasoning_tokens: reasoningTokens?.[0] ?? 0 },
    total_tokens: promptTokens + output,
  };
}
