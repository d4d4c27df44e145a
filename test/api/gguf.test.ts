/** The server on a GGUF file of the starter model: its own goldens, through template, tokenizer and engine. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeGguf } from '../fixtures/gguf-model.ts';
import { ApiServer } from './server.ts';
import { goldenRequest, STARTER, starterGoldens } from '../fixtures/starter.ts';

interface Answer {
  model: string;
  prompt_token_ids: number[];
  choices: { token_ids: number[] }[];
}

const folder = mkdtempSync(join(tmpdir(), 'tandem-gguf-'));
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
  for (const golden of starterGoldens.slice(0, 8)) {
    const response = await server.post('/v1/chat/completions', goldenRequest(golden));
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
