import { addStepTokens } from '../scheduler/step-counts.ts';
import type { SpeculationStats } from '../scheduler/speculation.ts';
import type { TransferStats } from '../transfer/transfer.ts';
import type { EngineStats } from './protocol.ts';

const NONE: EngineStats = {
  running: 0,
  waiting: 0,
  pagesTotal: 0,
  pagesUsed: 0,
  preemptions: 0,
  steps: 0,
  promptTokens: 0,
  generatedTokens: 0,
  stepMicros: 0,
  stepTokens: { counts: [], sum: 0 },
  prefixCacheQueries: 0,
  prefixCacheHits: 0,
};

/** The engine's counters summed over its restarts, so that they never fall; gauges are the present life's. */
export class StatsTotal {
  #before: EngineStats = NONE;
  #latest: EngineStats = NONE;

  update(stats: EngineStats): void {
    this.#latest = stats;
  }

  /** A life has ended: nothing runs. */
  endLife(): void {
    this.#before = this.#sum();
    this.#latest = { ...NONE, pagesTotal: this.#latest.pagesTotal };
  }

  /** `waiting` = what the client knows to wait, which may not have reached the engine yet. */
  read(waiting: number): EngineStats {
    return { ...this.#sum(), waiting: Math.max(waiting, this.#latest.waiting) };
  }

  #sum(): EngineStats {
    const before = this.#before;
    const latest = this.#latest;
    return {
      ...latest,
      preemptions: before.preemptions + latest.preemptions,
      steps: before.steps + latest.steps,
      promptTokens: before.promptTokens + latest.promptTokens,
      generatedTokens: before.generatedTokens + latest.generatedTokens,
      stepMicros: before.stepMicros + latest.stepMicros,
      stepTokens: addStepTokens(before.stepTokens, latest.stepTokens),
      prefixCacheQueries: before.prefixCacheQueries + latest.prefixCacheQueries,
      prefixCacheHits: before.prefixCacheHits + latest.prefixCacheHits,
      ...sumOfTransfers(before.transfers, latest.transfers),
      ...sumOfSpeculation(before.speculation, latest.speculation),
    };
  }
}

function sumOfSpeculation(before?: SpeculationStats, latest?: SpeculationStats): Pick<EngineStats, 'speculation'> {
  if (!before || !latest) return latest || before ? { speculation: (latest ?? before) as SpeculationStats } : {};
  return {
    speculation: {
      drafts: before.drafts + latest.drafts,
      draftTokens: before.draftTokens + latest.draftTokens,
      acceptedTokens: before.acceptedTokens + latest.acceptedTokens,
      acceptedPerPosition: latest.acceptedPerPosition.map(
        (count, position) => count + (before.acceptedPerPosition[position] ?? 0),
      ),
    },
  };
}

/** Held blocks are the present life's. */
function sumOfTransfers(before?: TransferStats, latest?: TransferStats): Pick<EngineStats, 'transfers'> {
  if (!before || !latest)
    return latest ? { transfers: latest } : before ? { transfers: { ...before, heldBlocks: 0 } } : {};
  return {
    transfers: {
      pulls: before.pulls + latest.pulls,
      pullFailures: before.pullFailures + latest.pullFailures,
      pulledTokens: before.pulledTokens + latest.pulledTokens,
      heldBlocks: latest.heldBlocks,
      served: before.served + latest.served,
    },
  };
}
