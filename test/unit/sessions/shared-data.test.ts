import { describe, expect, it } from 'vitest';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { ChatTemplate } from '../../../src/control/sessions/template/chat-template.ts';
import { TemplateError } from '../../../src/control/sessions/template/errors.ts';
import { TokenTable } from '../../../src/control/sessions/token-table.ts';
import { decodeAll } from '../../../src/control/sessions/detokenizer.ts';
import { hasSharedData, sharedJson, sharedText } from './shared-data.ts';
import { readFiles } from './tokenizer-fixture.ts';

interface Render {
  template: string;
  case: string;
  expected?: string;
  error?: string;
}

describe.skipIf(!hasSharedData)('chat templates of the shared data (needs ../shared/data)', () => {
  const goldens = hasSharedData
    ? (sharedJson('chat-templates', 'goldens.json') as {
        contexts: Record<string, Record<string, unknown>>;
        renders: Render[];
      })
    : { contexts: {}, renders: [] };
  const noon = (): Date => new Date(2025, 6, 10, 12, 0, 0);

  it.each(goldens.renders)('$template renders $case', ({ template, case: name, expected }) => {
    const compiled = new ChatTemplate(sharedText('chat-templates', template), noon);
    const render = (): string => compiled.render(goldens.contexts[name] ?? {});
    if (expected === undefined) expect(render).toThrow(TemplateError);
    else expect(render()).toBe(expected);
  });
});

describe.skipIf(!hasSharedData)('tokenizer vectors of the shared data (needs ../shared/data)', () => {
  const separator = '\n__ggml_vocab_test__\n';
  it.each([
    ['qwen2', 'qwen', 151_936],
    ['gpt-2', 'gpt2', 50_257],
  ])('%s: ids, and text back from them', async (vectors, folder, vocabSize) => {
    const files = await readFiles(
      sharedJson('tokenizers', folder, 'tokenizer.json') as Record<string, unknown>,
      vocabSize,
    );
    const encoder = new PromptEncoder(files);
    const table = new TokenTable(files);
    const texts = sharedText('vectors', `${vectors}.inp`).split(separator);
    const ids = sharedText('vectors', `${vectors}.out`).split('\n');
    expect(texts.length).toBeGreaterThan(40);
    for (const [i, text] of texts.entries()) {
      const expected = (ids[i] ?? '').trim().split(/\s+/).filter(Boolean).map(Number);
      const encoded = [...encoder.encode(text, { addSpecialTokens: false, mark: null })];
      expect(encoded, JSON.stringify(text)).toEqual(expected);
      const decoded = decodeAll(table, encoded, { skipSpecialTokens: false, startsText: true });
      expect(decoded).toBe(text.normalize('NFC'));
    }
  });

  it('stories260K: the byte fallback and the leading space of sentencepiece', async () => {
    const files = await readFiles(
      sharedJson('models', 'stories260K', 'tokenizer.json') as Record<string, unknown>,
      512,
      {
        bos_token: '<s>',
      },
    );
    const encoder = new PromptEncoder(files);
    const table = new TokenTable(files);
    for (const text of ['Once upon a time', 'Ein Käse für 5 € 🙂', ' two  spaces', 'tab\tand\nline']) {
      const ids = encoder.encode(text, { addSpecialTokens: true, mark: null });
      expect(ids[0]).toBe(1);
      expect(decodeAll(table, ids, { skipSpecialTokens: true, startsText: true })).toBe(text);
    }
  });
});
