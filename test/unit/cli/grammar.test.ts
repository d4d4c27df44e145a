/** What `tandem grammar check` refuses before it reads a schema. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { addGrammarCommand } from '../../../src/cli/grammar.ts';

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-grammar-'));
});
afterEach(() => {
  rmSync(directory, { recursive: true });
});

function check(...args: string[]): Promise<unknown> {
  const program = new Command('tandem').exitOverride();
  addGrammarCommand(program, () => undefined);
  return program.parseAsync(['grammar', 'check', ...args], { from: 'user' });
}

test('a directory in the place of the file is named', async () => {
  const refused = check(directory, '--tokenizer', 'models/starter');
  await expect(refused).rejects.toThrow(`${directory} is a directory: name a JSONL file.`);
});

test('a folder without a tokenizer is named', async () => {
  const file = join(directory, 'schemas.jsonl');
  writeFileSync(file, '');
  await expect(check(file, '--tokenizer', directory)).rejects.toThrow(`tokenizer.json: is missing in ${directory}.`);
});
