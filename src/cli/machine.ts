/** What this machine has, for defaults. */
import { readFileSync } from 'node:fs';
import { availableParallelism, totalmem } from 'node:os';
import { dirname, join } from 'node:path';

/** Physical cores that this process may use: a second hyper-thread adds nothing to the kernels. */
export function usableCores(root = '/'): number {
  const most = Math.min(availableParallelism(), physicalCores(root) ?? Infinity, quotaCores(root) ?? Infinity);
  return Math.max(1, Math.floor(most));
}

/**
 * The cores' worth of time that a container may use (`docker run --cpus 2`), which availableParallelism does not know of on Node 20; null: no
 * limit. Threads beyond it would be stopped in the middle of a step.
 */
export function quotaCores(root = '/'): number | null {
  const limits: number[] = [];
  for (const line of readText(join(root, 'proc/self/cgroup')).split('\n')) {
    const [, id, controllers = '', path = ''] = /^(\d+):([^:]*):(.*)$/.exec(line) ?? [];
    const v2 = id === '0' && controllers === '';
    if (!v2 && !controllers.split(',').includes('cpu')) continue;
    const top = join(root, 'sys/fs/cgroup', v2 ? '' : 'cpu');
    // Every group above counts too. A container may see itself at the top, under a path that it does not have.
    for (let group = path; ; group = dirname(group)) {
      limits.push(quotaOf(join(top, group), v2));
      if (group === dirname(group)) break;
    }
  }
  const least = Math.min(...limits.filter((limit) => limit > 0));
  return Number.isFinite(least) ? least : null;
}

/** NaN or not above 0 where there is none. */
function quotaOf(group: string, v2: boolean): number {
  const [quota, period] = v2
    ? readText(join(group, 'cpu.max')).split(' ')
    : [readText(join(group, 'cpu.cfs_quota_us')), readText(join(group, 'cpu.cfs_period_us'))];
  return Number(quota) / Number(period);
}

function readText(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return '';
  }
}

/** null where nothing says so: not on Linux, nor on every virtual machine. */
function physicalCores(root: string): number | null {
  const cores = new Set<string>();
  for (const block of readText(join(root, 'proc/cpuinfo')).split('\n\n')) {
    const core = /^core id\s*:\s*(\d+)/m.exec(block)?.[1];
    if (core !== undefined) cores.add(`${/^physical id\s*:\s*(\d+)/m.exec(block)?.[1] ?? '0'}/${core}`);
  }
  return cores.size > 0 ? cores.size : null;
}

/** Bytes of memory, or of the container's limit where that is lower. */
export function usableMemory(): number {
  const limit = process.constrainedMemory();
  return limit > 0 ? Math.min(limit, totalmem()) : totalmem();
}

/** Files that this process may have open; Infinity where nothing says so. */
export function maxOpenFiles(root = '/'): number {
  return Number(/^Max open files +(\d+)/m.exec(readText(join(root, 'proc/self/limits')))?.[1] ?? Infinity);
}

/** A start reads so many modules at once that it fails with fewer (seen: with 256 it does, with 260 it does not). */
const LEAST_OPEN_FILES = 257;

/** What to say to who may open only so many files; null where they are enough. */
export function tooFewOpenFiles(most: number): string | null {
  if (most >= LEAST_OPEN_FILES) return null;
  return (
    `This process may open ${most} files, and a start needs more than ${LEAST_OPEN_FILES - 1}: ` +
    'raise that limit (ulimit -n, LimitNOFILE of systemd).'
  );
}
