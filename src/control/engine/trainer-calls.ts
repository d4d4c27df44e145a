/** The API process's trainers: each lives in one engine process and is lost with it. */
import { EngineUnavailableError } from './client.ts';
import type { FromEngine, ToEngine } from './protocol.ts';
import { openSession, type TrainerAnswer, type TrainerWork } from './trainer-messages.ts';
import { RowRefusedError, TrainerLostError, type TrainerSession, type TrainerState } from './training.ts';

interface Pending {
  resolve: (answer: TrainerAnswer) => void;
  reject: (error: Error) => void;
}

const LOST = 'The engine process ended.';

export class TrainerCalls {
  readonly #send: (message: ToEngine) => void;
  readonly #calls = new Map<number, Pending>();
  /** Sessions of the present engine. */
  readonly #sessions = new Set<number>();
  /** Wait for an engine that is ready. */
  #waiting: { go: () => void; fail: (error: Error) => void }[] = [];
  #nextId = 1;
  #answers = 0;
  #open = false;
  #dead: string | null = null;

  constructor(send: (message: ToEngine) => void) {
    this.#send = send;
  }

  /** A trainer of the present engine has work. */
  get busy(): boolean {
    return this.#calls.size > 0;
  }

  /** Pieces of work that engines have finished so far. */
  get answers(): number {
    return this.#answers;
  }

  /** Waits for an engine that is starting. */
  async openTrainer(state: TrainerState): Promise<TrainerSession> {
    if (this.#dead !== null) throw new EngineUnavailableError(this.#dead);
    if (!this.#open) await new Promise<void>((go, fail) => this.#waiting.push({ go, fail }));
    const session = this.#nextId++;
    this.#sessions.add(session);
    this.#send({ type: 'trainer-open', session });
    const close = () => {
      if (this.#sessions.delete(session)) this.#send({ type: 'trainer-close', session });
    };
    return openSession((work) => this.#call(session, work), close, state);
  }

  answered({ call: id, answer, error, refused }: Extract<FromEngine, { type: 'trainer' }>): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    this.#answers++;
    if (error === null) call?.resolve(answer);
    else call?.reject(refused ? new RowRefusedError(error) : new Error(error));
  }

  /** An engine is ready. */
  open(): void {
    this.#open = true;
    for (const { go } of this.#waiting.splice(0)) go();
  }

  /** The engine is gone, and its trainers with it. */
  close(): void {
    this.#open = false;
    this.#sessions.clear();
    for (const { reject } of this.#calls.values()) reject(new TrainerLostError(LOST));
    this.#calls.clear();
  }

  /** There will be no other engine. */
  end(reason: string): void {
    this.#dead = reason;
    for (const { fail } of this.#waiting.splice(0)) fail(new TrainerLostError(LOST));
    this.close();
  }

  #call(session: number, work: TrainerWork): Promise<TrainerAnswer> {
    if (!this.#sessions.has(session)) return Promise.reject(new TrainerLostError(LOST));
    return new Promise((resolve, reject) => {
      const call = this.#nextId++;
      this.#calls.set(call, { resolve, reject });
      this.#send({ type: 'trainer-call', session, call, work });
    });
  }
}
