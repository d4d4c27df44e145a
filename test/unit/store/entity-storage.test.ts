/** The sums of what entities store agree with the rows at every moment, also in a data folder from before they were kept. */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ArtifactRepository } from '../../../src/control/store/artifact-repository.ts';
import { Database } from '../../../src/control/store/database.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { LogRepository } from '../../../src/control/store/log-repository.ts';
import { MIGRATIONS } from '../../../src/control/store/migrations/list.ts';
import { ModelRepository } from '../../../src/control/store/model-repository.ts';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';
import { seededRandom } from '../../../src/control/training/random.ts';
import { storedBytes } from './row-bytes.ts';

const AT = '2026-01-01T00:00:00.000Z';
const ENTITIES = ['one', 'two'];

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-storage-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

/** By the rows themselves. */
async function counted({ db }: Database): Promise<number[]> {
  const stored = await storedBytes(db);
  return ENTITIES.map((entity) => stored.get(entity) ?? 0);
}

function kept({ db }: Database): Promise<number[]> {
  const storage = new StorageRepository(db);
  return Promise.all(ENTITIES.map((entity) => storage.usedBytes(entity)));
}

interface Owned {
  id: string;
  entity: string;
}

/** Random writes of all kinds, with what they leave for later ones. */
class Writer {
  readonly #models: ModelRepository;
  readonly #logs: LogRepository;
  readonly #artifacts: ArtifactRepository;
  readonly #jobs: JobRepository;
  readonly #random: () => number;
  readonly #owned: (Owned & { steps: number })[] = [];
  readonly #uploads: Owned[] = [];

  constructor({ db }: Database, random: () => number) {
    this.#models = new ModelRepository(db);
    this.#logs = new LogRepository(db);
    this.#artifacts = new ArtifactRepository(db);
    this.#jobs = new JobRepository(db);
    this.#random = random;
  }

  #below(count: number): number {
    return Math.floor(this.#random() * count);
  }

  async write(): Promise<void> {
    const entity = ENTITIES[this.#below(2)] ?? '';
    const model = this.#owned[this.#below(this.#owned.length)];
    const upload = this.#uploads[this.#below(this.#uploads.length)];
    const bytes = this.#below(1000);
    const kind = this.#below(10);
    if (kind === 0 || !model) await this.#addModel(entity, bytes);
    else if (kind === 1) await this.#publish(model, bytes);
    else if (kind === 2) await this.#log(model.id, bytes);
    else if (kind === 3) await this.#models.removeCheckpoints(model.id, [this.#below(model.steps)]);
    else if (kind === 4) await this.#removeModel(model);
    else if (kind === 5 || !upload) await this.#addArtifact(entity);
    else if (kind === 6) await this.#addFile(upload, bytes);
    else if (kind === 7) await this.#runJob(model);
    else if (kind === 8) await this.forget();
    else await this.#removeArtifact(upload);
  }

  async #addModel(entity: string, bytes: number): Promise<void> {
    const id = randomUUID();
    const model = {
      id,
      entity,
      project: 'p',
      name: id,
      baseModel: 'b',
      baseDigest: 'd',
      runId: randomUUID(),
      lora: {},
    };
    const first = { id: randomUUID(), modelId: id, jobId: null, step: 0, version: 'v', blobKey: `adapters/${id}` };
    await this.#models.create({ ...model, nextStep: 1, createdAt: AT }, { ...first, bytes, createdAt: AT });
    this.#owned.push({ id, entity, steps: 1 });
  }

