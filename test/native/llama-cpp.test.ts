/**
 * The real llama.cpp in this process: the tokens of its tokenizer, the distributions of its samplers, an architecture that is its own.
 * Skipped, and said so, where `npm run setup:llama-cpp` has not been run.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { EngineHost, type EnginePort } from '../../src/control/engine/engine-host.ts';
import type { FromEngine, SequenceRequest, ToEngine } from '../../src/control/engine/protocol.ts';
import {
  llamaIsInstalled,
  openLlama,
  type LlamaLibrary,
  type LlamaModel,
  type OpenLlama,
} from '../../src/control/llama/binding.ts';
import type { LlamaConfig } from '../../src/control/llama/config.ts';
import { SequenceSampler } from '../../src/control/llama/sampler.ts';
import { UnsupportedModelError } from '../../src/control/models/errors.ts';
import { loadForeignModel, loadModel, readModelTexts } from '../../src/control/models/load.ts';
import { PromptEncoder } from '../../src/control/models/prompt-encoder.ts';
import { tokenizerEntries } from '../fixtures/gguf-model.ts';
import { entry, ggufFile, type GgufData } from '../fixtures/gguf-writer.ts';
import { hashUniform } from '../fixtures/hash-weights.ts';
import { CASES, distribution, implausible } from '../unit/llama/distribution.ts';
import { request, sampling } from '../unit/scheduler/drive.ts';
import { STARTER } from '../fixtures/starter.ts';

const HIDDEN = 64;
const HEADS = 4;
const HEAD = 16;
const INNER = 96;
const LAYERS = 4;
const WINDOW = 24;

const folder = mkdtempSync(join(tmpdir(), 'tandem-llama-'));
const file = join(folder, 'Random-Gemma2.gguf');

/** Gemma 2: norms behind attention and network, soft caps, a window on every other layer. With the starter model's tokens. */
async function writeGemma2(path: string): Promise<void> {
  const texts = await readModelTexts(STARTER);
  const u = (name: string, value: number) => entry(`gemma2.${name}`, 'uint32', value);
  const f = (name: string, value: number) => entry(`gemma2.${name}`, 'float32', value);
  const keys = [
    entry('general.architecture', 'string', 'gemma2'),
    u('context_length', 512),
    u('embedding_length', HIDDEN),
    u('block_count', LAYERS),
    u('feed_forward_length', INNER),
    u('attention.head_count', HEADS),
    u('attention.head_count_kv', 2),
    u('attention.key_length', HEAD),
    u('attention.value_length', HEAD),
    u('attention.sliding_window', WINDOW),
    f('attention.layer_norm_rms_epsilon', 1e-6),
    f('attn_logit_softcapping', 50),
    f('final_logit_softcapping', 30),
    ...tokenizerEntries(texts, 'gpt-2'),
  ];
  const tensor = (name: string, shape: number[], center = 0): GgufData => {
    const count = shape.reduce((product, size) => product * size, 1);
    const values = hashUniform(`gemma2/${name}`, count, center, center === 0 ? 2 * Math.sqrt(3 / HIDDEN) : 0.1);
    return { name: `${name}.weight`, type: 'F32', shape, data: Buffer.from(values.buffer) };
  };
  const layer = (index: number): GgufData[] => {
    const own = (name: string, shape: number[], center = 0) => tensor(`blk.${index}.${name}`, shape, center);
    return [
      ...['attn_norm', 'post_attention_norm', 'ffn_norm', 'post_ffw_norm'].map((name) => own(name, [HIDDEN], 1)),
      own('attn_q', [HEADS * HEAD, HIDDEN]),
      own('attn_k', [2 * HEAD, HIDDEN]),
      own('attn_v', [2 * HEAD, HIDDEN]),
      own('attn_output', [HIDDEN, HEADS * HEAD]),
      own('ffn_gate', [INNER, HIDDEN]),
      own('ffn_up', [INNER, HIDDEN]),
      own('ffn_down', [HIDDEN, INNER]),
    ];
  };
  const layers = Array.from({ length: LAYERS }, (_, index) => layer(index)).flat();
  const tensors = [tensor('token_embd', [texts.vocabSize, HIDDEN]), tensor('output_norm', [HIDDEN], 1), ...layers];
  writeFileSync(path, ggufFile(keys, tensors));
}

