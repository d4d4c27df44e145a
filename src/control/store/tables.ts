/** Rows as they lie in the database. They never leave the repositories. Times are ISO 8601 in UTC; JSON lies as text. */
import type { Generated } from 'kysely';

export interface EntitiesTable {
  /** Team or user name. */
  name: string;
  created_at: string;
}

export interface ApiKeysTable {
  id: string;
  entity: string;
  /** For people: what the key is for. */
  name: string;
  /** SHA-256 of the key, 64 hex digits. The key itself is stored nowhere. */
  hash: string;
  created_at: string;
  revoked_at: string | null;
}

export interface ModelsTable {
  id: string;
  entity: string;
  project: string;
  name: string;
  base_model: string;
  /** Digest of the base weights: adapters fit no others. */
  base_digest: string;
  run_id: string;
  /** JSON of the rank and alpha of its adapters. */
  lora: string;
  /** Step of the next checkpoint: grows even when the newest checkpoint is deleted. */
  next_step: number;
  created_at: string;
}

/** So that a repeated DELETE is answered as the first was. */
export interface DeletedModelsTable {
  id: string;
  entity: string;
  deleted_checkpoints: number;
  deleted_at: string;
}

export interface LeavingModelsTable {
  model_id: string;
  deleted_at: string;
}

export interface CheckpointsTable {
  id: string;
  model_id: string;
  step: number;
  /** The job that made it; null for step 0. Not a reference: the job's row may go first. */
  job_id: string | null;
  /** Digest of the adapter's content; behind a dot, where there is one, that of the optimizer's file. */
  version: string;
  blob_key: string;
  bytes: number;
  created_at: string;
}

/** So that a page may begin behind it. */
export interface DeletedCheckpointsTable {
  id: string;
  model_id: string;
  step: number;
  deleted_at: string;
}

export interface JobsTable {
  /** Order of acceptance. */
  sequence: Generated<number>;
  id: string;
  model_id: string;
  entity: string;
  kind: string;
  state: string;
  /** JSON of the checked configuration. */
  config: string;
  /** Blob of trajectories or training rows; null when the job has ended. */
  input_key: string | null;
  /** Of that blob. */
  input_bytes: number;
  /** Starts since the last snapshot. */
  attempts: number;
  cancel_requested: number;
  snapshot_key: string | null;
  /** Of the snapshot's bytes; null: not known. */
  snapshot_sha256: string | null;
  error_message: string | null;
  created_at: string;
  started_at: string | null;
  ended_at: string | null;
}

/** A checkpoint that a job compares with: its folder has links to the checkpoint's files. Gone when the job has ended. */
export interface JobReferencesTable {
  job_id: string;
  /** Not a reference: the checkpoint may go first. */
  checkpoint_id: string;
  /** Of the files. */
  bytes: number;
}

export interface JobEventsTable {
  job_id: string;
  /** 0 for the first event of a job, without gaps. */
  sequence: number;
  /** What the runner calls it; a second one of the same name changes nothing. */
  key: string;
  id: string;
  type: string;
  data: string;
  created_at: string;
}

export interface IdempotencyKeysTable {
  entity: string;
  operation: string;
  key: string;
  /** Of the request's body. */
  digest: string;
  result_id: string;
  created_at: string;
}

export interface TrajectoryLogsTable {
  sequence: Generated<number>;
  id: string;
  model_id: string;
  split: string;
  step: number;
  groups: number;
  trajectories: number;
  metrics: string;
  blob_key: string;
  bytes: number;
  created_at: string;
}

export interface CheckpointMetricsTable {
  checkpoint_id: string;
  /** `{split}/{metric}`. */
  name: string;
  value: number;
}

export interface RunHistoryTable {
  sequence: Generated<number>;
  id: string;
  model_id: string;
  step: number;
  /** What the writer calls it; a second one of the same name changes nothing. */
  key: string;
  data: string;
  created_at: string;
}

export interface ArtifactsTable {
  sequence: Generated<number>;
  id: string;
  entity: string;
  project: string;
  name: string;
  type: string;
  /** `open` takes files, `committed` has a version. */
  state: string;
  version: number | null;
  digest: string | null;
  /** The version whose content it was committed with, and which it gave way to. */
  same_as: string | null;
  metadata: string;
  created_at: string;
}

export interface ArtifactFilesTable {
  artifact_id: string;
  name: string;
  blob_key: string;
  bytes: number;
  sha256: string;
}

/** Sums that triggers keep, which alone write here. */
export interface EntityStorageTable {
  entity: string;
  /** Of the entity's checkpoints, logs and files of artifacts, and of rows that would grow without end. */
  bytes: number;
}

export interface ResponsesTable {
  sequence: Generated<number>;
  entity: string;
  /** Of one entity's responses it is unique. */
  id: string;
  /** Not a reference: the one that it continues may go first. */
  previous_id: string | null;
  /** Of head, output and input. */
  bytes: number;
  created_at: string;
  /** JSON of the response without its output. */
  head: string;
  /** JSON lists of items: those of the response, and the request's own. */
  output: string;
  input: string;
}

/** Sums that triggers keep, which alone write here. */
export interface ResponseTotalsTable {
  entity: string;
  count: number;
  bytes: number;
}

export interface Tables {
  entities: EntitiesTable;
  api_keys: ApiKeysTable;
  models: ModelsTable;
  deleted_models: DeletedModelsTable;
  leaving_models: LeavingModelsTable;
  checkpoints: CheckpointsTable;
  deleted_checkpoints: DeletedCheckpointsTable;
  jobs: JobsTable;
  job_references: JobReferencesTable;
  job_events: JobEventsTable;
  idempotency_keys: IdempotencyKeysTable;
  trajectory_logs: TrajectoryLogsTable;
  checkpoint_metrics: CheckpointMetricsTable;
  run_history: RunHistoryTable;
  artifacts: ArtifactsTable;
  artifact_files: ArtifactFilesTable;
  entity_storage: EntityStorageTable;
  responses: ResponsesTable;
  response_totals: ResponseTotalsTable;
}
