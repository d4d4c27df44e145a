/** Composition root of the server: wires store, model, engine, sessions and HTTP, and takes them down in order. */
import { basename } from 'node:path';
import { pino, type Logger } from 'pino';
import { createApp } from '../api/app.ts';
import { HttpServer } from '../api/http-server.ts';
import { Metrics } from '../api/metrics.ts';
import type { ApiDeps, ServedModel } from '../api/deps.ts';
import { EngineSupervisor } from '../control/engine/supervisor.ts';
import { loadModel } from '../control/models/load.ts';
import type { LoadedModel } from '../control/models/model.ts';
import { createSessions } from '../control/sessions/create-sessions.ts';
import type { Settings } from '../control/settings.ts';
import { DataDirLock } from '../control/store/data-dir-lock.ts';
import { Database } from '../control/store/database.ts';
import { banner, type KeyNote } from './banner.ts';
import { engineConfig, parameterCount, refuseNotBuiltSettings, servedNames } from './engine-config.ts';
import { systemFingerprint } from './fingerprint.ts';
import { ServerKeys } from './key-setup.ts';
import { LoadingBar } from './progress.ts';
import { readVersion } from './version.ts';

/** Closing sockets after the running requests had their time. */
const CLOSE_GRACE_MS = 3_000;

/** Undone in reverse order, whatever point the start reached. */
type Undo = () => Promise<void> | void;

export interface RunningServer {
  port: number;
  /** Finishes running requests within the set time, then takes everything down. */
  stop(): Promise<void>;
}

export async function serve(settings: Settings): Promise<RunningServer> {
  const undo: Undo[] = [];
  try {
    return await start(settings, undo);
  } catch (error) {
    await unwind(undo);
    throw error;
  }
}

async function unwind(undo: Undo[]): Promise<void> {
  for (const step of undo.splice(0).reverse()) await step();
}

async function start(settings: Settings, undo: Undo[]): Promise<RunningServer> {
  refuseNotBuiltSettings(settings);
  const log = pino({ level: settings.logLevel }, pino.destination({ fd: 2, sync: true }));
  const keys = await openStore(settings, undo);
  const model = await loadModel(settings.model);
  for (const warning of model.warnings ?? []) log.warn(warning);
  const config = engineConfig(settings, model);
  const engine = startEngine(settings, config, log);
  undo.push(() => engine.close());
  const sessions = await createSessions({
    modelDirectory: model.directory,
    engine,
    maxModelLen: config.maxModelLen,
    maxLogprobs: config.maxLogprobs,
    workers: settings.tokenizerWorkers,
    renderTimeoutMs: settings.templateTimeoutMs,
    generationConfig: settings.generationConfig,
    toolParser: settings.toolCallParser === 'none' ? null : settings.toolCallParser,
    reasoningParser: settings.reasoningParser === 'none' ? null : settings.reasoningParser,
  });
  undo.push(() => sessions.close());
  const names = servedNames(settings, model);
  const served: ServedModel = { names, root: basename(model.directory), created: unixSeconds(), systemFingerprint: '' };
  const metrics = new Metrics({ modelName: names[0] ?? '', vllmNames: settings.vllmMetricNames, engine });
  const version = readVersion();
  let draining = false;
  const deps: ApiDeps = {
    sessions,
    engine,
    settings,
    keys: keys.cache,
    model: served,
    metrics,
    log,
    version,
    draining: () => draining,
  };
  const http = new HttpServer(createApp(deps), settings);
  const port = await http.listen();
  undo.push(() => http.drain(0));
  await engine.ready();
  const isa = engine.info?.isa ?? 'unknown';
  served.systemFingerprint = systemFingerprint({ version, digest: model.digest, dtype: config.dtype, isa });
  log.info({ port, enginePid: engine.pid, isa }, 'ready');
  announce(settings, model, { port, isa, dtype: config.dtype, names, version, key: await keys.note() });
  const stop = async () => {
    draining = true;
    const closed = http.drain(settings.shutdownTimeoutMs + CLOSE_GRACE_MS);
    await engine.drain(settings.shutdownTimeoutMs);
    await closed;
    await unwind(undo);
  };
  return { port, stop };
}

async function openStore(settings: Settings, undo: Undo[]): Promise<ServerKeys> {
  const lock = DataDirLock.acquire(settings.dataDir);
  undo.push(() => lock.release());
  const database = await Database.open(settings.dataDir);
  undo.push(() => database.close());
  const keys = await ServerKeys.open(database, settings.apiKey);
  undo.push(() => keys.close());
  return keys;
}

function startEngine(settings: Settings, config: ReturnType<typeof engineConfig>, log: Logger): EngineSupervisor {
  const bar = new LoadingBar(process.stdout, 'weights');
  return new EngineSupervisor({
    config,
    maxWaitingRequests: settings.maxWaitingRequests,
    maxWaitingTokens: settings.maxWaitingTokens,
    onLoading: (done, total) => bar.update(done, total),
    onStateChange: (state) => {
      bar.end();
      log.info({ state }, 'engine state');
    },
    log: (line) => log.warn(line),
  });
}

interface Announcement {
  port: number;
  isa: string;
  dtype: string;
  names: string[];
  version: string;
  key: KeyNote;
}

function announce(settings: Settings, model: LoadedModel, facts: Announcement): void {
  const { port, isa, dtype, version } = facts;
  const text = banner({
    version,
    host: settings.host,
    port,
    model: facts.names[0] ?? '',
    parameters: parameterCount(model.tensors),
    dtype,
    isa,
    threads: settings.threads,
    key: facts.key,
  });
  process.stdout.write(text);
}

function unixSeconds(): number {
  return Math.floor(Date.now() / 1000);
}
