/** Every migration, in the order of its name. A released one is never changed. */
import type { Migration } from 'kysely';
import { entitiesAndKeys } from './0001-entities-and-keys.ts';
import { training } from './0002-training.ts';
import { storage } from './0003-storage.ts';
import { deletedCheckpoints } from './0004-deleted-checkpoints.ts';
import { growingTables } from './0005-growing-tables.ts';
import { jobReferences } from './0006-job-references.ts';
import { entityStorage } from './0007-entity-storage.ts';
import { sameArtifact } from './0008-same-artifact.ts';
import { responses } from './0009-responses.ts';
import { rowStorage } from './0010-row-storage.ts';
import { rememberedRows } from './0011-remembered-rows.ts';
import { filteredLogs } from './0012-filtered-logs.ts';
import { queuedJobs } from './0013-queued-jobs.ts';
import { leavingModels } from './0014-leaving-models.ts';

export const MIGRATIONS: Readonly<Record<string, Migration>> = {
  '0001-entities-and-keys': entitiesAndKeys,
  '0002-training': training,
  '0003-storage': storage,
  '0004-deleted-checkpoints': deletedCheckpoints,
  '0005-growing-tables': growingTables,
  '0006-job-references': jobReferences,
  '0007-entity-storage': entityStorage,
  '0008-same-artifact': sameArtifact,
  '0009-responses': responses,
  '0010-row-storage': rowStorage,
  '0011-remembered-rows': rememberedRows,
  '0012-filtered-logs': filteredLogs,
  '0013-queued-jobs': queuedJobs,
  '0014-leaving-models': leavingModels,
};
