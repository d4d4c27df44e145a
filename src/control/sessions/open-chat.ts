/**
 * Chats whose assistant texts are left open, for training: where such a text would stand, its own ids are put in by whoever
 * asked. The ids around it are those that the whole chat has there.
 */
import type { ChatMessage } from './session.ts';

export interface OpenChat {
  messages: ChatMessage[];
  tools: unknown[] | null;
  /** Beside the server's own, over which they win. */
  templateKwargs: Record<string, unknown>;
  /** Ascending message indices: these show SLOT_OPEN, the text's ids (none for null) and SLOT_CLOSE. */
  slots: { message: number; text: string | null }[];
  /** Nothing follows the last message's text; it must be a slot. */
  continueFinalMessage: boolean;
}

/** The model's chat template and tokenizer, off the event loop. Rejects with SessionError where a chat cannot be rendered. */
export interface ChatEncoder {
  /** Longest sequence that the engine takes. */
  readonly maxModelLen: number;
  /** The template's source; null where the model has none. */
  readonly chatTemplate: string | null;
  encodeChat(chat: OpenChat): Promise<Int32Array>;
  /** Special tokens in the text count as such. */
  encodeText(text: string): Promise<Int32Array>;
}

/** What a message says besides its text, all of which its ids say already. */
const SAID_ELSEWHERE = ['tool_calls', 'function_call', 'reasoning', 'reasoning_content', 'refusal'];

/** The messages as a template is to see them: `slot`, one character, stands for each open text. */
export function openMessages(chat: OpenChat, slot: string): ChatMessage[] {
  const messages = [...chat.messages];
  for (const { message: index } of chat.slots) {
    const message = messages[index];
    if (!message) continue;
    const kept = Object.entries(message).filter(([key]) => !SAID_ELSEWHERE.includes(key));
    messages[index] = { ...Object.fromEntries(kept), role: message.role, content: slot };
  }
  return messages;
}
