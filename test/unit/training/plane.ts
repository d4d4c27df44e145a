/** The HTTP server over the real store, blobs, intake thread and runner, with an engine in memory. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { setUpTraining, type TrainingSide } from '../../../src/cli/training-setup.ts';
import { BaseModelResolver, FirstResolver } from '../../../src/control/models/resolver.ts';
import type { TrainingEngine } from '../../../src/control/engine/training.ts';
import type { Settings } from '../../../src/control/settings.ts';
import { FolderBlobStore, type BlobStore } from '../../../src/control/store/blob-store.ts';
import { Database } from '../../../src/control/store/database.ts';
import { SampleMemory } from '../../../src/control/training/samples/sample-memory.ts';
import { startTestServer, testSettings, type TestServer } from '../api/fakes.ts';
import { starterChat, type StarterChat } from './chat-encoder.ts';
import { FAKE_SPEC, FakeEngine } from './fake-engine.ts';

export const BASE = 'Qwen/Qwen3-0.6B';
/** Keys are their entity's name behind `key-`. */
const ENTITIES = ['default', 'rivals'];

export interface Plane extends TestServer {
  engine_: FakeEngine;
  side: TrainingSide;
  samples: SampleMemory;
  chat: StarterChat;
  dataDir: string;
  database: Database;
  as(entity: string): { authorization: string };
  json(path: string, init?: RequestInit): Promise<Record<string, unknown>>;
  ok(path: string, body: unknown): Promise<Record<string, unknown>>;
  /** Ends everything; the data stay where `dataDir` was given. */
  end(): Promise<void>;
}

export interface PlaneOptions {
  dataDir?: string;
  settings?: Partial<Settings>;
  engine?: FakeEngine;
  blobs?: (store: BlobStore) => BlobStore;
  /** The jobs wait. */
  paused?: boolean;
  /** Why an adapter of a rank cannot be served. */
  servingObstacle?: (rank: number) => string | null;
}

export async function startPlane(options: PlaneOptions = {}): Promise<Plane> {
  const dataDir = options.dataDir ?? mkdtempSync(join(tmpdir(), 'tandem-plane-'));
  const settings = testSettings({ dataDir, ...options.settings });
  const engine: FakeEngine = options.engine ?? new FakeEngine();
  const chat = await starterChat();
  const samples = new SampleMemory(settings.sampleMemoryBytes);
  const database = await Database.open(dataDir);
  const names = [BASE, 'alias'];
  const side = await setUpTraining({
    settings,
    database,
    blobs: (options.blobs ?? ((store) => store))(new FolderBlobStore(join(dataDir, 'blobs'))),
    model: {
      spec: FAKE_SPEC,
      vocabSize: FAKE_SPEC.vocabSize,
      name: 'starter',
      digest: 'base-digest',
      servingObstacle: options.servingObstacle ?? (() => null),
    },
    names,
    engine: engine satisfies TrainingEngine,
    chat,
    samples: (requestId, entity) => samples.find(requestId, entity),
    log: pino({ level: 'silent' }),
  });
  const server = await startTestServer(settings, {
    training: side.services,
    samples,
    models: new FirstResolver([new BaseModelResolver(names), side.resolver]),
    model: { names, root: 'starter', created: 1, systemFingerprint: 'fp' },
    keys: { find: findKey },
  });
  server.deps.metrics.addTraining(side.services);
  if (options.paused !== true) await side.start();
  const as = (entity: string) => ({ authorization: `Bearer key-${entity}` });
  const call: TestServer['call'] = (path, init = {}) =>
    fetch(server.url + path, { ...init, headers: { ...as('default'), ...(init.headers as Record<string, string>) } });
  const post: TestServer['post'] = (path, body, headers = {}) =>
    call(path, {
      method: 'POST',
      body: typeof body === 'string' ? body : JSON.stringify(body),
      headers: { 'content-type': 'application/json', ...headers },
    });
  const read = async (response: Response) => {
    const text = await response.text();
    if (response.status !== 200) throw new Error(`${response.url}: ${response.status} ${text.slice(0, 2000)}`);
    return JSON.parse(text) as Record<string, unknown>;
  };
  return {
    ...server,
    call,
    post,
    engine_: engine,
    side,
    samples,
    chat,
    dataDir,
    database,
    as,
    json: async (path, init) => read(await call(path, init)),
    ok: async (path, body) => read(await post(path, body)),
    end: async () => {
      await server.close();
      await side.stop();
      await database.close();
      if (options.dataDir === undefined) rmSync(dataDir, { recursive: true, force: true });
    },
  };
}

function findKey(token: string) {
  const entity = ENTITIES.find((name) => token === `key-${name}`);
  return entity === undefined ? null : { keyId: entity, entity };
}

/** Creates (or returns) a model of the default entity. */
export async function createModel(plane: Plane, name: string): Promise<{ id: string; run_id: string }> {
  const body = { entity: null, project: 'p', name, base_model: BASE, return_existing: true };
  return (await plane.ok('/v1/preview/models', body)) as { id: string; run_id: string };
}

export interface EventItem {
  id: string;
  type: string;
  data: Record<string, unknown>;
}

/** All events of a job, page by page, as the client reads them. */
export async function allEvents(plane: Plane, jobId: string, limit = 100): Promise<EventItem[]> {
  const events: EventItem[] = [];
  for (;;) {
    const after = events.length === 0 ? '' : `&after=${events.at(-1)?.id}`;
    const page = await plane.json(`/v1/preview/training-jobs/${jobId}/events?limit=${limit}${after}`);
    events.push(...(page['data'] as EventItem[]));
    if (page['has_more'] !== true) return events;
  }
}

/** Polls until the job's terminal event. */
export async function finished(plane: Plane, jobId: string, timeoutMs = 60_000): Promise<EventItem[]> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const events = await allEvents(plane, jobId);
    const last = events.at(-1)?.type;
    if (last === 'training_ended' || last === 'training_failed') return events;
    if (Date.now() > deadline) throw new Error(`The job did not end: ${JSON.stringify(events)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** A trajectory with one choice of the given ids. */
export function trajectory(ids: number[], reward: number, more: object = {}): Record<string, unknown> {
  const content = ids.map((id) => ({ token: `token_id:${id}`, bytes: null, logprob: -1.5, top_logprobs: [] }));
  return {
    messages_and_choices: [
      { role: 'user', content: 'yes, no or maybe?' },
      {
        finish_reason: 'stop',
        index: 0,
        message: { role: 'assistant', content: 'maybe', refusal: null, tool_calls: null },
        logprobs: { content, refusal: null },
        token_ids: ids,
      },
    ],
    tools: null,
    additional_histories: [],
    reward,
    initial_policy_version: 0,
    final_policy_version: 0,
    metrics: {},
    metadata: {},
    logs: [],
    ...more,
  };
}

export function group(rewards: number[], more: object = {}): Record<string, unknown> {
  const trajectories = rewards.map((reward, i) => trajectory([100 + i, 101 + i, 2], reward));
  return { trajectories, exceptions: [], metadata: {}, metrics: {}, logs: [], ...more };
}
