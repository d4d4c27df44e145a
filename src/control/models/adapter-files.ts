/** An adapter's folder in PEFT's layout -> where its factors lie. Reads headers only; native code reads and checks the numbers. */
import { realpath, stat } from 'node:fs/promises';
import type { ModelSpec, StoredFactors, TensorEntry } from '../engine/native.ts';
import { ADAPTER_MODULES, modulesOf, type AdapterModule } from '../engine/training.ts';
import { MissingFileError, ModelError } from './errors.ts';
import { show } from './fields.ts';
import { resolveModelFile } from './json-file.ts';
import { patternValue, readPeftConfig, type PeftConfig } from './peft-config.ts';
import { openWeightFile, parseHeader, type StoredTensor } from './safetensors.ts';

/** Named by errors about the folder itself. */
const FOLDER = 'adapter';
export const ADAPTER_WEIGHTS_FILE = 'adapter_model.safetensors';
const PICKLE_FILE = 'adapter_model.bin';
const MAX_HEADER_BYTES = 16 * 1024 * 1024;

export interface AdapterFiles {
  directory: string;
  /** As adapter_config.json names it; null where it does not. */
  baseModel: string | null;
  files: string[];
  tensors: TensorEntry[];
  factors: StoredFactors[];
}

export interface AdapterLimits {
  spec: ModelSpec;
  /** Largest rank, at most MAX_ADAPTER_RANK. */
  maxRank: number;
}

/** Throws ModelError naming the file and what in it cannot be served. */
export async function readAdapterFiles(directory: string, limits: AdapterLimits): Promise<AdapterFiles> {
  const path = await resolveFolder(directory);
  const config = await readPeftConfig(path, limits.maxRank);
  const file = await openAdapter(path);
  const stored = parseHeader(file, 0);
  const pairs = pairTensors(stored);
  if (pairs.size === 0) fail('holds no LoRA factors.');
  const factors = [...pairs.values()].map((pair) => toFactors(pair, config, limits));
  checkTargets(factors, config, limits);
  return {
    directory: path,
    baseModel: config.baseModel,
    files: [file.path],
    tensors: stored.map(toEntry),
    factors,
  };
}

async function resolveFolder(directory: string): Promise<string> {
  try {
    const path = await realpath(directory);
    if ((await stat(path)).isDirectory()) return path;
  } catch {
    throw new MissingFileError(FOLDER, 'the folder does not exist or cannot be read.');
  }
  throw new MissingFileError(FOLDER, 'is not a folder.');
}

async function openAdapter(path: string): ReturnType<typeof openWeightFile> {
  if (
    (await resolveModelFile(path, ADAPTER_WEIGHTS_FILE)) === null &&
    (await resolveModelFile(path, PICKLE_FILE)) !== null
  ) {
    throw new ModelError(PICKLE_FILE, `is a pickle, which can run code; save the adapter as ${ADAPTER_WEIGHTS_FILE}.`);
  }
  return openWeightFile(path, ADAPTER_WEIGHTS_FILE, MAX_HEADER_BYTES);
}

interface Pair {
  /** As PEFT names it, without its prefix: model.layers.3.self_attn.q_proj */
  module: string;
  layer: number;
  kind: AdapterModule;
  a: StoredTensor | null;
  b: StoredTensor | null;
}

const NAME =
  /^base_model\.model\.(model\.layers\.(\d{1,6})\.(self_attn|mlp)\.(\w+)_proj)\.lora_(A|B)(?:\.default)?\.weight$/;
const EXPERT = /\.layers\.\d+\.(mlp|block_sparse_moe)\.(experts|gate)\./;
const ATTENTION: ReadonlySet<string> = new Set(['q', 'k', 'v', 'o']);

