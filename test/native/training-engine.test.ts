/**
 * Training beside serving in one engine: what is trained on is to the bit what was sampled, slices change nothing but the time, and
 * a trainer is lost with its process.
 */
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createLocalEngine, type LocalEngine } from '../../src/control/engine/local.ts';
import type { EngineConfig, SequenceOutput } from '../../src/control/engine/protocol.ts';
import { EngineSupervisor } from '../../src/control/engine/supervisor.ts';
import {
  ADAPTER_MODULES,
  RowRefusedError,
  TrainerLostError,
  type AdapterRef,
  type OptimizerStep,
  type TrainerSession,
  type TrainerState,
  type TrainRow,
} from '../../src/control/engine/training.ts';
import { sizesOf } from '../../src/control/models/adapter-files.ts';
import { writeCheckpoint } from '../../src/control/training/checkpoint-files.ts';
import { adapterTensor, peftName } from '../fixtures/adapters.ts';
import { hashTokens } from '../fixtures/hash-weights.ts';
import { tinyEngine } from '../fixtures/tiny-engine.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { sampling } from '../unit/scheduler/drive.ts';

const STEP: OptimizerStep = {
  learningRate: 1e-2,
  beta1: 0.9,
  beta2: 0.99,
  eps: 1e-8,
  weightDecay: 0.1,
  maxGradNorm: 0.1,
};
const OUTPUTS = 18;
const ENTRY = fileURLToPath(new URL('../../dist/control/engine/engine-process.js', import.meta.url));

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());
let config: EngineConfig;
let folders = 0;

beforeAll(async () => {
  const base = await tinyEngine(join(temporary.path, 'model'), { dtype: 'BF16' });
  config = { ...base, maxBatchTokens: 48, trainingFloor: 0.2 };
});

let engines: LocalEngine[] = [];
afterEach(async () => {
  await Promise.all(engines.map((engine) => engine.close()));
  engines = [];
});

async function start(settings: Partial<EngineConfig> = {}): Promise<LocalEngine> {
  const engine = await createLocalEngine({ ...config, ...settings });
  engines.push(engine);
  return engine;
}

/** Factors that change the logits; of rank 8 on all projections. */
function freshState(seed: string): TrainerState {
  const { spec } = config;
  const factors = Array.from({ length: spec.layers }, (_, layer) =>
    ADAPTER_MODULES.map((module) => {
      const [inputs, outputs] = sizesOf(module, spec);
      const a = adapterTensor(seed, peftName(layer, module, 'A'), [8, inputs]).values;
      const b = adapterTensor(seed, peftName(layer, module, 'B'), [outputs, 8], 0.1).values;
      return { layer, module, rank: 8, a, b };
    }),
  ).flat();
  return { weights: { scale: 2, factors }, optimizer: null };
}

async function publish(engine: LocalEngine, state: TrainerState): Promise<AdapterRef> {
  const directory = join(temporary.path, `checkpoint-${folders++}`);
  mkdirSync(directory);
  const version = await writeCheckpoint(directory, { state, baseModel: 'model', kind: 'rl' });
  const adapter = { version, directory };
  await engine.loadAdapter(adapter);
  return adapter;
}

interface Rollout {
  prompt: Int32Array;
  tokens: number[];
  logprobs: number[];
}

function sample(
  engine: LocalEngine,
  prompt: Int32Array,
  seed: number,
  adapter: AdapterRef | null,
  maxTokens = OUTPUTS,
) {
  const request = {
    promptIds: prompt,
    sampling: sampling({ maxTokens, logprobs: 0, seed: BigInt(seed) }),
    priority: 0,
    tenant: 'a',
    adapter,
  };
  const rollout: Rollout = { prompt, tokens: [], logprobs: [] };
  return new Promise<Rollout>((resolve, reject) =>
    engine.submit([request], (_, output: SequenceOutput) => {
      rollout.tokens.push(...output.tokens);
      rollout.logprobs.push(...output.logprobs);
      if (output.error !== undefined) reject(new Error(output.error));
      else if (output.finish !== null) resolve(rollout);
    }),
  );
}

const prompts = () => [70, 33, 5].map((length, index) => hashTokens(`p${index}`, length, config.spec.vocabSize));

