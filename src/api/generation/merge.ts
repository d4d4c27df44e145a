/** Interleaves the deltas of several runs as they come; choice indices continue from run to run. */
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import type { Run } from './run.ts';

interface Arrival {
  source: number;
  result: IteratorResult<ChoiceDelta>;
}

export async function* mergeRuns(runs: Run[]): AsyncGenerator<ChoiceDelta> {
  const merge = new Merge(runs.map((run) => run.deltas[Symbol.asyncIterator]()));
  const offsets = firstIndices(runs);
  try {
    for (let open = runs.length; open > 0;) {
      const { source, result } = await merge.next();
      if (result.done === true) {
        open--;
        continue;
      }
      merge.pull(source);
      yield { ...result.value, index: result.value.index + (offsets[source] ?? 0) };
    }
  } finally {
    for (const run of runs) run.generation.abort();
    merge.close();
  }
}

function firstIndices(runs: Run[]): number[] {
  let next = 0;
  return runs.map((run) => (next += run.n) - run.n);
}

/** One delta of each source at most is under way; what arrives waits in order. Costs the same however many sources there are. */
class Merge {
  readonly #iterators: AsyncIterator<ChoiceDelta>[];
  readonly #arrived: Arrival[] = [];
  #failure: { error: unknown } | null = null;
  #wake: (() => void) | null = null;

  constructor(iterators: AsyncIterator<ChoiceDelta>[]) {
    this.#iterators = iterators;
    iterators.forEach((_, source) => this.pull(source));
  }

  pull(source: number): void {
    this.#iterators[source]?.next().then(
      (result) => this.#arrive({ source, result }),
      (error: unknown) => {
        this.#failure ??= { error };
        this.#wake?.();
      },
    );
  }

  /** Each source ends what it has begun, also one whose delta has arrived and was not taken. */
  close(): void {
    for (const iterator of this.#iterators) void iterator.return?.().catch(() => undefined);
  }

  async next(): Promise<Arrival> {
    for (;;) {
      const arrival = this.#arrived.shift();
      if (arrival !== undefined) return arrival;
      if (this.#failure !== null) throw this.#failure.error;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  #arrive(arrival: Arrival): void {
    this.#arrived.push(arrival);
    this.#wake?.();
  }
}