/** Every tensor must be a factor of a projection that the engine knows. */
function pairTensors(stored: StoredTensor[]): Map<string, Pair> {
  const pairs = new Map<string, Pair>();
  for (const tensor of stored) {
    const match = NAME.exec(tensor.name);
    const [, module = '', layer = '', part, name, side] = match ?? [];
    const kind = ADAPTER_MODULES.find((known) => known === name);
    if (EXPERT.test(tensor.name)) fail(`has the tensor ${show(tensor.name)}; factors of experts are not supported.`);
    if (!kind || (part === 'self_attn') !== ATTENTION.has(kind)) {
      fail(
        `has the tensor ${show(tensor.name)}; only LoRA factors of ${ADAPTER_MODULES.map((m) => `${m}_proj`).join(', ')} are supported.`,
      );
    }
    const pair = pairs.get(module) ?? { module, layer: Number(layer), kind, a: null, b: null };
    const key = side === 'A' ? 'a' : 'b';
    if (pair[key]) fail(`has ${show(tensor.name)} twice.`);
    pair[key] = tensor;
    pairs.set(module, pair);
  }
  return pairs;
}

function toFactors({ module, layer, kind, a, b }: Pair, config: PeftConfig, { spec }: AdapterLimits): StoredFactors {
  if (!a || !b) fail(`has only one of the two factors of ${module}.`);
  if (layer >= spec.layers) fail(`has factors of ${module}, but the model has ${spec.layers} layers.`);
  if (!modulesOf(spec, layer).includes(kind)) {
    fail(`has factors of ${module}, but that layer of the model is a mixture of experts.`);
  }
  const rank = patternValue(config.rankPattern, module, config.rank);
  const [inputs, outputs] = sizesOf(kind, spec);
  checkShape(a, [rank, inputs]);
  checkShape(b, [outputs, rank]);
  const alpha = patternValue(config.alphaPattern, module, config.alpha);
  const scale = alpha / (config.rslora ? Math.sqrt(rank) : rank);
  return { layer, module: kind, rank, scale, a: a.name, b: b.name };
}

/** Inputs and outputs of a projection. */
export function sizesOf(module: AdapterModule, spec: ModelSpec): [number, number] {
  const { hiddenSize: hidden, intermediateSize: inner } = spec;
  const queries = spec.heads * spec.headDim;
  const keys = spec.kvHeads * spec.headDim;
  if (module === 'q') return [hidden, queries];
  if (module === 'k' || module === 'v') return [hidden, keys];
  if (module === 'o') return [queries, hidden];
  return module === 'down' ? [inner, hidden] : [hidden, inner];
}

function checkShape(tensor: StoredTensor, shape: number[]): void {
  if (tensor.shape.length === 2 && tensor.shape[0] === shape[0] && tensor.shape[1] === shape[1]) return;
  fail(`${show(tensor.name)} has shape ${show(tensor.shape)}; its rank and the model ask for ${show(shape)}.`);
}

/**
 * The list of targets and the tensors must tell the same. PEFT keeps names that meet nothing, as gate_proj does where all layers have experts, or
 * what exclude_modules names.
 */
function checkTargets(factors: StoredFactors[], { targets, excluded }: PeftConfig, { spec }: AdapterLimits): void {
  if (!targets) return;
  const stored = new Set(factors.map(({ module }) => `${module}_proj`));
  const absent = absentModules(spec);
  const missing = targets.find((name) => {
    return !stored.has(name) && !absent.has(name) && excluded !== null && !excluded.includes(name);
  });
  if (missing !== undefined) fail(`has no factors of ${show(missing)}, which target_modules names.`);
  const extra = [...stored].find((name) => !targets.includes(name));
  if (extra !== undefined) fail(`has factors of ${extra}, which target_modules does not name.`);
}

/** Projections that no layer of the model has. */
function absentModules(spec: ModelSpec): Set<string> {
  const present = new Set(Array.from({ length: spec.layers }, (_, layer) => modulesOf(spec, layer)).flat());
  return new Set(ADAPTER_MODULES.filter((module) => !present.has(module)).map((module) => `${module}_proj`));
}

function toEntry({ name, dtype, shape, file, offset }: StoredTensor): TensorEntry {
  if (dtype !== 'F32' && dtype !== 'F16' && dtype !== 'BF16')
    fail(`${show(name)} has dtype ${dtype}; BF16, F16 and F32 are supported.`);
  return { name, dtype, shape, file, offset };
}

function fail(problem: string): never {
  throw new ModelError(ADAPTER_WEIGHTS_FILE, problem);
}
