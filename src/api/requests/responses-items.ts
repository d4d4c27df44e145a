/** Items of a Responses conversation to the messages of a chat. Reasoning, text and calls of one reply are one message again. */
import { textKey } from '../../control/sessions/content-parts.ts';
import type { MessagePart, RequestMessage } from '../../schemas/chat-completion.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { shorten } from '../../schemas/shorten.ts';
import { echo } from '../../schemas/validator.ts';
import { ApiError } from '../errors.ts';
import { openThoughts } from './encrypted-thoughts.ts';
import { MEDIA_PARTS } from './messages.ts';
import { refuseType } from './refuse.ts';
import { flatName } from './responses-tools.ts';

type Item = Record<string, unknown>;

/** `at`: the item's place in the request, for errors. */
export interface PlacedItem {
  item: Item;
  at: string;
}

const ROLES: ReadonlySet<unknown> = new Set(['user', 'assistant', 'system', 'developer']);

/** What one reply of the model is made from. */
interface Turn {
  reasoning: string;
  content: string | null;
  calls: { id: string; type: 'function'; function: { name: string; arguments: string } }[];
}

export function toRequestMessages(items: Iterable<PlacedItem>, instructions: string | null): RequestMessage[] {
  const conversation = new Conversation();
  if (instructions !== null) conversation.add({ role: 'system', content: instructions });
  for (const { item, at } of items) readItem(conversation, item, at);
  return conversation.end();
}

class Conversation {
  readonly #messages: RequestMessage[] = [];
  #turn: Turn | null = null;

  add(message: RequestMessage): void {
    this.#close();
    this.#messages.push(message);
  }

  /** The reply that goes on, or a new one where `goesOn` says that this cannot be a part of it. */
  turn(goesOn: (turn: Turn) => boolean): Turn {
    if (this.#turn && !goesOn(this.#turn)) this.#close();
    return (this.#turn ??= { reasoning: '', content: null, calls: [] });
  }

  end(): RequestMessage[] {
    this.#close();
    return this.#messages;
  }

  #close(): void {
    if (this.#turn === null) return;
    const { reasoning, content, calls } = this.#turn;
    this.#turn = null;
    this.#messages.push({
      role: 'assistant',
      content,
      ...(reasoning === '' ? {} : { reasoning }),
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
    });
  }
}

function readItem(conversation: Conversation, item: Item, at: string): void {
  switch (typeOf(item)) {
    case 'message':
      return readMessage(conversation, item, at);
    case 'reasoning': {
      const thoughts = thoughtsOf(item, at);
      conversation.turn(({ content, calls }) => content === null && calls.length === 0).reasoning += thoughts;
      return;
    }
    case 'function_call': {
      const called = { name: calledName(item, at), arguments: textIn(item, 'arguments', at) };
      const call = { id: textIn(item, 'call_id', at), type: 'function' as const, function: called };
      conversation.turn(() => true).calls.push(call);
      return;
    }
    case 'function_call_output': {
      const content = contentOf(item['output'], `${at}.output`);
      return conversation.add({ role: 'tool', tool_call_id: textIn(item, 'call_id', at), content });
    }
    default:
      throw new ApiError('invalid_parameter', unknownType(item), `${at}.type`);
  }
}

/** Easy messages have no type. */
export function typeOf(item: Item): unknown {
  return item['type'] ?? ('role' in item ? 'message' : undefined);
}

function unknownType(item: Item): string {
  const { type } = item;
  return typeof type === 'string'
    ? `Items of type '${shorten(type, 64)}' are not supported by this server.`
    : 'An item needs a `type`, or the `role` of a message.';
}

function readMessage(conversation: Conversation, item: Item, at: string): void {
  const { role } = item;
  if (!ROLES.has(role)) {
    const message = `${at}.role must be "user", "assistant", "system" or "developer", got ${echo(role)}.`;
    throw new ApiError('invalid_parameter', message, `${at}.role`);
  }
  const content = contentOf(item['content'], `${at}.content`);
  if (role !== 'assistant') return conversation.add({ role: String(role), content });
  // Behind calls it is the same reply; behind another text it is another message.
  const turn = conversation.turn(({ content: before, calls }) => before === null || calls.length > 0);
  turn.content = (turn.content ?? '') + wholeText(content);
}

function wholeText(content: string | MessagePart[]): string {
  return typeof content === 'string' ? content : content.map((part) => String(part['text'])).join('\n');
}

function contentOf(content: unknown, at: string): string | MessagePart[] {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) refuseType(content, 'string or array', at);
  const parts = content.map((part, index) => toPart(part, `${at}[${index}]`));
  const [only] = parts;
  return parts.length === 1 && only ? String(only['text']) : parts;
}

function toPart(part: unknown, at: string): MessagePart {
  if (!isPlainObject(part)) refuseType(part, 'object', at);
  const { type } = part;
  const key = textKey(type);
  if (key === undefined) {
    const shown = typeof type === 'string' ? `'${shorten(type, 64)}'` : echo(type);
    const message = MEDIA_PARTS.has(String(type))
      ? `This model takes text only: content part type ${shown} is not supported.`
      : `Unsupported content part type: ${shown}`;
    throw new ApiError('invalid_parameter', message, `${at}.type`);
  }
  return { type: 'text', text: textIn(part, key, at) };
}

/** What the item shows, else what it carries for whoever shows nothing, else what was made of them by another server. */
function thoughtsOf(item: Item, at: string): string {
  const shown = thoughtsIn(item, 'content', at);
  const summary = thoughtsIn(item, 'summary', at);
  if (shown.length > 0) return shown.join('');
  const carried = item['encrypted_content'] ?? null;
  if (carried === null) return summary.join('\n\n');
  const thoughts = typeof carried === 'string' ? openThoughts(carried) : null;
  if (thoughts !== null) return thoughts;
  const message = 'encrypted_content is not what this server gave out; leave the reasoning item out.';
  throw new ApiError('invalid_parameter', message, `${at}.encrypted_content`);
}

function calledName(item: Item, at: string): string {
  const name = textIn(item, 'name', at);
  return (item['namespace'] ?? null) === null ? name : flatName(textIn(item, 'namespace', at), name);
}

function thoughtsIn(item: Item, key: string, at: string): string[] {
  const parts = item[key] ?? [];
  if (!Array.isArray(parts)) refuseType(parts, 'array', `${at}.${key}`);
  return parts.map((part, index) => {
    const place = `${at}.${key}[${index}]`;
    if (!isPlainObject(part)) refuseType(part, 'object', place);
    return textIn(part, 'text', place);
  });
}

export function textIn(item: Item, key: string, at: string): string {
  const value = Object.hasOwn(item, key) ? item[key] : undefined;
  if (typeof value !== 'string') refuseType(value, 'string', `${at}.${key}`);
  return value;
}
