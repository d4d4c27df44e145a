/** GGUF files in the engine: the same bits as the directory that they were made from, blocks as llama.cpp reads them. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { ComputeDType } from '../../src/control/engine/native.ts';
import type { StorageName } from '../../src/control/models/gguf/format.ts';
import { ggufName } from '../../src/control/models/gguf/tensors.ts';
import { readModelTexts } from '../../src/control/models/load.ts';
import { grammarVocabulary, readModelTokenizer } from '../../src/control/sessions/model-tokenizer.ts';
import { PromptEncoder } from '../../src/control/models/prompt-encoder.ts';
import { Driver, fullLogprobs, generate, openModel } from '../fixtures/engine-driver.ts';
import { readBlocks, storeAs } from '../fixtures/gguf-blocks.ts';
import { storedType, writeGguf } from '../fixtures/gguf-model.ts';
import { familyPlan, temporaryDirectory, writeFamily, writeRandomModel } from '../fixtures/tiny-model.ts';
import { familyGoldens, goldenRows, logitError, TOLERANCE } from './logit-error.ts';
import { STARTER } from '../fixtures/starter.ts';

const BLOCK_TYPES = ['Q8_0', 'Q4_0', 'Q4_K', 'Q6_K'] as const;
/** RMS error over the standard deviation of the logits. */
const BLOCK_TOLERANCE = 0.05;
const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

/** Log-probabilities at the golden positions, all as prompts in one step. */
async function logprobs(path: string, dtype: ComputeDType, tokens: number[]): Promise<Float32Array[]> {
  const opened = await openModel(path, dtype);
  const vocab = opened.files.spec.vocabSize;
  const driver = new Driver(opened);
  familyPlan.positions.forEach((position, slot) => driver.open(slot, position + 1, { logprobs: vocab }));
  const rows = familyPlan.positions.map((position, slot) => ({ slot, tokens: tokens.slice(0, position + 1) }));
  const samples = await driver.step(rows);
  driver.engine.close();
  opened.model.close();
  return samples.map((sample) => fullLogprobs(sample, vocab));
}

// The window is on some layers only, which the format does not say; nor does it know all of YaRN's settings, layers of Qwen3-MoE without
// experts, or experts whose weights do not sum to 1.
const UNKNOWN = ['qwen2-window', 'llama-yarn', 'qwen3-moe', 'qwen3-moe-step'];
const families = familyPlan.families.filter(({ name }) => !UNKNOWN.includes(name));

/** Every layer of it a mixture. */
const MOE = {
  architectures: ['Qwen3MoeForCausalLM'],
  model_type: 'qwen3_moe',
  num_experts: 5,
  num_experts_per_tok: 2,
  moe_intermediate_size: 256,
  norm_topk_prob: true,
};

describe.each(families)('$name as GGUF', ({ name }) => {
  test.each([
    ['F32', 'float32'],
    ['F16', 'float32'],
    ['BF16', 'bfloat16'],
  ] as const)('in %s gives the bits of the directory', async (type, dtype) => {
    const directory = join(temporary.path, `${name}-${type}`);
    writeFamily(directory, name, { dtype: type });
    const path = `${directory}.gguf`;
    await writeGguf(path, directory, { type });
    const { tokens } = familyGoldens[name]!;
    const rows = await logprobs(path, dtype, tokens);
    if (type !== 'F16') expect(logitError(rows, goldenRows(name, type))).toBeLessThanOrEqual(TOLERANCE[type]);
    const truth = await logprobs(directory, dtype, tokens);
    // The factors of Llama 3.1's rule are rounded on their way through the file.
    if (name === 'llama3') expect(logitError(rows, truth)).toBeLessThanOrEqual(TOLERANCE.BF16);
    else expect(rows).toEqual(truth);
  });
});

test.each([
  ['F32', 'float32'],
  ['BF16', 'bfloat16'],
] as const)('experts in %s give the bits of the directory', async (type, dtype) => {
  const directory = join(temporary.path, `moe-${type}`);
  writeRandomModel(directory, { ...MOE, num_hidden_layers: 2 }, { dtype: type });
  await writeGguf(`${directory}.gguf`, directory, { type });
  const tokens = Array.from({ length: 150 }, (_, i) => (i * 37) % 320);
  expect(await logprobs(`${directory}.gguf`, dtype, tokens)).toEqual(await logprobs(directory, dtype, tokens));
});

