/** train.jsonl: one conversation per line, read as a stream. */
import type { ChatMessage } from '../sessions/session.ts';
import { TrainingFailedError } from './errors.ts';
import { isChoice, type HistoryElement } from './trajectories.ts';

export interface Conversation {
  messages: ChatMessage[];
  tools: unknown[] | null;
  /** From 1, in the file as it was sent. */
  line: number;
}

/** Bytes of one line: far above what fits a context. */
const MAX_LINE_BYTES = 64 * 1024 * 1024;
const MAX_LINES = 10_000_000;
const NEWLINE = 0x0a;
const SPACE = 0x20;

/** A line that is not blank, and its number from 1. */
export interface DataLine {
  bytes: Uint8Array;
  number: number;
}

/** Looks at no line further than for its end. Throws TrainingFailedError where there is too much. */
export async function* readLines(data: AsyncIterable<Uint8Array>): AsyncGenerator<DataLine> {
  let number = 0;
  for await (const bytes of lines(data)) {
    number++;
    if (number > MAX_LINES) throw new TrainingFailedError(`The training data has more than ${MAX_LINES} lines.`);
    if (bytes.some((byte) => byte > SPACE)) yield { bytes, number };
  }
}

async function* lines(data: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let parts: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of data) {
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, from)) {
      parts.push(chunk.subarray(from, end));
      yield Buffer.concat(parts);
      parts = [];
      size = 0;
      from = end + 1;
    }
    parts.push(chunk.subarray(from));
    size += chunk.length - from;
    if (size > MAX_LINE_BYTES)
      throw new TrainingFailedError(`A line of the training data is above ${MAX_LINE_BYTES} bytes.`);
  }
  if (size > 0) yield Buffer.concat(parts);
}

function decode(line: Uint8Array, number: number): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(line);
  } catch {
    throw fault(number, 'is not UTF-8');
  }
}

/** Throws TrainingFailedError naming the line. */
export function parseConversation({ bytes, number }: DataLine): Conversation {
  return readConversation(parseJson(decode(bytes, number), number), number);
}

/** Throws TrainingFailedError naming the line. */
export function readConversation(value: unknown, number: number): Conversation {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw fault(number, 'is not an object');
  const { messages: plain, messages_and_choices: elements, tools = null } = value as Record<string, unknown>;
  const list = plain ?? elements;
  if (!Array.isArray(list) || list.length === 0) throw fault(number, 'has no messages');
  if (tools !== null && !Array.isArray(tools)) throw fault(number, 'has tools that are not a list');
  const messages = list.map((element: unknown, i) => readMessage(element, i, number));
  if (messages.at(-1)?.role !== 'assistant') throw fault(number, 'does not end with an assistant message');
  return { messages, tools: tools !== null && tools.length > 0 ? (tools as unknown[]) : null, line: number };
}

function parseJson(text: string, number: number): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw fault(number, 'is not JSON');
  }
}

/** Choices of a trajectory become messages, as the clients write them. */
function readMessage(element: unknown, index: number, number: number): ChatMessage {
  if (typeof element !== 'object' || element === null) throw fault(number, `has no object as message ${index}`);
  const given = element as HistoryElement;
  const message = isChoice(given) ? { ...given.message, role: 'assistant' } : given;
  const { role, content = null } = message;
  if (typeof role !== 'string' || role === '') throw fault(number, `has no role in message ${index}`);
  if (content !== null && typeof content !== 'string' && !Array.isArray(content)) {
    throw fault(number, `has neither text nor parts as content of message ${index}`);
  }
  return { ...message, role, content: (content ?? '') as ChatMessage['content'] };
}

function fault(number: number, problem: string): TrainingFailedError {
  return new TrainingFailedError(`Line ${number} of the training data ${problem}.`);
}
