/** Puts the training side together: store, blobs, registry, services, and the loop that runs jobs. */
import type { Logger } from 'pino';
import type { ModelSpec } from '../control/engine/native.ts';
import type { TrainingEngine } from '../control/engine/training.ts';
import type { ModelResolver } from '../control/models/resolver.ts';
import type { ChatEncoder } from '../control/sessions/open-chat.ts';
import type { Settings } from '../control/settings.ts';
import { ArtifactRepository } from '../control/store/artifact-repository.ts';
import type { BlobStore } from '../control/store/blob-store.ts';
import type { Database } from '../control/store/database.ts';
import { JobRepository } from '../control/store/job-repository.ts';
import { LogRepository } from '../control/store/log-repository.ts';
import { ModelRepository } from '../control/store/model-repository.ts';
import { StorageRepository } from '../control/store/storage-repository.ts';
import { DEFAULT_ADAPTER_SHAPE } from '../control/training/adapter-init.ts';
import { ArtifactService } from '../control/training/artifacts/artifact-service.ts';
import { trainingDataOpener } from '../control/training/artifacts/training-data.ts';
import { writeIdentityCheckpoint } from '../control/training/checkpoint-files.ts';
import { TrainingInputs } from '../control/training/intake/inputs.ts';
import { IntakePool } from '../control/training/intake/intake-pool.ts';
import type { SampleSource } from '../control/training/intake/intake-thread.ts';
import { JobLoop } from '../control/training/jobs/job-loop.ts';
import { JobService } from '../control/training/jobs/job-service.ts';
import {
  StoredCheckpoints,
  StoredEvents,
  StoredInputs,
  StoredRunLog,
  StoredSnapshots,
} from '../control/training/jobs/stored-ports.ts';
import { TrainingStats } from '../control/training/jobs/training-stats.ts';
import { LogService } from '../control/training/logs/log-service.ts';
import { TrainedModelResolver } from '../control/training/models/model-resolver.ts';
import { ModelService } from '../control/training/models/model-service.ts';
import type { ServingObstacle } from '../control/training/models/records.ts';
import { ModelRegistry } from '../control/training/models/registry.ts';
import type { TrainingJob, TrainingPorts } from '../control/training/ports.ts';
import { Receiving } from '../control/training/receiving.ts';
import { JobRunner } from '../control/training/runner.ts';
import { StorageQuota } from '../control/training/storage-quota.ts';
import type { TrainingServices } from '../control/training/services.ts';

export interface TrainingSetup {
  settings: Pick<
    Settings,
    | 'device'
    | 'kvCacheDtype'
    | 'loraRank'
    | 'loraAlpha'
    | 'maxModelsPerEntity'
    | 'maxEntityStorageBytes'
    | 'maxTrainingBodyBytes'
    | 'maxOpenJobs'
    | 'maxTrainingAttempts'
    | 'trainingTurnSeconds'
    | 'trainingFileRoot'
    | 'trainingUrlHosts'
  >;
  database: Database;
  /** Files of models, jobs and artifacts; swept here. */
  blobs: BlobStore;
  /** `spec`: null where the engine trains nothing: then nothing may be created, and `start` must not be called. */
  model: {
    spec: ModelSpec | null;
    vocabSize: number;
    name: string;
    digest: string;
    servingObstacle: ServingObstacle;
  };
  /** Served names of the base model. */
  names: string[];
  engine: TrainingEngine;
  chat: ChatEncoder;
  samples: SampleSource;
  log: Logger;
}

export interface TrainingSide {
  services: TrainingServices;
  /** Names of the trained models. */
  resolver: ModelResolver;
  /** Takes up the jobs of the store. Call when the engine can train. */
  start(): Promise<void>;
  /** The running job rests at its last snapshot. Idempotent. */
  stop(): Promise<void>;
}

