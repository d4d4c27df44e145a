/** The API process's calls about adapters: asked again of the next engine process, unless two have ended over them. */
import { EngineUnavailableError } from './client.ts';
import type { ToEngine } from './protocol.ts';
import type { AdapterRef } from './training.ts';

/** Versions remembered as servable; asking again for an older one is cheap. */
const MAX_KNOWN = 4096;
/** Engines that may end while a call waits for its answer: the call may be the cause. */
const MAX_CRASHES = 2;
const CRASHED = 'The engine stopped while this adapter was being loaded.';
const CANCELLED = 'The loading of this adapter was cancelled.';

interface Call {
  adapter: AdapterRef;
  /** Who asked first. */
  tenant: string | null;
  crashes: number;
  resolve: () => void;
  reject: (error: Error) => void;
}

/** A version that is servable, or on its way to be. */
interface Known {
  readonly id: number;
  readonly version: string;
  readonly asked: Promise<void>;
  /** Callers that still want it. */
  wanted: number;
}

export class AdapterCalls {
  readonly #send: (message: ToEngine) => void;
  readonly #calls = new Map<number, Call>();
  /** By version. An engine that has dropped one loads it again when a sequence needs it. */
  readonly #known = new Map<string, Known>();
  #nextId = 1;
  #open = false;
  #dead: string | null = null;

  constructor(send: (message: ToEngine) => void) {
    this.#send = send;
  }

  /** Given up, and rejected, once every caller's signal is aborted. */
  load(adapter: AdapterRef, signal?: AbortSignal, tenant: string | null = null): Promise<void> {
    if (this.#dead !== null) return Promise.reject(new EngineUnavailableError(this.#dead));
    if (signal?.aborted) return Promise.reject(new Error(CANCELLED));
    const known = this.#known.get(adapter.version) ?? this.#ask(adapter, tenant);
    known.wanted++;
    return signal ? this.#until(known, signal) : known.asked;
  }

  unload(version: string): void {
    this.#known.delete(version);
    if (this.#open) this.#send({ type: 'unload-adapter', version });
  }

  receive(id: number, error: string | null): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    if (error === null) call?.resolve();
    else call?.reject(new Error(error));
  }

  #ask(adapter: AdapterRef, tenant: string | null): Known {
    const { version } = adapter;
    const id = this.#nextId++;
    const asked = new Promise<void>((resolve, reject) => {
      this.#calls.set(id, { adapter, tenant, crashes: 0, resolve, reject });
      if (this.#open) this.#send({ type: 'load-adapter', id, adapter, tenant });
    });
    const known: Known = { id, version, asked, wanted: 0 };
    this.#known.set(version, known);
    for (const oldest of this.#known.keys()) {
      if (this.#known.size <= MAX_KNOWN) break;
      this.#known.delete(oldest);
    }
    // What failed is tried again: its files may have been mended.
    asked.catch(() => this.#known.delete(version));
    return known;
  }

  #until(known: Known, signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = () => {
        reject(new Error(CANCELLED));
        if (--known.wanted === 0) this.#cancel(known);
      };
      signal.addEventListener('abort', leave, { once: true });
      known.asked.then(resolve, reject).finally(() => signal.removeEventListener('abort', leave));
    });
  }

  #cancel({ id, version }: Known): void {
    if (!this.#calls.delete(id)) return;
    this.#known.delete(version);
    if (this.#open) this.#send({ type: 'cancel-load-adapter', id });
  }

  /** An engine is ready. */
  open(): void {
    this.#open = true;
    for (const [id, { adapter, tenant }] of this.#calls) this.#send({ type: 'load-adapter', id, adapter, tenant });
  }

  /** The engine is gone. */
  close(): void {
    if (!this.#open) return;
    this.#open = false;
    for (const [id, call] of this.#calls) {
      if (++call.crashes < MAX_CRASHES) continue;
      this.#calls.delete(id);
      call.reject(new EngineUnavailableError(CRASHED));
    }
  }

  /** There will be no other engine. */
  end(reason: string): void {
    this.#open = false;
    this.#dead = reason;
    for (const { reject } of this.#calls.values()) reject(new EngineUnavailableError(reason));
    this.#calls.clear();
  }
}
