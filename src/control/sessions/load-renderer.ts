/** Builds a PromptRenderer from a model on disk. */
import { basename } from 'node:path';
import { ModelError } from '../models/errors.ts';
import { readModelTexts } from '../models/load.ts';
import { PromptEncoder } from '../models/prompt-encoder.ts';
import { PromptRenderer } from './prompt-renderer.ts';
import { ChatTemplate } from './template/chat-template.ts';
import { TemplateError } from './template/errors.ts';
import type { WorkerSettings } from './worker-protocol.ts';

export async function loadPromptRenderer(settings: WorkerSettings): Promise<PromptRenderer> {
  const { tokenizer: files } = await readModelTexts(settings.modelPath);
  const longestToken = files.vocabulary.reduce((longest, text) => Math.max(longest, text.length), 1);
  const template = (source: string | null): ChatTemplate | null =>
    source === null ? null : compile(source, basename(settings.modelPath));
  return new PromptRenderer({
    template: template(files.chatTemplate),
    toolTemplate: template(files.toolTemplate),
    encoder: new PromptEncoder(files),
    specialTokens: files.specialTokens,
    specialTexts: files.addedTokens.filter((token) => token.special).map((token) => token.content),
    // White space may be stripped or folded around special tokens: be generous, this only bounds the cost.
    maxTextLength: Math.max(65_536, settings.maxModelLen * longestToken * 2),
    maxModelLen: settings.maxModelLen,
  });
}

function compile(source: string, model: string): ChatTemplate {
  try {
    return new ChatTemplate(source);
  } catch (error) {
    if (error instanceof TemplateError)
      throw new ModelError(model, `the chat template cannot be used: ${error.message}`);
    throw error;
  }
}
