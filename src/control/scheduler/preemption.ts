/** Who gives way to a waiting sequence. */
import type { FairQueue } from './fair-queue.ts';
import { before } from './heap-queue.ts';
import { soonNeeded } from './admission.ts';
import type { PagePool } from './pages.ts';
import type { Sequence } from './sequence.ts';

/** Most sequences that lose their place to waiting ones in one step. */
const MAX_DISPLACED = 8;

/**
 * The running sequences that may lose their place to `candidate`, the first to go first:
 *
 * - those of a lower priority that would also come after it in the queue, with ageing counted: the order is total, so two
 *   sequences can never displace one another in turns;
 * - where its tenant runs nothing, those of tenants that run more than one, down to one each, the largest first.
 *
 * None that this same candidate has displaced before.
 */
export function victimsFor(candidate: Sequence, running: readonly Sequence[], queue: FairQueue): Sequence[] {
  const level = queue.levelOf(candidate);
  const eligible = running.filter((each) => !each.aborted && each.displacedBy !== candidate.id);
  const lower = eligible.filter((each) => each.priority > candidate.priority && each.level > level);
  const outranked = lower.filter((each) => before(candidate, each)).sort((a, b) => (before(a, b) ? 1 : -1));
  if (queue.runningOf(candidate.tenant) > 0) return outranked;
  const taken = new Set(outranked);
  const equals = eligible.filter((each) => each.priority >= candidate.priority && !taken.has(each));
  return [...outranked, ...surplus(equals, outranked, queue)];
}

/** The first of the victims that free as many pages as are short, one at least; none where all of them do not. */
export function enoughVictims(victims: Sequence[], shortage: number, pool: PagePool): Sequence[] {
  let count = 0;
  let freed = 0;
  while (count < victims.length && (count === 0 || freed < shortage))
    freed += pagesFreed(victims[count++] as Sequence, pool);
  return freed < shortage ? [] : victims.slice(0, Math.min(count, MAX_DISPLACED));
}

/** Pages that the budget gains without it. */
function pagesFreed(victim: Sequence, pool: PagePool): number {
  return soonNeeded(victim) + victim.pages.view().filter((page) => pool.readers(page) === 1).length;
}

/** Of tenants with more than one running sequence all but one, the last admitted first, the largest tenant first. */
function surplus(sequences: Sequence[], leaving: Sequence[], queue: FairQueue): Sequence[] {
  const left = new Map<string, number>();
  for (const { tenant } of sequences) left.set(tenant, queue.runningOf(tenant));
  for (const { tenant } of leaving) left.set(tenant, (left.get(tenant) ?? 0) - 1);
  const byTenant = new Map<string, Sequence[]>();
  for (const each of sequences) {
    const list = byTenant.get(each.tenant);
    if (list) list.push(each);
    else byTenant.set(each.tenant, [each]);
  }
  const victims: Sequence[] = [];
  for (;;) {
    let largest: string | null = null;
    for (const tenant of byTenant.keys()) {
      if ((left.get(tenant) ?? 0) > Math.max(1, left.get(largest ?? '') ?? 1)) largest = tenant;
    }
    const victim = largest === null ? undefined : byTenant.get(largest)?.pop();
    if (largest === null || !victim) return victims;
    victims.push(victim);
    left.set(largest, (left.get(largest) as number) - 1);
  }
}

/**
 * Who is preempted when a running sequence finds no page: the last of `running` after index `from`, the asking one itself at
 * the latest, but first of tenants that run more than one.
 */
export function pageVictim(running: readonly Sequence[], from: number, queue: FairQueue): number {
  for (let index = running.length - 1; index > from; index--) {
    if (queue.runningOf((running[index] as Sequence).tenant) > 1) return index;
  }
  return running.length - 1;
}