  async #publish(model: { id: string; steps: number }, bytes: number): Promise<void> {
    const id = randomUUID();
    const made = { id, modelId: model.id, jobId: randomUUID(), version: 'v', blobKey: `adapters/${id}`, bytes };
    await this.#models.publish({ ...made, createdAt: AT });
    model.steps++;
  }

  async #log(modelId: string, bytes: number): Promise<void> {
    const metrics = { ['é'.repeat(this.#below(100))]: 1 };
    const log = { id: randomUUID(), modelId, split: 's', step: 0, groups: 1, trajectories: 1, metrics };
    await this.#logs.insert({ ...log, blobKey: 'trajectories/x', bytes, createdAt: AT }, null);
  }

  /** What it was sent no longer counts when it has ended; its events and its row of the run do. */
  async #runJob({ id: modelId, entity }: Owned): Promise<void> {
    const id = randomUUID();
    const config = { learning_rate: new Array(this.#below(50)).fill(0.5) };
    const job = { id, modelId, entity, kind: 'sft' as const, config, inputKey: 'inputs/x', inputBytes: 1 };
    const repeatable = { operation: 'o', key: randomUUID().repeat(1 + this.#below(5)), digest: 'd' };
    await this.#jobs.accept({ ...job, references: [], createdAt: AT }, this.#below(2) === 0 ? repeatable : null, 1);
    await this.#jobs.start(id, AT);
    for (let step = 1; step <= this.#below(4); step++) {
      const event = { key: `step-${step}`, type: 'gradient_step', data: { loss: this.#random() }, at: AT };
      await this.#jobs.append(id, event);
    }
    await this.#logs.record(modelId, `${id}/end`, 1, { loss: this.#random() }, null);
    await this.#jobs.end(id, 'fail', { key: 'end', type: 'training_failed', data: { error_message: 'é' }, at: AT });
  }

  /** What was remembered for repeated requests. */
  async forget(): Promise<void> {
    await this.#jobs.forgetKeys('2027');
    await this.#models.forgetDeleted('2027');
  }

  async #removeModel(model: Owned & { steps: number }): Promise<void> {
    await this.#models.remove(model.id, model.entity, AT);
    this.#owned.splice(this.#owned.indexOf(model), 1);
  }

  async #addArtifact(entity: string): Promise<void> {
    const id = randomUUID();
    const metadata = { note: 'é'.repeat(this.#below(1000)) };
    const artifact = { id, entity, project: 'p', name: id, type: 'dataset', digest: null, metadata, createdAt: AT };
    await this.#artifacts.insert(artifact, 1000);
    this.#uploads.push({ id, entity });
  }

  /** Of two names: some files replace others. */
  async #addFile({ id }: Owned, bytes: number): Promise<void> {
    const file = { name: `${bytes % 2}`, blobKey: 'uploads/x', bytes, sha256: 's' };
    await this.#artifacts.putFile(id, file, 10);
  }

  /** Its row goes as well, some time later. */
  async #removeArtifact(upload: Owned): Promise<void> {
    await this.#artifacts.remove(upload.id, upload.entity);
    if (this.#below(2) === 0) await this.#artifacts.forgetDeleted('2027');
    this.#uploads.splice(this.#uploads.indexOf(upload), 1);
  }
}

test('the sums agree with the rows after every write', async () => {
  const database = await Database.open(directory);
  try {
    const writer = new Writer(database, seededRandom('storage'));
    let most = 0;
    for (let i = 0; i < 600; i++) {
      await writer.write();
      const rows = await counted(database);
      expect(await kept(database)).toEqual(rows);
      most = Math.max(most, ...rows);
    }
    expect(most).toBeGreaterThan(5000);
  } finally {
    await database.close();
  }
});

test('rows go with their owner wherever they are deleted from, and a write that fails changes no sum', async () => {
  const database = await Database.open(directory);
  try {
    const writer = new Writer(database, seededRandom('more'));
    for (let i = 0; i < 200; i++) await writer.write();
    const before = await kept(database);
    expect(Math.min(...before)).toBeGreaterThan(0);
    const failing = database.db.transaction().execute(async (trx) => {
      await trx.deleteFrom('models').execute();
      throw new Error('killed');
    });
    await expect(failing).rejects.toThrow('killed');
    expect(await kept(database)).toEqual(before);
    await database.db.deleteFrom('models').execute();
    await database.db.deleteFrom('artifacts').execute();
    expect(await kept(database)).toEqual(await counted(database));
    await writer.forget();
    expect([await kept(database), await counted(database)]).toEqual([
      [0, 0],
      [0, 0],
    ]);
  } finally {
    await database.close();
  }
});

test('a data folder from before begins with what its rows sum up to', async () => {
  const database = await Database.open(directory);
  const writer = new Writer(database, seededRandom('before'));
  for (let i = 0; i < 200; i++) await writer.write();
  const rows = await counted(database);
  await forget(database);
  await database.close();
  const again = await Database.open(directory);
  try {
    expect(await kept(again)).toEqual(rows);
    expect(Math.min(...rows)).toBeGreaterThan(0);
  } finally {
    await again.close();
  }
});

/** The folder is as it was before the sums. */
async function forget({ db }: Database): Promise<void> {
  const { rows } = await sql<{ name: string }>`select name from sqlite_master where type = 'trigger'`.execute(db);
  expect(rows.length).toBe(26);
  for (const { name } of rows) await sql`drop trigger ${sql.ref(name)}`.execute(db);
  await db.schema.dropTable('entity_storage').execute();
  await db.schema.createIndex('checkpoint_bytes').on('checkpoints').columns(['model_id', 'bytes']).execute();
  await db.schema.createIndex('log_bytes').on('trajectory_logs').columns(['model_id', 'bytes']).execute();
  const name = Object.keys(MIGRATIONS).find((migration) => migration.endsWith('-entity-storage'));
  // What came after them is undone as well.
  const filtered = ['split', 'step', 'split_step'].map((way) => `trajectory_logs_by_${way}`);
  for (const index of ['open_artifacts', 'present_artifacts', ...filtered, 'queued_jobs'])
    await db.schema.dropIndex(index).execute();
  await db.schema.alterTable('artifacts').dropColumn('same_as').execute();
  for (const table of ['leaving_models', 'responses', 'response_totals']) await db.schema.dropTable(table).execute();
  await sql`delete from kysely_migration where name >= ${name}`.execute(db);
}