describe('blocks', { timeout: 240_000 }, () => {
  const goldens = JSON.parse(readFileSync(new URL('../goldens/gguf-blocks.json', import.meta.url), 'utf8')) as Record<
    string,
    { raw: string; bits: string }
  >;

  test.each(BLOCK_TYPES)('of %s: the test reads them as llama.cpp does', (type) => {
    const { raw, bits } = goldens[type]!;
    const values = readBlocks(type, Buffer.from(raw, 'hex'));
    expect(Buffer.from(values.buffer).toString('hex')).toBe(bits);
  });

  type Choice = StorageName | ((name: string) => StorageName);

  /** A file, and a directory with the values that its blocks hold, in F32. */
  async function models(label: string, type: Choice, more = {}): Promise<{ file: string; directory: string }> {
    const size = {
      ...more,
      hidden_size: 256,
      intermediate_size: 512,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      head_dim: 64,
    };
    const plain = join(temporary.path, `plain-${label}`);
    writeRandomModel(plain, { ...size, num_hidden_layers: 1 }, { dtype: 'F32' });
    const directory = join(temporary.path, `blocks-${label}`);
    const edit = (name: string, values: Float32Array, shape: number[]): void => {
      const stored = storedType(ggufName(name), shape, type);
      if (shape.length === 2 && stored !== 'F32') values.set(readBlocks(stored, storeAs(stored, values)));
    };
    writeRandomModel(directory, { ...size, num_hidden_layers: 1 }, { dtype: 'F32', edit });
    const file = join(temporary.path, `${label}.gguf`);
    await writeGguf(file, plain, { type });
    return { file, directory };
  }

  /** As llama.cpp's mixtures: values of attention finer than queries and keys. */
  const mixed = (name: string): StorageName =>
    /attn_v|token_embd/.test(name) ? 'Q6_K' : /ffn_down/.test(name) ? 'Q8_0' : 'Q4_K';
  const besidePlain = (name: string): StorageName => (/attn_v|ffn_up/.test(name) ? 'F32' : 'Q4_K');

  test.each<[string, Choice, object?]>([
    ...BLOCK_TYPES.map((type): [string, Choice] => [type, type]),
    ['mixed', mixed],
    ['beside plain elements', besidePlain],
    ['of experts', mixed, MOE],
  ])('%s: the engine computes with their values', async (label, type, more) => {
    const { file, directory } = await models(label, type, more);
    const tokens = Array.from({ length: 150 }, (_, i) => (i * 37) % 320);
    const truth = await logprobs(directory, 'float32', tokens);
    // Products round their inputs to 8 bits; the weights are exact.
    const error = logitError(await logprobs(file, 'float32', tokens), truth);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(BLOCK_TOLERANCE);
  });
});

describe('the starter model as GGUF', () => {
  const file = join(temporary.path, 'starter.gguf');
  const prompts = [
    'Hello! What can you do?',
    'Zähle  bis 10:\n\n1, 2, 3 …',
    '<|im_start|>user\nWhat is 12 + 30?<|im_end|>\n',
  ];

  beforeAll(() => writeGguf(file, STARTER, { type: 'BF16', ownTokenizer: true }));

  test('has the tokens, the ends and the defaults of the directory', async () => {
    const [own, truth] = [await readModelTokenizer(file), await readModelTokenizer(STARTER)];
    expect(grammarVocabulary(own)).toEqual(grammarVocabulary(truth));
    expect(own.files.chatTemplate).toBe(truth.files.chatTemplate);
    expect(own.files.specialTokens).toEqual(truth.files.specialTokens);
    expect(new Set(own.generation.eosTokenIds)).toEqual(new Set(truth.generation.eosTokenIds));
    expect({ ...own.generation, eosTokenIds: [] }).toEqual({ ...truth.generation, eosTokenIds: [] });
  });

  test('answers with the same tokens and the same log-probabilities', async () => {
    const answers = [];
    for (const path of [file, STARTER]) {
      const encoder = new PromptEncoder((await readModelTexts(path)).tokenizer);
      const opened = await openModel(path, 'bfloat16');
      const driver = new Driver(opened, { maxLogprobs: 1 });
      const asked = prompts.map((text, slot) => ({
        slot,
        ids: encoder.encode(text, { addSpecialTokens: true, mark: null }),
        sampling: { maxTokens: 24, logprobs: 1, temperature: slot === 0 ? 0 : 0.7, seed: 11n },
      }));
      const results = await generate(driver, asked);
      answers.push(results.map(({ tokens, logprobs: own }, i) => ({ prompt: [...asked[i]!.ids], tokens, own })));
      driver.engine.close();
      opened.model.close();
    }
    expect(answers[0]).toEqual(answers[1]);
  });
});
