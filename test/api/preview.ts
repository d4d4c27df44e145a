/** What the tests of the training endpoints share. */
import { createKey } from '../../src/control/store/api-keys.ts';
import { Database } from '../../src/control/store/database.ts';
import { KeyRepository } from '../../src/control/store/key-repository.ts';
import type { ApiServer } from './server.ts';

export const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** A key of an entity, in a data directory that no server uses yet. */
export async function createEntityKey(dataDir: string, entity: string): Promise<string> {
  const database = await Database.open(dataDir);
  try {
    return (await createKey(new KeyRepository(database.db), entity, entity)).secret;
  } finally {
    await database.close();
  }
}

export async function json(server: ApiServer, path: string, init: RequestInit = {}): Promise<Record<string, unknown>> {
  const response = await server.call(path, init);
  const text = await response.text();
  if (response.status !== 200) throw new Error(`${path}: ${response.status} ${text}`);
  return JSON.parse(text) as Record<string, unknown>;
}
