import { EngineUnavailableError } from './client.ts';
import { SharedBound } from '../shared-bound.ts';
import { grammarSize, type GrammarSpec } from './native-grammar.ts';
import type { GrammarFailure, ToEngine } from './protocol.ts';

interface Call {
  message: Extract<ToEngine, { type: 'compile' }>;
  resolve: (failure: GrammarFailure | null) => void;
  reject: (error: Error) => void;
  /** Of engines that it was sent to. */
  crashes: number;
}

/** Something else mostly is the cause of a crash, so what was compiled is tried again, but once. */
const MAX_CRASHES = 2;

/** Characters of all grammars that wait, in two processes. */
const MAX_WAITING_CHARS = 64 * 2 ** 20;

const BUSY: GrammarFailure = { kind: 'busy', message: 'Too many grammars wait to be compiled.' };
const CRASHED: GrammarFailure = { kind: 'failed', message: 'The engine stopped while this grammar was compiled.' };
const CANCELLED: GrammarFailure = { kind: 'cancelled', message: 'The compilation was cancelled.' };

/** Compilations asked of the engine process and not yet answered. Those asked for while there is none wait for the next. */
export class CompileCalls {
  readonly #send: (message: ToEngine) => void;
  readonly #calls = new Map<number, Call>();
  readonly #waiting = new SharedBound(MAX_WAITING_CHARS);
  #nextId = 1;
  #open = false;

  constructor(send: (message: ToEngine) => void) {
    this.#send = send;
  }

  call(tenant: string, grammar: GrammarSpec, signal?: AbortSignal): Promise<GrammarFailure | null> {
    if (signal?.aborted) return Promise.resolve(CANCELLED);
    const size = grammarSize(grammar);
    if (!this.#waiting.fits(tenant, size)) return Promise.resolve(BUSY);
    this.#waiting.add(tenant, size);
    const id = this.#nextId++;
    const answer = new Promise<GrammarFailure | null>((resolve, reject) => {
      this.#calls.set(id, { message: { type: 'compile', id, tenant, grammar }, resolve, reject, crashes: 0 });
    });
    const cancel = () => this.#cancel(id);
    signal?.addEventListener('abort', cancel, { once: true });
    if (this.#open) this.#send({ type: 'compile', id, tenant, grammar });
    return answer.finally(() => {
      signal?.removeEventListener('abort', cancel);
      this.#waiting.add(tenant, -size);
    });
  }

  /** An engine is ready. */
  open(): void {
    this.#open = true;
    for (const { message } of this.#calls.values()) this.#send(message);
  }

  answered(id: number, failure: GrammarFailure | null): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    call?.resolve(failure);
  }

  /** Those that wait go to the next engine. */
  crashed(): void {
    if (this.#open) for (const [id, call] of this.#calls) if (++call.crashes >= MAX_CRASHES) this.answered(id, CRASHED);
    this.#open = false;
  }

  failAll(error: string): void {
    this.#open = false;
    for (const [id, { reject }] of this.#calls) {
      this.#calls.delete(id);
      reject(new EngineUnavailableError(error));
    }
  }

  #cancel(id: number): void {
    if (!this.#calls.has(id)) return;
    if (this.#open) this.#send({ type: 'cancel-compile', id });
    this.answered(id, CANCELLED);
  }
}
