/** What this machine has, for defaults. */
import { readFileSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';

/** Physical cores that this process may use: a second hyper-thread adds nothing to the kernels. */
export function usableCores(): number {
  return Math.max(1, Math.min(availableParallelism(), physicalCores() ?? Infinity));
}

function physicalCores(): number | null {
  try {
    const cores = new Set<string>();
    for (const block of readFileSync('/proc/cpuinfo', 'utf8').split('\n\n')) {
      const core = /^core id\s*:\s*(\d+)/m.exec(block)?.[1];
      if (core !== undefined) cores.add(`${/^physical id\s*:\s*(\d+)/m.exec(block)?.[1] ?? '0'}/${core}`);
    }
    return cores.size > 0 ? cores.size : null;
  } catch {
    return null; // Not Linux: the number of usable threads stands.
  }
}

/** Bytes of memory, or of the container's limit where that is lower. */
export function usableMemory(): number {
  const limit = process.constrainedMemory();
  return limit > 0 ? Math.min(limit, totalmem()) : totalmem();
}
