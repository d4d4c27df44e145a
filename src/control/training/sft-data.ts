/** What an SFT job trains on, as `intake/read-rows.ts` stored it: one conversation per line, read as a stream. */
import type { ChatMessage } from '../sessions/session.ts';
import type { MessageElement } from './trajectories.ts';

export interface Conversation {
  messages: ChatMessage[];
  tools: unknown[] | null;
  /** From 1, in the file as it was sent. */
  line: number;
}

const NEWLINE = 0x0a;

/** A row of the file, and its number from 1. */
export interface DataLine {
  bytes: Uint8Array;
  number: number;
}

/** Looks at no row further than for its end. Lines that were blank are empty here. */
export async function* readLines(data: AsyncIterable<Uint8Array>): AsyncGenerator<DataLine> {
  let number = 0;
  for await (const bytes of lines(data)) {
    number++;
    if (bytes.length > 0) yield { bytes, number };
  }
}

async function* lines(data: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let parts: Uint8Array[] = [];
  for await (const chunk of data) {
    let from = 0;
    for (let end = chunk.indexOf(NEWLINE); end !== -1; end = chunk.indexOf(NEWLINE, from)) {
      yield Buffer.concat([...parts, chunk.subarray(from, end)]);
      parts = [];
      from = end + 1;
    }
    parts.push(chunk.subarray(from));
  }
  const rest = Buffer.concat(parts);
  if (rest.length > 0) yield rest;
}

export function parseConversation({ bytes, number }: DataLine): Conversation {
  return conversationOf(JSON.parse(new TextDecoder().decode(bytes)) as StoredRow, number);
}

/** A row as `intake/read-rows.ts` stores it. */
export interface StoredRow {
  messages: readonly MessageElement[];
  tools: unknown;
}

export function conversationOf({ messages, tools }: StoredRow, line: number): Conversation {
  return {
    messages: messages.map((message) => ({ ...message, content: message.content ?? '' }) as ChatMessage),
    tools: Array.isArray(tools) && tools.length > 0 ? tools : null,
    line,
  };
}
