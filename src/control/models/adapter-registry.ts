/** Adapters that the operator names: at start-up, or over HTTP where that is allowed. Everybody may use them. */
import { shorten } from '../../schemas/shorten.ts';
import { EngineUnavailableError } from '../engine/client.ts';
import type { ModelSpec } from '../engine/native.ts';
import type { AdapterRef, TrainingEngine } from '../engine/training.ts';
import { ADAPTER_WEIGHTS_FILE, readAdapterFiles } from './adapter-files.ts';
import { adapterVersion } from './adapter-version.ts';
import { ModelError } from './errors.ts';
import { show } from './fields.ts';
import { ADAPTER_CONFIG_FILE } from './peft-config.ts';
import type { ListedModel, ModelResolver, ResolvedModel } from './resolver.ts';

export interface NamedAdapter {
  name: string;
  path: string;
}

export interface AdapterRegistryOptions {
  engine: Pick<TrainingEngine, 'loadAdapter' | 'unloadAdapter'>;
  spec: ModelSpec;
  maxRank: number;
  /** Names that the base model goes by; adapters say which one they were made for. */
  baseNames: readonly string[];
}

/** Who asks for an adapter, and whether that is still so. */
export interface Asker {
  tenant: string;
  signal: AbortSignal;
}

/** The name cannot be given, or is not there: the caller's mistake, not the files'. */
export class AdapterNameError extends Error {
  readonly reason: 'invalid' | 'taken' | 'unknown';
  constructor(reason: AdapterNameError['reason'], message: string) {
    super(message);
    this.name = 'AdapterNameError';
    this.reason = reason;
  }
}

const MAX_ADAPTERS = 10_000;
const MAX_NAME = 256;
/** Names with it are those of models that are trained here, which belong to their entity. */
const TRAINED_SCHEME = /^wandb-artifact:/i;

interface Entry {
  adapter: AdapterRef;
  created: number;
}

export class AdapterRegistry implements ModelResolver {
  readonly #options: AdapterRegistryOptions;
  readonly #entries = new Map<string, Entry>();
  /** Names whose adapter is being loaded. */
  readonly #coming = new Set<string>();

  constructor(options: AdapterRegistryOptions) {
    this.#options = options;
  }

  resolve(name: string): Promise<ResolvedModel | null> {
    const entry = this.#entries.get(name);
    return Promise.resolve(entry ? { adapter: entry.adapter, trainable: false, displayName: name } : null);
  }

  describe(name: string): Promise<ListedModel | null> {
    const entry = this.#entries.get(name);
    return Promise.resolve(entry ? listed(name, entry) : null);
  }

  list(): Promise<ListedModel[]> {
    return Promise.resolve([...this.#entries].map(([name, entry]) => listed(name, entry)));
  }

  /** Checks the files, without the engine. */
  async #inspect({ path }: NamedAdapter): Promise<AdapterRef> {
    const { spec, maxRank, baseNames } = this.#options;
    const { directory, baseModel } = await readAdapterFiles(path, { spec, maxRank });
    if (baseModel !== null && !baseNames.some((base) => lastPart(base) === lastPart(baseModel))) {
      const problem =
        `base_model_name_or_path is ${show(baseModel)}, and this server serves ${baseNames.map(show).join(', ')}; ` +
        'add the name with --served-model-name if it is the same model.';
      throw new ModelError(ADAPTER_CONFIG_FILE, problem);
    }
    return { version: await adapterVersion(directory), directory };
  }

  /** Requests may use the name from here on: theirs wait for the engine. Throws AdapterNameError or ModelError. */
  async name(adapter: NamedAdapter): Promise<void> {
    const { name } = adapter;
    this.#checkFree(name);
    const found = await this.#inspect(adapter);
    this.#entries.set(name, { adapter: found, created: unixSeconds() });
  }

  /** Reads a named adapter into the engine, which checks more of it than `name` did. Throws ModelError or EngineUnavailableError. */
  async load(name: string): Promise<void> {
    const entry = this.#entries.get(name);
    if (entry) await this.#load(entry.adapter);
  }

  /**
   * Resolves when the engine has it and requests may use the name. Throws as `name` and `load`, and where the asker leaves before: then nothing
   * has the name. `replace`: the name may be there; requests that run keep what they have.
   */
  async add(adapter: NamedAdapter, replace = false, asker?: Asker): Promise<void> {
    const { name } = adapter;
    this.#checkFree(name, replace);
    this.#coming.add(name);
    try {
      const found = await this.#inspect(adapter);
      await this.#load(found, asker);
      const before = this.#entries.get(name);
      this.#entries.set(name, { adapter: found, created: unixSeconds() });
      if (before) await this.#unload(before);
    } finally {
      this.#coming.delete(name);
    }
  }

  /** Requests that run keep the adapter until they end. */
  async remove(name: string): Promise<void> {
    const entry = this.#entries.get(name);
    if (!entry) throw new AdapterNameError('unknown', `The lora adapter '${shorten(name, MAX_NAME)}' cannot be found.`);
    this.#entries.delete(name);
    await this.#unload(entry);
  }

  async #load(adapter: AdapterRef, asker?: Asker): Promise<void> {
    try {
      await this.#options.engine.loadAdapter(adapter, asker?.signal, asker?.tenant);
    } catch (error) {
      if (error instanceof EngineUnavailableError) throw error;
      throw new ModelError(ADAPTER_WEIGHTS_FILE, error instanceof Error ? error.message : String(error));
    }
  }

  async #unload({ adapter }: Entry): Promise<void> {
    const shared = [...this.#entries.values()].some((other) => other.adapter.version === adapter.version);
    if (!shared) await this.#options.engine.unloadAdapter(adapter.version);
  }

  #checkFree(name: string, replace = false): void {
    this.#checkName(name);
    const isThere = this.#entries.has(name);
    if (this.#coming.has(name)) throw new AdapterNameError('taken', `The lora adapter '${name}' is being loaded.`);
    if (isThere && !replace) {
      throw new AdapterNameError('taken', `The lora adapter '${name}' has already been loaded.`);
    }
    if (!isThere && this.#entries.size + this.#coming.size >= MAX_ADAPTERS) {
      throw new AdapterNameError('invalid', `At most ${MAX_ADAPTERS} adapters can be named.`);
    }
  }

  #checkName(name: string): void {
    if (name === '' || name.length > MAX_NAME || /[\u0000-\u001f\u007f]/.test(name)) {
      throw new AdapterNameError('invalid', `An adapter's name has 1 to ${MAX_NAME} printable characters.`);
    }
    if (TRAINED_SCHEME.test(name)) {
      throw new AdapterNameError('invalid', 'Names that begin with wandb-artifact: are those of models trained here.');
    }
    if (this.#options.baseNames.includes(name)) {
      throw new AdapterNameError('taken', `'${name}' is a name of the base model.`);
    }
  }
}

function listed(name: string, { adapter, created }: Entry): ListedModel {
  return { name, root: adapter.directory, created };
}

/** Hub names and paths end in the model's own name. */
function lastPart(name: string): string {
  return name.replace(/\/+$/, '').split('/').at(-1) ?? '';
}

function unixSeconds(): number {
  return Math.floor(Date.now() / 1000);
}