/** One group of trajectories is held in memory while it is read. */
const MAX_GROUP_BYTES = 256 * 2 ** 20;
/** The other fields of its body go to the thread that serves: ids, a split, a configuration. */
const MAX_FIELD_BYTES = 2 ** 20;
const MAX_TRAJECTORIES = 100_000;
const MAX_ROWS = 10_000_000;
const MAX_ROW_BYTES = 64 * 2 ** 20;
const RETRY_DELAY_MS = 1_000;
const KEEP_ANSWERS_MS = 30 * 24 * 3600 * 1000;
const TIDY_EVERY_MS = 3600 * 1000;

/** Training computes with keys and values of --dtype: its first on-policy ratio would not be 1. */
const INT8_KV_OBSTACLE = 'With --kv-cache-dtype int8 the server takes no models to train.';

export async function setUpTraining(setup: TrainingSetup): Promise<TrainingSide> {
  const { settings, database, blobs, log } = setup;
  const { db } = database;
  const repositories = {
    models: new ModelRepository(db),
    jobs: new JobRepository(db),
    logs: new LogRepository(db),
    artifacts: new ArtifactRepository(db),
  };
  // Only now: nothing is being written yet.
  await repositories.models.finishRemovals();
  const swept = await blobs.sweep(await repositories.models.referencedBlobs());
  if (swept > 0) log.info({ swept }, 'removed what unfinished writes had left');
  const registry = new ModelRegistry();
  const pool = new IntakePool(intakeSettings(setup), setup.samples, setup.chat);
  const receiving = new Receiving();
  const inputs = new TrainingInputs(blobs, pool, receiving, settings.maxTrainingBodyBytes);
  const stats = new TrainingStats(log);
  const storage = new StorageRepository(db);
  const quota = new StorageQuota((entity) => storage.usedBytes(entity), settings.maxEntityStorageBytes);
  const parts: Parts = { setup, blobs, repositories, registry, inputs, stats, quota };
  const loop = createLoop(parts);
  const models = createModels(parts, loop);
  await models.load();
  const maxBytes = settings.maxTrainingBodyBytes;
  const artifacts = new ArtifactService({ repository: repositories.artifacts, blobs, quota, receiving, maxBytes, log });
  const openTrainingData = trainingDataOpener({
    artifacts,
    fileRoot: settings.trainingFileRoot,
    hosts: settings.trainingUrlHosts,
    maxBytes,
  });
  const stopTidying = await keepTidy(repositories, artifacts, log);
  const { maxOpenJobs } = settings;
  const jobs = new JobService({
    repository: repositories.jobs,
    registry,
    models,
    inputs,
    blobs,
    quota,
    loop,
    openTrainingData,
    maxOpenJobs,
    log,
  });
  const logs = new LogService({ repository: repositories.logs, registry, models, inputs, quota });
  return {
    services: {
      models,
      jobs,
      logs,
      artifacts,
      stats,
      jobCounts: () => repositories.jobs.countByState(),
      check: () => checkStorage(database, blobs, log),
    },
    resolver: new TrainedModelResolver(registry),
    start: () => loop.start(),
    stop: async () => {
      stopTidying();
      await loop.stop();
      await pool.close();
    },
  };
}

/** Removes what is old now and every hour; returns what ends that. */
async function keepTidy(
  repositories: Parts['repositories'],
  artifacts: ArtifactService,
  log: Logger,
): Promise<() => void> {
  const tidy = () => removeOld(repositories, artifacts);
  await tidy();
  const warn = (error: unknown) => log.warn({ err: error }, 'what is old was not removed');
  const timer = setInterval(() => void tidy().catch(warn), TIDY_EVERY_MS).unref();
  return () => clearInterval(timer);
}

/** What only answers repeated requests is not kept for ever, nor what nobody goes on uploading. */
async function removeOld({ models, jobs, artifacts }: Parts['repositories'], uploads: ArtifactService): Promise<void> {
  const before = new Date(Date.now() - KEEP_ANSWERS_MS).toISOString();
  await models.forgetDeleted(before);
  await jobs.forgetKeys(before);
  await artifacts.forgetDeleted(before);
  await uploads.removeAbandoned();
}

interface Parts {
  setup: TrainingSetup;
  blobs: BlobStore;
  repositories: { models: ModelRepository; jobs: JobRepository; logs: LogRepository; artifacts: ArtifactRepository };
  registry: ModelRegistry;
  inputs: TrainingInputs;
  stats: TrainingStats;
  quota: StorageQuota;
}

