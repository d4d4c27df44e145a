/** Chat messages and tools as a template expects them, from what the API accepts. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { fitCallIds } from './call-ids.ts';
import { textKey, textPart, type TextPart } from './content-parts.ts';
import { parseJsonNumbers } from '../json-numbers.ts';
import type { ChatMessage, ContentPart } from './session.ts';
import { SessionError } from './session.ts';
import type { ContentFormat, ContentUse } from './template/content-format.ts';

/** `source`: the template's text. */
export function prepareMessages(
  messages: readonly ChatMessage[],
  use: ContentUse,
  source: string,
): Record<string, unknown>[] {
  // Where no role is compared with tool's, any role is written as it is.
  const knowsFunctions = !/['"]tool['"]/.test(source) || /\brole\b[^{}%]{0,80}['"]function['"]/.test(source);
  const knowsCalls = source.includes('function_call');
  const instructs = takesDevelopers(source);
  return messages
    .map((message) => (instructs ? message : instruct(message)))
    .map((message) => fitCallIds(modernise(message, knowsFunctions, knowsCalls), source))
    .map((message) => prepareMessage(message, use));
}

function takesDevelopers(source: string): boolean {
  return !/['"]system['"]/.test(source) || source.includes('developer');
}

/** Developer messages are what system messages were before. A template that does not know them would leave them out of the prompt. */
function instruct(message: ChatMessage): ChatMessage {
  return message.role === 'developer' ? { ...message, role: 'system' } : message;
}

/**
 * For a template that takes one system message, at the beginning: system messages, and developer messages that become such, joined there.
 * null: there is nothing to join, or the message that is to be continued would be among them.
 */
export function joinInstructions(
  messages: readonly ChatMessage[],
  source: string,
  continues: boolean,
): ChatMessage[] | null {
  const joins = ({ role }: ChatMessage) => role === 'system' || (role === 'developer' && !takesDevelopers(source));
  const [first, ...more] = messages.filter(joins);
  const last = messages.at(-1);
  if (!first || !last || (continues && joins(last))) return null;
  if (more.length === 0 && first === messages[0]) return null;
  const texts = [first, ...more].map((message) => prepareContent(message, 'string')).filter((text) => text !== '');
  return [{ ...first, role: 'system', content: texts.join('\n\n') }, ...messages.filter((message) => !joins(message))];
}

/**
 * Function messages and function_call are what tool messages and tool_calls were before. A template that does not know
 * them would leave them out of the prompt.
 */
function modernise(message: ChatMessage, knowsFunctions: boolean, knowsCalls: boolean): ChatMessage {
  const { function_call: call, ...rest } = message;
  const role = message.role === 'function' && !knowsFunctions ? 'tool' : message.role;
  if (!isPlainObject(call) || knowsCalls || Array.isArray(rest['tool_calls'])) return { ...message, role };
  return { ...rest, role, content: message.content, tool_calls: [{ type: 'function', function: call }] };
}

function prepareMessage(message: ChatMessage, use: ContentUse): Record<string, unknown> {
  const prepared: Record<string, unknown> = { ...message, content: prepareContent(message, use.format) };
  const reasoning = message['reasoning'] ?? message['reasoning_content'];
  if (typeof reasoning === 'string') {
    prepared['reasoning'] = reasoning;
    prepared['reasoning_content'] = reasoning;
  }
  const calls = message['tool_calls'];
  if (Array.isArray(calls) && calls.length > 0) {
    prepared['tool_calls'] = calls.map(prepareCall);
    if (use.knowsNone && (message.content ?? '') === '') prepared['content'] = null;
  } else delete prepared['tool_calls'];
  return prepared;
}

function prepareContent(message: ChatMessage, format: ContentFormat): string | TextPart[] {
  const content = message.content ?? null;
  if (content === null) return format === 'partsOnly' ? [] : '';
  if (typeof content === 'string') return format === 'partsOnly' ? [{ type: 'text', text: content }] : content;
  const parts = content.map(prepareContentPart).filter((part) => part !== null);
  // No template knows a list as a tool's answer.
  if (format === 'string' || message.role === 'tool') return parts.map(({ text }) => text).join('\n');
  return parts;
}

function prepareContentPart(part: ContentPart | string): TextPart | null {
  const text = textOf(part);
  if (text === null) return null;
  return typeof part === 'string' ? { type: 'text', text } : textPart(part, text);
}

/** null = a text part without text, which is skipped. */
function textOf(part: ContentPart | string): string | null {
  if (typeof part === 'string') return part;
  const key = textKey(part.type);
  if (key === undefined) {
    throw new SessionError(
      'bad_request',
      `Unsupported chat content part type: '${String(part.type).slice(0, 100)}'`,
      'type',
    );
  }
  const text = part[key] ?? null;
  if (text !== null && typeof text !== 'string') {
    throw new SessionError(
      'bad_request',
      `The '${key}' of a '${part.type}' content part must be a string.`,
      'messages',
    );
  }
  return text;
}

/** Templates write arguments with `tojson`, so a JSON string becomes the object that it holds; some write calls whole. */
function prepareCall(call: unknown): unknown {
  if (!isPlainObject(call) || !isPlainObject(call['function'])) return call;
  const { arguments: args } = call['function'];
  const isText = typeof args === 'string' || args === undefined || args === null;
  const called = { ...call['function'], arguments: isText ? parseArguments(args ?? '') : args };
  return { ...call, function: inOrder(called, CALLED_KEYS) };
}

function parseArguments(text: string): unknown {
  try {
    const value = parseJsonNumbers(text);
    return isPlainObject(value) ? value : {};
  } catch {
    return {};
  }
}

const TOOL_KEYS = ['type', 'function'];
const FUNCTION_KEYS = ['name', 'description', 'parameters', 'strict'];
/** As models write them; OpenAI's library for Python has them the other way round. */
const CALLED_KEYS = ['name', 'arguments'];

/**
 * Templates write tools whole, and a client's library may have sent them in one order of keys for a reply and in another to train it: the
 * prompt is the same. Keys that tools are not known to have stand behind these, in the client's order.
 */
export function prepareTools(tools: readonly unknown[] | null): unknown[] | null {
  return tools?.map(prepareTool) ?? null;
}

function prepareTool(tool: unknown): unknown {
  if (!isPlainObject(tool)) return tool;
  const called = tool['function'];
  const whole = isPlainObject(called) ? { ...tool, function: inOrder(called, FUNCTION_KEYS) } : tool;
  return inOrder(whole, TOOL_KEYS);
}

function inOrder(record: Record<string, unknown>, first: readonly string[]): Record<string, unknown> {
  const known = first.filter((key) => Object.hasOwn(record, key)).map((key): [string, unknown] => [key, record[key]]);
  return Object.fromEntries([...known, ...Object.entries(record)]);
}
