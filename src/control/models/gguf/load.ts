/** A GGUF file as a model. Reads the header only; the weights stay on disk until native code reads them. */
import { basename, dirname } from 'node:path';
import { digestModel, sampleFiles } from '../digest.ts';
import { readExactly } from '../json-file.ts';
import type { LoadedModel, ModelTexts } from '../model.ts';
import { majorityDType } from '../tensors.ts';
import { Fields } from '../fields.ts';
import { readGgufConfig, readSampling, readVocabSize, type GgufConfig } from './config.ts';
import { readGgufHeader, type GgufHeader } from './header.ts';
import { selectGgufTensors } from './tensors.ts';
import { readGgufTokenizer, type GgufTokenizer } from './tokenizer.ts';

/** Magic and version; the digest takes a header behind its first 8 bytes. */
const BEFORE_HEADER = 8;

export async function loadGguf(path: string): Promise<LoadedModel> {
  const { header, config, tokenizer } = await readAll(path);
  const tensors = selectGgufTensors(config.spec, header);
  const generation = { ...config.generation, eosTokenIds: tokenizer.ends };
  return {
    path,
    name: ggufModelName(path),
    spec: config.spec,
    files: [path],
    samples: await sampleFiles([path]),
    tensors,
    checkpointDType: majorityDType(tensors),
    texts: { vocabSize: config.spec.vocabSize, generation, tokenizer: tokenizer.files },
    generation,
    tokenizerSize: tokenizer.files.vocabulary.length,
    maxPosition: config.spec.maxPosition,
    digest: await digestGguf(header),
    warnings: config.unknownOptions.map(
      (key) => `${header.file}: the key ${JSON.stringify(key.slice(0, 100))} is not known and has no effect.`,
    ),
  };
}

/** Of any architecture. */
export function readGgufTexts(path: string): ModelTexts {
  return ggufTexts(readGgufHeader(path, basename(path)));
}

export function ggufTexts(header: GgufHeader): ModelTexts {
  const vocabSize = readVocabSize(header);
  const { files, ends } = readGgufTokenizer(header, vocabSize);
  const sampling = readSampling(new Fields(header.file, header.metadata));
  return { vocabSize, generation: { ...sampling, eosTokenIds: ends }, tokenizer: files };
}

async function readAll(path: string): Promise<{ header: GgufHeader; config: GgufConfig; tokenizer: GgufTokenizer }> {
  const header = readGgufHeader(path, basename(path));
  const config = await readGgufConfig(header);
  return { header, config, tokenizer: readGgufTokenizer(header, config.spec.vocabSize) };
}

export function ggufModelName(path: string): string {
  return basename(path).replace(/\.gguf$/i, '');
}

/** Of the contents: a renamed file is the same model. */
export async function digestGguf({ path, file, size, dataOffset }: GgufHeader): Promise<string> {
  const header = await readExactly(file, path, BEFORE_HEADER, Math.min(dataOffset, size) - BEFORE_HEADER);
  return digestModel(dirname(path), [], [{ name: 'gguf', path, size, header }]);
}
