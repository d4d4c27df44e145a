/** The adapters in the engine's memory: loaded from disk when asked for, pinned while used, off-loaded oldest first. */
import { mebibytes } from '../mebibytes.ts';
import type { NativeAdapter } from './native.ts';
import type { AdapterStats } from './protocol.ts';
import type { AdapterRef } from './training.ts';

/** An adapter whose files have been looked at. */
export interface AdapterPlan {
  /** Memory that it will take, roughly. */
  bytes: number;
  load(): Promise<NativeAdapter>;
}

/** Rejects with a plain sentence where the files cannot be served. */
export type OpenAdapter = (adapter: AdapterRef) => Promise<AdapterPlan>;

interface Resident {
  native: NativeAdapter;
  pins: number;
}

/** Unloaded versions that are remembered; an older one that a late sequence names stays until others need its room. */
const MAX_UNWANTED = 4096;

/** One pin. `release` is idempotent. */
export interface PinnedAdapter {
  readonly native: NativeAdapter;
  release(): void;
}

export class AdapterStore {
  readonly #open: OpenAdapter;
  readonly #maxBytes: number;
  readonly #live: () => number;
  /** Least recently used first. */
  readonly #residents = new Map<string, Resident>();
  /** Closed as soon as nobody uses them, whether they are here or a sequence that was admitted before still brings them. Oldest first. */
  readonly #unwanted = new Set<string>();
  #bytes = 0;
  #closed = false;
  /** Called when a pin goes: there may be room now. */
  onRelease: () => void = () => {};
  /** Called when an adapter has come or gone. */
  onChange: () => void = () => {};

  /** `live`: how many adapters native code holds. */
  constructor(open: OpenAdapter, maxBytes: number, live: () => number) {
    this.#open = open;
    this.#maxBytes = maxBytes;
    this.#live = live;
  }

  get stats(): AdapterStats {
    return { resident: this.#residents.size, bytes: this.#bytes, native: this.#live() };
  }

  has(version: string): boolean {
    return this.#residents.has(version);
  }

  /** null: not in memory. */
  pin(version: string): PinnedAdapter | null {
    const resident = this.#residents.get(version);
    if (!resident) return null;
    this.#touch(version, resident);
    resident.pins++;
    let held = true;
    const release = () => {
      if (held) this.#unpin(version, resident);
      held = false;
    };
    return { native: resident.native, release };
  }

  /** One at a time. False: no room, and everything in memory is in use. Rejects with a plain sentence. */
  async load(adapter: AdapterRef): Promise<boolean> {
    if (this.#residents.has(adapter.version)) return true;
    const plan = await this.#open(adapter);
    if (plan.bytes > this.#maxBytes) {
      throw new Error(`It needs ${mebibytes(plan.bytes)}, and --max-adapter-memory is ${mebibytes(this.#maxBytes)}.`);
    }
    if (!this.#makeRoom(plan.bytes)) return false;
    const native = await plan.load();
    if (this.#closed) {
      native.close();
      throw new Error('The engine is closed.');
    }
    this.#residents.set(adapter.version, { native, pins: 0 });
    this.#bytes += native.bytes;
    this.onChange();
    return true;
  }

  /** At once, or when the last sequence that uses it ends. */
  unload(version: string): void {
    this.#unwanted.delete(version);
    this.#unwanted.add(version);
    for (const oldest of this.#unwanted) {
      if (this.#unwanted.size <= MAX_UNWANTED) break;
      this.#unwanted.delete(oldest);
    }
    this.dropUnwanted(version);
  }

  /** Closes a version that was unloaded, where nobody uses it. */
  dropUnwanted(version: string): void {
    const resident = this.#residents.get(version);
    if (resident?.pins === 0 && this.#unwanted.has(version)) this.#drop(version, resident);
  }

  /** An unload before is forgotten. */
  want(version: string): void {
    this.#unwanted.delete(version);
  }

  close(): void {
    this.#closed = true;
    for (const [version, resident] of this.#residents) this.#drop(version, resident);
  }

  #unpin(version: string, resident: Resident): void {
    resident.pins--;
    if (resident.pins === 0 && this.#unwanted.has(version)) this.#drop(version, resident);
    if (resident.pins === 0) this.onRelease();
  }

  #makeRoom(bytes: number): boolean {
    for (const [version, resident] of this.#residents) {
      if (this.#bytes + bytes <= this.#maxBytes) break;
      if (resident.pins === 0) this.#drop(version, resident);
    }
    return this.#bytes + bytes <= this.#maxBytes;
  }

  #drop(version: string, resident: Resident): void {
    if (this.#residents.get(version) !== resident) return;
    this.#residents.delete(version);
    this.#bytes -= resident.native.bytes;
    resident.native.close();
    this.onChange();
  }

  #touch(version: string, resident: Resident): void {
    this.#residents.delete(version);
    this.#residents.set(version, resident);
  }
}
