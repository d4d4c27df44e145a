/** Messages of the Messages API to those of a chat: a reply's thoughts, text and calls are one message, results of tools messages of their own. */
import type { MessagePart, RequestMessage } from '../../schemas/chat-completion.ts';
import type { CountTokensRequest, Message } from '../../schemas/messages.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { shorten } from '../../schemas/shorten.ts';
import { echo } from '../../schemas/validator.ts';
import { ApiError } from '../errors.ts';
import { openThoughts } from './encrypted-thoughts.ts';
import { refuseType } from './refuse.ts';

type Block = Record<string, unknown>;

/**
 * What Claude Code writes before its instructions for Anthropic's accounts. It is another one in each request, so no prompt that began with
 * it would be found in the cache.
 */
const ACCOUNTING = 'x-anthropic-billing-header:';

/** What a text model cannot be shown. */
const MEDIA: ReadonlySet<unknown> = new Set(['image', 'document', 'container_upload']);

export interface Conversation {
  messages: RequestMessage[];
  /** The last message is the beginning of the reply. */
  continues: boolean;
}

export function toConversation(body: Pick<CountTokensRequest, 'messages' | 'system'>): Conversation {
  const system = systemText(body.system ?? null);
  const messages = body.messages.flatMap((message, index) => readMessage(message, `messages.${index}`));
  const continues = body.messages.at(-1)?.role === 'assistant';
  if (continues && messages.at(-1)?.['tool_calls'] !== undefined) {
    const at = `messages.${body.messages.length - 1}`;
    const message = `${at}: the calls of a last assistant message cannot be continued: their tool_result blocks must follow.`;
    throw new ApiError('invalid_parameter', message, at);
  }
  return { messages: [...system, ...messages], continues };
}

function systemText(system: CountTokensRequest['system']): RequestMessage[] {
  if (system === null || system === undefined || system.length === 0) return [];
  return readSystem(system, 'system', 'system');
}

function readSystem(content: string | unknown[], at: string, where: string): RequestMessage[] {
  const shown = textOnly(content, at, where);
  const parts = typeof shown === 'string' ? [{ type: 'text', text: shown }] : shown;
  const kept = parts.flatMap(withoutAccounting);
  return kept.length === 0 ? [] : [{ role: 'system', content: simplest(kept) }];
}

function withoutAccounting(part: MessagePart): MessagePart[] {
  const text = String(part['text']);
  if (!text.startsWith(ACCOUNTING)) return [part];
  const end = text.indexOf('\n');
  const rest = end < 0 ? '' : text.slice(end + 1);
  return rest === '' ? [] : [{ ...part, text: rest }];
}

function readMessage({ role, content }: Message, at: string): RequestMessage[] {
  if (role === 'assistant') return [readReply(content, `${at}.content`)];
  if (role === 'system') return readSystem(content, `${at}.content`, 'a system message');
  if (typeof content === 'string') return [{ role, content }];
  return readUser(content, `${at}.content`);
}

/** In the order of the blocks. */
function readUser(blocks: readonly Block[], at: string): RequestMessage[] {
  const messages: RequestMessage[] = [];
  let parts: MessagePart[] = [];
  const close = () => {
    if (parts.length > 0) messages.push({ role: 'user', content: simplest(parts) });
    parts = [];
  };
  for (const [index, block] of blocks.entries()) {
    const place = `${at}.${index}`;
    if (block['type'] === 'tool_result') {
      close();
      messages.push(readResult(block, place));
    } else parts.push(readText(block, place, 'a user message'));
  }
  close();
  return messages.length === 0 ? [{ role: 'user', content: '' }] : messages;
}

/** Templates know no failed results: the text says it. */
function readResult(block: Block, at: string): RequestMessage {
  const tool_call_id = textIn(block, 'tool_use_id', at);
  const isError = flagIn(block, 'is_error', at);
  const content: unknown = block['content'] ?? '';
  if (typeof content !== 'string' && !Array.isArray(content)) refuseType(content, 'string or array', `${at}.content`);
  const shown = textOnly(content, `${at}.content`, 'a tool_result');
  return { role: 'tool', tool_call_id, content: isError ? asError(shown) : shown };
}

function asError(content: string | MessagePart[]): string {
  const text = typeof content === 'string' ? content : content.map((part) => String(part['text'])).join('\n');
  return `Error: ${text}`;
}

function readReply(content: Message['content'], at: string): RequestMessage {
  if (typeof content === 'string') return { role: 'assistant', content };
  let reasoning = '';
  let text = '';
  const calls: object[] = [];
  for (const [index, block] of content.entries()) {
    const place = `${at}.${index}`;
    if (block['type'] === 'thinking') reasoning += thoughtsOf(block, place);
    else if (block['type'] === 'tool_use') calls.push(readCall(block, place));
    // Nobody but the server that wrote it can read it.
    else if (block['type'] !== 'redacted_thinking')
      text += String(readText(block, place, 'an assistant message')['text']);
  }
  return {
    role: 'assistant',
    content: text,
    ...(reasoning === '' ? {} : { reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
}

/** What the block shows, else what its signature carries. */
function thoughtsOf(block: Block, at: string): string {
  const thoughts = textIn(block, 'thinking', at);
  if (thoughts !== '') return thoughts;
  const signature = block['signature'] ?? '';
  return (typeof signature === 'string' ? openThoughts(signature) : null) ?? '';
}

function readCall(block: Block, at: string): object {
  const { input } = block;
  if (!isPlainObject(input)) refuseType(input, 'object', `${at}.input`);
  const called = { name: textIn(block, 'name', at), arguments: input };
  return { id: textIn(block, 'id', at), type: 'function', function: called };
}

function textOnly(content: string | unknown[], at: string, where: string): string | MessagePart[] {
  if (typeof content === 'string') return content;
  const parts = content.map((block, index) => {
    if (!isPlainObject(block)) refuseType(block, 'object', `${at}.${index}`);
    return readText(block, `${at}.${index}`, where);
  });
  return parts.length === 0 ? '' : simplest(parts);
}

/** One text is not a list to any template. */
function simplest(parts: MessagePart[]): string | MessagePart[] {
  const [only] = parts;
  return parts.length === 1 && only ? String(only['text']) : parts;
}

function readText(block: Block, at: string, where: string): MessagePart {
  const { type } = block;
  if (type === 'text') return { type, text: textIn(block, 'text', at) };
  const shown = typeof type === 'string' ? `'${shorten(type, 64)}'` : echo(type);
  const message = MEDIA.has(type)
    ? `${at}.type: this model takes text only, blocks of type ${shown} are not supported.`
    : `${at}.type: blocks of type ${shown} are not supported in ${where}.`;
  throw new ApiError('invalid_parameter', message, `${at}.type`);
}

function flagIn(block: Block, key: string, at: string): boolean {
  const value = block[key] ?? false;
  if (typeof value !== 'boolean') refuseType(value, 'boolean', `${at}.${key}`);
  return value;
}

function textIn(block: Block, key: string, at: string): string {
  const value = Object.hasOwn(block, key) ? block[key] : undefined;
  if (typeof value !== 'string') refuseType(value, 'string', `${at}.${key}`);
  return value;
}
