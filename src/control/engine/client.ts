/** What the API process sees of the engine. Implemented by EngineSupervisor; tests may implement it in memory. */
import type { GrammarSpec } from './native-grammar.ts';
import type { EngineStats, GrammarFailure, SequenceOutput, SequenceRequest } from './protocol.ts';

export type EngineState = 'starting' | 'ready' | 'restarting' | 'draining' | 'dead';

export interface SequenceHandle {
  readonly id: number;
  /** When it (last) began to run, by performance.now(); null while it waits. For metrics. */
  readonly startedAt?: number | null;
  /**
   * Call once bytes of this sequence have gone to its client: after an engine crash such a sequence ends with finish 'error',
   * while one not yet streamed is replayed.
   */
  markStreamed(): void;
  /** Frees the sequence at the next step boundary. No output comes afterwards. Idempotent. */
  abort(): void;
}

/** Thrown by submit: nothing was queued. */
export class QueueFullError extends Error {
  readonly retryAfterSeconds: number;
  constructor(message: string, retryAfterSeconds: number) {
    super(message);
    this.name = 'QueueFullError';
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/** Thrown by submit while draining or dead. */
export class EngineUnavailableError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'EngineUnavailableError';
  }
}

/** Places in the queue that a request keeps from one submission to the next. */
export interface Places {
  /** Idempotent. */
  release(): void;
}

/** What a submission is a part of. */
export interface PartOf {
  /** Its request's, for as many at most; later submissions find room in any case. */
  places?: Places | undefined;
  /** Stands for a request of several prompts, submitted one by one: each is as welcome as all of them at once would be. */
  request?: object | undefined;
}

export interface EngineClient {
  readonly state: EngineState;
  /** Resolves when the engine first is ready; rejects when it cannot load the model. */
  ready(): Promise<void>;
  /**
   * Queues all sequences of one request, or of a part of one, or none. Throws QueueFullError / EngineUnavailableError before anything is
   * queued.
   */
  submit(
    requests: Omit<SequenceRequest, 'id' | 'resumeIds' | 'promptScored'>[],
    sink: (index: number, output: SequenceOutput) => void,
    of?: PartOf,
  ): SequenceHandle[];
  /** Throws as `submit`. */
  reserve(tenant: string, count: number): Places;
  /**
   * Compiles a grammar, or says why it cannot be used; null = a sequence may be submitted with it. An abort of the signal stops it.
   * Rejects with EngineUnavailableError while draining or dead.
   */
  compileGrammar(tenant: string, grammar: GrammarSpec, signal?: AbortSignal): Promise<GrammarFailure | null>;
  /** The latest counters (pushed by the engine with every step). */
  stats(): EngineStats;
  /** Stops admission, waits for running sequences up to the given time, ends the process. */
  drain(timeoutMs: number): Promise<void>;
  /** Kills at once. */
  close(): Promise<void>;
}
