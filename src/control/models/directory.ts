/** A Hugging Face model directory. Reads headers only; the weights stay on disk until native code reads them. */
import { basename } from 'node:path';
import { CONFIG_FILE, readConfig, type ModelConfig } from './config.ts';
import { digestModel, sampleFiles } from './digest.ts';
import { ModelError } from './errors.ts';
import { GENERATION_FILE, readGenerationConfig } from './generation-config.ts';
import { readModelJson } from './json-file.ts';
import type { GenerationDefaults, LoadedModel, ModelTexts } from './model.ts';
import { readWeights } from './safetensors.ts';
import { checkTiedHead, majorityDType, selectTensors } from './tensors.ts';
import { readTokenizerFiles, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE } from './tokenizer-files.ts';

const MAX_CONFIG_BYTES = 1024 * 1024;

export async function loadDirectory(path: string): Promise<LoadedModel> {
  const { spec, generation, unknownOptions } = await readModelConfig(path);
  const tokenizer = await readTokenizerFiles(path, spec.vocabSize);
  const weights = await readWeights(path);
  const tensors = selectTensors(spec, weights);
  await checkTiedHead(spec, weights);
  const files = weights.files.map((file) => file.path);
  const texts = [CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE];
  return {
    path,
    name: basename(path),
    spec,
    files,
    samples: await sampleFiles(files),
    tensors,
    checkpointDType: majorityDType(tensors),
    texts: { vocabSize: spec.vocabSize, generation, tokenizer },
    generation,
    tokenizerSize: tokenizer.vocabulary.length,
    maxPosition: spec.maxPosition,
    digest: await digestModel(path, texts, weights.files),
    warnings: unknownOptions.map(unknownOption),
  };
}

export async function readDirectoryTexts(path: string): Promise<ModelTexts> {
  const { spec, generation } = await readModelConfig(path);
  const { vocabSize } = spec;
  return { vocabSize, generation, tokenizer: await readTokenizerFiles(path, vocabSize) };
}

async function readModelConfig(directory: string): Promise<ModelConfig & { generation: GenerationDefaults }> {
  const config = await readModelJson(directory, CONFIG_FILE, MAX_CONFIG_BYTES);
  if (!config) throw new ModelError(CONFIG_FILE, `is missing in ${directory}.`);
  const model = readConfig(config);
  const file = await readModelJson(directory, GENERATION_FILE, MAX_CONFIG_BYTES);
  return { ...model, generation: readGenerationConfig(file, model.eosTokenIds, model.spec.vocabSize) };
}

function unknownOption(name: string): string {
  return `${CONFIG_FILE}: the option ${JSON.stringify(name.slice(0, 100))} is not known and has no effect.`;
}
