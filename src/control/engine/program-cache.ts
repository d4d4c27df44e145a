import type { NativeProgram } from './native-grammar.ts';

const BYTES_PER_TENANT = 64 * 2 ** 20;
/** Bounds the work of measuring. */
const MAX_ENTRIES = 256;
const BYTES_IN_ALL = 512 * 2 ** 20;
/** Of an entry beside what native code holds. */
const ENTRY_BYTES = 512;

/** One tenant's programs, the least recently used first, and what they held when they were last measured. */
class Programs {
  readonly #entries = new Map<string, { program: NativeProgram; bytes: number }>();
  #bytes = 0;

  get bytes(): number {
    return this.#bytes;
  }

  get size(): number {
    return this.#entries.size;
  }

  find(key: string): NativeProgram | null {
    const program = this.#entries.get(key)?.program;
    if (!program) return null;
    if (program.worn()) {
      this.#remove(key);
      return null;
    }
    this.put(key, program);
    return program;
  }

  put(key: string, program: NativeProgram): void {
    this.#remove(key);
    const bytes = program.heldBytes() + ENTRY_BYTES;
    this.#entries.set(key, { program, bytes });
    this.#bytes += bytes;
  }

  measure(): void {
    this.#bytes = 0;
    for (const entry of this.#entries.values()) {
      entry.bytes = entry.program.heldBytes() + ENTRY_BYTES;
      this.#bytes += entry.bytes;
    }
  }

  /** Down to the newest entry, at most. */
  shrink(most: number): void {
    for (const key of this.#entries.keys()) {
      if (this.size === 1 || (this.#bytes <= most && this.size <= MAX_ENTRIES)) return;
      this.#remove(key);
    }
  }

  #remove(key: string): void {
    this.#bytes -= this.#entries.get(key)?.bytes ?? 0;
    this.#entries.delete(key);
  }
}

/**
 * Compiled grammars in least-recently-used order, bounded in bytes per tenant and in all. A tenant's entries make room for its own
 * first; only when all tenants together hold too much, those that hold most give way. The entry that was added last stays, however large: it
 * is in use. What an entry holds grows as masks are made, so with every addition those of its tenant are measured anew, and those of one other
 * tenant, in turns: an engine that has served many tenants for long keeps a hundred thousand, and steps wait for an addition.
 */
export class ProgramCache {
  readonly #perTenant: number;
  readonly #inAll: number;
  /** In the order in which they were last measured; none is empty. */
  readonly #tenants = new Map<string, Programs>();
  #bytes = 0;

  constructor(bytesPerTenant = BYTES_PER_TENANT, bytesInAll = BYTES_IN_ALL) {
    this.#perTenant = bytesPerTenant;
    this.#inAll = bytesInAll;
  }

  find(tenant: string, key: string): NativeProgram | null {
    const programs = this.#tenants.get(tenant);
    return programs ? this.#counted(programs, () => programs.find(key)) : null;
  }

  add(tenant: string, key: string, program: NativeProgram): void {
    const [next] = this.#tenants;
    if (next && next[0] !== tenant) this.#measure(...next);
    const programs = this.#tenants.get(tenant) ?? new Programs();
    this.#counted(programs, () => programs.put(key, program));
    this.#measure(tenant, programs);
    this.#counted(programs, () => programs.shrink(this.#perTenant));
    while (this.#bytes > this.#inAll && this.#halveLargest(tenant)) continue;
  }

  /** Bytes that a tenant's entries hold. */
  bytesOf(tenant: string): number {
    return this.#tenants.get(tenant)?.bytes ?? 0;
  }

  #measure(tenant: string, programs: Programs): void {
    this.#counted(programs, () => programs.measure());
    this.#tenants.delete(tenant);
    this.#tenants.set(tenant, programs);
  }

  /** False where only the newest entry of `added` is left. */
  #halveLargest(added: string): boolean {
    let largest: [string, Programs] | null = null;
    for (const one of this.#tenants) {
      const stays = one[0] === added && one[1].size === 1;
      if (!stays && one[1].bytes > (largest?.[1].bytes ?? 0)) largest = one;
    }
    if (!largest) return false;
    const [tenant, programs] = largest;
    if (programs.size > 1) {
      this.#counted(programs, () => programs.shrink(programs.bytes / 2));
    } else {
      this.#tenants.delete(tenant);
      this.#bytes -= programs.bytes;
    }
    return true;
  }

  /** What `change` does to the tenant's bytes, it does to all of them. */
  #counted<Result>(programs: Programs, change: () => Result): Result {
    const before = programs.bytes;
    const result = change();
    this.#bytes += programs.bytes - before;
    return result;
  }
}
