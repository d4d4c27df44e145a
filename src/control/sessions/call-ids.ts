/**
 * Ids of calls for templates that take nine characters and nothing else, as Mistral's do. Agents bring ids of their own and of
 * other models (`call_1`, `chatcmpl-tool-...`); vLLM shortens these too.
 */
import type { ChatMessage } from './session.ts';

const LENGTH = 9;
const ASKS_LENGTH = /id\s*\|\s*length\s*!=\s*9\b/;

/** `source`: the template's text. */
export function fitCallIds(message: ChatMessage, source: string): ChatMessage {
  if (!ASKS_LENGTH.test(source)) return message;
  const { tool_call_id: answered, tool_calls: calls } = message;
  return {
    ...message,
    ...(typeof answered === 'string' && { tool_call_id: fit(answered) }),
    ...(Array.isArray(calls) && { tool_calls: calls.map(fitCall) }),
  };
}

function fitCall(call: unknown): unknown {
  const id = typeof call === 'object' && call !== null && 'id' in call ? call.id : undefined;
  return typeof id === 'string' ? { ...(call as object), id: fit(id) } : call;
}

/** The end of an id is what tells it from others. */
function fit(id: string): string {
  return id.slice(-LENGTH).padStart(LENGTH, '0');
}
