/** The real engine process and addon with the starter model: what the fake engine cannot show. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SamplingSpec } from '../../../src/control/engine/native.ts';
import type { EngineConfig, SequenceOutput } from '../../../src/control/engine/protocol.ts';
import { EngineSupervisor } from '../../../src/control/engine/supervisor.ts';
import { loadModel } from '../../../src/control/models/load.ts';
import { random } from '../../unit/scheduler/drive.ts';
import { submission, until } from './harness.ts';

const STARTER = fileURLToPath(new URL('../../../models/starter', import.meta.url));
const ENTRY = fileURLToPath(new URL('../../../dist/control/engine/engine-process.js', import.meta.url));
const PAGE_POSITIONS = 16;
const MODEL_LENGTH = 512;

interface Run {
  tokens: number[];
  logprobs: number[];
  finish: string;
}

let base: EngineConfig;
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

function run(
  supervisor: EngineSupervisor,
  submitted: ReturnType<typeof requests>,
  onToken?: () => void,
): Promise<Run[]> {
  const runs = submitted.map((): Run => ({ tokens: [], logprobs: [], finish: '' }));
  return new Promise((resolve) => {
    supervisor.submit(submitted, (index: number, { tokens, logprobs, finish, error }: SequenceOutput) => {
      const target = runs[index] as Run;
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

  it('refuses KV memory for less than one sequence by flag name', async () => {
    supervisor = supervise({ ...base, kvCacheBytes: 100_000 });
    await expect(supervisor.ready()).rejects.toThrow('--kv-cache-memory');
  });
});
