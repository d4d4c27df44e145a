/** A chat encoder that waits where too many prompts are being rendered, instead of refusing. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { ChatEncoder } from '../sessions/open-chat.ts';
import { SessionError } from '../sessions/session.ts';

/** Rejects with the signal's reason once it is aborted. */
export function patient(chat: ChatEncoder, retryMs: number, signal: AbortSignal): ChatEncoder {
  const retry = async <T>(act: () => Promise<T>): Promise<T> => {
    for (;;) {
      signal.throwIfAborted();
      try {
        return await act();
      } catch (error) {
        if (!(error instanceof SessionError) || error.code !== 'queue_full') throw error;
        await sleep(retryMs, undefined, { signal });
      }
    }
  };
  return {
    maxModelLen: chat.maxModelLen,
    chatTemplate: chat.chatTemplate,
    encodeChat: (open) => retry(() => chat.encodeChat(open)),
    encodeText: (text) => retry(() => chat.encodeText(text)),
  };
}
