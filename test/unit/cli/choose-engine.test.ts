/** Which engine runs a model, and what llama.cpp is told: selection, refusals by flag, shares of the KV cache. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { chooseEngine, trainedBase } from '../../../src/cli/choose-engine.ts';
import { llamaConfig } from '../../../src/cli/llama-config.ts';
import type { ForeignModel } from '../../../src/control/models/model.ts';
import type { Settings } from '../../../src/control/settings.ts';
import { entry, arrayEntry, ggufHead, tensorInfo } from '../../fixtures/gguf-writer.ts';
import { testSettings } from '../api/fakes.ts';
import { byteCharacters, temporaryDirectory } from '../models/model-directory.ts';
import { STARTER } from '../../fixtures/starter.ts';

const TOKENS = [...byteCharacters(), '</s>'];

function keys(architecture: string, pre: string): Buffer[] {
  return [
    entry('general.architecture', 'string', architecture),
    entry(`${architecture}.block_count`, 'uint32', 3),
    entry(`${architecture}.context_length`, 'uint32', 8192),
    entry(`${architecture}.embedding_length`, 'uint32', 64),
    entry(`${architecture}.attention.head_count`, 'uint32', 4),
    arrayEntry(`${architecture}.attention.head_count_kv`, 'uint32', [2, 1, 0]),
    entry(`${architecture}.attention.key_length`, 'uint32', 24),
    entry('tokenizer.ggml.model', 'string', 'gpt2'),
    entry('tokenizer.ggml.pre', 'string', pre),
    arrayEntry('tokenizer.ggml.tokens', 'string', TOKENS),
    entry('tokenizer.ggml.eos_token_id', 'uint32', 256),
    arrayEntry('tokenizer.ggml.merges', 'string', []),
  ];
}

function write(content: Buffer): string {
  const path = join(temporaryDirectory(), 'Tiny.gguf');
  writeFileSync(path, content);
  return path;
}

/** An architecture of others; its one matrix is stored as Q5_0, which only others read. */
function file({ architecture = 'gemma2', pre = 'gpt-2', extra = [] as Buffer[] } = {}): string {
  const info = tensorInfo('token_embd.weight', { dimensions: [64, TOKENS.length], type: 6, offset: 0 });
  const head = ggufHead([...keys(architecture, pre), ...extra], [info]);
  const padding = Buffer.alloc((32 - (head.length % 32)) % 32);
  return write(Buffer.concat([head, padding, Buffer.alloc(TOKENS.length * 2 * 22)]));
}

function choose(model: string, changes: Partial<Settings> = {}, installed = true) {
  const warnings: string[] = [];
  const settings = testSettings({ model, ...changes });
  const chosen = chooseEngine(settings, installed, (text) => warnings.push(text));
  return { chosen, warnings };
}

describe('the engine', () => {
  it('is the native one for what it runs, and whatever is installed', async () => {
    for (const engine of ['auto', 'native'] as const) {
      const { chosen, warnings } = choose(STARTER, { engine }, false);
      expect(await chosen).toMatchObject({ engine: 'native', model: { name: 'starter' } });
      expect(warnings).toEqual([]);
    }
  });

  it('is llama.cpp for what only that runs, and the operator is told why', async () => {
    const { chosen, warnings } = choose(file());
    expect(await chosen).toMatchObject({
      engine: 'llama.cpp',
      model: {
        name: 'Tiny',
        architecture: 'gemma2',
        vocabSize: 257,
        tokenizerSize: 257,
        maxPosition: 8192,
        // Three heads in all, keys and values of 24, two bytes each.
        positionBytes: 3 * 48 * 2,
        parameters: 64 * 257,
        weightBytes: 257 * 44,
        storage: 'Q5_0',
      },
    });
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toContain('Tiny.gguf: general.architecture "gemma2" is not supported');
    expect(trainedBase(await chosen)).toMatchObject({ spec: null, vocabSize: 257 });
    expect(trainedBase(await chosen).digest).not.toBe((await chosen).model.digest);
  });

  it.each<[string, () => string, Partial<Settings>, boolean, RegExp]>([
    ['an own install step where it is missing', () => file(), {}, false, /gemma2.*npm run setup:llama-cpp/s],
    ['the same where it was asked for', () => STARTER, { engine: 'llama.cpp' }, false, /npm run setup:llama-cpp/],
    [
      'the native reason where only that was asked for',
      () => file(),
      { engine: 'native' },
      true,
      /^Tiny\.gguf: general\.architecture "gemma2"/,
    ],
    ['a directory', () => STARTER, { engine: 'llama.cpp' }, true, /serves GGUF files/],
    [
      'a tokenizer that we do not read',
      () => file({ pre: 'unheard-of' }),
      {},
      true,
      /tokenizer\.ggml\.pre "unheard-of"/,
    ],
    [
      'a model that makes embeddings',
      () => file({ extra: [entry('gemma2.pooling_type', 'uint32', 1)] }),
      {},
      true,
      /gemma2\.pooling_type/,
    ],
    [
      'a model that is not causal',
      () => file({ extra: [entry('gemma2.attention.causal', 'bool', false)] }),
      {},
      true,
      /gemma2\.attention\.causal/,
    ],
    [
      'an encoder, of which its file says nothing',
      () => file({ architecture: 't5encoder' }),
      {},
      true,
      /general\.architecture is "t5encoder": the model has an encoder/,
    ],
    [
      'a model that works by diffusion',
      () => file({ architecture: 'llada', extra: [entry('llada.attention.causal', 'bool', true)] }),
      {},
      true,
      /general\.architecture is "llada".*diffusion/,
    ],
    [
      'an epsilon that is no number',
      () => file({ extra: [entry('gemma2.attention.layer_norm_rms_epsilon', 'float32', NaN)] }),
      {},
      true,
      /gemma2\.attention\.layer_norm_rms_epsilon must be a number in \[0, 1\], got NaN/,
    ],
    ['a part of a file', () => file({ extra: [entry('split.count', 'uint32', 2)] }), {}, true, /split\.count/],
    ['--dtype', () => file(), { dtype: 'float32' }, true, /--dtype.*llama\.cpp/],
    ['--quantize', () => file(), { quantize: 'int8' }, true, /--quantize/],
    ['--kv-cache-dtype', () => file(), { kvCacheDtype: 'int8' }, true, /--kv-cache-dtype/],
    [
      '--speculative-config',
      () => file(),
      { speculativeConfig: { numSpeculativeTokens: 2, promptLookupMax: 4, promptLookupMin: 2, disableByBatchSize: 9 } },
      true,
      /--speculative-config/,
    ],
    ['--lora-modules', () => file(), { loraModules: [{ name: 'a', path: 'b' }] }, true, /--lora-modules/],
    [
      '--allow-runtime-lora-updating',
      () => file(),
      { allowRuntimeLoraUpdating: true },
      true,
      /--allow-runtime-lora-updating/,
    ],
    ['--engine-extension', () => file(), { engineExtensions: ['x'] }, true, /--engine-extension/],
    ['--kv-port', () => file(), { kvPort: 0 }, true, /--kv-port/],
    ['--kv-peers', () => file(), { kvPeers: [{ host: 'h', port: 1 }] }, true, /--kv-peers/],
    ['--max-num-seqs', () => file(), { maxNumSeqs: 257 }, true, /--max-num-seqs 257.*256/],
  ])('is refused: %s', async (_, path, changes, installed, message) => {
    await expect(choose(path(), changes, installed).chosen).rejects.toThrow(message);
  });

  it('is not changed by a file that is broken: that is told as it is', async () => {
    // A list of counts is beyond the architecture: the native reader calls it wrong, the other one would take it.
    const { chosen, warnings } = choose(file({ architecture: 'llama' }));
    await expect(chosen).rejects.toThrow(/^Tiny\.gguf: llama\.attention\.head_count_kv must be an integer/);
    expect(warnings).toEqual([]);
  });
});

