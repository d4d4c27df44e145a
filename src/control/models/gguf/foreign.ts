/** A GGUF file that another engine reads: what serving must know of it, from the header alone. */
import { basename } from 'node:path';
import { sampleFiles } from '../digest.ts';
import { Fields, show } from '../fields.ts';
import type { ForeignModel } from '../model.ts';
import { readArchitecture } from './config.ts';
import { readGgufHeader, type GgufHeader } from './header.ts';
import { digestGguf, ggufModelName, ggufTexts } from './load.ts';

const MAX_LAYERS = 1024;
const MAX_HEADS = 65_536;
const MAX_WIDTH = 2 ** 20;
/** Keys and values are kept as F16. */
const ELEMENT_BYTES = 2;

/** llama.cpp takes these so, whatever else the file says; those with an encoder end its process at the first token. */
const NOT_LEFT_TO_RIGHT: ReadonlySet<string> = new Set(
  't5 t5encoder gemma-embedding dream llada llada-moe rnd1'.split(' '),
);

export async function loadForeignGguf(path: string): Promise<ForeignModel> {
  const header = readGgufHeader(path, basename(path));
  const metadata: Fields = new Fields(header.file, header.metadata);
  const architecture = readArchitecture(metadata);
  refuseEncoders(metadata, architecture);
  checkEpsilons(metadata, architecture);
  const texts = ggufTexts(header);
  return {
    path,
    name: ggufModelName(path),
    architecture,
    vocabSize: texts.vocabSize,
    texts,
    tokenizerSize: texts.tokenizer.vocabulary.length,
    maxPosition: metadata.integer(`${architecture}.context_length`, { max: 2 ** 27 }),
    positionBytes: positionBytes(metadata, architecture),
    ...weightsOf(header),
    digest: await digestGguf(header),
    samples: await sampleFiles([path]),
  };
}

/** What gives a vector for a text has no next token. */
function refuseEncoders(metadata: Fields, architecture: string): void {
  if (NOT_LEFT_TO_RIGHT.has(architecture)) {
    const what = 'the model has an encoder or works by diffusion, it does not go on with a text from left to right.';
    metadata.fail('general.architecture', `is ${show(architecture)}: ${what}`);
  }
  const causal = `${architecture}.attention.causal`;
  if (!metadata.boolean(causal, true))
    metadata.fail(causal, 'is false: the model does not generate text from left to right.');
  const pooling = `${architecture}.pooling_type`;
  if (metadata.integer(pooling, { min: 0, max: 2 ** 31 - 1, fallback: 0 }) !== 0) {
    metadata.fail(pooling, 'is set: the model makes embeddings, not text.');
  }
}

/** llama.cpp ends the process at the first token where one is none. */
function checkEpsilons(metadata: Fields, architecture: string): void {
  for (const name of ['layer_norm_rms_epsilon', 'layer_norm_epsilon', 'group_norm_epsilon'])
    metadata.number(`${architecture}.attention.${name}`, { min: 0, max: 1, fallback: 0 });
}

/** Bytes of the keys and values of one position; an upper bound where layers have a window or share them. */
function positionBytes(metadata: Fields, architecture: string): number {
  const own = (name: string): string => `${architecture}.${name}`;
  const layers = metadata.integer(own('block_count'), { max: MAX_LAYERS });
  const heads = perLayer(metadata, own('attention.head_count'), layers) ?? [];
  const kvHeads = perLayer(metadata, own('attention.head_count_kv'), layers) ?? heads;
  const hidden = metadata.integer(own('embedding_length'), { max: MAX_WIDTH });
  const fallback = Math.ceil(hidden / Math.max(1, ...heads));
  const keys = metadata.integer(own('attention.key_length'), { max: MAX_WIDTH, fallback });
  const values = metadata.integer(own('attention.value_length'), { max: MAX_WIDTH, fallback: keys });
  return kvHeads.reduce((sum, count) => sum + count, 0) * (keys + values) * ELEMENT_BYTES;
}

/** A number for all layers, or a list of one for each; undefined where the model has none. */
function perLayer(metadata: Fields, key: string, layers: number): number[] | undefined {
  const value = metadata.get(key);
  if (value === undefined) return undefined;
  const list: unknown[] = Array.isArray(value) ? value.slice(0, layers) : new Array<unknown>(layers).fill(value);
  if (list.length !== layers) metadata.fail(key, `has ${list.length} entries for ${layers} layers.`);
  return list.map((count) => {
    if (typeof count === 'number' && Number.isInteger(count) && count >= 0 && count <= MAX_HEADS) return count;
    return metadata.fail(key, `must hold integers in [0, ${MAX_HEADS}], got ${show(count)}.`);
  });
}

function weightsOf(header: GgufHeader): Pick<ForeignModel, 'parameters' | 'weightBytes' | 'storage'> {
  const elements = new Map<string, number>();
  let weightBytes = 0;
  for (const { type, shape, bytes } of header.tensors.values()) {
    const count = shape.reduce((product, size) => product * size, 1);
    elements.set(type, (elements.get(type) ?? 0) + count);
    weightBytes += bytes;
  }
  const [storage = 'no weights'] = [...elements].sort((a, b) => b[1] - a[1])[0] ?? [];
  return { parameters: [...elements.values()].reduce((sum, count) => sum + count, 0), weightBytes, storage };
}
