/**
 * The native trainer against PyTorch + PEFT (test/goldens/make_training_goldens.py): gradients of every factor of every family, the loss
 * curve of ten AdamW steps; and against itself: packing, slices, threads and recomputing change nothing.
 */
import { readFileSync } from 'node:fs';
import { afterAll, describe, expect, test } from 'vitest';
import { loadNative, type NativeAdapter } from '../../src/control/engine/native.ts';
import type { OptimizerStep } from '../../src/control/engine/training.ts';
import { Driver, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { hashTokens, hashUniform } from '../fixtures/hash-weights.ts';
import { familyPlan, temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';
import {
  finish,
  hashedWeights,
  packedRow,
  separateRows,
  TrainerDriver,
  type Family,
} from '../fixtures/trainer-driver.ts';

interface Goldens {
  plan: { rank: number; alpha: number; prefix: number; endings: number[]; adamw: OptimizerStep };
  families: Record<string, { F32: string; BF16: string; logprobs: number[]; losses: number[] }>;
}

const { plan, families } = JSON.parse(
  readFileSync(new URL('../goldens/training-goldens.json', import.meta.url), 'utf8'),
) as Goldens;

const SCALE = plan.alpha / plan.rank;
const TOLERANCE = { F32: 1e-4, BF16: 2e-2 } as const;

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

async function opened(family: string, dtype: 'F32' | 'BF16', threads = 2): Promise<OpenModel> {
  const directory = `${temporary.path}/${family}-${dtype}`;
  writeFamily(directory, family, { dtype });
  return openModel(directory, dtype === 'F32' ? 'float32' : 'bfloat16', { threads });
}

function familyOf(name: string, vocab: number): Family {
  return {
    prefix: hashTokens(`${name}/train/prefix`, plan.prefix, vocab),
    endings: plan.endings.map((count, index) => hashTokens(`${name}/train/ending ${index}`, count, vocab)),
    weights: plan.endings.map((count, index) => hashUniform(`${name}/train/weights ${index}`, count - 1, 0, 1)),
  };
}

function goldenGradients(name: string, dtype: 'F32' | 'BF16'): Float32Array {
  const bytes = Buffer.from(families[name]![dtype], 'base64');
  const copy = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  if (dtype === 'F32') return new Float32Array(copy);
  return new Float32Array(Uint32Array.from(new Uint16Array(copy), (half) => half << 16).buffer);
}

/** Norm of the difference over the norm of `golden`. */
function relativeError(found: ArrayLike<number>, golden: ArrayLike<number>): number {
  let difference = 0;
  let size = 0;
  for (let index = 0; index < golden.length; index++) {
    difference += (found[index]! - golden[index]!) ** 2;
    size += golden[index]! ** 2;
  }
  return Math.sqrt(difference / size);
}

const joined = (arrays: Float32Array[]) => Float32Array.from(arrays.flatMap((array) => [...array]));
const bytesOf = (arrays: Float32Array[]) =>
  Buffer.concat(arrays.map((a) => Buffer.from(a.buffer, a.byteOffset, a.byteLength)));

describe.each(familyPlan.families)('$name', ({ name }) => {
  test.each(['F32', 'BF16'] as const)('%s: the gradient of every factor is that of PyTorch and PEFT', async (dtype) => {
    const { files, model } = await opened(name, dtype);
    const weights = hashedWeights(files.spec, name, plan.rank, SCALE);
    const trainer = await TrainerDriver.open(model, weights);
    const family = familyOf(name, files.spec.vocabSize);
    const golden = goldenGradients(name, dtype);
    const whole = packedRow(family);
    const { logprobs, entropies } = await trainer.forward(whole.row);
    await trainer.backward(whole.gradients);
    const packed = await trainer.gradients();
    let first = 0;
    for (const gradient of packed) {
      const wanted = golden.subarray(first, (first += gradient.length));
      expect(relativeError(gradient, wanted)).toBeLessThanOrEqual(TOLERANCE[dtype]);
    }
    expect(first).toBe(golden.length);
    const targets = whole.row.targets;
    const scored = [...logprobs].filter((_, index) => targets[index]! >= 0);
    expect(relativeError(scored, families[name]!.logprobs)).toBeLessThanOrEqual(dtype === 'F32' ? 1e-5 : 0.05);
    expect(entropies.every((entropy, index) => targets[index]! < 0 || entropy > 0)).toBe(true);
    // The same sequences, each with a prefix of its own.
    for (const { row, gradients } of separateRows(family)) {
      const alone = await trainer.forward(row);
      const count = gradients.length - plan.prefix;
      expect([...alone.logprobs.slice(-count, -1)].every((logprob) => scored.includes(logprob))).toBe(true);
      await trainer.backward(gradients);
    }
    expect(relativeError(joined(await trainer.gradients()), golden)).toBeLessThan(TOLERANCE[dtype]);
    trainer.native.close();
    model.close();
  });

  test('ten AdamW steps follow the golden losses', async () => {
    const { files, model } = await opened(name, 'F32');
    const trainer = await TrainerDriver.open(model, hashedWeights(files.spec, name, plan.rank, SCALE));
    const { row } = packedRow(familyOf(name, files.spec.vocabSize));
    const count = row.targets.filter((target) => target >= 0).length;
    const gradients = Float32Array.from(row.targets, (target) => (target < 0 ? 0 : -1 / count));
    const losses: number[] = [];
    for (let step = 0; step < 10; step++) {
      const { logprobs } = await trainer.forward(row);
      losses.push(-logprobs.reduce((sum, value) => sum + value, 0) / count);
      await trainer.backward(gradients);
      expect(await trainer.optimize(plan.adamw)).toMatchObject({ applied: true });
    }
    losses.forEach((loss, step) =>
      expect(Math.abs(loss - families[name]!.losses[step]!)).toBeLessThan(2e-3 * losses[0]!),
    );
    trainer.native.close();
    model.close();
  });
});

const STEP: OptimizerStep = { ...plan.adamw, learningRate: 1e-3 };

describe.each(['F32', 'BF16'] as const)('%s', (dtype) => {
  test("raw logprobs of the engine, sampled and of prompts, are the trainer's bit by bit", async () => {
    const { files, model } = await opened('mistral', dtype);
    const vocab = files.spec.vocabSize;
    const trainer = await TrainerDriver.open(model, hashedWeights(files.spec, 'mistral', 4, 2));
    const whole = packedRow(familyOf('mistral', vocab));
    await trainer.forward(whole.row);
    await trainer.backward(whole.gradients);
    expect((await trainer.optimize(STEP)).applied).toBe(true);
    // What a published checkpoint of the FP32 masters loads as.
    const { weights } = await trainer.native.state();
    const factors = weights.factors.map((f) => ({ ...f, scale: weights.scale }));
    const published = await loadNative().loadAdapter(model, { factors });
    const prompt = hashTokens('prompt', 70, vocab);
    for (const adapter of [trainer.native.adapter(), published, undefined]) {
      const driver = new Driver({ files, model }, { maxModelLen: 200 });
      const sampling = { temperature: 1, logprobs: 0, maxTokens: 40, ...(adapter && { adapter }) };
      const found = await sampledLogprobs(driver, Array.from(prompt), sampling);
      const tokens = Int32Array.from([...prompt, ...found.tokens.slice(0, -1)]);
      const targets = Int32Array.from([...prompt.subarray(1), ...found.tokens]);
      const row = { tokens, targets, segments: Int32Array.of(0, tokens.length, -1, 0) };
      const scored = (await trainer.forward(row, adapter ? 'current' : 'base')).logprobs;
      expect(Array.from(scored.subarray(0, prompt.length - 1))).toEqual(found.promptLogprobs);
      expect(Array.from(scored.subarray(prompt.length - 1))).toEqual(found.logprobs);
      if (adapter) expect((await trainer.forward(row, adapter)).logprobs).toEqual(scored);
      driver.engine.close();
    }
    trainer.native.close();
    model.close();
  });

  test('slices, threads and recomputing do not change a bit; a restored state goes on as the first', async () => {
    const results: Buffer[] = [];
    for (const [threads, recompute, micros] of [
      [1, false, 1_000_000],
      [2, false, 0],
      [2, true, 100],
    ] as const) {
      const { files, model } = await opened('qwen3', dtype, threads);
      const family = familyOf('qwen3', files.spec.vocabSize);
      let trainer = await TrainerDriver.open(model, hashedWeights(files.spec, 'qwen3', 3, 1, ['q', 'v', 'down']), {
        recompute,
      });
      for (let step = 0; step < 3; step++) {
        trainer.micros = micros;
        for (const { row, gradients } of [packedRow(family), ...separateRows(family)]) {
          await trainer.forward(row);
          await trainer.backward(gradients);
        }
        expect(await trainer.optimize(STEP)).toMatchObject({ applied: true });
        if (threads === 1) continue;
        const state = await trainer.native.state();
        trainer.native.close();
        trainer = await TrainerDriver.open(model, state, { recompute });
      }
      const { weights, optimizer } = await trainer.native.state();
      expect(optimizer!.steps).toBe(3);
      results.push(
        bytesOf([
          ...weights.factors.flatMap(({ a, b }) => [a, b]),
          ...optimizer!.moments.flatMap(({ a, b }) => [a.m, a.v, b.m, b.v]),
        ]),
      );
      trainer.native.close();
      model.close();
    }
    expect(results[1]!.equals(results[0]!)).toBe(true);
    expect(results[2]!.equals(results[0]!)).toBe(true);
  });

  test('a gradient that is not finite leaves everything as it was', async () => {
    const { files, model } = await opened('llama3', dtype);
    const trainer = await TrainerDriver.open(model, hashedWeights(files.spec, 'llama3', 2, 1));
    const { row, gradients } = packedRow(familyOf('llama3', files.spec.vocabSize));
    const before = await trainer.native.state();
    await trainer.forward(row);
    await trainer.backward(gradients.map((g) => (g === 0 ? 0 : NaN)));
    expect(await trainer.optimize(STEP)).toEqual({ applied: false, gradNorm: NaN });
    expect(await trainer.native.state()).toEqual(before);
    await trainer.forward(row);
    await trainer.backward(gradients);
    const { applied, gradNorm } = await trainer.optimize(STEP);
    expect(applied && gradNorm > 0).toBe(true);
    trainer.native.close();
    model.close();
  });
});

/** Samples under an adapter, prompt logprobs included. */
async function sampledLogprobs(driver: Driver, prompt: number[], sampling: Record<string, unknown>) {
  const { adapter, ...spec } = sampling;
  driver.open(3, prompt.length, spec, undefined, 0, adapter as NativeAdapter | undefined);
  const tokens: number[] = [];
  const logprobs: number[] = [];
  const promptLogprobs: number[] = [];
  for (let next: number[] = prompt; ; next = [-1]) {
    const [sample] = await driver.step([{ slot: 3, tokens: next, sample: true }]);
    promptLogprobs.push(...driver.last!.promptLogprobs);
    tokens.push(sample!.token);
    logprobs.push(sample!.logprob);
    if (sample!.finish !== 0) return { tokens, logprobs, promptLogprobs };
  }
}

describe('arguments', () => {
  const row = {
    tokens: Int32Array.of(1, 2, 3, 4),
    segments: Int32Array.of(0, 2, -1, 0, 2, 2, 0, 2),
    targets: Int32Array.of(2, -1, 4, 5),
  };
  const segments = (...values: number[]) => ({ segments: Int32Array.from(values) });

  test.each([
    ['no tokens', { tokens: new Int32Array(0) }, 'tokens.length'],
    [
      'too many tokens',
      { tokens: new Int32Array(65), targets: new Int32Array(65), ...segments(0, 65, -1, 0) },
      'tokens.length',
    ],
    ['an id past the vocabulary', { tokens: Int32Array.of(1, 2, 3, 1000) }, 'tokens'],
    ['a negative id', { tokens: Int32Array.of(1, 2, -1, 4) }, 'tokens'],
    ['a target past the vocabulary', { targets: Int32Array.of(2, -1, 4, 1000) }, 'targets'],
    ['too few targets', { targets: Int32Array.of(2) }, 'targets'],
    ['tokens of another type', { tokens: [1, 2, 3, 4] }, 'tokens'],
    ['no segments', segments(), 'segments'],
    ['half a segment', segments(0, 4, -1), 'quadruples'],
    ['a gap', segments(0, 1, -1, 0, 2, 2, 0, 1), 'segments'],
    ['tokens left over', segments(0, 2, -1, 0), 'segments'],
    ['an empty segment', segments(0, 0, -1, 0, 0, 4, -1, 0), 'count'],
    ['a parent that comes later', segments(0, 2, 1, 0, 2, 2, -1, 0), 'parent'],
    ['a grandchild', segments(0, 1, -1, 0, 1, 1, 0, 1, 2, 2, 1, 1), 'parent'],
    ['a root at a position', segments(0, 4, -1, 3), 'position'],
    ['a child elsewhere than after its parent', segments(0, 2, -1, 0, 2, 2, 0, 1), 'position'],
  ])('%s is refused', async (_, change, text) => {
    const { files, model } = await opened('llama2', 'F32');
    const trainer = await TrainerDriver.open(model, hashedWeights(files.spec, 'llama2', 2, 1), { maxRowTokens: 64 });
    expect(() => trainer.native.forward({ ...row, ...change } as never, 'current')).toThrow(text);
    expect(() => trainer.native.forward(row, 'currant' as never)).toThrow('weights');
    expect(() => trainer.native.forward(row, {} as never)).toThrow('adapter');
    await trainer.forward(row);
    trainer.native.close();
    model.close();
  });

  test('the order of calls and every number of a step are checked', async () => {
    const { files, model } = await opened('llama2', 'F32');
    const weights = hashedWeights(files.spec, 'llama2', 2, 1);
    const create = (state: unknown, options: unknown = { maxRowTokens: 64, maxRowBytes: 2 ** 30, recompute: false }) =>
      loadNative().createTrainer(model, options as never, state as never);
    const wide = { weights: { ...weights, factors: [{ ...weights.factors[0]!, rank: 3 }] }, optimizer: null };
    await expect(create(wide)).rejects.toThrow('q_proj: lora_A');
    const twice = { weights: { ...weights, factors: [weights.factors[0]!, weights.factors[0]!] }, optimizer: null };
    await expect(create(twice)).rejects.toThrow('twice');
    await expect(create({ weights: { scale: 1, factors: [] }, optimizer: null })).rejects.toThrow('empty');
    await expect(
      create({ weights, optimizer: null }, { maxRowTokens: 0, maxRowBytes: 1, recompute: false }),
    ).rejects.toThrow('maxRowTokens');
    const small = await create({ weights, optimizer: null }, { maxRowTokens: 64, maxRowBytes: 1000, recompute: false });
    expect(small.rowBytes(row.tokens.length)).toBeGreaterThan(1000);
    expect(() => small.forward(row, 'current')).toThrow(`${row.tokens.length} tokens needs`);
    small.interrupt();
    small.close();
    const closing = await create({ weights, optimizer: null });
    const closes = () => (closing.close(), row.targets);
    expect(() => closing.forward(Object.defineProperty({ ...row }, 'targets', { get: closes }), 'current')).toThrow(
      'closed',
    );
    expect(() => create({ weights, optimizer: { steps: 1, moments: [] } })).toThrow('moments');
    expect(() => create({ weights })).toThrow('optimizer');

    const { native } = await TrainerDriver.open(model, weights);
    expect(() => native.scores()).toThrow('no forward');
    expect(() => native.outcome()).toThrow('no optimizer');
    expect(() => native.backward(new Float32Array(4))).toThrow('forwarded');
    await expect(native.slice(0)).rejects.toThrow('nothing to do');
    expect(() => native.slice(-1)).toThrow('micros');
    native.forward(row, 'current');
    expect(() => native.forward(row, 'current')).toThrow('not finished');
    const pending = native.slice(0);
    expect(() => native.scores()).toThrow('busy');
    expect(await pending).toBe(false);
    expect(await finish(native)).toBeGreaterThan(0);
    expect(() => native.backward(new Float32Array(3))).toThrow('one entry per token');
    expect(() => native.backward(Float32Array.of(0, 1, 0, 0))).toThrow('no target');
    native.backward(Float32Array.of(1, 0, 1, 1));
    await finish(native, 0);
    expect(() => native.backward(new Float32Array(4))).toThrow('once');
    for (const change of [
      { learningRate: -1 },
      { beta1: 1 },
      { beta2: NaN },
      { eps: 0 },
      { weightDecay: Infinity },
      { maxGradNorm: 0 },
    ]) {
      expect(() => native.optimize({ ...STEP, ...change })).toThrow(Object.keys(change)[0]);
    }
    native.optimize(STEP);
    await expect(native.state()).rejects.toThrow('middle of a step');
    await finish(native, 0);
    const { weights: all, optimizer } = await native.state();
    for (const [first, count] of [
      [0, 1],
      [1, 3],
      [all.factors.length - 1, 5],
      [all.factors.length, 1],
    ] as const) {
      const part = await native.state(first, count);
      expect(part.weights).toEqual({ scale: all.scale, factors: all.factors.slice(first, first + count) });
      expect(part.optimizer).toEqual({ steps: 1, moments: optimizer!.moments.slice(first, first + count) });
    }
    await expect(native.state(all.factors.length + 1, 1)).rejects.toThrow('begins in');
    await expect(native.state(-1, 1)).rejects.toThrow('begins in');
    expect(() => native.state(0, 'x' as never)).toThrow('count');
    native.close();
    native.close();
    expect(() => native.scores()).toThrow('closed');
    model.close();
  });
});
