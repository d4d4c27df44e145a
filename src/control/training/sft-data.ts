/** What an SFT job trains on, as `intake/read-rows.ts` stored it: one conversation per line, read as a stream. */
import type { ChatMessage } from '../sessions/session.ts';
import { linesOf } from './lines.ts';
import { parseWithTools } from './tool-numbers.ts';
import type { MessageElement } from './trajectories.ts';

export interface Conversation {
  messages: ChatMessage[];
  tools: unknown[] | null;
  /** From 1, in the file as it was sent. */
  line: number;
}

/** A row of the file, and its number from 1. */
export interface DataLine {
  bytes: Uint8Array;
  number: number;
}

/** Looks at no row further than for its end. Lines that were blank are empty here. */
export async function* readLines(data: AsyncIterable<Uint8Array>): AsyncGenerator<DataLine> {
  let number = 0;
  for await (const bytes of linesOf(data)) {
    number++;
    if (bytes.length > 0) yield { bytes, number };
  }
}

export function parseConversation({ bytes, number }: DataLine): Conversation {
  return conversationOf(parseWithTools(new TextDecoder().decode(bytes)) as StoredRow, number);
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