function createLoop(parts: Parts): JobLoop {
  const { setup, repositories, blobs, registry, inputs, stats } = parts;
  const { settings, log, engine, chat } = setup;
  const ports: TrainingPorts = {
    engine,
    get spec() {
      return specOf(setup);
    },
    baseModel: baseName(setup),
    inputs: new StoredInputs(repositories.jobs, inputs, log),
    events: new StoredEvents(repositories.jobs, blobs, log),
    snapshots: new StoredSnapshots(repositories.jobs, blobs, log),
    checkpoints: new StoredCheckpoints(repositories.models, repositories.jobs, blobs, registry),
    // One that has gone trains nothing any more.
    model: (modelId) => registry.find(modelId) ?? { obstacle: 'The model has gone.', lora: DEFAULT_ADAPTER_SHAPE },
    run: new StoredRunLog(repositories.logs, registry),
    chat,
    progress: (progress) => stats.progress(progress),
    report: (jobId, error) => log.error({ err: error, job: jobId }, 'training job failed'),
  };
  const runner = new JobRunner(ports);
  return new JobLoop({
    repository: repositories.jobs,
    blobs,
    run: ({ id, modelId, kind, config }, signal, turnIsOver) =>
      runner.run({ id, modelId, kind, config } as TrainingJob, signal, turnIsOver).finally(() => stats.rest()),
    maxAttempts: settings.maxTrainingAttempts,
    turnMs: 1000 * settings.trainingTurnSeconds,
    retryDelayMs: RETRY_DELAY_MS,
    log,
  });
}

function createModels({ setup, repositories, blobs, registry, quota }: Parts, loop: JobLoop): ModelService {
  const { settings, model, names, engine, log } = setup;
  const lora = { rank: settings.loraRank, alpha: settings.loraAlpha };
  return new ModelService({
    repository: repositories.models,
    blobs,
    registry,
    identity: {
      lora,
      write: (directory, modelId) => writeIdentityCheckpoint(directory, specOf(setup), baseName(setup), modelId, lora),
    },
    base: { names, root: model.name, digest: model.digest },
    obstacle: settings.kvCacheDtype === 'int8' ? INT8_KV_OBSTACLE : null,
    servingObstacle: model.servingObstacle,
    maxModelsPerEntity: settings.maxModelsPerEntity,
    quota,
    log,
    stopJobs: (modelId) => loop.stopModel(modelId),
    unload: (version) => engine.unloadAdapter(version),
  });
}

function specOf({ model }: TrainingSetup): ModelSpec {
  if (model.spec === null) throw new Error('This engine trains nothing.');
  return model.spec;
}

function baseName({ names, model }: TrainingSetup): string {
  return names[0] ?? model.name;
}

function intakeSettings({ model }: TrainingSetup): ConstructorParameters<typeof IntakePool>[0] {
  return {
    vocabSize: model.vocabSize,
    maxGroupBytes: MAX_GROUP_BYTES,
    maxFieldBytes: MAX_FIELD_BYTES,
    maxTrajectories: MAX_TRAJECTORIES,
    maxRows: MAX_ROWS,
    maxRowBytes: MAX_ROW_BYTES,
  };
}

type Check = { name: string; ok: boolean; message: string };

async function checkStorage(database: Database, blobs: BlobStore, log: Logger): Promise<Check[]> {
  const attempt = async (name: string, work: () => Promise<unknown>): Promise<Check> => {
    try {
      await work();
      return { name, ok: true, message: 'ok' };
    } catch (error) {
      log.error({ err: error, check: name }, 'system check failed');
      return { name, ok: false, message: `The ${name} does not work; the log has the cause.` };
    }
  };
  const write = async () => {
    const draft = await blobs.draft('uploads');
    try {
      await draft.write('check', Buffer.from('check'));
    } finally {
      await draft.discard();
    }
  };
  return [await attempt('database', () => database.dataVersion()), await attempt('storage', write)];
}
