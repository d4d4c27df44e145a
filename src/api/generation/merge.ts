/** Interleaves the deltas of several runs as they come; choice indices continue from run to run. */
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import type { Run } from './run.ts';

interface Next {
  source: number;
  result: IteratorResult<ChoiceDelta>;
}

export async function* mergeRuns(runs: Run[]): AsyncGenerator<ChoiceDelta> {
  const iterators = runs.map((run) => run.deltas[Symbol.asyncIterator]());
  const offsets = runs.map((_, index) => runs.slice(0, index).reduce((sum, run) => sum + run.n, 0));
  const pending = new Map<number, Promise<Next>>();
  const pull = (source: number, iterator: AsyncIterator<ChoiceDelta>) =>
    pending.set(
      source,
      iterator.next().then((result) => ({ source, result })),
    );
  iterators.forEach((iterator, source) => pull(source, iterator));
  try {
    while (pending.size > 0) {
      const { source, result } = await Promise.race(pending.values());
      const iterator = iterators[source];
      pending.delete(source);
      if (result.done === true || iterator === undefined) continue;
      pull(source, iterator);
      yield { ...result.value, index: result.value.index + (offsets[source] ?? 0) };
    }
  } finally {
    for (const run of runs) run.generation.abort();
    for (const promise of pending.values()) promise.catch(() => undefined);
  }
}
