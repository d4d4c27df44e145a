/** Jumping over forced text with a real tokenizer: the text is a valid answer, its tokens are canonical, its scores those of a prompt. */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLocalEngine, type LocalEngine } from '../../src/control/engine/local.ts';
import type { NativeGrammarSource } from '../../src/control/engine/native-grammar.ts';
import type { EngineConfig, SequenceOutput } from '../../src/control/engine/protocol.ts';
import type { SubmitRequest } from '../../src/control/engine/ledger.ts';
import { SERVE } from '../../src/control/grammar/compile.ts';
import { loadModel } from '../../src/control/models/load.ts';
import { PromptEncoder } from '../../src/control/models/prompt-encoder.ts';
import {
  grammarVocabulary,
  readModelTokenizer,
  type ModelTokenizer,
} from '../../src/control/sessions/model-tokenizer.ts';
import { STARTER } from '../fixtures/starter.ts';

const SCHEMA = {
  type: 'object',
  properties: {
    first_name_of_customer: { type: 'string', maxLength: 8 },
    favourite_animal: { enum: ['elephant_of_africa', 'elephant_of_asia', 'mouse'] },
    is_subscribed: { type: 'boolean' },
  },
  required: ['first_name_of_customer', 'favourite_animal', 'is_subscribed'],
  additionalProperties: false,
};

let tokenizer: ModelTokenizer;
let encoder: PromptEncoder;
let config: EngineConfig;
let engine: LocalEngine;

beforeAll(async () => {
  const model = await loadModel(STARTER);
  tokenizer = await readModelTokenizer(STARTER);
  encoder = new PromptEncoder(tokenizer.files);
  config = {
    ...{ spec: model.spec, files: model.files, tensors: model.tensors, dtype: 'float32', threads: 2 },
    ...{ maxSequences: 8, maxBatchTokens: 256, maxModelLen: 512, maxLogprobs: 5, kvCacheBytes: 2 ** 26 },
    samplableVocab: tokenizer.table.size,
    enableChunkedPrefill: true,
    vocabulary: grammarVocabulary(tokenizer),
    spellerModel: STARTER,
    faults: [],
  };
  engine = await createLocalEngine(config);
});
afterAll(() => engine?.close());

interface Answer {
  tokens: number[];
  logprobs: number[];
  ranks: number[];
  topIds: number[][];
  text: string;
  /** Tokens of each delivery. */
  pieces: number[][];
  finish: string | null;
  steps: number;
}

const encode = (text: string) => encoder.encode(text, { addSpecialTokens: false, mark: null });
const textOf = (tokens: number[]) =>
  Buffer.concat(
    tokens.map((id) => (tokenizer.generation.eosTokenIds.includes(id) ? new Uint8Array(0) : tokenizer.table.bytes(id))),
  ).toString();

function requestOf(
  source: NativeGrammarSource,
  seed: number,
  changes: Partial<SubmitRequest['sampling']> = {},
): SubmitRequest {
  return {
    promptIds: encode('A customer and her animal:\n'),
    sampling: {
      ...{
        temperature: 1.2,
        topP: 1,
        topK: 0,
        minP: 0,
        seed: BigInt(seed),
        choice: 0,
        maxTokens: 150,
        minTokens: 0,
        logprobs: 3,
      },
      stopIds: Int32Array.from(tokenizer.generation.eosTokenIds),
      ...changes,
    },
    priority: 0,
    tenant: 't',
    grammar: { source, options: { ...SERVE, seconds: 60 } },
    jumpForward: true,
  };
}

const json = (schema: object): NativeGrammarSource => ({ kind: 'json_schema', text: JSON.stringify(schema) });

async function answer(requests: SubmitRequest[], on: LocalEngine = engine): Promise<Answer[]> {
  const before = on.stats().steps;
  const outputs: SequenceOutput[][] = requests.map(() => []);
  await new Promise<void>((resolve, reject) => {
    let open = requests.length;
    on.submit(requests, (index, output) => {
      outputs[index]!.push(output);
      if (output.finish === 'error') reject(new Error(output.error));
      else if (output.finish !== null && --open === 0) resolve();
    });
  });
  return outputs.map((pieces) => {
    const tokens = pieces.flatMap((piece) => [...piece.tokens]);
    return {
      tokens,
      logprobs: pieces.flatMap((piece) => [...piece.logprobs]),
      ranks: pieces.flatMap((piece) => [...piece.ranks]),
      topIds: pieces.flatMap((piece) => piece.top.map(({ ids }) => [...ids])),
      text: textOf(tokens),
      pieces: pieces.map((piece) => [...piece.tokens]),
      finish: pieces.at(-1)!.finish,
      steps: on.stats().steps - before,
    };
  });
}

