/**
 * Steps that are planned while the one before runs: every output, log-probability and end is that of steps planned one after the other,
 * for every seed and control, in batches, with newcomers, over preemptions, with shared prefixes, scored prompts, adapters and grammars.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { createLocalEngine } from '../../src/control/engine/local.ts';
import type { SubmitRequest } from '../../src/control/engine/ledger.ts';
import {
  loadNative,
  type NativeAddon,
  type NativeEngine,
  type NativeModel,
  type SamplingSpec,
  type StepPlan,
} from '../../src/control/engine/native.ts';
import type { EngineConfig, EngineStats, SequenceOutput } from '../../src/control/engine/protocol.ts';
import type { AdapterRef } from '../../src/control/engine/training.ts';
import { SERVE } from '../../src/control/grammar/compile.ts';
import { adapterVersion } from '../../src/control/models/adapter-version.ts';
import { writeAdapter } from '../fixtures/adapters.ts';
import { hashTokens } from '../fixtures/hash-weights.ts';
import { tinyEngine } from '../fixtures/tiny-engine.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { random, sampling } from '../unit/scheduler/drive.ts';

const temporary = temporaryDirectory();
let config: EngineConfig;
let adapter: AdapterRef;

beforeAll(async () => {
  const base = await tinyEngine(join(temporary.path, 'model'));
  const { spec } = base;
  // Ids are letters, but for the last one, which has no text.
  const bytes = Uint8Array.from({ length: spec.vocabSize - 1 }, (_, id) => 97 + (id % 5));
  const offsets = Int32Array.from({ length: spec.vocabSize + 1 }, (_, id) => Math.min(id, spec.vocabSize - 1));
  config = { ...base, vocabulary: { bytes, offsets } };
  const folder = join(temporary.path, 'adapter');
  writeAdapter(folder, spec, { seed: 'adapter', rank: 8, alpha: 16 });
  adapter = { version: await adapterVersion(folder), directory: folder };
});
afterAll(() => temporary.remove());

function controls(index: number, vocab: number): Partial<SamplingSpec> {
  const few = Int32Array.from([...new Set(hashTokens(`few ${index}`, 4, vocab))].sort((a, b) => a - b));
  const kinds: Partial<SamplingSpec>[] = [
    { temperature: 0 },
    { topP: 0.9, topK: 20 },
    { frequencyPenalty: 0.3, presencePenalty: 0.2, repetitionPenalty: 1.3 },
    { allowedIds: few, stopIds: few.slice(0, 1), minTokens: 3 },
    { allowedIds: few, badWords: [few.slice(0, 2), few.slice(1, 3)] },
    { logprobsMode: 'processed', minP: 0.05 },
  ];
  return { logprobs: 2, maxTokens: 1 + ((index * 7) % 70), seed: BigInt(index) * 31n, ...kinds[index % kinds.length] };
}

/** Some are other choices of the one before, some share its prefix, some are scored, constrained or on an adapter. */
function requestOf(index: number): SubmitRequest {
  const { vocabSize } = config.spec;
  const chosen = index % 4 === 3 ? index - 1 : index;
  const prompt = hashTokens(`prompt ${chosen % 6}`, 5 + ((chosen * 13) % 60), vocabSize);
  const source = { kind: 'regex' as const, text: index % 2 ? '(ab|cd?)*e' : '[a-d]{3,}e+' };
  return {
    promptIds: prompt,
    sampling: sampling({ ...controls(index, vocabSize), choice: index - chosen }),
    priority: 0,
    tenant: 'a',
    adapter: index % 5 === 2 ? adapter : null,
    ...(index % 9 === 4 && { promptLogprobs: 1 }),
    ...(index % 7 === 1 && {
      sampling: sampling({ maxTokens: 20, seed: BigInt(index), stopIds: Int32Array.of(vocabSize - 1), logprobs: 1 }),
      grammar: { source, options: { ...SERVE, seconds: 60 } },
    }),
  };
}

interface Given {
  plans: number;
  ahead: number;
}

