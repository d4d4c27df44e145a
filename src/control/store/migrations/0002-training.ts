import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

export const training: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await createModels(db);
    await createJobs(db);
    await createLogs(db);
    await createArtifacts(db);
  },
};

async function createModels(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('models')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('entity', 'text', (column) => column.notNull())
    .addColumn('project', 'text', (column) => column.notNull())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('base_model', 'text', (column) => column.notNull())
    .addColumn('base_digest', 'text', (column) => column.notNull())
    .addColumn('run_id', 'text', (column) => column.notNull().unique())
    .addColumn('lora', 'text', (column) => column.notNull())
    .addColumn('next_step', 'integer', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addUniqueConstraint('models_by_name', ['entity', 'project', 'name'])
    .execute();
  await db.schema
    .createTable('deleted_models')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('entity', 'text', (column) => column.notNull())
    .addColumn('deleted_checkpoints', 'integer', (column) => column.notNull())
    .addColumn('deleted_at', 'text', (column) => column.notNull())
    .execute();
  await db.schema
    .createTable('checkpoints')
    .addColumn('id', 'text', (column) => column.primaryKey())
    .addColumn('model_id', 'text', (column) => column.notNull().references('models.id').onDelete('cascade'))
    .addColumn('step', 'integer', (column) => column.notNull())
    .addColumn('job_id', 'text', (column) => column.unique())
    .addColumn('version', 'text', (column) => column.notNull())
    .addColumn('blob_key', 'text', (column) => column.notNull())
    .addColumn('bytes', 'integer', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addUniqueConstraint('checkpoints_by_step', ['model_id', 'step'])
    .execute();
}

async function createJobs(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('jobs')
    .addColumn('sequence', 'integer', (column) => column.primaryKey().autoIncrement())
    .addColumn('id', 'text', (column) => column.notNull().unique())
    .addColumn('model_id', 'text', (column) => column.notNull().references('models.id').onDelete('cascade'))
    .addColumn('entity', 'text', (column) => column.notNull())
    .addColumn('kind', 'text', (column) => column.notNull())
    .addColumn('state', 'text', (column) => column.notNull())
    .addColumn('config', 'text', (column) => column.notNull())
    .addColumn('input_key', 'text')
    .addColumn('attempts', 'integer', (column) => column.notNull().defaultTo(0))
    .addColumn('cancel_requested', 'integer', (column) => column.notNull().defaultTo(0))
    .addColumn('snapshot_key', 'text')
    .addColumn('error_message', 'text')
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addColumn('started_at', 'text')
    .addColumn('ended_at', 'text')
    .execute();
  await db.schema.createIndex('jobs_by_model').on('jobs').columns(['model_id', 'sequence']).execute();
  await db.schema.createIndex('jobs_by_state').on('jobs').columns(['state', 'sequence']).execute();
  await db.schema
    .createTable('job_events')
    .addColumn('job_id', 'text', (column) => column.notNull().references('jobs.id').onDelete('cascade'))
    .addColumn('sequence', 'integer', (column) => column.notNull())
    .addColumn('key', 'text', (column) => column.notNull())
    .addColumn('id', 'text', (column) => column.notNull().unique())
    .addColumn('type', 'text', (column) => column.notNull())
    .addColumn('data', 'text', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addPrimaryKeyConstraint('job_events_key', ['job_id', 'sequence'])
    // Said again after a crash, it is the same event.
    .addUniqueConstraint('job_events_once', ['job_id', 'key'])
    .execute();
  // A job ends once, whoever tries.
  await db.schema
    .createIndex('job_events_one_end')
    .on('job_events')
    .column('job_id')
    .unique()
    .where(sql.ref('type'), 'in', ['training_ended', 'training_failed'])
    .execute();
  await db.schema
    .createTable('idempotency_keys')
    .addColumn('entity', 'text', (column) => column.notNull())
    .addColumn('operation', 'text', (column) => column.notNull())
    .addColumn('key', 'text', (column) => column.notNull())
    .addColumn('digest', 'text', (column) => column.notNull())
    .addColumn('result_id', 'text', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addPrimaryKeyConstraint('idempotency_keys_key', ['entity', 'operation', 'key'])
    .execute();
}

async function createLogs(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('trajectory_logs')
    .addColumn('sequence', 'integer', (column) => column.primaryKey().autoIncrement())
    .addColumn('id', 'text', (column) => column.notNull().unique())
    .addColumn('model_id', 'text', (column) => column.notNull().references('models.id').onDelete('cascade'))
    .addColumn('split', 'text', (column) => column.notNull())
    .addColumn('step', 'integer', (column) => column.notNull())
    .addColumn('groups', 'integer', (column) => column.notNull())
    .addColumn('trajectories', 'integer', (column) => column.notNull())
    .addColumn('metrics', 'text', (column) => column.notNull())
    .addColumn('blob_key', 'text', (column) => column.notNull())
    .addColumn('bytes', 'integer', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .execute();
  await db.schema
    .createIndex('trajectory_logs_by_model')
    .on('trajectory_logs')
    .columns(['model_id', 'sequence'])
    .execute();
  await db.schema
    .createTable('checkpoint_metrics')
    .addColumn('checkpoint_id', 'text', (column) => column.notNull().references('checkpoints.id').onDelete('cascade'))
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('value', 'real', (column) => column.notNull())
    .addPrimaryKeyConstraint('checkpoint_metrics_key', ['checkpoint_id', 'name'])
    .execute();
  await db.schema
    .createTable('run_history')
    .addColumn('sequence', 'integer', (column) => column.primaryKey().autoIncrement())
    .addColumn('id', 'text', (column) => column.notNull().unique())
    .addColumn('model_id', 'text', (column) => column.notNull().references('models.id').onDelete('cascade'))
    .addColumn('step', 'integer', (column) => column.notNull())
    .addColumn('key', 'text', (column) => column.notNull())
    .addColumn('data', 'text', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addUniqueConstraint('run_history_once', ['model_id', 'key'])
    .execute();
  await db.schema.createIndex('run_history_by_model').on('run_history').columns(['model_id', 'sequence']).execute();
}

async function createArtifacts(db: Kysely<unknown>): Promise<void> {
  await db.schema
    .createTable('artifacts')
    .addColumn('sequence', 'integer', (column) => column.primaryKey().autoIncrement())
    .addColumn('id', 'text', (column) => column.notNull().unique())
    .addColumn('entity', 'text', (column) => column.notNull())
    .addColumn('project', 'text', (column) => column.notNull())
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('type', 'text', (column) => column.notNull())
    .addColumn('state', 'text', (column) => column.notNull())
    .addColumn('version', 'integer')
    .addColumn('digest', 'text')
    .addColumn('metadata', 'text', (column) => column.notNull())
    .addColumn('created_at', 'text', (column) => column.notNull())
    .addUniqueConstraint('artifacts_by_version', ['entity', 'project', 'name', 'version'])
    .execute();
  await db.schema
    .createTable('artifact_files')
    .addColumn('artifact_id', 'text', (column) => column.notNull().references('artifacts.id').onDelete('cascade'))
    .addColumn('name', 'text', (column) => column.notNull())
    .addColumn('blob_key', 'text', (column) => column.notNull())
    .addColumn('bytes', 'integer', (column) => column.notNull())
    .addColumn('sha256', 'text', (column) => column.notNull())
    .addPrimaryKeyConstraint('artifact_files_key', ['artifact_id', 'name'])
    .execute();
}