const seeds = [1, 2, 3, 4, 5, 6];

describe('a schema with long names', () => {
  const validate = new Ajv2020().compile(SCHEMA);

  test('is answered in far fewer steps, with a valid document', async () => {
    for (const seed of seeds) {
      const [jumped] = await answer([requestOf(json(SCHEMA), seed)]);
      const [sampled] = await answer([{ ...requestOf(json(SCHEMA), seed), jumpForward: false }]);
      for (const { text, finish } of [jumped!, sampled!]) {
        expect(validate(JSON.parse(text)), text).toBe(true);
        expect(['complete', 'stop']).toContain(finish);
      }
      expect(jumped!.pieces.length).toBeLessThan(jumped!.tokens.length - 8);
      expect(sampled!.pieces.length).toBe(sampled!.tokens.length);
    }
  });

  test('has the scores that its tokens have in a prompt, to the bit', async () => {
    for (const seed of seeds) {
      const request = requestOf(json(SCHEMA), seed);
      const [jumped] = await answer([request]);
      const promptIds = Int32Array.from([...request.promptIds, ...jumped!.tokens]);
      const { grammar, jumpForward, ...plain } = request;
      const scored: SequenceOutput[] = [];
      await new Promise<void>((resolve) => {
        const again = { ...plain, promptIds, promptLogprobs: 3, sampling: { ...plain.sampling, maxTokens: 1 } };
        engine.submit([again], (_, output) => {
          scored.push(output);
          if (output.finish !== null) resolve();
        });
      });
      const pieces = scored.flatMap(({ promptLogprobs }) => (promptLogprobs ? [promptLogprobs] : []));
      const from = request.promptIds.length - 1;
      expect(jumped!.logprobs).toEqual(pieces.flatMap(({ logprobs }) => [...logprobs]).slice(from));
      expect(jumped!.ranks).toEqual(pieces.flatMap(({ ranks }) => [...ranks]).slice(from));
      expect(jumped!.topIds).toEqual(pieces.flatMap(({ top }) => top.map(({ ids }) => [...ids])).slice(from));
    }
  });

  test('spells forced names as the tokenizer does', async () => {
    const answers = await answer(seeds.map((seed) => requestOf(json(SCHEMA), seed)));
    const names: string[] = [];
    for (const { pieces } of answers) {
      let last: number[] = [];
      for (const piece of pieces) {
        const forced = piece.slice(0, -1);
        const text = textOf(forced);
        if (forced.length > 0) {
          // After the token before it, or alone where the two would merge.
          const beside = [...encode(textOf(last) + text)].slice(-forced.length);
          expect([beside, [...encode(text)]], text).toContainEqual(forced);
          names.push(text);
        }
        last = piece.slice(-1);
      }
    }
    expect(names.some((text) => text.includes('name_of_customer'))).toBe(true);
  });

  test('gives the same in batches, chunks and few pages', async () => {
    const alone: Answer[] = [];
    for (const seed of seeds) alone.push(...(await answer([requestOf(json(SCHEMA), seed)])));
    const tight = { ...config, maxBatchTokens: 8, maxSequences: 6, maxModelLen: 192, enablePrefixCaching: false };
    for (const changed of [config, tight, { ...tight, kvCacheBytes: 2 ** 21 }]) {
      const other = await createLocalEngine(changed);
      const together = await answer(
        seeds.map((seed) => requestOf(json(SCHEMA), seed)),
        other,
      );
      together.forEach(({ tokens, logprobs, ranks, topIds }, index) => {
        const { [index]: one } = alone;
        expect({ tokens, logprobs, ranks, topIds }).toEqual({
          tokens: one!.tokens,
          logprobs: one!.logprobs,
          ranks: one!.ranks,
          topIds: one!.topIds,
        });
      });
      await other.close();
    }
  });

  test('gives the same where tokens are proposed: none of them takes the place of forced text', async () => {
    const item = {
      ...SCHEMA,
      properties: { ...SCHEMA.properties, favourite_animal: { type: 'string', maxLength: 8 } },
    };
    const requests = seeds.map((seed) => {
      const changes = { temperature: seed % 2, maxTokens: 200 };
      return requestOf(json({ type: 'array', items: item, minItems: 3, maxItems: 4 }), seed, changes);
    });
    const without = await answer(requests);
    const limits = { promptLookupMax: 3, promptLookupMin: 1, disableByBatchSize: 4097, measured: false };
    const other = await createLocalEngine({ ...config, speculation: { numSpeculativeTokens: 5, ...limits } });
    const proposed = await answer(requests, other);
    expect(other.stats().speculation?.acceptedTokens).toBeGreaterThan(10);
    await other.close();
    for (const [index, { tokens, logprobs, ranks, topIds, finish }] of proposed.entries())
      expect(without[index]).toMatchObject({ tokens, logprobs, ranks, topIds, finish });
  });

  test('keeps to max_tokens, and ends in time where the shortest answer fits', async () => {
    for (const maxTokens of [1, 2, 5, 9, 20, 40, 60, 80]) {
      const [one] = await answer([requestOf(json(SCHEMA), 3, { maxTokens })]);
      expect(one!.tokens.length).toBeLessThanOrEqual(maxTokens);
      if (maxTokens >= 80) expect(validate(JSON.parse(one!.text)), one!.text).toBe(true);
    }
  });
});