class Port implements EnginePort {
  readonly sent: FromEngine[] = [];
  readonly exits: [number, string | undefined][] = [];
  readonly tokens = new Map<number, number[]>();

  send(message: FromEngine): undefined {
    this.sent.push(message);
    if (message.type !== 'step' || !message.ids || !message.result) return;
    const { tokens } = message.result;
    message.ids.forEach((id, row) => this.tokens.set(id, [...(this.tokens.get(id) ?? []), tokens[row] as number]));
  }

  exit(code: number, message?: string): void {
    this.exits.push([code, message]);
  }
}

async function generate(open: OpenLlama, config: LlamaConfig, requests: SequenceRequest[]): Promise<number[][]> {
  const port = new Port();
  const noAddon = () => {
    throw new Error('not the native one');
  };
  const host = new EngineHost(port, noAddon, open);
  host.receive({ type: 'start', config });
  await vi.waitUntil(() => port.sent.some(({ type }) => type === 'ready' || type === 'failed'), { timeout: 20_000 });
  expect(port.sent.find(({ type }) => type === 'failed')).toBeUndefined();
  for (const message of [{ type: 'submit', requests }, { type: 'drain' }] as ToEngine[]) host.receive(message);
  await vi.waitUntil(() => port.exits.length > 0, { timeout: 20_000 });
  expect(port.exits).toEqual([[0, undefined]]);
  return requests.map(({ id }) => port.tokens.get(id) ?? []);
}

