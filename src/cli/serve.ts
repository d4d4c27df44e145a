/** Composition root of the server: wires store, model, engine, sessions and HTTP, and takes them down in order. */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino, type Logger } from 'pino';
import { createApp, isUpload } from '../api/app.ts';
import { HttpServer } from '../api/http-server.ts';
import { Metrics } from '../api/metrics.ts';
import type { ApiDeps, ServedModel } from '../api/deps.ts';
import type { EngineConfig } from '../control/engine/protocol.ts';
import { EngineSupervisor } from '../control/engine/supervisor.ts';
import { loadExtensions } from '../control/extensions/load.ts';
import { llamaIsInstalled } from '../control/llama/binding.ts';
import type { LlamaConfig } from '../control/llama/config.ts';
import { AdapterRegistry, type NamedAdapter } from '../control/models/adapter-registry.ts';
import { BaseModelResolver, FirstResolver } from '../control/models/resolver.ts';
import type { LoadedModel } from '../control/models/model.ts';
import { createSessions } from '../control/sessions/create-sessions.ts';
import { LLAMA_LIMITS } from '../control/sessions/engine-limits.ts';
import { modelTokenizer, type ModelTokenizer } from '../control/sessions/model-tokenizer.ts';
import type { Settings } from '../control/settings.ts';
import { DataDirLock } from '../control/store/data-dir-lock.ts';
import { FolderBlobStore } from '../control/store/blob-store.ts';
import { BLOBS, Database } from '../control/store/database.ts';
import { ResponseRepository } from '../control/store/response-repository.ts';
import { banner, keysCommand, type KeyNote } from './banner.ts';
import { chooseEngine, engineFacts, trainedBase } from './choose-engine.ts';
import { extensionSettings, refuseSettings, servedNames } from './engine-config.ts';
import { systemFingerprint } from './fingerprint.ts';
import { ServerKeys } from './key-setup.ts';
import { maxOpenFiles } from './machine.ts';
import { OPTIONS } from './options.ts';
import { lossyOutput, withoutWaiting } from './output.ts';
import { LoadingBar } from './progress.ts';
import { setUpTraining, type TrainingSide } from './training-setup.ts';
import { SampleMemory } from '../control/training/samples/sample-memory.ts';
import { readVersion } from './version.ts';

/** Closing sockets after the running requests had their time. */
const CLOSE_GRACE_MS = 3_000;

/** Of the time of running requests, for connections that wait to be accepted: a busy machine takes long for each. Less than the least is no time. */
const ACCEPT_SHARE = 1 / 6;
const MIN_ACCEPT_MS = 1_000;

/** Lines that could not be written are tried again, up to here. */
const MAX_UNWRITTEN_LOG_BYTES = 2 ** 20;
const LOG_RETRY_MS = 200;

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
    // What the start failed by is what its operator has to know.
    await unwind(undo).catch(() => {});
    throw error;
  }
}

/** A disk that is full, or a reader that rests or has gone, costs lines of the log and nothing else. */
function logStream(): ReturnType<typeof pino.destination> {
  const bounds = { maxLength: MAX_UNWRITTEN_LOG_BYTES, retryEAGAIN: () => false };
  const stream = pino.destination({ fd: withoutWaiting(2), sync: true, ...bounds });
  let retry: NodeJS.Timeout | null = null;
  stream.on('error', () => {
    // What waits is not left until there is another line.
    retry ??= setTimeout(() => {
      retry = null;
      stream.write('');
    }, LOG_RETRY_MS).unref();
  });
  return stream;
}