describe('other grammars', () => {
  const cases: [string, NativeGrammarSource, RegExp][] = [
    [
      'a choice',
      { kind: 'choice', choices: ['the quick brown fox', 'the quick red fox'] },
      /^the quick (brown|red) fox$/,
    ],
    [
      'a regex',
      { kind: 'regex', text: 'Dear customer, (yes|no) ünïcödé 👍🏽 [ab]{3} bye' },
      /^Dear customer, (yes|no) ünïcödé 👍🏽 [ab]{3} bye$/,
    ],
    [
      'EBNF',
      { kind: 'grammar', text: 'root ::= "SELECT " [a-z]{1,4} " FROM table_of_customers" (" LIMIT 1")?' },
      /^SELECT [a-z]{1,4} FROM table_of_customers( LIMIT 1)?$/,
    ],
    [
      'a structural tag',
      {
        kind: 'structural_tag',
        text: JSON.stringify({
          format: {
            type: 'tag',
            begin: '<tool_call>\n',
            content: { type: 'json_schema', json_schema: SCHEMA },
            end: '\n</tool_call>',
          },
        }),
      },
      /^<tool_call>\n\{[^]*\}\n<\/tool_call>$/,
    ],
    ['one text only', { kind: 'choice', choices: ['nothing but this sentence'] }, /^nothing but this sentence$/],
  ];
  test.each(cases)('%s', async (_, source, shape) => {
    for (const seed of seeds) {
      const [one] = await answer([requestOf(source, seed)]);
      expect(one!.text).toMatch(shape);
      expect(one!.pieces.length).toBeLessThan(one!.tokens.length);
      expect(one!.logprobs.length).toBe(one!.tokens.length);
    }
  });

  test('penalties and biases do not keep forced text from coming, bans do', async () => {
    const [source, name] = [{ kind: 'regex', text: 'abc elephant [xy]' } as const, encode(' elephant').at(-1)!];
    const biased = await answer([
      requestOf(source, 1, { biasIds: Int32Array.of(name), biasValues: Float32Array.of(-100), repetitionPenalty: 2 }),
    ]);
    expect(biased[0]!.tokens).toContain(name);
    const [banned] = await answer([requestOf(source, 1, { badWords: [Int32Array.of(name)] })]);
    expect(banned!.tokens).not.toContain(name);
    expect(banned!.text).toMatch(/^abc elephant [xy]$/);
    const [stopped] = await answer([requestOf(source, 1, { stopIds: Int32Array.of(name) })]);
    expect(stopped!.tokens.slice(0, -1)).not.toContain(name);
  });
});
