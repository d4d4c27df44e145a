/** A renderer of prompts over a tokenizer of bytes. */
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { PromptRenderer } from '../../../src/control/sessions/prompt-renderer.ts';
import type { ChatMessage, RenderOptions } from '../../../src/control/sessions/session.ts';
import { ChatTemplate } from '../../../src/control/sessions/template/chat-template.ts';
import { RENDER } from '../../fixtures/generation-input.ts';
import { byteFiles } from './tokenizer-fixture.ts';

export const PLAIN =
  '{% for m in messages %}<s>{{ m.role }}:{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}';

export const OPTIONS: RenderOptions = { ...RENDER, addGenerationPrompt: false };

export async function renderer(template: string | null, specialTexts = ['<s>', '</s>']): Promise<PromptRenderer> {
  return new PromptRenderer({
    template: template === null ? null : new ChatTemplate(template),
    toolTemplate: null,
    encoder: new PromptEncoder(await byteFiles()),
    specialTokens: { bos_token: '<s>' },
    specialTexts,
    maxTextLength: 100_000,
    maxModelLen: 512,
  });
}

export async function render(
  template: string,
  messages: ChatMessage[],
  options: Partial<RenderOptions> = {},
): Promise<{ text: string; ids: number[] }> {
  const { text, ids } = (await renderer(template)).render({
    kind: 'chat',
    messages,
    render: { ...OPTIONS, ...options },
  });
  return { text, ids: [...ids] };
}

/** Special tokens among the ids, by number. */
export function specials(ids: number[]): number[] {
  return ids.filter((id) => id === 256 || id === 257);
}

export const user = (content: ChatMessage['content']): ChatMessage => ({ role: 'user', content });
