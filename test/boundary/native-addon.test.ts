/**
 * The native boundary under hostile calls. Everything runs in child processes: an abort or a crash shows as their exit, and the
 * scripts themselves check that the addon still works afterwards.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { describeModel, runChild } from '../fixtures/child.ts';
import { temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';

const temporary = temporaryDirectory();
const script = (name: string) => fileURLToPath(new URL(name, import.meta.url));
let description: object;

beforeAll(async () => {
  writeFamily(join(temporary.path, 'model'), 'qwen2');
  description = await describeModel(join(temporary.path, 'model'), 'bfloat16');
});
afterAll(() => temporary.remove());

async function output(name: string, input: unknown): Promise<unknown> {
  const { code, signal, stdout, stderr } = await runChild(script(name), input, { nodeArgs: ['--expose-gc'] });
  expect({ code, signal, stderr }).toEqual({ code: 0, signal: null, stderr: '' });
  return JSON.parse(stdout);
}

test('every field of every entry takes every hostile value without harm', async () => {
  const ends = (await output('native-fuzz.mjs', description)) as Record<string, number>;
  expect(ends['TypeError']).toBeGreaterThan(1000);
  expect(ends['RangeError']).toBeGreaterThan(300);
  // Some replacements are values like any other (a seed, a number of layers that is the same, extra arguments of info).
  expect(ends['accepted']).toBeGreaterThan(0);
});

test('worker threads load, step, compile, end, and are terminated in the midst', async () => {
  const sampled = (await output('native-threads.mjs', description)) as number[];
  expect(sampled).toHaveLength(42);
  expect(new Set(sampled).size).toBe(1);
});

/** Names of cases that are no errors; everything else must be refused. */
const FINE = [
  'cache in a folder that is not there',
  'onProgress throws',
  'step after the model is closed',
  'the step that ran',
  'the step that waited',
  'the next step',
  'step without this',
  'a plan that steps its engine',
  'close of an idle slot',
  'four engines of a model at once',
  '30 steps of engines that nobody holds',
];
/**
 * A call at the wrong time, or for what this machine lacks, is an Error, a value of the wrong kind a TypeError, any
 * other wrong value a RangeError.
 */
const STATE =
  /^(engine of a closed model|step after close|pages (read|written) after close|a third step|a plan that closes its engine)$/;
const LACKING = /^quantize for a device$/;
const IO = /^file (missing|is a directory|is a device|is a pipe|is empty|truncated)$/;
const TYPE = /detache|a plain array|of another type|^engine of|onProgress no function|stopIds 1$|seed 5$/;

describe('calls whose outcome is fixed', () => {
  let outcomes: [string, string][];
  beforeAll(async () => {
    const scratch = join(temporary.path, 'scratch');
    mkdirSync(scratch);
    outcomes = (await output('native-cases.mjs', { description, scratch })) as [string, string][];
  });

  test('good calls are good', () => {
    const fine = outcomes.filter(([name]) => FINE.includes(name));
    expect(fine).toEqual(FINE.map((name) => [name, 'ok']));
  });

  test('bad calls are refused with the right class and a plain sentence', () => {
    // A close may overtake a step that has not begun, or wait for one that has.
    const bad = outcomes.filter(([name]) => !FINE.includes(name) && name !== 'a step that close overtook');
    const wrong = bad.filter(([name, outcome]) => {
      if (STATE.test(name)) return !/^Error: .*(closed|running|waits)/.test(outcome);
      if (LACKING.test(name)) return !/^Error: \w.* needs device cuda/.test(outcome);
      if (IO.test(name)) return !/^(Range)?Error: [^/]+$/.test(outcome);
      if (TYPE.test(name)) return !/^TypeError: \w/.test(outcome);
      if (name === 'a getter that throws') return outcome !== 'Error: mine';
      return !/^RangeError: \w/.test(outcome);
    });
    expect(wrong).toEqual([]);
    expect(bad.length).toBeGreaterThan(100);
  });
});
