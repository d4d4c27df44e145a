import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { systemFingerprint } from '../../../src/cli/fingerprint.ts';
import { readTokenizerFiles } from '../../../src/control/models/tokenizer-files.ts';
import { writeModel } from '../models/model-directory.ts';

test('files beside the tokenizer that change prompts change the fingerprint', async () => {
  const seen = new Set<string>();
  const path = writeModel();
  const look = async (): Promise<string> => {
    const model = { digest: 'd', texts: { tokenizer: await readTokenizerFiles(path, 300) } };
    return systemFingerprint({ version: '1', model, dtype: 'float32', isa: 'scalar' });
  };
  seen.add(await look());
  expect(seen).toContain(await look());
  for (const [file, text] of [
    ['chat_template.jinja', 'one {{ messages[0].content }}'],
    ['chat_template.jinja', 'two {{ messages[0].content }}'],
    ['special_tokens_map.json', '{"sep_token": "a"}'],
    ['added_tokens.json', '{"<later>": 260}'],
  ] as const) {
    writeFileSync(join(path, file), text);
    const fingerprint = await look();
    expect(fingerprint).toMatch(/^fp_[0-9a-f]{16}$/);
    expect(seen, `${file}: ${text}`).not.toContain(fingerprint);
    seen.add(fingerprint);
  }
});
