/** Queries that come with every request or every step: none may take the longer the more there is from before. */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CompiledQuery, type QueryResult } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ArtifactRepository } from '../../../src/control/store/artifact-repository.ts';
import { Database } from '../../../src/control/store/database.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { LogRepository } from '../../../src/control/store/log-repository.ts';
import { ModelRepository } from '../../../src/control/store/model-repository.ts';
import { ResponseRepository } from '../../../src/control/store/response-repository.ts';
import { SqliteClient } from '../../../src/control/store/sqlite-client.ts';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';

const AT = '2026-01-01T00:00:00.000Z';
const ANY = () => undefined;
const MODEL = randomUUID();
const JOB = randomUUID();

let directory: string;
let database: Database;
let jobs: JobRepository;
let models: ModelRepository;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-growing-'));
  database = await Database.open(directory);
  jobs = new JobRepository(database.db);
  models = new ModelRepository(database.db);
  const model = {
    id: MODEL,
    entity: 'e',
    project: 'p',
    name: 'm',
    baseModel: 'b',
    baseDigest: 'd',
    runId: randomUUID(),
  };
  const first = { id: randomUUID(), modelId: MODEL, jobId: null, version: 'v', bytes: 1, createdAt: AT };
  await models.create({ ...model, lora: {}, nextStep: 1, createdAt: AT }, { ...first, step: 0, blobKey: 'adapters/0' });
  const job = { id: JOB, modelId: MODEL, entity: 'e', kind: 'sft' as const, config: {}, inputKey: 'inputs/0' };
  await jobs.accept({ ...job, inputBytes: 7, references: [], createdAt: AT }, null, 1);
});
afterEach(async () => {
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

/** The statements of `work`. */
async function statementsOf(work: () => Promise<unknown>): Promise<CompiledQuery[]> {
  const { executeQuery: real, transact } = SqliteClient.prototype;
  const seen: CompiledQuery[] = [];
  SqliteClient.prototype.executeQuery = async function <R>(this: SqliteClient, query: CompiledQuery) {
    seen.push(query);
    return (await real.call(this, query)) as QueryResult<R>;
  };
  SqliteClient.prototype.transact = function (this: SqliteClient, queries: readonly CompiledQuery[]) {
    seen.push(...queries);
    return transact.call(this, queries);
  };
  try {
    await work();
  } finally {
    Object.assign(SqliteClient.prototype, { executeQuery: real, transact });
  }
  return seen;
}

/** How SQLite finds the rows of `work`'s queries. */
async function plansOf(work: () => Promise<unknown>): Promise<string> {
  const plans: string[] = [];
  for (const { sql: text, parameters } of await statementsOf(work)) {
    if (!/^(?:select|update|delete|with)/.test(text)) continue;
    const explained = CompiledQuery.raw(`explain query plan ${text}`, [...parameters]);
    const { rows } = await database.db.executeQuery<{ detail: string }>(explained as CompiledQuery<{ detail: string }>);
    plans.push(...rows.map(({ detail }) => detail));
  }
  return plans.join('\n');
}

const published = () => ({ modelId: MODEL, jobId: JOB, version: 'v', blobKey: 'adapters/1', bytes: 1, createdAt: AT });

test('no query of a request or a step reads a table from its beginning', async () => {
  const logs = new LogRepository(database.db);
  const storage = new StorageRepository(database.db);
  const artifacts = new ArtifactRepository(database.db);
  const page = (filter: { split: string | null; step: number | null }) => logs.page(MODEL, null, 10, filter);
  const artifact = { id: 'a', entity: 'e', project: 'p', name: 'n', type: 't', metadata: {}, createdAt: AT };
  const responses = new ResponseRepository(database, { maxCount: 1, maxBytes: 100 });
  const response = { id: 'r', previousId: null, head: '{}', output: '[]', input: '[]' };
  await responses.insert('e', { ...response, id: 'before' });
  const event = { key: 'step-1', type: 'gradient_step', data: { gradient_step: 1 }, at: AT };
  const calls: [string, () => Promise<unknown>, RegExp[]][] = [
    ['countOpen', () => jobs.countOpen(MODEL), [/open_jobs_by_model/]],
    ['usedBytes', () => storage.usedBytes('e'), [/entity_storage .*\(entity=\?\)/, /open_jobs_by_entity/]],
    ['append', () => jobs.append(JOB, event), [/\(job_id=\? AND key=\?\)/, /\(job_id=\?\)/]],
    ['event', () => jobs.event(JOB, 'started'), [/\(job_id=\? AND key=\?\)/]],
    ['events', () => jobs.events(JOB, 5, 10), [/\(job_id=\? AND sequence>\?\)/]],
    ['record', () => logs.record(MODEL, `${JOB}/step-1`, 1, {}, null), [/\(model_id=\? AND key=\?\)/]],
    ['logs', () => page({ split: null, step: null }), [/\(model_id=\? AND sequence>\?\)/]],
    ['of a split', () => page({ split: 'val', step: null }), [/\(model_id=\? AND split=\? AND rowid>\?\)/]],
    ['of a step', () => page({ split: null, step: 1 }), [/\(model_id=\? AND step=\? AND rowid>\?\)/]],
    ['of both', () => page({ split: 'val', step: 1 }), [/\(model_id=\? AND split=\? AND step=\? AND rowid>\?\)/]],
    ['publish', () => models.publish({ ...published(), id: randomUUID() }), [/\(model_id=\? AND key>\? AND key<\?\)/]],
    [
      'nextQueued',
      () => jobs.nextQueued([], new Map()),
      [
        /jobs USING COVERING INDEX queued_jobs \(model_id>\?\)/,
        /first USING COVERING INDEX queued_jobs \(model_id=\?\)/,
      ],
    ],
    ['newestOther', () => jobs.newestOther('model'), [/jobs_by_state/]],
    ['running', () => jobs.running(), [/jobs_by_state/]],
    ['begin', () => artifacts.insert(artifact, 1), [/open_artifacts \(entity=\?\)/]],
    ['artifacts', () => artifacts.page('e', null, 10), [/present_artifacts \(entity=\? AND sequence>\?\)/]],
    ['store', () => responses.insert('e', response), [/\(entity=\? AND id=\?\)/, /\(entity=\?\)/, /sequence<\?\)/]],
    ['chain', () => responses.chain('e', 'r', ANY), [/older USING INDEX \S+ \(entity=\? AND id=\?\)/]],
    ['outputs', () => responses.outputs('e', ['r'], ANY), [/\(entity=\? AND id=\?\)/]],
    ['find', () => responses.find('e', 'r', ANY), [/\(entity=\? AND id=\?\)/]],
  ];
  for (const [name, work, ways] of calls) {
    const plan = await plansOf(work);
    for (const way of ways) expect(plan, name).toMatch(way);
    // `kept`, `chain`, `leaving` and `waiting` are queries' own results; which model is the first, an index tells at its beginning.
    expect(plan, name).not.toMatch(/^SCAN (?!kept|chain|leaving|waiting)/m);
    expect(plan, name).not.toContain('TEMP B-TREE FOR GROUP BY');
  }
});

test('the next event is numbered without counting those before', async () => {
  const statements = await statementsOf(() =>
    jobs.append(JOB, { key: 'step-1', type: 'gradient_step', data: {}, at: AT }),
  );
  expect(statements.map(({ sql: text }) => text).join('\n')).not.toContain('count(');
  for (const key of ['step-2', 'step-3', 'step-2'])
    await jobs.append(JOB, { key, type: 'gradient_step', data: {}, at: AT });
  expect((await jobs.events(JOB, -1, 10)).map(({ sequence }) => sequence)).toEqual([0, 1, 2]);
});

test('a step is published in as many statements whatever its job told of it, and the last of a name counts', async () => {
  const logs = new LogRepository(database.db);
  for (let step = 1; step <= 30; step++)
    await logs.record(
      MODEL,
      `${JOB}/step-${step}`,
      step < 30 ? 1 : 2,
      { 'sft/loss': step, [`sft/${step % 3}`]: step },
      null,
    );
  // Others' rows, among them one whose key begins alike.
  await logs.record(MODEL, `${JOB}0/step-1`, 1, { 'sft/loss': -1 }, null);
  await logs.record(MODEL, `log-${randomUUID()}`, 1, { 'sft/loss': -2 }, null);
  const id = randomUUID();
  const statements = await statementsOf(() => models.publish({ ...published(), id }));
  expect(statements.length).toBeLessThan(10);
  expect((await models.metrics([id])).get(id)).toEqual({ 'sft/loss': 29, 'sft/0': 27, 'sft/1': 28, 'sft/2': 29 });
});