/** The addon, whose engines take one step at a time unless `queues`. */
function addonWith(queues: boolean, given: Given): NativeAddon {
  const addon = loadNative();
  return {
    ...addon,
    createEngine: (model, options) => {
      const engine = addon.createEngine(model, options);
      const step = (plan: StepPlan) => {
        given.plans++;
        if (plan.ahead) given.ahead++;
        return engine.step(plan);
      };
      const { retract, ...others } = engine;
      return { ...others, step, ...(queues && retract && { retract }) };
    },
  };
}

interface Run extends Given {
  texts: string[];
  stats: EngineStats;
}

async function run(queues: boolean, changes: Partial<EngineConfig>, count: number): Promise<Run> {
  const given = { plans: 0, ahead: 0 };
  const engine = await createLocalEngine({ ...config, ...changes }, { addon: addonWith(queues, given) });
  await engine.loadAdapter(adapter);
  const outputs: SequenceOutput[][] = Array.from({ length: count }, () => []);
  const draw = random(count);
  let [next, open] = [0, count];
  await new Promise<void>((resolve, reject) => {
    // Some come at once, the others when something comes out.
    const submit = (most: number) => {
      const begin = next;
      next = Math.min(count, next + most);
      const requests = Array.from({ length: next - begin }, (_, index) => requestOf(begin + index));
      if (requests.length > 0) engine.submit(requests, (index, output) => take(begin + index, output));
    };
    const take = (index: number, output: SequenceOutput) => {
      outputs[index]?.push(output);
      if (output.finish === 'error') reject(new Error(output.error));
      else if (output.finish !== null && --open === 0) resolve();
      else if (output.finish !== null || draw(20) === 0) submit(1 + draw(3));
    };
    submit(6);
  });
  const stats = engine.stats();
  await engine.close();
  return { texts: outputs.map(digestOf), stats, ...given };
}

const bits = (values: Iterable<number>) => [...new Uint32Array(Float32Array.from(values).buffer)];

function digestOf(pieces: SequenceOutput[]): string {
  const text = JSON.stringify([
    pieces.flatMap(({ tokens }) => [...tokens]),
    pieces.flatMap(({ logprobs }) => bits(logprobs)),
    pieces.flatMap(({ top }) => top.map(({ ids, logprobs }) => [[...ids], bits(logprobs)])),
    pieces.flatMap(({ promptLogprobs }) => (promptLogprobs ? bits(promptLogprobs.logprobs) : [])),
    pieces.at(-1)?.finish,
  ]);
  return createHash('sha256').update(text).digest('hex');
}

test('what comes out is the same, whichever way the steps are planned', async () => {
  const inTurn = await run(false, {}, 64);
  expect(inTurn.ahead).toBe(0);
  const ahead = await run(true, {}, 64);
  expect(ahead.texts).toEqual(inTurn.texts);
  expect(new Set(ahead.texts).size).toBeGreaterThan(50);
  expect(ahead.ahead).toBeGreaterThan(ahead.plans / 2);
});

test('also over preemptions and chunks of prompts', async () => {
  const { layers, kvHeads, headDim } = config.spec;
  const tight = { kvCacheBytes: 13 * layers * kvHeads * 2 * 16 * headDim * 2, maxBatchTokens: 24 };
  const inTurn = await run(false, {}, 48);
  const ahead = await run(true, tight, 48);
  expect(ahead.texts).toEqual(inTurn.texts);
  expect(ahead.stats.preemptions).toBeGreaterThan(0);
  expect(ahead.ahead).toBeGreaterThan(0);
});

/** An engine of the addon itself, with nobody before it. */
async function bareEngine(): Promise<{ engine: NativeEngine; model: NativeModel }> {
  const addon = loadNative();
  const { spec, files, tensors, maxSequences, maxBatchTokens, maxModelLen, samplableVocab, maxLogprobs } = config;
  const model = await addon.loadModel(spec, files, tensors, { dtype: 'bfloat16', threads: 2 });
  const options = { maxSequences, maxBatchTokens, maxModelLen, samplableVocab, maxLogprobs, pages: 8 };
  return { model, engine: addon.createEngine(model, options) };
}

