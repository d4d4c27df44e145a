/** Which engine runs the model that --model names, and what its process gets. */
import { adapterObstacle } from '../control/engine/adapter-bytes.ts';
import { arithmeticName } from '../control/engine/arithmetic.ts';
import type { EngineConfig } from '../control/engine/protocol.ts';
import { INSTALL_COMMAND } from '../control/llama/binding.ts';
import type { LlamaConfig } from '../control/llama/config.ts';
import { UnsupportedModelError } from '../control/models/errors.ts';
import { loadForeignModel, loadModel } from '../control/models/load.ts';
import type { ForeignModel, LoadedModel } from '../control/models/model.ts';
import { grammarVocabulary, type ModelTokenizer } from '../control/sessions/model-tokenizer.ts';
import type { Settings } from '../control/settings.ts';
import { engineConfig, parameterCount } from './engine-config.ts';
import type { ServingObstacle } from '../control/training/models/records.ts';
import { llamaConfig, refuseLlamaSettings } from './llama-config.ts';

export type ChosenEngine = { engine: 'native'; model: LoadedModel } | { engine: 'llama.cpp'; model: ForeignModel };

export interface EngineFacts {
  config: EngineConfig | LlamaConfig;
  parameters: number;
  /** The arithmetic, or how the weights are stored. */
  dtype: string;
  servingObstacle: ServingObstacle;
}

type Warn = (text: string) => void;

/** `installed`: llama.cpp is there. */
export async function chooseEngine(settings: Settings, installed: boolean, warn: Warn): Promise<ChosenEngine> {
  const { engine, model: path } = settings;
  if (engine === 'llama.cpp') return foreign(settings, installed, '--engine llama.cpp needs it.');
  try {
    return { engine: 'native', model: await loadModel(path) };
  } catch (error) {
    if (engine === 'native' || !(error instanceof UnsupportedModelError)) throw error;
    const chosen = await foreign(settings, installed, error.message);
    warn(`${error.message} llama.cpp runs it; docs/gguf.md says what it does not offer.`);
    return chosen;
  }
}

async function foreign(settings: Settings, installed: boolean, reason: string): Promise<ChosenEngine> {
  if (!installed) {
    throw new Error(
      `node-llama-cpp is not installed: ${reason} Install it with \`${INSTALL_COMMAND}\` to try llama.cpp on this model.`,
    );
  }
  refuseLlamaSettings(settings);
  return { engine: 'llama.cpp', model: await loadForeignModel(settings.model) };
}

export function engineFacts(
  chosen: ChosenEngine,
  tokenizer: ModelTokenizer,
  settings: Settings,
  warn: Warn,
): EngineFacts {
  if (chosen.engine === 'llama.cpp') {
    const { parameters, storage } = chosen.model;
    const config = llamaConfig(settings, chosen.model, warn);
    return { config, parameters, dtype: storage, servingObstacle: () => null };
  }
  const { model } = chosen;
  const config = { ...engineConfig(settings, model, warn), vocabulary: grammarVocabulary(tokenizer) };
  const { spec, dtype } = config;
  const limits = { spec, dtype, maxRank: settings.maxLoraRank, maxBytes: settings.maxAdapterMemoryBytes };
  const servingObstacle = (rank: number) => adapterObstacle(rank, limits);
  return { config, parameters: parameterCount(model.tensors), dtype: arithmeticName(config), servingObstacle };
}

/** What training must know of the base model. Nothing that was trained natively belongs to llama.cpp's reading of the same file. */
export function trainedBase(chosen: ChosenEngine): {
  spec: LoadedModel['spec'] | null;
  vocabSize: number;
  name: string;
  digest: string;
} {
  const { name, digest } = chosen.model;
  if (chosen.engine === 'native') {
    const { spec } = chosen.model;
    return { spec, vocabSize: spec.vocabSize, name, digest };
  }
  return { spec: null, vocabSize: chosen.model.vocabSize, name, digest: `${chosen.engine} ${digest}` };
}
