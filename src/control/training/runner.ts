/**
 * Runs one job from its start or its last snapshot to its terminal event. Killed at any instant and run again, it ends with the
 * same weights and says every event once: steps are deterministic, events and the checkpoint are idempotent by key, and a snapshot
 * is saved only after the event of its step.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import {
  RowRefusedError,
  TrainerLostError,
  type RowRoom,
  type TrainerSession,
  type TrainerState,
} from '../engine/training.ts';
import { SqliteError } from '../store/sqlite-client.ts';
import { untilAborted } from '../until-aborted.ts';
import { identityAdapter } from './adapter-init.ts';
import { DamagedFilesError, damagedStep, readAdapter, readCheckpoint, writeCheckpoint } from './checkpoint-files.ts';
import { createPlan } from './create-plan.ts';
import { InterruptedError, TrainingFailedError, TrainingInputError, TurnOverError } from './errors.ts';
import { ENDLESS_ROOM } from './pack.ts';
import { patient } from './patient-chat.ts';
import type { JobPlan, StepMetrics } from './plan.ts';
import {
  CANCELLED,
  CANCELLED_MESSAGE,
  type Checkpoint,
  type JobRest,
  type TrainingJob,
  type TrainingPorts,
  type TurnIsOver,
} from './ports.ts';
import { StepReporter } from './reporter.ts';
import { isDiskFull, isUnavailable, mayPass } from './service-error.ts';
import { decodeSnapshot, type JobSnapshot } from './snapshot.ts';
import { SnapshotWriter } from './snapshot-writer.ts';

export interface RunnerOptions {
  /** Before the engine is asked again after it was lost. */
  retryMs?: number;
}

/** Losses of the engine without a step between them. */
const MAX_LOSSES = 5;
const RETRY_MS = 1000;

/** Rows are packed for what training may take: what is refused is one sequence, or a job that goes on under smaller settings. */
const SHORTER =
  'Shorter trajectories or lines make shorter rows; the server may give training more (--training-memory, --max-training-row-tokens).';

export class JobRunner {
  readonly #ports: TrainingPorts;
  readonly #retryMs: number;

  constructor(ports: TrainingPorts, options: RunnerOptions = {}) {
    this.#ports = ports;
    this.#retryMs = options.retryMs ?? RETRY_MS;
  }

