/** A supervisor over the fake engine process, and what its sequences received. */
import { fileURLToPath } from 'node:url';
import type { SequenceHandle } from '../../../src/control/engine/client.ts';
import type { SubmitRequest } from '../../../src/control/engine/ledger.ts';
import type { EngineConfig, FinishReason, SequenceOutput } from '../../../src/control/engine/protocol.ts';
import { EngineSupervisor, type SupervisorOptions } from '../../../src/control/engine/supervisor.ts';
import { random, sampling, VOCABULARY } from '../../unit/scheduler/drive.ts';

export const FAKE_ENTRY = fileURLToPath(new URL('./fake-entry.mjs', import.meta.url));

/** `told` are the words that fake-entry.mjs understands. */
export function config(told: string[] = [], changes: Partial<EngineConfig> = {}): EngineConfig {
  const spec = {
    architecture: 'llama' as const,
    vocabSize: VOCABULARY,
    hiddenSize: 8,
    intermediateSize: 8,
    layers: 1,
    heads: 1,
    kvHeads: 1,
    headDim: 8,
    rmsNormEps: 1e-6,
    ropeTheta: 10_000,
    ropeScaling: { type: 'none' as const },
    maxPosition: 512,
    slidingWindow: 0,
    windowLayers: new Uint8Array(1),
    qkvBias: false,
    outputBias: false,
    mlpBias: false,
    qkNorm: false,
    tiedEmbeddings: true,
  };
  return {
    spec,
    files: told,
    tensors: [],
    dtype: 'float32',
    threads: 1,
    maxSequences: 4,
    maxBatchTokens: 64,
    maxModelLen: 512,
    samplableVocab: VOCABULARY,
    maxLogprobs: 20,
    // The fake's pages have 1024 bytes.
    kvCacheBytes: 200 * 1024,
    enableChunkedPrefill: true,
    faults: [],
    ...changes,
  };
}

export function submission(
  seed: number,
  promptLength: number,
  changes: Partial<SubmitRequest['sampling']> = {},
): SubmitRequest {
  const draw = random(seed);
  const promptIds = Int32Array.from({ length: promptLength }, () => draw(VOCABULARY));
  return { promptIds, sampling: sampling({ seed: BigInt(seed), ...changes }), priority: 0, tenant: 'a' };
}

/** What one sequence received; `ended` resolves with its last output. */
export class Receiver {
  readonly tokens: number[] = [];
  /** Of the prompt: position, log-probability, rank, best id. */
  readonly scores: number[][] = [];
  cachedTokens: number | null = null;
  readonly ended: Promise<FinishReason>;
  handle!: SequenceHandle;
  finish: FinishReason | null = null;
  error: string | undefined;
  afterEnd = 0;
  #resolve!: (finish: FinishReason) => void;
  readonly #waits: { count: number; resolve: () => void }[] = [];

  constructor() {
    this.ended = new Promise((resolve) => (this.#resolve = resolve));
  }

  take(output: SequenceOutput): void {
    if (this.finish !== null) this.afterEnd++;
    this.tokens.push(...output.tokens);
    const piece = output.promptLogprobs;
    piece?.top.forEach(({ ids }, index) =>
      this.scores.push([
        piece.start + index,
        piece.logprobs[index] as number,
        piece.ranks[index] as number,
        ids[0] ?? -1,
      ]),
    );
    this.cachedTokens = output.cachedTokens;
    this.finish = output.finish;
    this.error = output.error;
    for (const { count, resolve } of this.#waits) if (this.tokens.length >= count) resolve();
    if (output.finish !== null) this.#resolve(output.finish);
  }

  /** Resolves once so many tokens have come. */
  has(count: number): Promise<void> {
    if (this.tokens.length >= count) return Promise.resolve();
    return new Promise((resolve) => this.#waits.push({ count, resolve }));
  }
}

export function submit(supervisor: EngineSupervisor, requests: SubmitRequest[]): Receiver[] {
  const receivers = requests.map(() => new Receiver());
  const handles = supervisor.submit(requests, (index, output) => receivers[index]?.take(output));
  receivers.forEach((receiver, index) => (receiver.handle = handles[index] as SequenceHandle));
  return receivers;
}

export function supervise(options: Partial<SupervisorOptions> & { config: EngineConfig }): EngineSupervisor {
  return new EngineSupervisor({ entry: FAKE_ENTRY, maxWaitingRequests: 1000, maxWaitingTokens: 1_000_000, ...options });
}

export async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
}
