/**
 * What a running job needs from the outside. The control plane implements these over its store, its blobs and its sessions;
 * tests implement them in memory. Every promise that resolves has made its effect durable, unless it says otherwise.
 */
import type { RlConfigBody } from '../../schemas/rl-config.ts';
import type { SftConfigBody } from '../../schemas/sft-config.ts';
import type { ModelSpec } from '../engine/native.ts';
import type { AdapterRef, RowRoom, TrainingEngine } from '../engine/training.ts';
import type { ChatEncoder } from '../sessions/open-chat.ts';
import type { AdapterShape } from './adapter-init.ts';
import type { RlBatch } from './rl-batch.ts';
import type { RlConfig } from './rl-config.ts';
import type { TensorFile } from './tensor-file.ts';

export interface RlJob {
  kind: 'rl';
  id: string;
  modelId: string;
  /** As accepted; null = all defaults. */
  config: RlConfigBody | null;
}

export interface SftJob {
  kind: 'sft';
  id: string;
  modelId: string;
  config: SftConfigBody | null;
}

export type TrainingJob = RlJob | SftJob;

export interface WantedBatch {
  jobId: string;
  config: RlConfig;
  /** Of each row. */
  room: RowRoom;
}

export interface KeptAdapter {
  directory: string;
  /** Absent: it was kept before there was one. */
  version?: string;
}

/** What the client sent; the same however often it is asked. */
export interface JobInputs {
  /** The trajectories as rows (`rlBatch`, seeded by the job's id). They may take long to make, which must hold up nothing but the job. */
  rlBatch(wanted: WantedBatch, chat: ChatEncoder, signal: AbortSignal): Promise<RlBatch>;
  /** The adapter of a step that was kept for the job when it was accepted; null: the step was not. */
  reference(jobId: string, step: number): Promise<KeptAdapter | null>;
  /** train.jsonl or trajectories.jsonl behind training_data_url, decompressed. */
  trainingData(jobId: string): AsyncIterable<Uint8Array>;
}

export type TrainingEventType = 'training_started' | 'gradient_step' | 'training_ended' | 'training_failed';

/** Flat; numbers are finite. */
export type EventData = Record<string, number | string>;

export interface JobEvents {
  /**
   * Appends an event. Idempotent by (job, key): a second call with the same key changes nothing, so a job that goes on from a
   * snapshot may say again what it said before. Keys of a job: `started`, `step-<n>` from 1, `end` (ended or failed).
   */
  append(jobId: string, key: string, type: TrainingEventType, data: EventData): Promise<void>;
}

/** The newest state of a running job, replaced as a whole; gone with the job's end. */
export interface JobSnapshots {
  /** null: there is none, or none that is whole. */
  load(jobId: string): Promise<TensorFile | null>;
  /** Atomic: after a crash either the old or the new one is there. Resolves with its size in bytes. */
  save(jobId: string, snapshot: Iterable<Uint8Array>): Promise<number>;
}

export interface Checkpoint {
  step: number;
  /** Folder and digest of adapter_config.json, adapter_model.safetensors (and optimizer.safetensors, which no server reads). */
  adapter: AdapterRef;
}

export interface Checkpoints {
  /** The newest that is not deleted; null where none is left. */
  latest(modelId: string): Promise<Checkpoint | null>;
  at(modelId: string, step: number): Promise<Checkpoint | null>;
  /** The step that `commit` will give; nobody else takes it while a job of the model runs. */
  nextStep(modelId: string): Promise<number>;
  /** An empty folder for the job's checkpoint, on the file system of the checkpoints. What an earlier attempt left is removed. */
  stage(jobId: string): Promise<string>;
  /**
   * The files of `directory` are complete: syncs them, moves the folder in place and lists the checkpoint under the model's next
   * step (largest step ever + 1). Idempotent by job: a second call returns the first one's checkpoint.
   */
  commit(jobId: string, directory: string, version: string): Promise<Checkpoint>;
  /** Removes what was staged and not committed. Idempotent. */
  unstage(jobId: string): Promise<void>;
  /** The checkpoint that the job has already made, or null. */
  ofJob(jobId: string): Promise<Checkpoint | null>;
  /** The step of one that it made and that has been deleted since, or null. */
  deletedStep(job: Pick<TrainingJob, 'id' | 'modelId'>): Promise<number | null>;
}

/** What was settled when a model was made. */
export interface ModelFacts {
  /** Why it can be trained no further on this server; null: nothing keeps it from that. */
  obstacle: string | null;
  /** Of its step 0. */
  lora: AdapterShape;
}

/** Key of a job's last row of the history, recorded before its checkpoint is made. */
export function lastRowOf(jobId: string): string {
  return `${jobId}/end`;
}

/** The history of a model's metrics. */
export interface RunLog {
  /** Idempotent by key. `step`: the model's step that the row belongs to. */
  record(modelId: string, key: string, step: number, metrics: Record<string, number>): Promise<void>;
}

export interface TrainingProgress {
  jobId: string;
  modelId: string;
  step: number;
  steps: number;
  metrics: EventData;
}

/**
 * How a run of a job came to rest. `stopped` and `yielded`: no terminal event; running it again goes on from its last snapshot, which of one
 * that yielded holds every step that it took.
 */
export type JobRest = 'ended' | 'failed' | 'stopped' | 'yielded';

/** Asked between two steps: whether the job is to let others go first. */
export type TurnIsOver = () => Promise<boolean>;

/** A job's abort signal carries this as its reason where the client asked; any other reason stops the job for now. */
export const CANCELLED = 'cancelled';
/** What its client is told then. */
export const CANCELLED_MESSAGE = 'The job was cancelled.';

export interface TrainingPorts {
  engine: TrainingEngine;
  /** The base model: shapes of the adapters, and its name in their files. */
  spec: ModelSpec;
  baseModel: string;
  inputs: JobInputs;
  events: JobEvents;
  snapshots: JobSnapshots;
  checkpoints: Checkpoints;
  model(modelId: string): ModelFacts;
  run: RunLog;
  chat: ChatEncoder;
  /** For the log line and /metrics; must not throw. */
  progress(progress: TrainingProgress): void;
  /** An error of the server's own, of which the client learns no more than that; must not throw. */
  report(jobId: string, error: unknown): void;
}