/** A sequence of a prompt of 20 tokens in the pages 0 and 1, and the steps behind its first. */
function stepsOfOne(maxTokens: number): { first: StepPlan; next: (position: number) => StepPlan } {
  const opens = [{ slot: 0, promptLength: 20, sampling: sampling({ temperature: 0, maxTokens }) }];
  const none = new Int32Array(0);
  const tokens = hashTokens('prompt', 20, config.spec.vocabSize);
  const first = {
    ...{ opens, closes: none, pages: Int32Array.of(0, 0, 0, 0, 1, 1) },
    ...{ rows: Int32Array.of(0, 0, 20, 1), tokens },
  };
  const next = (position: number) => ({
    ...{ opens: [], closes: none, pages: none, rows: Int32Array.of(0, position, 1, 1), tokens: Int32Array.of(-1) },
    ahead: true,
  });
  return { first, next };
}

test('a step is a third one, too, where a getter of its plan has given two', async () => {
  const { engine, model } = await bareEngine();
  const { first, next } = stepsOfOne(3);
  const given: Promise<unknown>[] = [];
  const plan = Object.defineProperty({ ...next(21) }, 'rows', {
    get: () => {
      given.push(engine.step(first), engine.step(next(20)));
      return next(21).rows;
    },
  });
  await expect(engine.step(plan)).rejects.toThrow('another one waits');
  await Promise.all(given);
  engine.close();
  model.close();
});

test('a second step waits for the first, a third one is refused, and the second can be taken back', async () => {
  const { engine, model } = await bareEngine();
  const { first, next } = stepsOfOne(3);
  expect(engine.retract?.()).toBe(false);
  const steps = [engine.step(first), engine.step(next(20))];
  await expect(engine.step(next(21))).rejects.toThrow('another one waits');
  const tokens = (await Promise.all(steps)).map((result) => [...result.tokens]);
  expect(engine.retract?.()).toBe(false);
  const third = await engine.step(next(21));
  expect([...third.finish]).toEqual([2]);
  // The sequence has ended: its row is left out of a step that did not know, and its slot stands where it stood.
  expect([...(await engine.step(next(22))).slots]).toEqual([]);
  expect([...(await engine.step(next(22))).slots]).toEqual([]);
  // Again, but for a step that is taken back: nothing of it is seen.
  const again = engine.step({ ...first, closes: Int32Array.of(0) });
  const waiting = engine.step({ ...next(20), tokens: Int32Array.of(0) });
  const outcome = waiting.then(
    () => 'ran',
    (error: Error) => error.message,
  );
  const retracted = engine.retract?.() === true;
  const other = retracted ? engine.step(next(20)) : null;
  expect([...(await again).tokens]).toEqual(tokens[0]);
  expect(await outcome).toBe(retracted ? 'the step was taken back' : 'ran');
  if (other) expect([...(await other).tokens]).toEqual(tokens[1]);
  // What was taken back counts for one.
  const two = [engine.step(next(21)), engine.step(next(22))];
  await expect(engine.step(next(23))).rejects.toThrow('another one waits');
  await Promise.all(two);
  engine.close();
  model.close();
});

test('pages are written once the steps that were given before have ended', async () => {
  const { engine, model } = await bareEngine();
  const { first, next } = stepsOfOne(40);
  const [before] = await Promise.all([engine.readPages(Int32Array.of(1)), engine.step(first)]);
  const bytes = before.map((_, index) => (index % 2 === 0 ? 0 : 63));
  for (let position = 20; position < 32; position += 2) {
    // Both steps write into the page that is written then.
    const steps = [engine.step(next(position)), engine.step(next(position + 1))];
    await Promise.all([...steps, engine.writePages(Int32Array.of(1), bytes)]);
    expect(await engine.readPages(Int32Array.of(1))).toEqual(bytes);
  }
  engine.close();
  model.close();
});
