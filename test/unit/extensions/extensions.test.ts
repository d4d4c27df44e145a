/** Extension modules: loading, checking arguments, and what their answers become. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { ExtensionArgumentError, type Extensions } from '../../../src/control/extensions/extensions.ts';
import type { ExtensionArguments } from '../../../src/control/extensions/extension.ts';
import { loadExtensions } from '../../../src/control/extensions/load.ts';
import type { Advice } from '../../../src/control/scheduler/advice.ts';
import { temporaryDirectory } from '../models/model-directory.ts';
import { request } from '../scheduler/drive.ts';

const MODULE = fileURLToPath(new URL('../../fixtures/extensions.mjs', import.meta.url));
const EXAMPLE = fileURLToPath(new URL('../../../examples/extensions/thinking-budget.mjs', import.meta.url));
const VOCABULARY = 1000;

let extensions: Extensions;
beforeAll(async () => {
  extensions = await loadExtensions({ modules: [MODULE, EXAMPLE], timeoutMs: 500 }, VOCABULARY);
});

function open(values: ExtensionArguments, allowedIds?: Int32Array) {
  const asked = request(1, 20, allowedIds && { allowedIds });
  const adviser = extensions.open({ ...asked, extensionArguments: values });
  if (!adviser) throw new Error('no adviser');
  return adviser;
}

function caught(work: () => void): unknown {
  try {
    work();
  } catch (error) {
    return error;
  }
  return undefined;
}

/** What these extensions wish after each of these outputs. */
function advise(values: ExtensionArguments, outputs: number[][], allowedIds?: Int32Array): Advice[] {
  const adviser = open(values, allowedIds);
  return outputs.flatMap((tokens) => extensions.advise([{ adviser, outputs: Int32Array.from(tokens) }]));
}

describe('a module', () => {
  const load = async (text: string) => {
    const path = join(temporaryDirectory(), 'module.mjs');
    writeFileSync(path, text);
    return loadExtensions({ modules: [path], timeoutMs: 100 }, VOCABULARY);
  };
  it.each([
    ['syntax', 'export const = 1', 'module.mjs: '],
    ['no export', 'export const other = {}', "must export 'extensions'"],
    ['an empty export', 'export const extensions = {}', 'are empty'],
    ['a bad name', "export const extensions = { 'a b': { create() {} } }", "'a b' is no name"],
    ['no create', 'export const extensions = { a: {} }', "'a' must have a function 'create'"],
    ['a check that is none', 'export const extensions = { a: { create() {}, check: 1 } }', "'check' must be one"],
    ['a throw', "throw new Error('at once')", 'at once'],
  ])('with %s is refused by name', async (_, text, message) => {
    await expect(load(text)).rejects.toThrow(message);
    await expect(load(text)).rejects.toThrow('--engine-extension');
  });
  it('that never loads is refused by name', async () => {
    const path = join(temporaryDirectory(), 'waits.mjs');
    writeFileSync(path, 'await new Promise(() => {}); export const extensions = {};');
    const loading = loadExtensions({ modules: [path], timeoutMs: 100 }, VOCABULARY, 50);
    await expect(loading).rejects.toThrow('waits.mjs: it did not load within 50 ms');
  });
  it('that is not there, or twice', async () => {
    await expect(loadExtensions({ modules: ['./nowhere.mjs'], timeoutMs: 1 }, 1)).rejects.toThrow('nowhere.mjs');
    await expect(loadExtensions({ modules: [MODULE, MODULE], timeoutMs: 1 }, 1)).rejects.toThrow("an extension 'say'");
  });
  it('adds its names', () => {
    expect(extensions.names).toEqual(expect.arrayContaining(['say', 'thinking_budget', 'stop_on_tokens']));
  });
});

describe('arguments', () => {
  it.each<[ExtensionArguments, string]>([
    [{ a: 1, say: [1] }, 'No extension of this server takes these arguments: "a".'],
    [{ say: 'x' }, 'say: give token ids.'],
    [{ thinking_budget: [1] }, 'thinking_budget: give [budget'],
    [{ check_hangs: 1 }, 'check_hangs: It ran longer than 500 ms.'],
    [{ check_throws_no_text: 1 }, 'check_throws_no_text: it threw something that has no text.'],
    [{ constructor: 1 }, 'No extension'],
  ])('%j are refused', (values, message) => {
    const refused = caught(() => extensions.check(values));
    expect(refused).toBeInstanceOf(ExtensionArgumentError);
    expect((refused as Error).message).toContain(message);
  });
  it('that fit are taken', () => {
    extensions.check({ say: [1], stop_on_tokens: [1, 2], lean: [1, 2] });
    expect(extensions.open(request(1, 5))).toBeNull();
    expect(() => open({ unknown: 1 })).toThrow("no extension 'unknown'");
  });
});

