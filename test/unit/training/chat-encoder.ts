/** The starter model's template and tokenizer on this thread. */
import { loadPromptRenderer } from '../../../src/control/sessions/load-renderer.ts';
import type { ChatEncoder } from '../../../src/control/sessions/open-chat.ts';
import { readTokenizerFiles } from '../../../src/control/models/tokenizer-files.ts';
import { STARTER } from '../../fixtures/starter.ts';

const VOCABULARY = 4096;

export interface StarterChat extends ChatEncoder {
  /** Ids of a text in which special tokens count as such. */
  ids(text: string): number[];
  text(ids: ArrayLike<number>): string;
}

export async function starterChat(maxModelLen = 1024): Promise<StarterChat> {
  const settings = { modelPath: STARTER, maxModelLen };
  const renderer = await loadPromptRenderer(settings);
  const files = await readTokenizerFiles(STARTER, VOCABULARY);
  const ids = (text: string): number[] => [...renderer.render({ kind: 'text', text, addSpecialTokens: false }).ids];
  return {
    maxModelLen,
    chatTemplate: files.chatTemplate,
    encodeChat: async (chat) => renderer.render({ kind: 'open', chat }).ids,
    encodeText: async (text) => Int32Array.from(ids(text)),
    ids,
    text: (list) =>
      Array.from(list, (id) => files.vocabulary[id] ?? '')
        .join('')
        .replaceAll('Ġ', ' ')
        .replaceAll('Ċ', '\n'),
  };
}
