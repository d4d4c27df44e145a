/** A constrained sequence that is fed again goes on as if nothing had happened: its grammar's state follows from its tokens. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { loadNative, PAGE_SIZE, type SamplingSpec } from '../../src/control/engine/native.ts';
import type { NativeConstraint, NativeProgram } from '../../src/control/engine/native-grammar.ts';
import { GENERATE } from '../../src/control/grammar/compile.ts';
import { Driver, openModel, type OpenModel, type Sample } from '../fixtures/engine-driver.ts';
import { temporaryDirectory, writeRandomModel } from '../fixtures/tiny-model.ts';

const VOCABULARY = 320;
const PROMPT = Array.from({ length: PAGE_SIZE - 3 }, (_, i) => 40 + i);
const directory = temporaryDirectory();
const addon = loadNative();
let open: OpenModel;
let grammar: NativeProgram;

beforeAll(async () => {
  writeRandomModel(directory.path, { num_hidden_layers: 1 });
  open = await openModel(directory.path, 'float32');
  const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
  const offsets = Int32Array.from({ length: VOCABULARY + 1 }, (_, i) => Math.min(i, 256));
  const vocabulary = await addon.createVocabulary(bytes, offsets, new Int32Array(0));
  const source = { kind: 'regex', text: '(0a1b|2c3d|4e5f){4,}!' } as const;
  const compiled = await addon.compileProgram(source, GENERATE, vocabulary).result;
  if ('keyword' in compiled) throw new Error(compiled.message);
  grammar = compiled;
});
afterAll(() => {
  open.model.close();
  directory.remove();
});

const sampling: Partial<SamplingSpec> = {
  temperature: 1,
  seed: 9n,
  maxTokens: 30,
  logprobs: 0,
  stopIds: Int32Array.of(300),
};

/** The grammar after these outputs. */
function after(outputs: number[] = []): NativeConstraint {
  const constraint = grammar.constrain({ stopIds: Int32Array.of(300), maxTokens: 30, jumps: false });
  constraint.take(Int32Array.from(outputs));
  return constraint;
}

async function goOn(driver: Driver, samples: Sample[], until: number): Promise<void> {
  while (samples.length < until && samples.at(-1)?.finish === 0)
    samples.push(...(await driver.step([{ slot: 0, tokens: [-1] }])));
}

test('at every output, fed again or found in pages', async () => {
  const driver = new Driver(open);
  driver.open(0, PROMPT.length, sampling, undefined, undefined, undefined, after());
  const whole = await driver.step([{ slot: 0, tokens: PROMPT }]);
  await goOn(driver, whole, 30);
  const text = String.fromCharCode(...whole.map(({ token }) => token));
  expect(text).toMatch(/^(0a1b|2c3d|4e5f){4,}!$/);
  expect(whole.at(-1)?.finish).toBe(4);
  for (let known = 1; known < whole.length; known++) {
    const tokens = [...PROMPT, ...whole.slice(0, known).map(({ token }) => token)];
    // From the page boundary on, where one lies among the outputs.
    const cached = tokens.length > PAGE_SIZE && known % 2 === 0 ? PAGE_SIZE : 0;
    const pages = driver.pagesOf(0).slice(0, cached / PAGE_SIZE);
    const prefix = { tokens: tokens.slice(0, cached), pages };
    driver.open(1, PROMPT.length, sampling, prefix, undefined, undefined, after(tokens.slice(PROMPT.length)));
    const [next] = await driver.step([{ slot: 1, tokens: tokens.slice(cached) }]);
    expect(next).toMatchObject({ token: whole[known]?.token, finish: whole[known]?.finish });
    expect(next?.logprob).toBe(whole[known]?.logprob);
    driver.close(1);
  }
  driver.engine.close();
});

test('tokens that do not fit the grammar end the sequence, not the step', async () => {
  const driver = new Driver(open);
  driver.open(0, PROMPT.length, sampling, undefined, undefined, undefined, after([88, 88]));
  driver.open(1, PROMPT.length, sampling);
  const samples = await driver.step([
    { slot: 0, tokens: [...PROMPT, 88, 88] },
    { slot: 1, tokens: PROMPT },
  ]);
  expect(samples[0]).toMatchObject({ finish: 6, token: -1 });
  expect(samples[1]?.finish).toBe(0);
  driver.engine.close();
});

test('only what a program made is taken', async () => {
  const driver = new Driver(open);
  const copied = { ...after() };
  driver.open(0, PROMPT.length, sampling, undefined, undefined, undefined, copied);
  await expect(async () => driver.step([{ slot: 0, tokens: PROMPT }])).rejects.toThrow('constrain');
  driver.engine.close();
});
