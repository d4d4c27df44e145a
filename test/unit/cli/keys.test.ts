/** What `tandem keys` refuses before it makes anything. */
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { addKeysCommand } from '../../../src/cli/keys.ts';

let directory: string;
let printed: string[];
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-keys-'));
  printed = [];
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(directory, { recursive: true });
});

function keys(...args: string[]): Promise<unknown> {
  const program = new Command('tandem').exitOverride().configureOutput({ writeErr: () => undefined });
  addKeysCommand(program, (line) => printed.push(line));
  // Commands below inherit nothing of what was set before they were added.
  for (const command of program.commands.flatMap((one) => one.commands))
    command.exitOverride().configureOutput({ writeErr: () => undefined });
  return program.parseAsync(['keys', ...args], { from: 'user' });
}

test.each(['create', 'list'])(
  'keys %s takes no empty data directory, which would be the folder it is called in',
  async (command) => {
    await expect(keys(command, '--data-dir', '')).rejects.toThrow("'--data-dir <value>' argument '' is invalid");
    vi.stubEnv('TANDEM_DATA_DIR', '');
    await expect(keys(command)).rejects.toThrow(/TANDEM_DATA_DIR.*It must not be empty/);
    expect(existsSync('tandem.db')).toBe(false);
  },
);

test('the variable names the data directory, a flag wins over it', async () => {
  vi.stubEnv('TANDEM_DATA_DIR', join(directory, 'a'));
  await keys('create', '--name', 'laptop');
  await keys('create', '--data-dir', join(directory, 'b'));
  expect(readdirSync(directory)).toEqual(['a', 'b']);
  printed = [];
  await keys('list');
  expect(printed).toEqual([expect.stringContaining('  default  laptop  created ')]);
});

test.each(['', 'a\nb', 'a\u001b[2Jb'])('a name that would spoil the list is refused (%j)', async (name) => {
  await expect(keys('create', '--data-dir', directory, '--name', name)).rejects.toThrow("'--name <value>'");
  expect(readdirSync(directory)).toEqual([]);
});
