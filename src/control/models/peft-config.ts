/** adapter_config.json of PEFT: what of it changes the numbers is understood or refused by name. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { MissingFileError } from './errors.ts';
import { Fields, show } from './fields.ts';
import { readModelJson } from './json-file.ts';

export const ADAPTER_CONFIG_FILE = 'adapter_config.json';

const MAX_CONFIG_BYTES = 1024 * 1024;
const MAX_ALPHA = 1_000_000;
const MAX_PATTERNS = 10_000;
/** Native code takes no more. */
export const MAX_ADAPTER_RANK = 1024;

export interface PeftConfig {
  /** null where the file does not say. */
  baseModel: string | null;
  rank: number;
  alpha: number;
  rslora: boolean;
  /** Last parts of the names that may have factors; null = the file names a regular expression or all linear layers. */
  targets: string[] | null;
  /** The same of modules that are no targets after all. */
  excluded: string[] | null;
  /** Ranks and alphas of single modules, by the end of their name. */
  rankPattern: Map<string, number>;
  alphaPattern: Map<string, number>;
}

/** Does not change what a loaded adapter computes. */
const WITHOUT_EFFECT = new Set([
  'auto_mapping',
  'base_model_class',
  'inference_mode',
  'init_lora_weights',
  'lora_dropout',
  'peft_version',
  'revision',
  'runtime_config',
  'task_type',
  'layers_pattern',
  'layers_to_transform',
  'megatron_core',
  'qalora_group_size',
  'loftq_config',
  'eva_config',
  'corda_config',
  'lora_ga_config',
  'ensure_weight_tying',
  'target_module_class',
  'unsloth_fixed',
  'unsloth_version',
]);

const UNDERSTOOD = new Set([
  'peft_type',
  'base_model_name_or_path',
  'r',
  'lora_alpha',
  'use_rslora',
  'target_modules',
  'exclude_modules',
  'rank_pattern',
  'alpha_pattern',
  'bias',
  'fan_in_fan_out',
]);

/** What other options would change, for the message. */
const REASONS: Readonly<Record<string, string>> = {
  use_dora: 'DoRA adapters are not supported.',
  modules_to_save: 'adapters with modules of their own (modules_to_save) are not supported.',
  auto_map: 'code that comes with an adapter is never run.',
  trainable_token_indices: 'adapters with trained embeddings are not supported.',
  layer_replication: 'replicated layers are not supported.',
  target_parameters: 'adapters of bare parameters, as those of experts are, are not supported.',
  lora_bias: 'adapters with biases are not supported.',
};

/** Initialisations after which the base weights are no longer those of the checkpoint. */
const CHANGES_BASE = /^(pissa|olora|corda|loftq|lora_ga)/;

export async function readPeftConfig(directory: string, maxRank: number): Promise<PeftConfig> {
  const json = await readModelJson(directory, ADAPTER_CONFIG_FILE, MAX_CONFIG_BYTES);
  if (!json) throw new MissingFileError(ADAPTER_CONFIG_FILE);
  const fields = new Fields(ADAPTER_CONFIG_FILE, json);
  checkOptions(fields);
  return {
    // Empty where PEFT adapted a model that came from nowhere, as one made from its config.
    baseModel: fields.string('base_model_name_or_path') || null,
    rank: fields.integer('r', { max: maxRank }),
    alpha: fields.number('lora_alpha', { min: 0, max: MAX_ALPHA, fallback: 8 }),
    rslora: fields.boolean('use_rslora', false),
    targets: readModules(fields, 'target_modules'),
    excluded: fields.has('exclude_modules') ? readModules(fields, 'exclude_modules') : [],
    rankPattern: readPattern(
      fields,
      'rank_pattern',
      (value) => Number.isInteger(value) && value >= 1 && value <= maxRank,
    ),
    alphaPattern: readPattern(fields, 'alpha_pattern', (value) => value >= 0 && value <= MAX_ALPHA),
  };
}

function checkOptions(fields: Fields): void {
  if (fields.get('peft_type') !== 'LORA')
    fields.fail('peft_type', `must be "LORA", got ${show(fields.get('peft_type'))}.`);
  if ((fields.string('bias') ?? 'none') !== 'none')
    fields.fail('bias', 'must be "none": adapters with biases are not supported.');
  if (fields.boolean('fan_in_fan_out', false)) fields.fail('fan_in_fan_out', 'must be false.');
  const init = fields.get('init_lora_weights');
  if (typeof init === 'string' && CHANGES_BASE.test(init)) {
    fields.fail(
      'init_lora_weights',
      `is ${show(init)}, which changes the base weights; convert the adapter to a plain LoRA.`,
    );
  }
  for (const name of fields.names()) {
    if (UNDERSTOOD.has(name) || WITHOUT_EFFECT.has(name) || isNeutral(fields.get(name))) continue;
    const reason = Object.hasOwn(REASONS, name) ? REASONS[name] : undefined;
    fields.fail(
      name.slice(0, 100),
      reason ? `is set: ${reason}` : `is ${show(fields.get(name))}, an option that is not supported.`,
    );
  }
}

/** Newer versions of PEFT write options that older files lack; unset they mean nothing. */
function isNeutral(value: unknown): boolean {
  if (value === undefined || value === false || value === '') return true;
  return Array.isArray(value) ? value.length === 0 : isPlainObject(value) && Object.keys(value).length === 0;
}

/** A regular expression is not run: which modules it meant shows in the tensors. */
function readModules(fields: Fields, name: string): string[] | null {
  const value = fields.get(name);
  if (value === undefined || typeof value === 'string') return null;
  if (
    !Array.isArray(value) ||
    value.length > MAX_PATTERNS ||
    !value.every((module) => typeof module === 'string' && module !== '')
  ) {
    fields.fail(name, 'must be a list of module names.');
  }
  return (value as string[]).map((module) => module.split('.').at(-1) as string);
}

function readPattern(fields: Fields, name: string, fine: (value: number) => boolean): Map<string, number> {
  const entries = fields.object(name);
  const pattern = new Map<string, number>();
  for (const key of entries?.names() ?? []) {
    const value = entries?.get(key);
    // PEFT reads keys as regular expressions; plain ends of names are what people write, and what is safe to run.
    if (!/^\^?[\w.]{1,256}$/.test(key))
      fields.fail(name, `has the key ${show(key)}; only ends of module names are supported.`);
    if (typeof value !== 'number' || !fine(value)) fields.fail(name, `has the value ${show(value)} for ${show(key)}.`);
    pattern.set(key, value);
    if (pattern.size > MAX_PATTERNS) fields.fail(name, `has more than ${MAX_PATTERNS} entries.`);
  }
  return pattern;
}

/** The first entry whose key is the module's name or an end of it at a dot, else the default. Behind ^ a key is the whole name. */
export function patternValue(pattern: Map<string, number>, module: string, fallback: number): number {
  for (const [key, value] of pattern) {
    if (matches(key, module)) return value;
  }
  return fallback;
}

/** As PEFT's regular expression does, to which a dot in the key is any character. */
function matches(key: string, module: string): boolean {
  const whole = key.startsWith('^');
  const end = whole ? key.slice(1) : key;
  const start = module.length - end.length;
  if (start < 0 || (start > 0 && (whole || module[start - 1] !== '.'))) return false;
  return Array.from(end).every((character, index) => character === '.' || character === module[start + index]);
}
