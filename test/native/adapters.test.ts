/** Adapters against PEFT's logits, and what of them the engine promises bit by bit. */
import { readFileSync } from 'node:fs';
import { afterAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import { adapterTable } from '../../src/control/engine/adapter-table.ts';
import { loadNative, type AdapterSource, type NativeAdapter } from '../../src/control/engine/native.ts';
import { readAdapterFiles } from '../../src/control/models/adapter-files.ts';
import { adapterTensor, writeAdapter, writeAdapterFiles } from '../fixtures/adapters.ts';
import { Driver, fullLogprobs, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';
import { familyGoldens, logitError, TOLERANCE } from './logit-error.ts';

interface AdapterGolden {
  family: string;
  positions: number[];
  config: Record<string, unknown>;
  tensors: Record<string, number[]>;
  F32: string;
  BF16: string;
}

const goldens = JSON.parse(readFileSync(new URL('../goldens/adapter-goldens.json', import.meta.url), 'utf8')) as Record<
  string,
  AdapterGolden
>;

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

function goldenRows(golden: AdapterGolden, dtype: 'F32' | 'BF16'): Float32Array[] {
  const bytes = Buffer.from(golden[dtype], 'base64');
  const all = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const vocab = all.length / golden.positions.length;
  return golden.positions.map((_, row) => all.subarray(row * vocab, (row + 1) * vocab));
}

async function load(opened: OpenModel, directory: string, scale = 1): Promise<NativeAdapter> {
  const { files, tensors, factors } = await readAdapterFiles(directory, { spec: opened.files.spec, maxRank: 64 });
  const scaled = factors.map((each) => ({ ...each, scale: each.scale * scale }));
  return loadNative().loadAdapter(opened.model, { files, table: adapterTable(tensors, scaled) });
}

async function logits(opened: OpenModel, golden: AdapterGolden, adapter: NativeAdapter | undefined) {
  const { tokens } = familyGoldens[golden.family]!;
  const vocab = opened.files.spec.vocabSize;
  const driver = new Driver(opened);
  golden.positions.forEach((position, slot) =>
    driver.open(slot, position + 1, { logprobs: vocab }, undefined, undefined, adapter),
  );
  const rows = golden.positions.map((position, slot) => ({ slot, tokens: tokens.slice(0, position + 1) }));
  const samples = await driver.step(rows);
  driver.engine.close();
  return samples.map((sample) => fullLogprobs(sample, vocab));
}

describe.each(Object.entries(goldens))('%s', (name, golden) => {
  test.each([
    ['F32', 'float32', TOLERANCE.F32],
    ['BF16', 'bfloat16', TOLERANCE.BF16],
  ] as const)('%s weights agree with PEFT', async (stored, dtype, tolerance) => {
    const model = join(temporary.path, `${golden.family}-${stored}`);
    writeFamily(model, golden.family, { dtype: stored });
    const folder = join(temporary.path, `${name}-${stored}`);
    const tensors = Object.entries(golden.tensors).map(([tensor, shape]) => adapterTensor(name, tensor, shape));
    writeAdapterFiles(folder, golden.config, tensors, stored);
    const opened = await openModel(model, dtype);
    try {
      const expected = goldenRows(golden, stored);
      const adapter = await load(opened, folder);
      expect(logitError(await logits(opened, golden, adapter), expected)).toBeLessThanOrEqual(tolerance);
      // The comparison sees the adapter and its scale.
      expect(logitError(await logits(opened, golden, undefined), expected)).toBeGreaterThan(0.1);
      const weaker = await load(opened, folder, 0.8);
      expect(logitError(await logits(opened, golden, weaker), expected)).toBeGreaterThan(2 * tolerance);
    } finally {
      opened.model.close();
    }
  });
});

describe('the addon', () => {
  async function tiny(): Promise<OpenModel> {
    const directory = join(temporary.path, 'tiny');
    writeFamily(directory, 'qwen3');
    return openModel(directory, 'bfloat16');
  }

  test('an identity adapter gives the bits of the base model', async () => {
    const opened = await tiny();
    const folder = writeAdapter(join(temporary.path, 'identity'), opened.files.spec, { seed: 'i', identity: true });
    const golden = goldens['all']!;
    expect(await logits(opened, golden, await load(opened, folder))).toEqual(await logits(opened, golden, undefined));
    opened.model.close();
  });

  test('refuses what it is not given by the reader', async () => {
    const opened = await tiny();
    const { loadAdapter } = loadNative();
    const { hiddenSize } = opened.files.spec;
    const factors = (changes: object) => ({
      factors: [
        {
          layer: 0,
          module: 'down',
          rank: 2,
          scale: 1,
          a: new Float32Array(2 * opened.files.spec.intermediateSize),
          b: new Float32Array(2 * hiddenSize),
          ...changes,
        },
      ],
    });
    const cases: [object, string][] = [
      [{ layer: 99 }, 'no layers.99.mlp.down_proj'],
      [{ module: 'lm_head' }, 'module must be'],
      [{ rank: 1e6 }, 'rank must be in 1..1024'],
      [{ rank: 3 }, 'lora_A has the wrong size'],
      [{ scale: NaN }, 'scale is not finite'],
      [{ b: new Float32Array(2 * hiddenSize).fill(Infinity) }, 'lora_B holds a number that is not finite'],
      [{ b: [1, 2] }, 'b must be a Float32Array'],
    ];
    for (const [changes, message] of cases) {
      const call = async () => loadAdapter(opened.model, factors(changes) as AdapterSource);
      await expect(call()).rejects.toThrow(message);
    }
    const call = async () => loadAdapter({} as never, factors({}) as AdapterSource);
    await expect(call()).rejects.toThrow('model must be a loaded model');
    opened.model.close();
  });

  test('refuses a table that its reader does not make', async () => {
    const opened = await tiny();
    const folder = writeAdapter(join(temporary.path, 'table'), opened.files.spec, { seed: 't' });
    const { files, tensors, factors } = await readAdapterFiles(folder, { spec: opened.files.spec, maxRank: 64 });
    const table = adapterTable(tensors, factors);
    const changed = (column: number, value: number) => {
      const copy = table.slice();
      copy[column] = value;
      return { files, table: copy };
    };
    const cases: [AdapterSource | object, string][] = [
      [{ files, table: table.slice(0, -1) }, 'table must hold 14 numbers per pair'],
      [{ files, table: [...table] }, 'table must be a Float64Array'],
      [{ files: [...files, 7], table }, 'files must hold strings'],
      [changed(0, 99), 'no layers.99'],
      [changed(0, 0.5), 'table must hold whole numbers'],
      [changed(0, NaN), 'table must hold whole numbers'],
      [changed(1, 7), 'module must be in 0..6'],
      [changed(1, -1), 'module must be in 0..6'],
      [changed(2, 1e6), 'rank must be in 1..1024'],
      [changed(3, Infinity), 'scale is not finite'],
      [changed(4, 1), 'names no file'],
      [changed(5, 3), 'dtype must be in 0..2'],
      [changed(6, 1), 'has the wrong shape'],
      [changed(7, 2 ** 53), 'impossible shape'],
      [changed(8, 2 ** 52), 'lies outside its file'],
      [changed(13, -2), 'lies outside its file'],
    ];
    for (const [source, message] of cases) {
      const call = async () => loadNative().loadAdapter(opened.model, source as AdapterSource);
      await expect(call(), message).rejects.toThrow(new RegExp(message));
    }
    const twice = Float64Array.from([...table, ...table.slice(0, 14)]);
    const call = async () => loadNative().loadAdapter(opened.model, { files, table: twice });
    await expect(call()).rejects.toThrow('twice');
    opened.model.close();
  });

  test('a closed or foreign adapter cannot be opened; a slot keeps one that is closed later', async () => {
    const opened = await tiny();
    const other = await tiny();
    const folder = writeAdapter(join(temporary.path, 'kept'), opened.files.spec, { seed: 'k' });
    const adapter = await load(opened, folder);
    const foreign = await load(other, folder);
    const driver = new Driver(opened);
    driver.open(0, 1, { logprobs: 0 }, undefined, undefined, foreign);
    await expect(driver.step([{ slot: 0, tokens: [1] }])).rejects.toThrow('not of this model');
    const second = new Driver(opened);
    second.open(0, 1, { logprobs: 0 }, undefined, undefined, adapter);
    const [first] = await second.step([{ slot: 0, tokens: [1] }]);
    adapter.close();
    adapter.close();
    const [next] = await second.step([{ slot: 0, tokens: [-1] }]);
    expect(first!.finish + next!.finish).toBe(0);
    second.open(1, 1, {}, undefined, undefined, adapter);
    await expect((async () => second.step([{ slot: 1, tokens: [1] }]))()).rejects.toThrow('the adapter is closed');
    driver.engine.close();
    second.engine.close();
    opened.model.close();
    other.model.close();
  });
});