/** One that cannot be undone keeps none of the others from it. Throws what the first of them failed by. */
async function unwind(undo: Undo[]): Promise<void> {
  const failures: unknown[] = [];
  for (const step of undo.splice(0).reverse()) {
    try {
      await step();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}

async function start(settings: Settings, undo: Undo[]): Promise<RunningServer> {
  refuseSettings(settings);
  const log = pino({ level: settings.logLevel }, logStream());
  const { keys, database } = await openStore(settings, undo);
  const warn = (text: string) => log.warn(text);
  const chosen = await chooseEngine(settings, llamaIsInstalled(), warn);
  const { model } = chosen;
  if ('warnings' in model) model.warnings.forEach(warn);
  const tokenizer = modelTokenizer(model.texts);
  const { config, servingObstacle, ...facts } = engineFacts(chosen, tokenizer, settings, warn);
  const extensions = await loadExtensions(extensionSettings(settings), config.samplableVocab);
  const names = servedNames(settings, model);
  const engine = startEngine(settings, config, log);
  undo.push(() => engine.close());
  const adapters = chosen.engine === 'native' ? await operatorAdapters(settings, chosen.model, names, engine) : null;
  const sessions = await startSessions(settings, model.path, tokenizer, engine, config);
  undo.push(() => sessions.close());
  const samples = new SampleMemory(settings.sampleMemoryBytes);
  const training = await setUpTraining({
    settings,
    database,
    blobs: new FolderBlobStore(join(settings.dataDir, BLOBS)),
    model: { ...trainedBase(chosen), servingObstacle },
    names,
    engine,
    chat: sessions.chat,
    samples: (requestId, entity) => samples.find(requestId, entity),
    log,
  });
  undo.push(() => training.stop());
  const served: ServedModel = { names, root: model.name, created: unixSeconds(), systemFingerprint: '' };
  const metrics = new Metrics({ modelName: names[0] ?? '', settings, engine });
  metrics.addTraining(training.services);
  const version = readVersion();
  let draining = false;
  const deps: ApiDeps = {
    sessions,
    engine,
    settings,
    keys: keys.cache,
    model: served,
    training: training.services,
    trains: chosen.engine === 'native',
    responses: storedResponses(database, settings),
    samples,
    // Trained models before adapters, which anybody may have named: an entity's own name means its own model.
    models: new FirstResolver([new BaseModelResolver(names), training.resolver, ...(adapters ? [adapters] : [])]),
    adapters,
    metrics,
    extensions,
    log,
    version,
    draining: () => draining,
  };
  const http = listener(deps, maxOpenFiles());
  const port = await http.listen();
  undo.push(() => http.drain(0));
  await engine.ready();
  if (adapters) await Promise.all([training.start(), loadAdapters(adapters, settings)]);
  const ready = { isa: engine.info?.isa ?? 'unknown', ...facts };
  served.systemFingerprint = systemFingerprint({ version, model, ...ready });
  log.info({ port, enginePid: engine.pid, isa: ready.isa }, 'ready');
  announce(settings, { port, ...ready, names, version, info: engine.info, key: await keys.note() });
  const stop = async () => {
    await drain(settings, { http, training, engine }, () => (draining = true));
    await unwind(undo);
  };
  return { port, stop };
}

function listener(deps: ApiDeps, most: number): HttpServer {
  const onFull = (connections: number) =>
    deps.log.warn(
      { connections, maxOpenFiles: most },
      'No more connections are taken: none of those that are open is idle, so new ones are closed until others end. ' +
        'Where the files that the process may open are what bounds them, raise that limit (ulimit -n, LimitNOFILE of systemd).',
    );
  return new HttpServer(createApp(deps), { ...deps.settings, maxOpenFiles: most, onFull }, isUpload);
}

/**
 * What has come is served, what comes from `refuse` on is not. Requests end before the engine does: until their answers are written they may ask
 * it again, as a beam search does for each token.
 */
async function drain(
  { shutdownTimeoutMs }: Settings,
  { http, training, engine }: { http: HttpServer; training: TrainingSide; engine: EngineSupervisor },
  refuse: () => void,
): Promise<void> {
  const end = performance.now() + shutdownTimeoutMs;
  await http.acceptWaiting(Math.max(MIN_ACCEPT_MS, ACCEPT_SHARE * shutdownTimeoutMs));
  refuse();
  const leftMs = Math.max(0, end - performance.now());
  const closed = http.drain(leftMs + CLOSE_GRACE_MS);
  const inTime = sleep(leftMs, undefined, { ref: false });
  // A slice of training that does not end must not hold the requests.
  await Promise.race([training.stop(), inTime]);
  await Promise.race([closed, inTime]);
  await engine.drain(0);
  await closed;
}

/**
 * Named before there is a port: who asks early waits for them as for the model. What is wrong with their files shows
 * before the weights are loaded.
 */
async function operatorAdapters(
  settings: Settings,
  model: LoadedModel,
  names: string[],
  engine: EngineSupervisor,
): Promise<AdapterRegistry> {
  const baseNames = [...names, model.name];
  const adapters = new AdapterRegistry({ engine, spec: model.spec, maxRank: settings.maxLoraRank, baseNames });
  for (const adapter of settings.loraModules) await blamed(adapter, adapters.name(adapter));
  return adapters;
}

async function loadAdapters(adapters: AdapterRegistry, settings: Settings): Promise<void> {
  for (const adapter of settings.loraModules) await blamed(adapter, adapters.load(adapter.name));
}

/** There may be several of them: an error names its own. */
async function blamed({ name, path }: NamedAdapter, work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (error) {
    throw new Error(`--lora-modules ${name}=${path}: ${(error as Error).message}`, { cause: error });
  }
}

async function openStore(settings: Settings, undo: Undo[]): Promise<{ keys: ServerKeys; database: Database }> {
  const lock = DataDirLock.acquire(settings.dataDir);
  undo.push(() => lock.release());
  const database = await Database.open(settings.dataDir);
  undo.push(() => database.close());
  const keys = await ServerKeys.open(database, settings.apiKey);
  undo.push(() => keys.close());
  return { keys, database };
}

function storedResponses(database: Database, settings: Settings): ResponseRepository {
  const bounds = { maxCount: settings.maxStoredResponses, maxBytes: settings.maxStoredResponseBytes };
  return new ResponseRepository(database, bounds);
}

function startSessions(
  settings: Settings,
  modelPath: string,
  tokenizer: ModelTokenizer,
  engine: EngineSupervisor,
  config: EngineConfig | LlamaConfig,
): ReturnType<typeof createSessions> {
  return createSessions({
    modelPath,
    tokenizer,
    engine,
    adapters: engine,
    limits: 'engine' in config ? LLAMA_LIMITS : null,
    maxModelLen: config.maxModelLen,
    workers: settings.tokenizerWorkers,
    renderTimeoutMs: settings.templateTimeoutMs,
    maxWaitingRenders: settings.maxNumSeqs + settings.maxWaitingRequests,
    maxWaitingTokens: settings.maxWaitingTokens,
    templateKwargs: settings.defaultChatTemplateKwargs,
    generationConfig: settings.generationConfig,
    toolParser: settings.toolCallParser === 'none' ? null : settings.toolCallParser,
    reasoningParser: settings.reasoningParser === 'none' ? null : settings.reasoningParser,
  });
}

function startEngine(settings: Settings, config: EngineConfig | LlamaConfig, log: Logger): EngineSupervisor {
  const bar = new LoadingBar(lossyOutput(), 'weights');
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
  parameters: number;
  info: EngineSupervisor['info'];
  names: string[];
  version: string;
  key: KeyNote;
}

function announce(settings: Settings, facts: Announcement): void {
  const { port, isa, dtype, parameters, version, info } = facts;
  const text = banner({
    version,
    host: settings.host,
    port,
    model: facts.names[0] ?? '',
    parameters,
    dtype,
    isa,
    threads: settings.threads,
    weightBytes: info?.weightBytes ?? 0,
    kvBytes: info ? info.pages * info.pageBytes : 0,
    key: facts.key,
    keysCommand: keysCommand(process.argv[1] ?? '', settings.dataDir, settings.dataDir === OPTIONS.dataDir.default()),
  });
  process.stdout.write(text);
}

function unixSeconds(): number {
  return Math.floor(Date.now() / 1000);
}
