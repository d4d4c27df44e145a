/** The stores of a job in memory and a temporary folder. `beforeWrite` may fail any write, as if the process were killed there. */
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { DEFAULT_ADAPTER_SHAPE } from '../../../src/control/training/adapter-init.ts';
import type {
  Checkpoint,
  EventData,
  TrainingEventType,
  TrainingJob,
  TrainingPorts,
  TrainingProgress,
  TurnIsOver,
  WantedBatch,
} from '../../../src/control/training/ports.ts';
import { JobRunner } from '../../../src/control/training/runner.ts';
import { rlBatch } from '../../../src/control/training/rl-batch.ts';
import { readTensors } from '../../../src/control/training/tensor-file.ts';
import type { TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import { starterChat } from './chat-encoder.ts';
import { FAKE_SPEC, FakeEngine } from './fake-engine.ts';

export interface StoredEvent {
  key: string;
  type: TrainingEventType;
  data: EventData;
}

const chat = await starterChat();

export class MemoryPorts implements TrainingPorts {
  engine = new FakeEngine();
  readonly spec = FAKE_SPEC;
  readonly baseModel = 'starter';
  readonly chat = chat;
  readonly folder = mkdtempSync(join(tmpdir(), 'training-'));
  groups: TrajectoryGroup[] = [];
  data = '';
  readonly log: StoredEvent[] = [];
  readonly made: (Checkpoint & { jobId: string | null })[] = [];
  readonly rows = new Map<string, Record<string, number>>();
  readonly told: TrainingProgress[] = [];
  readonly faults: unknown[] = [];
  obstacle: string | null = null;
  writes = 0;
  beforeWrite: (write: number) => void = () => undefined;

  readonly inputs = {
    rlBatch: ({ jobId, config, room }: WantedBatch) => rlBatch(stream(this.groups), config, chat, jobId, room),
    reference: () => Promise.resolve(null),
    trainingData: () => stream([Buffer.from(this.data.slice(0, 7)), Buffer.from(this.data.slice(7))]),
  };

  readonly events = {
    append: async (_job: string, key: string, type: TrainingEventType, data: EventData) => {
      await this.#write();
      if (!this.log.some((event) => event.key === key)) this.log.push({ key, type, data: { ...data } });
    },
  };

  readonly snapshots = {
    load: (jobId: string) => {
      const file = this.#snapshotOf(jobId);
      return existsSync(file) ? readTensors(file) : Promise.resolve(null);
    },
    save: async (jobId: string, snapshot: Iterable<Uint8Array>) => {
      await this.#write();
      const bytes = Buffer.concat([...snapshot]);
      writeFileSync(this.#snapshotOf(jobId), bytes);
      return bytes.length;
    },
  };

  readonly checkpoints = {
    latest: () => Promise.resolve(this.made.at(-1) ?? null),
    at: (_model: string, step: number) => Promise.resolve(this.made.find((made) => made.step === step) ?? null),
    nextStep: () => Promise.resolve(this.#nextStep()),
    stage: async (jobId: string) => {
      await this.#write();
      const directory = join(this.folder, `stage-${jobId}`);
      rmSync(directory, { recursive: true, force: true });
      mkdirSync(directory);
      return directory;
    },
    unstage: (jobId: string) => {
      rmSync(join(this.folder, `stage-${jobId}`), { recursive: true, force: true });
      return Promise.resolve();
    },
    commit: async (jobId: string, from: string, version: string) => {
      await this.#write();
      const step = this.#nextStep();
      const directory = join(this.folder, `step-${step}`);
      renameSync(from, directory);
      const checkpoint = { step, adapter: { directory, version }, jobId };
      this.made.push(checkpoint);
      return checkpoint;
    },
    ofJob: (jobId: string) => Promise.resolve(this.made.find((made) => made.jobId === jobId) ?? null),
    deletedStep: () => Promise.resolve(null),
  };

  readonly model = () => ({ obstacle: this.obstacle, lora: DEFAULT_ADAPTER_SHAPE });

  readonly run = {
    record: async (_model: string, key: string, step: number, metrics: Record<string, number>) => {
      await this.#write();
      this.rows.set(key, { step, ...metrics });
    },
  };

  #snapshotOf(jobId: string): string {
    return join(this.folder, `snapshot-${jobId}`);
  }

  progress(progress: TrainingProgress): void {
    this.told.push(progress);
  }

  report(_job: string, error: unknown): void {
    this.faults.push(error);
  }

  #nextStep(): number {
    return (this.made.at(-1)?.step ?? 0) + 1;
  }

  async #write(): Promise<void> {
    await Promise.resolve();
    this.beforeWrite(this.writes++);
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
  }
}

async function* stream<T>(items: readonly T[]): AsyncGenerator<T> {
  for (const item of items) yield await Promise.resolve(item);
}

/** Runs a job to its rest. */
export const run = (
  ports: MemoryPorts,
  job: TrainingJob,
  signal = new AbortController().signal,
  turnIsOver?: TurnIsOver,
) => new JobRunner(ports, { retryMs: 1 }).run(job, signal, turnIsOver);

export const types = (ports: MemoryPorts): TrainingEventType[] => ports.log.map(({ type }) => type);

/** All files of the newest checkpoint. */
export function filesOf(ports: MemoryPorts): Record<string, string> {
  const directory = ports.made.at(-1)?.adapter.directory ?? '';
  return Object.fromEntries(
    readdirSync(directory).map((name) => [name, readFileSync(join(directory, name), 'base64')]),
  );
}

/** Events without what depends on the clock. */
export function story(ports: MemoryPorts): object[] {
  return ports.log.map(({ key, type, data }) => {
    const { tokens_per_second: _speed, eta_seconds: _eta, ...rest } = data;
    return { key, type, ...rest };
  });
}