const MODEL: Omit<ForeignModel, 'texts'> = {
  path: 'a.gguf',
  name: 'a',
  architecture: 'x',
  vocabSize: 100,
  tokenizerSize: 90,
  maxPosition: 32_768,
  positionBytes: 1024,
  parameters: 1,
  weightBytes: 1,
  storage: 'F16',
  digest: 'd',
  samples: [],
};

describe('the KV cache of llama.cpp', () => {
  const share = (changes: Partial<Settings>, model = MODEL) => {
    const warnings: string[] = [];
    const config = llamaConfig(testSettings(changes), model as ForeignModel, (text) => warnings.push(text));
    const { maxSequences, maxModelLen, samplableVocab } = config;
    return { maxSequences, maxModelLen, samplableVocab, warnings };
  };
  const MiB = 2 ** 20;

  it.each<[string, Partial<Settings>, Partial<ForeignModel>, object]>([
    [
      'room for all',
      { maxNumSeqs: 4, kvCacheMemoryBytes: 128 * MiB },
      {},
      { maxSequences: 4, maxModelLen: 32_768, samplableVocab: 90, warnings: [] },
    ],
    ['shared evenly', { maxNumSeqs: 8, kvCacheMemoryBytes: 64 * MiB }, {}, { maxSequences: 8, maxModelLen: 8192 }],
    [
      'fewer rather than too short ones',
      { maxNumSeqs: 64, kvCacheMemoryBytes: 16 * MiB },
      {},
      { maxSequences: 4, maxModelLen: 4096 },
    ],
    [
      'a length that was asked for',
      { maxNumSeqs: 64, maxModelLen: 1000, kvCacheMemoryBytes: 16 * MiB },
      {},
      { maxSequences: 16, maxModelLen: 1000 },
    ],
    ['less than the least', { maxNumSeqs: 2, kvCacheMemoryBytes: MiB }, {}, { maxSequences: 1, maxModelLen: 1024 }],
    ['a small model', { maxNumSeqs: 3 }, { maxPosition: 100 }, { maxSequences: 3, maxModelLen: 100, warnings: [] }],
    [
      'a model without attention',
      { maxNumSeqs: 3 },
      { positionBytes: 0 },
      { maxSequences: 3, maxModelLen: 32_768, warnings: [] },
    ],
  ])('%s', (_, changes, model, result) => {
    expect(share(changes, { ...MODEL, ...model })).toMatchObject(result);
  });

  it('says what is less than it could be, and refuses what cannot be', () => {
    expect(share({ maxNumSeqs: 64, kvCacheMemoryBytes: 16 * MiB }).warnings).toEqual([
      expect.stringContaining('32768 positions'),
      expect.stringContaining('4 sequences of 4096'),
    ]);
    expect(() => share({ maxModelLen: 2048, kvCacheMemoryBytes: MiB })).toThrow(
      /--kv-cache-memory holds 1024 positions.*--max-model-len 2048/s,
    );
    expect(() => share({ maxModelLen: 40_000 })).toThrow(/--max-model-len 40000/);
    expect(() => share({ kvCacheMemoryBytes: 1000 })).toThrow(/--kv-cache-memory holds 0 positions/);
  });
});
