/** Every migration, in the order of its name. A released one is never changed. */
import type { Migration } from 'kysely';
import { entitiesAndKeys } from './0001-entities-and-keys.ts';
import { training } from './0002-training.ts';

export const MIGRATIONS: Readonly<Record<string, Migration>> = {
  '0001-entities-and-keys': entitiesAndKeys,
  '0002-training': training,
};