/** Each group shares its prompt but for the last token. */
function packed(groups: Rollout[][]): { row: TrainRow; expected: Float32Array } {
  const tokens: number[] = [];
  const segments: number[] = [];
  const targets: number[] = [];
  const expected: number[] = [];
  for (const group of groups) {
    const prompt = Array.from(group[0]!.prompt);
    const parent = segments.length / 4;
    segments.push(tokens.length, prompt.length - 1, -1, 0);
    tokens.push(...prompt.slice(0, -1));
    for (let index = 1; index < prompt.length; index++) {
      targets.push(-1);
      expected.push(0);
    }
    for (const rollout of group) {
      segments.push(tokens.length, rollout.tokens.length, parent, prompt.length - 1);
      tokens.push(prompt.at(-1)!, ...rollout.tokens.slice(0, -1));
      targets.push(...rollout.tokens);
      expected.push(...rollout.logprobs);
    }
  }
  const row = {
    tokens: Int32Array.from(tokens),
    segments: Int32Array.from(segments),
    targets: Int32Array.from(targets),
  };
  return { row, expected: Float32Array.from(expected) };
}

async function rollouts(engine: LocalEngine, adapter: AdapterRef | null): Promise<Rollout[][]> {
  return Promise.all(
    prompts().map((prompt) => Promise.all([1, 2, 3].map((seed) => sample(engine, prompt, seed, adapter)))),
  );
}

function gradientsFor(row: TrainRow): Float32Array {
  return Float32Array.from(row.targets, (target, index) => (target < 0 ? 0 : ((index % 5) - 2) / 50));
}

function bitsOf({ weights, optimizer }: TrainerState): string {
  const arrays = weights.factors.flatMap(({ a, b }) => [a, b]);
  const moments = optimizer?.moments.flatMap(({ a, b }) => [a.m, a.v, b.m, b.v]) ?? [];
  const hex = [...arrays, ...moments].map((each) => Buffer.from(each.buffer, each.byteOffset, each.byteLength));
  return `${optimizer?.steps} ${Buffer.concat(hex).toString('base64')}`;
}

test('on-policy: the trainer scores a published adapter to the bit as it was served, step after step', async () => {
  const engine = await start();
  const session = await engine.openTrainer(freshState('policy'));
  let published = await publish(engine, await session.state());
  const stranger = await publish(engine, freshState('stranger'));
  for (let step = 0; step < 3; step++) {
    // Beside others: the base model and another adapter, in one batch, in chunks; the second round meets a warm prefix cache.
    const others = prompts().flatMap((prompt) => [
      sample(engine, prompt, 9, null),
      sample(engine, prompt, 9, stranger, 40),
    ]);
    for (const round of [0, 1]) {
      const { row, expected } = packed(await rollouts(engine, published));
      const scores = await session.forward(row, 'current');
      expect([round, Buffer.from(scores.logprobs.buffer).equals(Buffer.from(expected.buffer))]).toEqual([round, true]);
      if (round === 0) continue;
      await session.backward(gradientsFor(row));
      expect(await session.optimize(STEP)).toMatchObject({ applied: true });
      // The step is felt.
      const after = await session.forward(row, 'current');
      expect(after.logprobs).not.toEqual(scores.logprobs);
    }
    await Promise.all(others);
    published = await publish(engine, await session.state());
  }
  expect(engine.stats().prefixCacheHits).toBeGreaterThan(0);
  session.close();
}, 120_000);

test('references: the base model and another adapter are scored as they are served', async () => {
  const engine = await start();
  const session = await engine.openTrainer(freshState('policy'));
  const other = freshState('other');
  const base = packed(await rollouts(engine, null));
  expect((await session.forward(base.row, 'base')).logprobs).toEqual(base.expected);
  const served = packed(await rollouts(engine, await publish(engine, other)));
  expect((await session.forward(served.row, other.weights)).logprobs).toEqual(served.expected);
  expect((await session.forward(served.row, other.weights)).logprobs).toEqual(served.expected);
  session.close();
  await expect(session.state()).rejects.toThrow('The trainer is closed.');
}, 60_000);

async function train(session: TrainerSession, row: TrainRow): Promise<TrainerState> {
  for (let step = 0; step < 3; step++) {
    await session.forward(row, 'current');
    await session.backward(gradientsFor(row));
    await session.optimize(STEP);
  }
  return session.state();
}

