/** A checkpoint's folder: a PEFT adapter that anything can load, and the optimizer's state beside it. */
import { createHash, type Hash } from 'node:crypto';
import { open, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { ModelSpec } from '../engine/native.ts';
import type { AdapterFactors, AdapterWeights, OptimizerState, TrainerState } from '../engine/training.ts';
import { ADAPTER_WEIGHTS_FILE } from '../models/adapter-files.ts';
import { ADAPTER_CONFIG_FILE } from '../models/peft-config.ts';
import { DEFAULT_ADAPTER_SHAPE, identityAdapter, type AdapterShape } from './adapter-init.ts';
import { TrainingFailedError } from './errors.ts';
import { mayBeReadLater } from './service-error.ts';
import { factorTensors, momentTensors, peftModuleName, readFactors, readMoments } from './state-files.ts';
import { encodeTensors, readTensors } from './tensor-file.ts';

export const OPTIMIZER_FILE = 'optimizer.safetensors';

/** The optimizer starts anew where the kind of training changes. */
export type TrainingKind = 'rl' | 'sft';

export interface CheckpointContent {
  state: TrainerState;
  baseModel: string;
  /** null: not trained yet. */
  kind: TrainingKind | null;
  /** What the scale was made from, which in single precision is another number; absent: it is computed back. */
  alpha?: number;
}

/** What was written is not there any more, or something else is. `files`: which, or which of them. */
export class DamagedFilesError extends Error {
  readonly files: string;
  constructor(files: string, options?: ErrorOptions) {
    super(`${files}: not what was written.`, options);
    this.name = 'DamagedFilesError';
    this.files = files;
  }
}

/** What the client of a job is told. */
export function damagedStep(step: number, { files }: DamagedFilesError, advice: string): TrainingFailedError {
  return new TrainingFailedError(`The files of step ${step} are damaged (${files}): ${advice}`);
}

/**
 * Writes the files into the folder of a draft, whose seal syncs them. Returns the adapter's version: the digest of what serves, and behind a dot
 * that of the optimizer's file, where there is one.
 */
export async function writeCheckpoint(directory: string, content: CheckpointContent): Promise<string> {
  const { weights, optimizer } = content.state;
  const config = Buffer.from(`${JSON.stringify(adapterConfig(weights, content), null, 2)}\n`);
  const adapter = encodeTensors({ tensors: factorTensors(weights.factors), metadata: { format: 'pt' } });
  const digest = createHash('sha256');
  await writePieces(join(directory, ADAPTER_CONFIG_FILE), [config], digest);
  await writePieces(join(directory, ADAPTER_WEIGHTS_FILE), adapter, digest);
  if (optimizer && content.kind) {
    const tensors = momentTensors(weights.factors, optimizer);
    const metadata = { kind: content.kind, steps: String(optimizer.steps) };
    const own = createHash('sha256');
    await writePieces(join(directory, OPTIMIZER_FILE), encodeTensors({ tensors, metadata }), own);
    return `${digest.digest('hex')}.${own.digest('hex')}`;
  }
  return digest.digest('hex');
}

/** Step 0 of a model: an adapter that changes nothing. Returns its version. */
export async function writeIdentityCheckpoint(
  directory: string,
  spec: ModelSpec,
  baseModel: string,
  modelId: string,
  shape: AdapterShape = DEFAULT_ADAPTER_SHAPE,
): Promise<string> {
  const state = { weights: await identityAdapter(spec, modelId, shape), optimizer: null };
  return writeCheckpoint(directory, { state, baseModel, kind: null, alpha: shape.alpha });
}

/**
 * `kind`: of the training that goes on from it. `version`: what `writeCheckpoint` returned, and perhaps a dot and more; throws DamagedFilesError
 * where the files are others by now. Versions of old have no digest of the optimizer's file: nobody can tell then.
 */
export async function readCheckpoint(directory: string, kind: TrainingKind, version?: string): Promise<TrainerState> {
  const weights = await readAdapter(directory, version);
  const optimizer = await orDamaged(
    OPTIMIZER_FILE,
    readOptimizer(directory, kind, weights, digestsOf(version).optimizer),
  );
  return { weights, optimizer };
}

async function readOptimizer(
  directory: string,
  kind: TrainingKind,
  { factors }: AdapterWeights,
  written: string | undefined,
): Promise<OptimizerState | null> {
  const digest = createHash('sha256');
  const reading = readTensors(join(directory, OPTIMIZER_FILE), { digest });
  const file = await (written === undefined ? reading.catch(missingAsNull) : reading);
  if (file === null) return null;
  if (written !== undefined && digest.digest('hex') !== written) throw new DamagedFilesError(OPTIMIZER_FILE);
  return file.metadata['kind'] === kind ? readMoments(factors, file, Number(file.metadata['steps'])) : null;
}

/** Also throws DamagedFilesError where the adapter's files are not those that the version names. */
export async function readAdapter(directory: string, version?: string): Promise<AdapterWeights> {
  const digest = createHash('sha256');
  const config = await orDamaged(ADAPTER_CONFIG_FILE, readConfig(join(directory, ADAPTER_CONFIG_FILE), digest));
  const factors = await orDamaged(ADAPTER_WEIGHTS_FILE, readWeights(join(directory, ADAPTER_WEIGHTS_FILE), digest));
  const written = digestsOf(version).adapter;
  if (written !== undefined && digest.digest('hex') !== written)
    throw new DamagedFilesError(`${ADAPTER_CONFIG_FILE} or ${ADAPTER_WEIGHTS_FILE}`);
  return { scale: config.lora_alpha / config.r, factors };
}

async function readConfig(path: string, digest: Hash): Promise<PeftConfig> {
  const text = await readFile(path);
  digest.update(text);
  return JSON.parse(text.toString()) as PeftConfig;
}

async function readWeights(path: string, digest: Hash): Promise<AdapterFactors[]> {
  return readFactors(await readTensors(path, { digest }));
}

/** What can be read at another time says nothing about the file. */
async function orDamaged<T>(file: string, reading: Promise<T>): Promise<T> {
  try {
    return await reading;
  } catch (error) {
    throw error instanceof DamagedFilesError || mayBeReadLater(error)
      ? error
      : new DamagedFilesError(file, { cause: error });
  }
}

function digestsOf(version = ''): { adapter: string | undefined; optimizer: string | undefined } {
  const [adapter, optimizer] = version.split('.');
  return { adapter: adapter || undefined, optimizer: /^[0-9a-f]{64}$/.test(optimizer ?? '') ? optimizer : undefined };
}

interface PeftConfig {
  r: number;
  lora_alpha: number;
}

function adapterConfig(weights: AdapterWeights, { baseModel, alpha }: CheckpointContent): object {
  const modules = new Set(weights.factors.map(({ module }) => peftModuleName(module)));
  const rank = weights.factors[0]?.rank ?? 0;
  return {
    peft_type: 'LORA',
    task_type: 'CAUSAL_LM',
    base_model_name_or_path: baseModel,
    r: rank,
    lora_alpha: rank === 0 ? DEFAULT_ADAPTER_SHAPE.alpha : alphaOf(weights.scale, rank, alpha),
    lora_dropout: 0,
    bias: 'none',
    target_modules: [...modules],
    fan_in_fan_out: false,
    use_rslora: false,
    use_dora: false,
    modules_to_save: null,
    init_lora_weights: true,
    inference_mode: true,
  };
}

function alphaOf(scale: number, rank: number, asked: number | undefined): number {
  return asked !== undefined && Math.fround(asked / rank) === Math.fround(scale) ? asked : scale * rank;
}

async function writePieces(path: string, pieces: Iterable<Uint8Array>, digest?: Hash): Promise<void> {
  const file = await open(path, 'w');
  try {
    for (const piece of pieces) {
      digest?.update(piece);
      await file.writeFile(piece);
    }
  } finally {
    await file.close();
  }
}

function missingAsNull(error: unknown): null {
  if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null;
  throw error;
}
