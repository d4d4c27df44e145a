import { describe, expect, it } from 'vitest';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { fillPrompt, fillTokensOf } from '../../../src/control/sessions/fill-in-middle.ts';
import { TokenTable } from '../../../src/control/sessions/token-table.ts';
import { startTestServer } from '../api/fakes.ts';
import { byteTokenizer } from '../models/model-directory.ts';
import { readFiles } from './tokenizer-fixture.ts';

const NAMES = ['<|fim_prefix|>', '<|fim_suffix|>', '<|fim_middle|>'];

async function withTokens(names: string[]) {
  const { json, config } = byteTokenizer();
  const added = names.map((content, index) => ({ id: 260 + index, content, special: false, normalized: false }));
  const tokenizer = { ...json, added_tokens: [...(json['added_tokens'] as unknown[]), ...added] };
  return readFiles(tokenizer, 260 + names.length, config);
}

describe('fill in the middle', () => {
  it('is there where the tokenizer has all three tokens', async () => {
    const files = await withTokens(NAMES);
    const table = new TokenTable(files);
    const tokens = fillTokensOf(table);
    expect(tokens).toEqual({ prefix: NAMES[0], suffix: NAMES[1], middle: NAMES[2] });
    const text = fillPrompt(tokens!, 'ab', 'c');
    expect([...new PromptEncoder(files).encode(text, { addSpecialTokens: false, mark: null })]).toEqual([
      260, 97, 98, 261, 99, 262,
    ]);
    expect(fillTokensOf(new TokenTable(await withTokens(NAMES.slice(0, 2))))).toBeNull();
  });

  it('through HTTP: text prompts alone, without echo, and named where the model has none', async () => {
    const server = await startTestServer();
    const post = (fields: object) => server.post('/v1/completions', { prompt: ['a', 'b'], suffix: 'z', ...fields });
    const refusal = async (fields: object) => {
      const response = await post(fields);
      expect(response.status).toBe(400);
      return (await response.json()) as { error: { message: string; param: string } };
    };
    try {
      expect((await refusal({})).error).toMatchObject({ param: 'suffix', message: expect.stringContaining('lacks') });
      server.sessions.fillTokens = { prefix: '<P>', suffix: '<S>', middle: '<M>' };
      expect((await refusal({ prompt: [1] })).error.message).toContain('prompt that is text');
      expect((await refusal({ echo: true })).error.message).toContain('`echo`');
      expect((await post({})).status).toBe(200);
      expect(server.sessions.inputs.map(({ prompt }) => (prompt.kind === 'text' ? prompt.text : null))).toEqual([
        '<P>a<S>z<M>',
        '<P>b<S>z<M>',
      ]);
      expect((await post({ suffix: '' })).status).toBe(200);
      expect(server.sessions.inputs.at(-1)?.prompt).toMatchObject({ text: 'b' });
    } finally {
      await server.close();
    }
  });
});
