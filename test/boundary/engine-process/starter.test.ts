/** The real engine process and addon with the starter model: what the fake engine cannot show. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadNative, type SamplingSpec } from '../../../src/control/engine/native.ts';
import type { EngineConfig, SequenceOutput } from '../../../src/control/engine/protocol.ts';
import type { SubmitRequest } from '../../../src/control/engine/ledger.ts';
import { EngineSupervisor } from '../../../src/control/engine/supervisor.ts';
import { loadModel } from '../../../src/control/models/load.ts';
import { random } from '../../unit/scheduler/drive.ts';
import { submission, until } from './harness.ts';
import { STARTER } from '../../fixtures/starter.ts';

const ENTRY = fileURLToPath(new URL('../../../dist/control/engine/engine-process.js', import.meta.url));
const PAGE_POSITIONS = 16;
const MODEL_LENGTH = 512;

interface Run {
  cachedTokens: number;
  tokens: number[];
  logprobs: number[];
  finish: string;
}

let base: EngineConfig & { kvCacheBytes: number };
let reference: Run[];

beforeAll(async () => {
  const { spec, files, tensors, tokenizerSize } = await loadModel(STARTER);
  // Keys and values of every layer, 4 bytes each in F32.
  const pageBytes = 2 * 4 * PAGE_POSITIONS * spec.layers * spec.kvHeads * spec.headDim;
  base = {
    spec,
    files,
    tensors,
    dtype: 'float32',
    threads: 2,
    maxSequences: 8,
    maxBatchTokens: 512,
    maxModelLen: MODEL_LENGTH,
    samplableVocab: tokenizerSize,
    maxLogprobs: 5,
    kvCacheBytes: 300 * pageBytes,
    enableChunkedPrefill: true,
    faults: [],
  };
  const supervisor = supervise(base);
  reference = [];
  for (const request of requests()) reference.push(...(await run(supervisor, [request])));
  await supervisor.close();
});

/** Greedy and seeded, short and long. */
function requests() {
  const draw = random(5);
  return Array.from({ length: 12 }, (_, index) => {
    const sampling: Partial<SamplingSpec> = { temperature: index % 2, maxTokens: 60, logprobs: 0, seed: BigInt(index) };
    const made = submission(index, 10 + 12 * index, sampling);
    made.promptIds = made.promptIds.map(() => draw(base.samplableVocab));
    return made;
  });
}

function supervise(config: EngineConfig): EngineSupervisor {
  return new EngineSupervisor({ config, entry: ENTRY, maxWaitingRequests: 100, maxWaitingTokens: 100_000 });
}

function run(supervisor: EngineSupervisor, submitted: SubmitRequest[], onToken?: () => void): Promise<Run[]> {
  const runs = submitted.map((): Run => ({ cachedTokens: -1, tokens: [], logprobs: [], finish: '' }));
  return new Promise((resolve) => {
    supervisor.submit(submitted, (index: number, { cachedTokens, tokens, logprobs, finish, error }: SequenceOutput) => {
      const target = runs[index] as Run;
      target.cachedTokens = cachedTokens;
      target.tokens.push(...tokens);
      target.logprobs.push(...logprobs);
      if (finish !== null) target.finish = error ?? finish;
      if (runs.every((each) => each.finish !== '')) resolve(runs);
      onToken?.();
    });
  });
}

