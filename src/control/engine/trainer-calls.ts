/** The API process's trainers: each lives in one engine process and is lost with it. */
import { EngineUnavailableError } from './client.ts';
import type { ToEngine } from './protocol.ts';
import { CalledTrainerSession, type TrainerAnswer, type TrainerWork } from './trainer-messages.ts';
import { TrainerLostError, type TrainerSession, type TrainerState } from './training.ts';

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
  /** Sent when an engine is ready. */
  #opening: { session: number; call: number; state: TrainerState }[] = [];
  #nextId = 1;
  #open = false;
  #dead: string | null = null;

  constructor(send: (message: ToEngine) => void) {
    this.#send = send;
  }

  /** Waits for an engine that is starting. */
  async openTrainer(state: TrainerState): Promise<TrainerSession> {
    if (this.#dead !== null) throw new EngineUnavailableError(this.#dead);
    const session = this.#nextId++;
    await new Promise<TrainerAnswer>((resolve, reject) => {
      const call = this.#expect({ resolve, reject });
      if (this.#open) this.#begin(session, call, state);
      else this.#opening.push({ session, call, state });
    });
    const close = () => {
      if (this.#sessions.delete(session)) this.#send({ type: 'trainer-close', session });
    };
    return new CalledTrainerSession((work) => this.#call(session, work), close);
  }

  answered(id: number, answer: TrainerAnswer, error: string | null): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    if (error === null) call?.resolve(answer);
    else call?.reject(new Error(error));
  }

  /** An engine is ready. */
  open(): void {
    this.#open = true;
    for (const { session, call, state } of this.#opening.splice(0)) this.#begin(session, call, state);
  }

  /** The engine is gone, and its trainers with it; those that were still to be opened wait for the next. */
  close(): void {
    this.#open = false;
    this.#sessions.clear();
    const waiting = new Set(this.#opening.map(({ call }) => call));
    for (const [id, { reject }] of this.#calls) {
      if (waiting.has(id)) continue;
      this.#calls.delete(id);
      reject(new TrainerLostError(LOST));
    }
  }

  /** There will be no other engine. */
  end(reason: string): void {
    this.#dead = reason;
    this.#opening = [];
    this.close();
  }

  #begin(session: number, call: number, state: TrainerState): void {
    this.#sessions.add(session);
    this.#send({ type: 'trainer-open', session, call, state });
  }

  #call(session: number, work: TrainerWork): Promise<TrainerAnswer> {
    if (!this.#sessions.has(session)) return Promise.reject(new TrainerLostError(LOST));
    return new Promise((resolve, reject) => {
      const call = this.#expect({ resolve, reject });
      this.#send({ type: 'trainer-call', session, call, work });
    });
  }

  #expect(pending: Pending): number {
    const id = this.#nextId++;
    this.#calls.set(id, pending);
    return id;
  }
}