describe('advice', () => {
  it('restricts, biases and stops', () => {
    expect(advise({ say: [7, 9] }, [[], [7], [7, 9]])).toEqual([
      { control: { allowedIds: Int32Array.of(7) } },
      { control: { allowedIds: Int32Array.of(9) } },
      { stop: 'said' },
    ]);
    expect(advise({ lean: [5, 3] }, [[]])).toEqual([
      { control: { biasIds: Int32Array.of(5), biasValues: Float32Array.of(3) } },
    ]);
    expect(advise({ lean: [5, 1e9] }, [[]])).toMatchObject([{ control: { biasValues: Float32Array.of(100) } }]);
  });

  it('of several extensions is joined', () => {
    expect(advise({ say: [7, 9], lean: [7, 1] }, [[], [7, 9]])).toEqual([
      { control: { allowedIds: Int32Array.of(7), biasIds: Int32Array.of(7), biasValues: Float32Array.of(1) } },
      { stop: 'said' },
    ]);
    const [both] = advise({ say: [7], thinking_budget: [0, 8] }, [[]]);
    expect(both).toEqual({ stop: 'no_token_allowed' });
    expect(advise({ thinking_budget: [0, 8], stop_on_tokens: [8] }, [[], [8]])).toMatchObject([
      { control: { allowedIds: Int32Array.of(8) } },
      { stop: 'stop_on_tokens' },
    ]);
  });

  it('of the example: a budget of reasoning, and a stop by tokens', () => {
    expect(advise({ thinking_budget: [2, 50] }, [[], [1], [1, 2], [1, 2, 50], [50, 1, 2]])).toEqual([
      { control: null },
      { control: null },
      { control: { allowedIds: Int32Array.of(50) } },
      { control: null },
      { control: null },
    ]);
    expect(advise({ stop_on_tokens: [4, 5] }, [[], [5], [4, 5, 6], [1, 4, 5]])).toEqual([
      { control: null },
      { control: null },
      { control: null },
      { stop: 'stop_on_tokens' },
    ]);
  });

  it.each([
    ['throws', "The extension 'throws' failed: as it was asked to"],
    ['promises', 'synchronous'],
    ['nonsense', 'names -5, which is no token id below 1000'],
    ['unnamed', 'its bias names , which is no token id below 1000'],
    ['nothing', 'it allows no token'],
    ['misspelt', "unknown field 'alowed'"],
    ['hangs', 'took longer than 500 ms'],
    ['throws_no_text', "'throws_no_text' failed: it threw something that has no text."],
    ['create_throws', "'create_throws' failed: not today"],
    ['create_empty', "has no function 'step'"],
  ])('of one that %s is an error', (name, message) => {
    const [advice] = advise({ [name]: 1 }, [[1, 2]]);
    expect(advice && 'error' in advice && advice.error).toContain(message);
  });

  it('contradicting allowed_token_ids ends the choice as other contradictions of a request do', () => {
    expect(advise({ say: [7] }, [[]], Int32Array.of(8))).toEqual([{ stop: 'no_token_allowed' }]);
    expect(advise({ say: [7] }, [[]], Int32Array.of(7, 8))).toMatchObject([{ control: {} }]);
  });

  it('of a batch: one that hangs fails alone, whatever its place', () => {
    const names = ['lean', 'throws', 'hangs', 'say', 'lean', 'lean', 'lean', 'lean', 'hangs', 'lean', 'throws'];
    const outputs = Int32Array.of(1, 2);
    const questions = names.map((name) => ({ adviser: open({ [name]: [3, 4, 5] }), outputs }));
    const kinds = extensions.advise(questions).map((advice) => Object.keys(advice)[0]);
    expect(kinds).toEqual(names.map((name) => (name === 'throws' || name === 'hangs' ? 'error' : 'control')));
  });

  it('of a batch: one that others have left no time is asked again', async () => {
    const hasty = await loadExtensions({ modules: [MODULE], timeoutMs: 400 }, VOCABULARY);
    const asked = [{ spins: 3000 }, { hangs_at_first: 1 }, ...Array<ExtensionArguments>(6).fill({ lean: [3, 4] })];
    const outputs = Int32Array.of(1, 2);
    const questions = asked.map((extensionArguments) => {
      return { adviser: hasty.open({ ...request(1, 20), extensionArguments }) ?? {}, outputs };
    });
    expect(hasty.advise(questions).filter((advice) => 'error' in advice)).toEqual([]);
    delete (globalThis as { hungOnce?: boolean }).hungOnce;
  });

  it('of a batch: behind one that hangs, the next one that does is stopped at its own limit', async () => {
    const hasty = await loadExtensions({ modules: [MODULE], timeoutMs: 100 }, VOCABULARY);
    const names = ['hangs_noted', 'hangs_noted', 'lean', 'lean', 'lean', 'lean', 'lean', 'lean'];
    const outputs = Int32Array.of(1, 2);
    const questions = names.map((name) => {
      const adviser = hasty.open({ ...request(1, 20), extensionArguments: { [name]: [3, 4] } });
      return { adviser: adviser ?? {}, outputs };
    });
    const noted = globalThis as { hangMs?: number[] };
    noted.hangMs = [];
    expect(hasty.advise(questions).map((advice) => 'error' in advice)).toEqual(names.map((name) => name !== 'lean'));
    // The first had what all eight may take.
    expect(noted.hangMs[0]).toBeGreaterThan(600);
    expect(noted.hangMs[1]).toBeLessThan(500);
    delete noted.hangMs;
  });
});

describe('an argument', () => {
  it('cannot be changed under the other choices that are given it', () => {
    const values = { takes: [7, 8, 9] };
    const asked = { ...request(1, 20), extensionArguments: values };
    const choices = [extensions.open(asked) ?? {}, extensions.open(asked) ?? {}];
    for (const advice of extensions.advise(choices.map((adviser) => ({ adviser, outputs: Int32Array.of() }))))
      expect(advice).toEqual({ error: expect.stringContaining("The extension 'takes' failed: Cannot") as string });
    const unopened = { takes: [7, 8, 9] };
    expect(caught(() => extensions.check(unopened))).toBeInstanceOf(ExtensionArgumentError);
    for (const each of [values, unopened]) expect(each).toEqual({ takes: [7, 8, 9] });
  });
});