describe.skipIf(!llamaIsInstalled())('llama.cpp (skipped without `npm run setup:llama-cpp`)', () => {
  let library: LlamaLibrary;
  let model: LlamaModel;
  const opened: OpenLlama = () => Promise.resolve(library);
  beforeAll(async () => {
    await writeGemma2(file);
    library = await openLlama(1, (line) => console.error(line));
    const { binding } = library;
    model = new binding.AddonModel(file, { addonExports: binding, gpuLayers: 0, onLoadProgress: () => {} });
    expect(await model.init()).toBe(true);
  });
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  async function configOf(changes: Partial<LlamaConfig> = {}): Promise<LlamaConfig> {
    const { path, architecture, vocabSize, tokenizerSize, maxPosition, positionBytes, weightBytes } =
      await loadForeignModel(file);
    const sizes = {
      maxSequences: 8,
      maxBatchTokens: 2048,
      maxModelLen: maxPosition,
      threads: 1,
      maxLogprobs: 0 as const,
    };
    const queue = { enableChunkedPrefill: true, schedulingPolicy: 'fcfs' as const, faults: [] };
    const facts = { file: path, architecture, vocabSize, samplableVocab: tokenizerSize, positionBytes, weightBytes };
    return { engine: 'llama.cpp', ...facts, ...sizes, ...queue, ...changes };
  }

  test('the native engine does not run the file', async () => {
    await expect(loadModel(file)).rejects.toThrow(UnsupportedModelError);
  });

  test('its tokenizer gives the ids that ours gives', async () => {
    const encoder = new PromptEncoder((await readModelTexts(file)).tokenizer);
    const tokenize = (text: string) => [
      ...(model as unknown as { tokenize(text: string, special: boolean): Uint32Array }).tokenize(text, true),
    ];
    const texts = [
      'Hello! What can you do?',
      '  two  spaces\n\n\tand tabs \n',
      "I'll say it's 12345 + 67,890.12",
      'Größe, naïve, 東京タワー, 🙂🙃 é',
      '<|im_start|>user\nHi<|im_end|>\n',
      'a\u0000b',
      'x'.repeat(300),
      '',
    ];
    for (const text of texts) {
      expect([...encoder.encode(text, { addSpecialTokens: false, mark: null })], JSON.stringify(text)).toEqual(
        tokenize(text),
      );
    }
  });

  test('a batch of sequences says what each alone says, also past the window', async () => {
    const lengths = [5, 90, 33, 130, 12, 61];
    const requests = lengths.map((length, id) => ({ ...request(id, length, { temperature: 0, maxTokens: 24 }) }));
    const together = await generate(opened, await configOf(), requests);
    expect(together.map((tokens) => tokens.length)).toEqual(lengths.map(() => 24));
    const alone = await generate(opened, await configOf({ maxSequences: 1 }), requests);
    // The last bits of logits depend on the batch: where two tokens are all but equal the texts may part.
    const same = alone.filter((tokens, id) => tokens.every((token, at) => token === together[id]?.[at]));
    expect(same.length).toBeGreaterThanOrEqual(lengths.length - 1);
    expect(new Set(together.map((tokens) => tokens.join())).size).toBe(lengths.length);
  });

  test('a seed draws the same again, another one does not, and what has been said is gone on from', async () => {
    // One after the other.
    const config = await configOf({ maxSequences: 1 });
    const asked = (seed: bigint) => request(1, 20, { temperature: 1.4, topP: 0.95, seed, maxTokens: 16 });
    const requests = [5n, 5n, 6n].map((seed, id) => ({ ...asked(seed), id }));
    const [first = [], second, third] = await generate(opened, config, requests);
    expect(second).toEqual(first);
    expect(third).not.toEqual(first);
    const resumed = { ...asked(5n), resumeIds: Int32Array.from(first.slice(0, 6)) };
    expect(await generate(opened, config, [resumed])).toEqual([first.slice(6)]);
  });

  test('its samplers draw from the distribution of the native engine', async () => {
    const prompt = [3, 1, 4, 1, 5];
    const output = [9, 2, 6, 9, 9];
    const history = [...prompt, ...output];
    const { binding } = library;
    const options = { contextSize: 256, batchSize: 64, sequences: 1, threads: 1, flashAttention: 'auto' as const };
    const context = new binding.AddonContext(model, options);
    expect(await context.init()).toBe(true);
    context.initBatch(history.length);
    const last = Uint32Array.of(history.length - 1);
    const [place = 0] = context.addToBatch(0, 0, Uint32Array.from(history), last);
    await context.decodeBatch();
    const size = (await readModelTexts(file)).vocabSize;
    const plain = new binding.AddonSampler(model);
    plain.applyConfig({ temperature: 1, seed: 1 });
    const [, pairs = []] = await context.sampleToken(place, plain, true, false);
    const logits = new Array<number>(size).fill(0);
    for (let at = 0; at < pairs.length; at += 2) logits[pairs[at] as number] = Math.log(pairs[at + 1] as number);
    const samplable = size - 100;
    // Those in which llama.cpp's own order would give something else, and what is done by bias.
    const telling = CASES.filter(([name]) => /at a|behind|below|not come/.test(name));
    expect(telling.length).toBeGreaterThan(7);
    for (const [name, changes] of telling) {
      // Fewer likely tokens: their counts tell more.
      const sharp = { ...changes, temperature: (changes.temperature ?? 1) / 3 };
      const expected = distribution(sampling(sharp), { logits, prompt, output, samplable });
      const counts = new Array<number>(size).fill(0);
      for (let choice = 0; choice < 250; choice++) {
        const spec = sampling({ ...sharp, choice, maxTokens: 50 });
        const sampler = new SequenceSampler(binding, model, spec, { size, samplable });
        const token = await sampler.next(context, place, history, prompt.length);
        counts[token] = (counts[token] ?? 0) + 1;
        sampler.dispose();
      }
      expect(implausible(counts, expected), name).toEqual([]);
    }
  });
});
