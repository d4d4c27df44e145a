/** `tandem keys create | list | revoke`. Works beside a running server, which notices within a second. */
import { resolve } from 'node:path';
import { Option, type Command } from 'commander';
import { createKey, DEFAULT_ENTITY } from '../control/store/api-keys.ts';
import { Database } from '../control/store/database.ts';
import { KeyRepository, type StoredKey } from '../control/store/key-repository.ts';
import { OPTIONS } from './options.ts';
import { text } from './parsers.ts';
import { variableName } from './resolve-settings.ts';

type Print = (line: string) => void;

/** It becomes a part of `wandb-artifact:///entity/project/name`. */
const ENTITY = /^(?!\.{1,2}$)[^/\\#?%:\s\p{Cc}]{1,128}$/u;

export function addKeysCommand(program: Command, print: Print): void {
  const keys = program.command('keys').description('make, list and revoke API keys');
  const { help, parse, default: dataDir } = OPTIONS.dataDir;
  const withDataDir = (command: Command) =>
    command.addOption(
      new Option('--data-dir <value>', help).default(dataDir()).env(variableName('dataDir')).argParser(parse),
    );
  withDataDir(keys.command('create').description('make a key; it is shown once'))
    .option('--name <value>', 'what the key is for', text(), 'unnamed')
    .option('--entity <value>', 'team or user that owns it', DEFAULT_ENTITY)
    .action((options: { dataDir: string; name: string; entity: string }) => create(options, print));
  withDataDir(keys.command('list').description('list keys (never the keys themselves)')).action(
    (options: { dataDir: string }) => list(options.dataDir, print),
  );
  withDataDir(keys.command('revoke <id>').description('make a key invalid')).action(
    (id: string, options: { dataDir: string }) => revoke(id, options.dataDir, print),
  );
}

async function create(options: { dataDir: string; name: string; entity: string }, print: Print): Promise<void> {
  if (!ENTITY.test(options.entity)) {
    throw new Error(
      '--entity may have letters, digits and signs but no space and none of / \\ # ? % and :, 128 at most.',
    );
  }
  const isNew = !Database.exists(options.dataDir);
  const key = await withKeys(options.dataDir, (repository) => createKey(repository, options.name, options.entity));
  if (isNew) print(`${resolve(options.dataDir)} is a new data directory: it is for a server that is started with it.`);
  print(`id   ${key.id}`);
  print(`key  ${key.secret} (shown this once; only its hash is kept)`);
}

async function list(dataDir: string, print: Print): Promise<void> {
  const keys = await withStoredKeys(dataDir, (repository) => repository.all());
  if (keys.length === 0) print('There are no keys.');
  for (const key of keys) print(row(key));
}

async function revoke(id: string, dataDir: string, print: Print): Promise<void> {
  const revoked = await withStoredKeys(dataDir, (repository) => repository.revoke(id, new Date().toISOString()));
  if (!revoked) throw new Error(`There is no valid key with the id ${id}.`);
  print(`Revoked ${id}.`);
}

function row(key: StoredKey): string {
  const state = key.revokedAt === null ? 'valid' : `revoked ${key.revokedAt}`;
  return `${key.id}  ${key.entity}  ${key.name}  created ${key.createdAt}  ${state}`;
}

/** Of a directory that a server has made: a name that is misspelt is no empty list. */
async function withStoredKeys<T>(dataDir: string, use: (repository: KeyRepository) => Promise<T>): Promise<T> {
  if (Database.exists(dataDir)) return withKeys(dataDir, use);
  throw new Error(
    `${resolve(dataDir)} is no server's data directory: give --data-dir the one that it was started with.`,
  );
}

async function withKeys<T>(dataDir: string, use: (repository: KeyRepository) => Promise<T>): Promise<T> {
  const database = await Database.openBeside(dataDir);
  try {
    return await use(new KeyRepository(database.db));
  } finally {
    await database.close();
  }
}
