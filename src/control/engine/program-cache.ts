import type { NativeProgram } from './native-grammar.ts';

const BYTES_PER_TENANT = 64 * 2 ** 20;
/** Bounds the work of measuring. */
const MAX_ENTRIES = 256;
const BYTES_IN_ALL = 512 * 2 ** 20;
/** Of an entry beside what native code holds. */
const ENTRY_BYTES = 512;

/**
 * Compiled grammars in least-recently-used order, bounded in bytes per tenant and in all. A tenant's entries make room for its own
 * first; only when all tenants together hold too much, those that hold most give way. The entry that was added last stays, however large: it
 * is in use. What an entry holds grows as masks are made, so it is measured anew with every addition.
 */
export class ProgramCache {
  readonly #perTenant: number;
  readonly #inAll: number;
  /** Tenant -> key -> program, the least recently used first. */
  readonly #tenants = new Map<string, Map<string, NativeProgram>>();

  constructor(bytesPerTenant = BYTES_PER_TENANT, bytesInAll = BYTES_IN_ALL) {
    this.#perTenant = bytesPerTenant;
    this.#inAll = bytesInAll;
  }

  find(tenant: string, key: string): NativeProgram | null {
    const entries = this.#tenants.get(tenant);
    const program = entries?.get(key);
    if (!entries || !program) return null;
    entries.delete(key);
    entries.set(key, program);
    return program;
  }

  add(tenant: string, key: string, program: NativeProgram): void {
    const entries = this.#tenants.get(tenant) ?? new Map<string, NativeProgram>();
    this.#tenants.set(tenant, entries);
    entries.delete(key);
    entries.set(key, program);
    this.#shrink(entries, this.#perTenant);
    this.#shrinkAll(tenant);
  }

  /** Bytes that a tenant's entries hold. */
  bytesOf(tenant: string): number {
    const entries = this.#tenants.get(tenant);
    return entries ? bytesOf(entries) : 0;
  }

  /** Down to the newest entry, at most. */
  #shrink(entries: Map<string, NativeProgram>, most: number): void {
    let held = bytesOf(entries);
    for (const [key, program] of entries) {
      if (entries.size === 1 || (held <= most && entries.size <= MAX_ENTRIES)) return;
      held -= program.heldBytes() + ENTRY_BYTES;
      entries.delete(key);
    }
  }

  /** `added`: the tenant whose newest entry stays. */
  #shrinkAll(added: string): void {
    const sizes = new Map([...this.#tenants].map(([tenant, entries]) => [tenant, bytesOf(entries)]));
    let held = [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0);
    while (held > this.#inAll && sizes.size > 0) {
      const [tenant, bytes] = [...sizes].reduce((most, one) => (one[1] > most[1] ? one : most));
      const left = this.#shrinkTo(bytes / 2, tenant, tenant === added);
      held += left - bytes;
      if (left < bytes) sizes.set(tenant, left);
      else sizes.delete(tenant);
    }
  }

  /** Bytes that the tenant holds afterwards. */
  #shrinkTo(most: number, tenant: string, keepsOne: boolean): number {
    const entries = this.#tenants.get(tenant);
    if (!entries) return 0;
    if (entries.size > 1) this.#shrink(entries, most);
    else if (!keepsOne) entries.clear();
    return bytesOf(entries);
  }
}

function bytesOf(entries: ReadonlyMap<string, NativeProgram>): number {
  let sum = 0;
  for (const program of entries.values()) sum += program.heldBytes() + ENTRY_BYTES;
  return sum;
}