test('the same job beside a loaded engine and beside an idle one ends with the same bits', async () => {
  const idle = await start();
  const { row } = packed(await rollouts(idle, null));
  const alone = await train(await idle.openTrainer(freshState('job')), row);
  const busy = await start();
  let serving = true;
  const load = Promise.all(
    prompts().map(async (prompt) => {
      let served = 0;
      for (; serving || served === 0; served++) await sample(busy, prompt, served, null, 60);
      return served;
    }),
  );
  const [first, second] = [await busy.openTrainer(freshState('job')), await busy.openTrainer(freshState('second'))];
  const [beside] = await Promise.all([train(first, row), train(second, row)]);
  serving = false;
  expect((await load).every((served) => served > 0)).toBe(true);
  expect(bitsOf(beside)).toBe(bitsOf(alone));
  expect(beside.optimizer?.steps).toBe(3);
}, 120_000);

test('what does not fit is refused in a sentence, and the engine serves on', async () => {
  const engine = await start();
  const broken = freshState('broken');
  broken.weights.factors[3]!.a = new Float32Array(5);
  await expect(engine.openTrainer(broken)).rejects.toThrow(/layers\.0\.self_attn\.o_proj/);
  const session = await engine.openTrainer(freshState('fine'));
  const { row } = packed(await rollouts(engine, null));
  await expect(session.backward(gradientsFor(row))).rejects.toThrow();
  await expect(session.forward({ ...row, tokens: row.tokens.map(() => 99_999) }, 'current')).rejects.toThrow();
  expect((await session.forward(row, 'current')).logprobs).toHaveLength(row.tokens.length);
  await sample(engine, prompts()[0]!, 1, null);
  session.close();
  session.close();
}, 60_000);

test('a row that needs more memory than training may take fails its call, and nothing else', async () => {
  const engine = await start({ maxTrainingRowBytes: 2 ** 20 });
  const session = await engine.openTrainer(freshState('fine'));
  const length = 30_000;
  const row: TrainRow = {
    tokens: new Int32Array(length),
    segments: Int32Array.from(Array.from({ length: length / 10 }, (_, i) => [10 * i, 10, -1, 0]).flat()),
    targets: new Int32Array(length).fill(1),
  };
  await expect(session.forward(row, 'current')).rejects.toThrow('a packed row of 30000 tokens needs');
  await expect(session.forward(row, 'current')).rejects.toBeInstanceOf(RowRefusedError);
  const small = packed([(await rollouts(engine, null))[2]!]).row;
  expect((await session.forward(small, 'current')).logprobs).toHaveLength(small.tokens.length);
}, 60_000);

test('a trainer is lost with its process; the next one opens a new one and reads adapters again', async () => {
  const supervisor = new EngineSupervisor({ config, entry: ENTRY, maxWaitingRequests: 10, maxWaitingTokens: 10_000 });
  try {
    // Asked before the engine is ready.
    const session = await supervisor.openTrainer(freshState('job'));
    const row: TrainRow = {
      tokens: hashTokens('row', 150, config.spec.vocabSize),
      segments: Int32Array.of(0, 150, -1, 0),
      targets: hashTokens('row', 151, config.spec.vocabSize).slice(1),
    };
    const before = await session.forward(row, 'current');
    const directory = join(temporary.path, 'kept');
    mkdirSync(directory);
    const version = await writeCheckpoint(directory, { state: await session.state(), baseModel: 'm', kind: 'rl' });
    await supervisor.loadAdapter({ version, directory });
    // Stopped first: it must not answer a call before it is killed.
    process.kill(supervisor.pid!, 'SIGSTOP');
    const lost = [session.forward(row, 'current'), session.backward(gradientsFor(row)), session.state()];
    process.kill(supervisor.pid!, 'SIGKILL');
    for (const call of lost) await expect(call).rejects.toThrow(TrainerLostError);
    await expect(session.state()).rejects.toThrow(TrainerLostError);
    session.close();
    const again = await supervisor.openTrainer(freshState('job'));
    expect((await again.forward(row, 'current')).logprobs).toEqual(before.logprobs);
    const request = {
      promptIds: prompts()[1]!,
      sampling: sampling({ maxTokens: 2 }),
      priority: 0,
      tenant: 'a',
      adapter: { version, directory },
    };
    const finish = await new Promise((resolve) =>
      supervisor.submit([request], (_, output) => {
        if (output.finish !== null) resolve(output.finish);
      }),
    );
    expect(finish).toBe('length');
  } finally {
    await supervisor.close();
  }
  await expect(supervisor.openTrainer(freshState('late'))).rejects.toThrow('shutting down');
}, 60_000);