describe('the engine process with the starter model', () => {
  let supervisor: EngineSupervisor;
  afterAll(() => supervisor.close());

  it('gives alone, all at once, in chunks and after preemptions the same tokens and the same logprob bits', async () => {
    expect(new Set(reference.map(({ tokens }) => tokens.join())).size).toBeGreaterThan(6);
    const pages = Math.floor((base.kvCacheBytes / 300) * (MODEL_LENGTH / PAGE_POSITIONS));
    for (const changes of [{}, { maxBatchTokens: 19 }, { kvCacheBytes: pages }]) {
      supervisor = supervise({ ...base, ...changes });
      expect(await run(supervisor, requests())).toEqual(reference);
      if ('kvCacheBytes' in changes) expect(supervisor.stats().preemptions).toBeGreaterThan(0);
      await supervisor.close();
    }
  });

  it('gives what it found in the prefix cache the tokens and logprob bits of a cold run', async () => {
    // 40 in a batch of 32 slots, then each from the cache: its prompt, and its prompt with its answer.
    supervisor = supervise({ ...base, maxSequences: 32, kvCacheBytes: 2 * base.kvCacheBytes });
    const cold = Array.from({ length: 40 }, (_, index) => {
      const made = requests()[index % 12] as SubmitRequest;
      return { ...made, sampling: { ...made.sampling, temperature: 1, seed: BigInt(index) }, cacheSalt: `${index}` };
    });
    const batch = await run(supervisor, cold);
    expect(batch.map(({ cachedTokens }) => cachedTokens)).toEqual(Array<number>(40).fill(0));
    for (const index of [0, 5, 11, 23, 39]) {
      const request = cold[index] as SubmitRequest;
      const first = batch[index] as Run;
      const full = (count: number) => PAGE_POSITIONS * Math.floor((count - 1) / PAGE_POSITIONS);
      const [alone] = await run(supervisor, [{ ...request, cacheSalt: `alone ${index}` }]);
      const [warm] = await run(supervisor, [request]);
      expect(alone).toEqual(first);
      expect(warm).toEqual({ ...first, cachedTokens: full(request.promptIds.length) });
      const promptIds = Int32Array.from([...request.promptIds, ...first.tokens, 5, 6, 7]);
      const turn = { ...request, promptIds };
      const [found] = await run(supervisor, [turn]);
      const [computed] = await run(supervisor, [{ ...turn, cacheSalt: 'other' }]);
      expect(found?.cachedTokens).toBe(PAGE_POSITIONS * Math.floor((promptIds.length - 4) / PAGE_POSITIONS));
      expect(found).toEqual({ ...computed, cachedTokens: found?.cachedTokens });
    }
    await supervisor.close();
  });

  it('lets a later request of higher priority take the only slot; neither text changes', async () => {
    supervisor = supervise({ ...base, maxSequences: 1, schedulingPolicy: 'priority' });
    const [low, high] = [10, 11].map(
      (index, priority) => ({ ...requests()[index], priority: -priority }) as SubmitRequest,
    );
    const order: string[] = [];
    let second: Promise<Run[]> | null = null;
    let outputs = 0;
    const [text] = await run(supervisor, [low as SubmitRequest], () => {
      if (++outputs === 5) second = run(supervisor, [high as SubmitRequest]).finally(() => order.push('high'));
    });
    order.push('low');
    expect(text).toEqual(reference[10]);
    expect(await second).toEqual([reference[11]]);
    expect(order).toEqual(['high', 'low']);
    expect(supervisor.stats().preemptions).toBe(1);
    await supervisor.close();
  });

  it('scores a prompt the same in one piece, in chunks and beside others', async () => {
    const scores: number[][] = [];
    for (const changes of [{}, { maxBatchTokens: 19 }, {}]) {
      supervisor = supervise({ ...base, ...changes });
      const got: number[] = [];
      const others = scores.length === 2 ? requests().slice(0, 6) : [];
      const scored = { ...(requests()[11] as SubmitRequest), promptLogprobs: 3 };
      await new Promise<void>((resolve) => {
        supervisor.submit([...others, scored], (index, { promptLogprobs: piece, finish }) => {
          if (index < others.length) return;
          if (piece) expect(piece.start).toBe(got.length / 9 + 1);
          piece?.top.forEach((top, at) => {
            got.push(
              piece.logprobs[at] as number,
              piece.ranks[at] as number,
              scored.promptIds[piece.start + at] as number,
            );
            got.push(...top.ids, ...top.logprobs);
          });
          if (finish !== null) resolve();
        });
      });
      scores.push(got);
      await supervisor.close();
    }
    expect(scores[0]).toHaveLength(9 * ((requests()[11] as SubmitRequest).promptIds.length - 1));
    expect(scores[1]).toEqual(scores[0]);
    expect(scores[2]).toEqual(scores[0]);
  });

  it('killed in the middle of a run, it comes back and continues bit for bit', async () => {
    supervisor = supervise({ ...base, faults: ['slow-steps-ms=2'] });
    await supervisor.ready();
    let outputs = 0;
    const runs = await run(supervisor, requests(), () => {
      if (++outputs === 100) process.kill(supervisor.pid as number, 'SIGKILL');
    });
    expect(runs).toEqual(reference);
    expect(supervisor.restarts).toBe(1);
    await until(() => supervisor.stats().pagesUsed === 0);
    expect(supervisor.stats()).toMatchObject({ running: 0, waiting: 0 });
  });

  it.runIf(loadNative().info().cuda.devices === 0)('says why it cannot run on a GPU that is not there', async () => {
    supervisor = supervise({ ...base, device: 'cuda', dtype: 'bfloat16' });
    await expect(supervisor.ready()).rejects.toThrow(/no GPU can be used|this build has no CUDA/);
    expect(supervisor.restarts).toBe(0);
  });

  it('refuses KV memory for less than one sequence by flag name', async () => {
    supervisor = supervise({ ...base, kvCacheBytes: 100_000 });
    await expect(supervisor.ready()).rejects.toThrow('--kv-cache-memory');
  });
});
