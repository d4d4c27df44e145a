/** Folders of adapters are hostile input: what cannot be served is refused by name, before its numbers are read. */
import { appendFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import type { ModelSpec } from '../../../src/control/engine/native.ts';
import { readAdapterFiles } from '../../../src/control/models/adapter-files.ts';
import { adapterVersion, holdsVersion } from '../../../src/control/models/adapter-version.ts';
import { EngineUnavailableError } from '../../../src/control/engine/client.ts';
import { AdapterRegistry } from '../../../src/control/models/adapter-registry.ts';
import { peftName, writeAdapter, type AdapterPlan } from '../../fixtures/adapters.ts';
import { temporaryDirectory } from '../../fixtures/tiny-model.ts';

const spec = {
  layers: 2,
  hiddenSize: 32,
  intermediateSize: 48,
  heads: 4,
  kvHeads: 2,
  headDim: 8,
} as ModelSpec;
const temporary = temporaryDirectory();
afterAll(() => temporary.remove());
let folders = 0;

function adapter(plan: Partial<AdapterPlan> = {}): string {
  return writeAdapter(join(temporary.path, String(folders++)), spec, { seed: 'a', ...plan });
}

const read = (directory: string) => readAdapterFiles(directory, { spec, maxRank: 64 });

/** Keeps the safetensors header's lengths and replaces a text in it by one as long. */
function patch(directory: string, from: string, to: string): string {
  const file = join(directory, 'adapter_model.safetensors');
  const bytes = readFileSync(file, 'latin1');
  expect(bytes).toContain(from);
  writeFileSync(file, bytes.replace(from, to), 'latin1');
  return directory;
}

test('a plain adapter: one entry per projection with its scale', async () => {
  const found = await read(adapter({ rank: 4, alpha: 12, modules: ['q', 'down'] }));
  expect(found.factors).toHaveLength(4);
  expect(found.factors[0]).toEqual({
    layer: 0,
    module: 'q',
    rank: 4,
    scale: 3,
    a: peftName(0, 'q', 'A'),
    b: peftName(0, 'q', 'B'),
  });
});

test('rslora divides by the root of the rank; patterns change single modules', async () => {
  const rslora = await read(adapter({ rank: 16, alpha: 8, config: { use_rslora: true } }));
  expect(new Set(rslora.factors.map(({ scale }) => scale))).toEqual(new Set([2]));
  // As PEFT has it: behind ^ a key is the whole name, so one of them is that of no module; a dot is any character.
  const alphas = {
    'layers.1.mlp.down_proj': 2,
    '^model.layers.0.self_attn.q_proj': 4,
    '^down_proj': 32,
    'v.pro.': 6,
    '.self_attn.k_proj': 32,
    proj: 32,
  };
  const config = { alpha_pattern: alphas };
  const { factors } = await read(adapter({ rank: 8, alpha: 16, config }));
  const scaleOf = (layer: number, module: string) =>
    factors.find((each) => each.layer === layer && each.module === module)?.scale;
  expect([scaleOf(1, 'down'), scaleOf(0, 'down'), scaleOf(0, 'q'), scaleOf(1, 'q')]).toEqual([0.25, 2, 0.5, 2]);
  expect([scaleOf(0, 'v'), scaleOf(1, 'v'), scaleOf(0, 'k')]).toEqual([0.75, 0.75, 2]);
  // A rank of its own must show in the tensors.
  await expect(read(adapter({ config: { rank_pattern: { q_proj: 3 } } }))).rejects.toThrow('has shape [8,32]');
});

test('options that mean nothing are accepted, whatever the version of PEFT', async () => {
  const config = {
    task_type: 'CAUSAL_LM',
    inference_mode: true,
    lora_dropout: 0.1,
    init_lora_weights: 'gaussian',
    modules_to_save: [],
    use_dora: false,
    some_later_option: null,
    another: {},
    loftq_config: {},
  };
  await expect(read(adapter({ config }))).resolves.toBeDefined();
  await expect(read(adapter({ config: { target_modules: 'all-linear' } }))).resolves.toBeDefined();
});

/** Every layer, or the second one alone, with experts. */
function mixture(layers: [number, number]): ModelSpec {
  return { ...spec, experts: { count: 4, used: 2, size: 16, normalise: true, layers: Uint8Array.from(layers) } };
}

test('targets that no layer has need no factors: PEFT keeps their names', async () => {
  const config = { target_modules: ['q_proj', 'v_proj', 'gate_proj', 'down_proj'] };
  const folder = adapter({ modules: ['q', 'v'], config });
  const found = await readAdapterFiles(folder, { spec: mixture([1, 1]), maxRank: 64 });
  expect(found.factors).toHaveLength(4);
  await expect(readAdapterFiles(folder, { spec: mixture([0, 1]), maxRank: 64 })).rejects.toThrow('"gate_proj"');
  await expect(read(folder)).rejects.toThrow('"gate_proj"');
});

test.each([
  [['v_proj', 'layers.0.mlp.gate_proj'], undefined],
  ['.*(v|gate)_proj', undefined],
  [['v_proj'], '"gate_proj"'],
  [7, 'exclude_modules must be a list'],
])('targets that exclude_modules takes out again need no factors: %j', async (excluded, problem) => {
  const config = { target_modules: ['q_proj', 'v_proj', 'gate_proj'], exclude_modules: excluded };
  const found = read(adapter({ modules: ['q'], config }));
  if (problem !== undefined) await expect(found).rejects.toThrow(problem);
  else expect((await found).factors).toHaveLength(2);
});

const REFUSED: [string, Record<string, unknown>, string][] = [
  ['another kind', { peft_type: 'IA3' }, 'peft_type must be "LORA"'],
  ['a huge rank', { r: 1_000_000 }, 'r must be an integer in [1, 64]'],
  ['a rank that is no number', { r: '8' }, 'r must be an integer'],
  ['rank 0', { r: 0 }, 'r must be an integer'],
  ['no rank', { r: null }, 'r is missing'],
  ['a huge alpha', { lora_alpha: 1e300 }, 'lora_alpha must be a number'],
  ['alpha as text', { lora_alpha: 'NaN' }, 'lora_alpha must be a number'],
  ['a negative alpha', { lora_alpha: -1 }, 'lora_alpha must be a number'],
  ['DoRA', { use_dora: true }, 'use_dora is set: DoRA'],
  ['modules_to_save', { modules_to_save: ['lm_head'] }, 'modules_to_save is set'],
  ['a bias', { bias: 'all' }, 'bias must be "none"'],
  ['lora_bias', { lora_bias: true }, 'lora_bias is set'],
  ['code', { auto_map: { AutoModel: 'evil.Model' } }, 'auto_map is set: code'],
  ['trained tokens', { trainable_token_indices: [1] }, 'trainable_token_indices is set'],
  ['transposed weights', { fan_in_fan_out: true }, 'fan_in_fan_out must be false'],
  ['changed base weights', { init_lora_weights: 'pissa_niter_16' }, 'changes the base weights'],
  ['an unknown option that is set', { use_quantum_lora: true }, 'use_quantum_lora is true, an option that is not'],
  ['targets it has no factors of', { target_modules: ['q_proj', 'lm_head'] }, 'has no factors of "lm_head"'],
  ['factors beside the targets', { target_modules: ['q_proj'] }, 'which target_modules does not name'],
  ['a pattern as a regular expression', { rank_pattern: { '(a+)+$': 4 } }, 'only ends of module names'],
  ['a pattern with a huge rank', { rank_pattern: { q_proj: 1e9 } }, 'has the value 1000000000'],
];

test.each(REFUSED)('%s is refused', async (_, config, message) => {
  await expect(read(adapter({ config }))).rejects.toThrow(message);
});

const TENSORS: [string, AdapterPlan['edit'], string][] = [
  ['an unknown module', (all) => rename(all, 0, 'base_model.model.lm_head.lora_A.weight'), 'only LoRA factors of'],
  [
    'a projection of the wrong block',
    (all) => rename(all, 0, 'base_model.model.model.layers.0.mlp.q_proj.lora_A.weight'),
    'only LoRA factors of',
  ],
  ['a base weight', (all) => rename(all, 0, 'model.layers.0.self_attn.q_proj.weight'), 'only LoRA factors of'],
  ['a DoRA vector', (all) => rename(all, 0, `${peftName(0, 'q', 'A')}.lora_magnitude_vector`), 'only LoRA factors'],
  ['a layer too many', (all) => rename(rename(all, 0, peftName(7, 'q', 'A')), 1, peftName(7, 'q', 'B')), '2 layers'],
  ['half a pair', (all) => all.slice(1), 'only one of the two factors'],
  ['nothing', () => [], 'holds no LoRA factors'],
  ['a wrong shape', (all) => [{ ...all[0]!, shape: [32, 8] }, ...all.slice(1)], 'has shape [32,8]'],
  ['another rank than it says', (all) => [{ ...all[0]!, shape: [4, 64] }, ...all.slice(1)], 'has shape [4,64]'],
  ['a flat tensor', (all) => [{ ...all[0]!, shape: [256] }, ...all.slice(1)], 'has shape [256]'],
];

function rename<T extends { name: string }>(all: T[], index: number, name: string): T[] {
  return all.map((each, at) => (at === index ? { ...each, name } : each));
}

test.each(TENSORS)('%s is refused', async (_, edit, message) => {
  await expect(read(adapter({ ...(edit && { edit }) }))).rejects.toThrow(message);
});

test('an alpha that overflows to infinity is refused', async () => {
  const folder = adapter();
  const file = join(folder, 'adapter_config.json');
  writeFileSync(file, readFileSync(file, 'utf8').replace('"lora_alpha":16', '"lora_alpha":1e999'));
  await expect(read(folder)).rejects.toThrow('lora_alpha must be a number');
});

test('a dtype that is not computed with is refused', async () => {
  const folder = adapter({ dtype: 'BF16' });
  await expect(read(patch(folder, '"dtype":"BF16"', '"dtype":"I16" '))).rejects.toThrow('has dtype I16');
});

test('a truncated or padded file is refused', async () => {
  const folder = adapter();
  appendFileSync(join(folder, 'adapter_model.safetensors'), 'x');
  await expect(read(folder)).rejects.toThrow('its header describes');
  const short = adapter();
  const file = join(short, 'adapter_model.safetensors');
  writeFileSync(file, readFileSync(file).subarray(0, -1));
  await expect(read(short)).rejects.toThrow('outside the file');
});

test('pickles, missing files and missing folders', async () => {
  const folder = adapter();
  rmSync(join(folder, 'adapter_model.safetensors'));
  await expect(read(folder)).rejects.toThrow('adapter_model.safetensors: is missing');
  writeFileSync(join(folder, 'adapter_model.bin'), 'x');
  await expect(read(folder)).rejects.toThrow('adapter_model.bin: is a pickle');
  rmSync(join(folder, 'adapter_config.json'));
  await expect(read(folder)).rejects.toThrow('adapter_config.json: is missing');
  await expect(read(join(temporary.path, 'nowhere'))).rejects.toThrow('does not exist');
  await expect(read(join(adapter(), 'adapter_config.json'))).rejects.toThrow('is not a folder');
  const deep = adapter();
  writeFileSync(join(deep, 'adapter_config.json'), '['.repeat(100_000));
  await expect(read(deep)).rejects.toThrow('nested deeper');
});

test('a version is the content, and shows a change', async () => {
  const one = adapter();
  const same = adapter();
  const other = adapter({ alpha: 8 });
  const version = await adapterVersion(one);
  expect(await adapterVersion(same)).toBe(version);
  expect(await adapterVersion(other)).not.toBe(version);
  expect(await holdsVersion(one, version)).toBe(true);
  expect(await holdsVersion(other, version)).toBe(false);
});

test('the registry: base models must fit, names are unique, removal unloads what nobody names', async () => {
  const loaded: string[] = [];
  const registry = new AdapterRegistry({
    engine: {
      loadAdapter: ({ version }) => {
        if (loaded.includes('fail')) return Promise.reject(new Error('lora_A holds a number that is not finite'));
        loaded.push(version);
        return Promise.resolve();
      },
      unloadAdapter: (version) => {
        loaded.splice(loaded.indexOf(version), 1);
        return Promise.resolve();
      },
    },
    spec,
    maxRank: 64,
    baseNames: ['served', 'Tiny-32'],
  });
  const fitting = adapter({ config: { base_model_name_or_path: 'somebody/Tiny-32' } });
  await registry.add({ name: 'a', path: fitting });
  await registry.add({ name: 'b', path: fitting });
  expect((await registry.resolve('a'))?.adapter).toEqual((await registry.resolve('b'))?.adapter);
  const foreign = adapter({ config: { base_model_name_or_path: 'somebody/Other' } });
  await expect(registry.add({ name: 'c', path: foreign })).rejects.toThrow(
    'base_model_name_or_path is "somebody/Other"',
  );
  await registry.add({ name: 'd', path: adapter({ config: { base_model_name_or_path: '' } }) });
  await registry.remove('d');
  await expect(registry.add({ name: 'a', path: fitting })).rejects.toThrow('already been loaded');
  for (const name of ['', 'x'.repeat(257), 'line\nbreak', 'served', 'wandb-artifact:x', 'WANDB-Artifact:///e/p/x']) {
    await expect(registry.add({ name, path: fitting })).rejects.toThrow(/name/i);
  }
  await registry.remove('a');
  expect(loaded).toHaveLength(2);
  const before = await registry.resolve('b');
  await registry.add({ name: 'b', path: adapter({ seed: 'other' }) }, true);
  expect((await registry.resolve('b'))?.adapter?.version).not.toBe(before?.adapter?.version);
  expect(new Set(loaded).size).toBe(2);
  await registry.remove('b');
  expect(loaded).toHaveLength(1);
  await expect(registry.remove('b')).rejects.toThrow('cannot be found');
  // What a client wrote is not repeated however long it is.
  await expect(registry.remove('b'.repeat(2 ** 20))).rejects.toThrow(/^The lora adapter 'b{256}…' cannot be found\.$/);
  loaded.push('fail');
  await expect(registry.add({ name: 'd', path: fitting })).rejects.toThrow('not finite');
  expect(await registry.resolve('d')).toBeNull();
  expect(await registry.list()).toEqual([]);
});

test('one of two that come at once has the name; an engine that is down is told as such, and the name is free again', async () => {
  let load = () => Promise.resolve();
  const engine = { loadAdapter: () => load(), unloadAdapter: () => Promise.resolve() };
  const registry = new AdapterRegistry({ engine, spec, maxRank: 64, baseNames: ['served'] });
  const path = adapter({});
  const named = { name: 'x'.repeat(256), path };
  load = () => Promise.reject(new EngineUnavailableError('The engine is not running.'));
  await expect(registry.add(named)).rejects.toThrow(EngineUnavailableError);
  load = () => Promise.resolve();
  for (const replace of [false, true]) {
    const both = await Promise.allSettled([registry.add(named, replace), registry.add(named, replace)]);
    expect(both).toMatchObject([
      { status: 'fulfilled' },
      { status: 'rejected', reason: { message: expect.stringMatching(/ is being loaded\.$/) } },
    ]);
    expect((await registry.list()).map(({ name }) => name)).toEqual([named.name]);
    if (!replace) await registry.remove(named.name);
  }
});

test('what the operator names at start is there before the engine is, and what the engine finds wrong with it is told', async () => {
  let load = () => Promise.reject(new Error('the engine is asked too early'));
  const engine = { loadAdapter: () => load(), unloadAdapter: () => Promise.resolve() };
  const registry = new AdapterRegistry({ engine, spec, maxRank: 64, baseNames: ['served'] });
  await registry.name({ name: 'a', path: adapter({}) });
  expect(await registry.resolve('a')).toMatchObject({ displayName: 'a', trainable: false });
  expect((await registry.list()).map(({ name }) => name)).toEqual(['a']);
  await expect(registry.name({ name: 'a', path: adapter({}) })).rejects.toThrow('already been loaded');
  await expect(registry.name({ name: 'served', path: adapter({}) })).rejects.toThrow('base model');
  load = () => Promise.reject(new Error('lora_A holds a number that is not finite'));
  await expect(registry.load('a')).rejects.toThrow('not finite');
});