  /** Rejects only where the server's own parts fail, or the engine does not take the finished step: the job may be run again. */
  async run(job: TrainingJob, signal: AbortSignal, turnIsOver: TurnIsOver = hasNoTurns): Promise<JobRest> {
    const { events, checkpoints } = this.#ports;
    const deleted = await checkpoints.deletedStep(job);
    if (deleted !== null) {
      // It was cut off before it could tell, and its step was not wanted any more: it must not come back under another number.
      await events.append(job.id, 'end', 'training_ended', { step: deleted });
      return 'ended';
    }
    let checkpoint: Checkpoint;
    try {
      checkpoint = await this.#train(job, { signal, turnIsOver });
    } catch (error) {
      if (error instanceof TurnOverError) return 'yielded';
      const message = this.#explain(job, error, signal);
      if (message === null) return 'stopped';
      await events.append(job.id, 'end', 'training_failed', { error_message: message });
      return 'failed';
    }
    // The step is there: what fails from here on does not make the job a failed one, but that its files are gone or others does.
    try {
      if (!(await this.#serves(job, checkpoint, signal))) return 'stopped';
    } catch (error) {
      if (!(error instanceof TrainingFailedError)) throw error;
      this.#ports.report(job.id, error);
      await events.append(job.id, 'end', 'training_failed', { error_message: error.message });
      return 'failed';
    }
    await events.append(job.id, 'end', 'training_ended', { step: checkpoint.step });
    return 'ended';
  }

  /** False where the job stops before an engine has answered, which may be starting for minutes. A cancel comes too late for that. */
  async #serves({ id, modelId }: TrainingJob, checkpoint: Checkpoint, signal: AbortSignal): Promise<boolean> {
    // Nobody can ask for it.
    if (this.#ports.model(modelId).obstacle !== null) return true;
    const loading = this.#ports.engine.loadAdapter(checkpoint.adapter);
    try {
      await untilAborted(loading, signal);
    } catch (error) {
      if (!signal.aborted) {
        const cause = await causeOfRefusal(error, checkpoint);
        // Deleted while it waited, the step has no files any more, and nobody can ask for it.
        if (cause !== error && (await this.#ports.checkpoints.ofJob(id)) === null) return true;
        throw cause;
      }
      if (signal.reason !== CANCELLED) return false;
      await loading;
    }
    return true;
  }

  /** What the client is told; null where the job only rests. Throws what may pass. */
  #explain(job: TrainingJob, error: unknown, signal: AbortSignal): string | null {
    if (signal.aborted) return signal.reason === CANCELLED ? CANCELLED_MESSAGE : null;
    if (isUnavailable(error)) throw error;
    if (error instanceof TrainingFailedError || error instanceof TrainingInputError) return error.message;
    if (error instanceof RowRefusedError) return `The job does not fit: ${error.message}. ${SHORTER}`;
    if (mayPass(error)) throw interrupted(error);
    this.#ports.report(job.id, error);
    return 'The training job failed because of an internal error of the server.';
  }

  async #train(job: TrainingJob, run: Run): Promise<Checkpoint> {
    const made = await this.#ports.checkpoints.ofJob(job.id);
    if (made) return made;
    const { obstacle } = this.#ports.model(job.modelId);
    if (obstacle !== null) throw new TrainingFailedError(obstacle);
    const start = (await this.#loadSnapshot(job)) ?? (await this.#firstSnapshot(job));
    run.signal.throwIfAborted();
    const { plan, end } = await this.#steps(job, start, run);
    const reporter = new StepReporter(this.#ports, job, plan, end);
    await reporter.finish();
    return this.#checkpoint(job, end.state);
  }

  async #plan(job: TrainingJob, { modelStep }: JobSnapshot, room: RowRoom, signal: AbortSignal): Promise<JobPlan> {
    const { checkpoints, events, inputs, chat } = this.#ports;
    const waiting = patient(chat, this.#retryMs, signal);
    const plan = await createPlan(job, modelStep, { inputs, checkpoints, chat: waiting, room, signal });
    signal.throwIfAborted();
    await events.append(job.id, 'started', 'training_started', { num_sequences: plan.steps, ...finite(plan.summary) });
    return plan;
  }

  async #loadSnapshot(job: TrainingJob): Promise<JobSnapshot | null> {
    const file = await this.#ports.snapshots.load(job.id);
    return file ? decodeSnapshot(file) : null;
  }

  /** From the newest checkpoint, or from the beginning where all are deleted. */
  async #firstSnapshot(job: TrainingJob): Promise<JobSnapshot> {
    const { checkpoints, spec } = this.#ports;
    const latest = await checkpoints.latest(job.modelId);
    const state = latest
      ? await this.#readCheckpoint(job, latest)
      : { weights: await identityAdapter(spec, job.modelId, this.#ports.model(job.modelId).lora), optimizer: null };
    return { step: 0, modelStep: latest?.step ?? 0, state, room: null, logprobs: null, totals: {} };
  }

  async #readCheckpoint(job: TrainingJob, { step, adapter }: Checkpoint): Promise<TrainerState> {
    try {
      return await readCheckpoint(adapter.directory, job.kind, adapter.version);
    } catch (error) {
      if (!(error instanceof DamagedFilesError)) throw error;
      this.#ports.report(job.id, error);
      throw damagedStep(step, error, 'delete this step to go on from the one before.');
    }
  }

  /** Begins again at the last snapshot whenever the engine is lost. */
  async #steps(job: TrainingJob, start: JobSnapshot, run: Run): Promise<{ plan: JobPlan; end: JobSnapshot }> {
    const { signal } = run;
    let plan: JobPlan | null = null;
    // The first engine says what a row may take. Steps that are taken stay those of the rows that they were taken with.
    const planFor = async (room: RowRoom): Promise<JobPlan> => (plan ??= await this.#plan(job, start, room, signal));
    let from = start;
    for (let losses = 1; ; losses++) {
      try {
        return await this.#attempt(job, planFor, from, run);
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof TrainerLostError)) throw error;
        const saved = (await this.#loadSnapshot(job)) ?? start;
        if (saved.step > from.step) losses = 0;
        from = saved;
      }
      if (losses >= MAX_LOSSES) throw new TrainingFailedError(`The engine ended ${losses} times in the same step.`);
      await sleep(this.#retryMs, undefined, { signal });
    }
  }

  async #attempt(
    job: TrainingJob,
    planFor: (room: RowRoom) => Promise<JobPlan>,
    from: JobSnapshot,
    run: Run,
  ): Promise<{ plan: JobPlan; end: JobSnapshot }> {
    const { signal } = run;
    const session = await this.#open(from.state, signal);
    // A call in the engine ends with the session, not with the step.
    const close = (): void => session.close();
    signal.addEventListener('abort', close, { once: true });
    try {
      const room = from.room ?? (from.step === 0 ? session.room : ENDLESS_ROOM);
      const plan = await planFor(room);
      try {
        // The first one is saved once: again, it would look like progress.
        const saved = from.room !== null;
        return { plan, end: await this.#drive(job, plan, { ...from, room }, { ...run, session, saved }) };
      } finally {
        await plan.close();
      }
    } finally {
      signal.removeEventListener('abort', close);
      session.close();
    }
  }

  async #open(state: TrainerState, signal: AbortSignal): Promise<TrainerSession> {
    const opening = this.#ports.engine.openTrainer(state);
    try {
      // It waits for an engine that is starting, which the job need not.
      return await untilAborted(opening, signal);
    } catch (error) {
      if (signal.aborted) opening.then((session) => session.close()).catch(() => undefined);
      if (error instanceof TrainerLostError || isUnavailable(error) || !(error instanceof Error)) throw error;
      throw new TrainingFailedError(error.message);
    }
  }

  async #drive(
    job: TrainingJob,
    plan: JobPlan,
    from: JobSnapshot,
    { session, saved, signal, turnIsOver }: Attempt,
  ): Promise<JobSnapshot> {
    const check = (): void => signal.throwIfAborted();
    const writer = new SnapshotWriter(this.#ports.snapshots, job.id);
    check();
    const logprobs = from.logprobs ?? (from.step === 0 ? await plan.prepare({ session, check }) : null);
    let snapshot: JobSnapshot = { ...from, logprobs };
    if (!saved) await writer.save(snapshot);
    // Its clock begins: what comes before the steps is not theirs.
    const reporter = new StepReporter(this.#ports, job, plan, from);
    for (let index = from.step; index < plan.steps; index++) {
      check();
      const metrics = await plan.step(index, { session, logprobs, check });
      await reporter.step(index + 1, finite(metrics));
      const last = index + 1 === plan.steps;
      const yields = !last && (await turnIsOver());
      if (!yields && !last && !writer.isDue()) continue;
      const state = await session.state();
      snapshot = { ...snapshot, step: index + 1, state, totals: reporter.totals() };
      await writer.save(snapshot);
      if (yields) throw new TurnOverError();
    }
    return snapshot;
  }

  async #checkpoint({ id, modelId, kind }: TrainingJob, state: TrainerState): Promise<Checkpoint> {
    const { checkpoints, baseModel } = this.#ports;
    const { alpha } = this.#ports.model(modelId).lora;
    const directory = await checkpoints.stage(id);
    try {
      const version = await writeCheckpoint(directory, { state, baseModel, kind, alpha });
      return await checkpoints.commit(id, directory, version);
    } catch (error) {
      await checkpoints.unstage(id);
      throw error;
    }
  }
}

/** An engine does not say why it takes no adapter. */
async function causeOfRefusal(error: unknown, { step, adapter }: Checkpoint): Promise<unknown> {
  try {
    await readAdapter(adapter.directory, adapter.version);
    return error;
  } catch (fault) {
    if (!(fault instanceof DamagedFilesError)) return error;
    return damagedStep(step, fault, 'delete this step and train it again.');
  }
}

interface Run {
  signal: AbortSignal;
  turnIsOver: TurnIsOver;
}

interface Attempt extends Run {
  session: TrainerSession;
  /** Where the attempt begins. */
  saved: boolean;
}

const hasNoTurns: TurnIsOver = () => Promise.resolve(false);

/** The database's own faults stay what they are: none of them is the job's. */
function interrupted(error: unknown): unknown {
  if (isDiskFull(error)) return new InterruptedError("The server's disk is full.", { cause: error });
  if (error instanceof SqliteError) return error;
  return new InterruptedError('The server could not read or write its files.', { cause: error });
}

function finite(metrics: StepMetrics): StepMetrics {
  return Object.fromEntries(Object.entries(metrics).filter(([, value]) => Number.isFinite(value)));
}
