/** The server on a GGUF file of the starter model: its own goldens, through template, tokenizer and engine. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeGguf } from '../fixtures/gguf-model.ts';
import { ApiServer } from './server.ts';

const STARTER = fileURLToPath(new URL('../../models/starter', import.meta.url));

interface Golden {
  messages: object[];
  tools: object[] | null;
  template_kwargs: Record<string, unknown>;
  prompt_ids: number[];
  output_ids: number[];
}

interface Answer {
  model: string;
  prompt_token_ids: number[];
  choices: { token_ids: number[] }[];
}

const folder = mkdtempSync(join(tmpdir(), 'tandem-gguf-'));
const goldens = JSON.parse(readFileSync(join(STARTER, 'goldens.json'), 'utf8')) as Golden[];
let server: ApiServer;

beforeAll(async () => {
  const file = join(folder, 'Starter-BF16.gguf');
  await writeGguf(file, STARTER, { type: 'BF16', ownTokenizer: true });
  server = await ApiServer.start({ flags: ['--model', file, '--dtype', 'float32', '--max-model-len', '512'] });
}, 90_000);

afterAll(async () => {
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

test('answers as the directory does, under the name of the file', async () => {
  for (const golden of goldens.slice(0, 8)) {
    const response = await server.post('/v1/chat/completions', {
      messages: golden.messages,
      ...(golden.tools && { tools: golden.tools }),
      chat_template_kwargs: { ...golden.template_kwargs, add_generation_prompt: undefined },
      temperature: 0,
      max_tokens: golden.output_ids.length,
      ignore_eos: true,
      return_token_ids: true,
    });
    expect(response.status).toBe(200);
    const body = (await response.json()) as Answer;
    expect(body.model).toBe('Starter-BF16');
    expect(body.prompt_token_ids).toEqual(golden.prompt_ids);
    expect(body.choices[0]!.token_ids).toEqual(golden.output_ids);
  }
});

test('a file that cannot be served ends the start with its reason', async () => {
  const file = join(folder, 'broken.gguf');
  await writeGguf(file, STARTER, { type: 'BF16', pre: 'unheard-of' });
  await expect(ApiServer.start({ flags: ['--model', file] })).rejects.toThrow(
    /broken\.gguf: tokenizer\.ggml\.pre "unheard-of" is not supported/,
  );
});
