/** `tandem grammar check`: which schemas compile, and whether their instances are read rightly. */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import type { Command } from 'commander';
import { loadNative } from '../control/engine/native.ts';
import { ACCEPT, GENERATE } from '../control/grammar/compile.ts';
import { Checker, quantile, type CheckCase, type CheckResult } from '../control/grammar/check.ts';
import { rawMember } from '../control/grammar/raw-member.ts';
import { createVocabulary } from '../control/grammar/vocabulary.ts';
import { readTokenizerFiles } from '../control/models/tokenizer-files.ts';
import { PromptEncoder } from '../control/models/prompt-encoder.ts';
import { TokenTable } from '../control/sessions/token-table.ts';

type Print = (line: string) => void;

interface CheckOptions {
  tokenizer: string;
  mode: 'accept' | 'generate';
  draft7?: boolean;
  each?: boolean;
}

const MAX_TOKENS = 2 ** 20;
/** Private-use characters, one of which a text lacks. */
const MARKS = Array.from({ length: 64 }, (_, i) => String.fromCharCode(0xe000 + i));
/** Mask times beyond this many are sampled: the summary stays exact in its counts and bounded in memory. */
const MAX_TIMES = 2_000_000;

export function addGrammarCommand(program: Command, print: Print): void {
  const grammar = program.command('grammar').description('structured output');
  grammar
    .command('check <file>')
    .description('compile the schemas of a JSONL file and read their instances; lines of {"schema", "instances"}')
    .requiredOption('--tokenizer <dir>', 'directory with tokenizer.json')
    .option('--mode <mode>', 'accept (every JSON spelling) or generate (what serving writes)', 'accept')
    .option('--draft7', 'schemas without $schema are draft 7')
    .option('--each', 'one line per schema')
    .action((file: string, options: CheckOptions) => checkFile(file, options, print));
}

async function checkFile(file: string, options: CheckOptions, print: Print): Promise<void> {
  if (options.mode !== 'accept' && options.mode !== 'generate') throw new Error('--mode must be accept or generate.');
  if ((await stat(file)).isDirectory()) throw new Error(`${file} is a directory: name a JSONL file.`);
  const checker = await createChecker(options);
  const summary = new Summary();
  let line = 0;
  for await (const text of createInterface({ input: createReadStream(file), crlfDelay: Infinity })) {
    line++;
    if (text.trim() === '') continue;
    const result = await checker.check(readCase(text, line));
    summary.add(result);
    if (options.each) print(JSON.stringify({ line, ...counts(result), compile_us: Math.round(result.compileMicros) }));
  }
  print(JSON.stringify(summary.report()));
}

async function createChecker(options: CheckOptions): Promise<Checker> {
  const files = await readTokenizerFiles(options.tokenizer, MAX_TOKENS);
  const table = new TokenTable(files);
  const encoder = new PromptEncoder(files);
  const ends = files.addedTokens.filter((token) => token.special && token.id < table.size).map((token) => token.id);
  const addon = loadNative();
  const vocabulary = await createVocabulary(addon, table, ends.slice(0, 1));
  const base = options.mode === 'accept' ? ACCEPT : GENERATE;
  const encode = exactEncoder(encoder, table);
  return new Checker(addon, vocabulary, encode, { ...base, draft7: options.draft7 ?? false });
}

/** Token ids whose bytes are exactly the text's: single-byte tokens where the tokenizer would change it (Unicode normal forms). */
function exactEncoder(encoder: PromptEncoder, table: TokenTable): (text: string) => Iterable<number> {
  const byByte = new Map<number, number>();
  for (let id = table.size - 1; id >= 0; id--) {
    const bytes = table.bytes(id);
    if (bytes.length === 1 && bytes[0] !== undefined && !table.isSpecial(id)) byByte.set(bytes[0], id);
  }
  return (text) => {
    // A mark within keeps a special token's name from being read as the token: instances are plain text.
    const mark = MARKS.find((one) => !text.includes(one)) ?? null;
    const ids = encoder.encode(mark ? text.replaceAll('<', `<${mark}`) : text, { addSpecialTokens: false, mark });
    const wanted = Buffer.from(text, 'utf8');
    if (Buffer.concat(Array.from(ids, (id) => table.bytes(id))).equals(wanted)) return ids;
    return Array.from(wanted, (byte) => {
      const id = byByte.get(byte);
      if (id === undefined) throw new Error(`The tokenizer has no token for byte ${byte}.`);
      return id;
    });
  };
}

function readCase(text: string, line: number): CheckCase {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`Line ${line} is not valid JSON.`);
  }
  const item = value as Partial<CheckCase> | null;
  const schema = rawMember(text, 'schema');
  const ok =
    schema !== null &&
    typeof item === 'object' &&
    item !== null &&
    Array.isArray(item.instances) &&
    item.instances.every((one) => typeof one?.text === 'string' && typeof one.valid === 'boolean');
  if (!ok || schema === null)
    throw new Error(`Line ${line} must be {"schema": ..., "instances": [{"text": "...", "valid": true}]}.`);
  return { schema, instances: (item as CheckCase).instances };
}

function counts(result: CheckResult): Record<string, unknown> {
  return {
    compiled: result.compiled,
    refused: result.refused,
    message: result.message,
    valid_accepted: result.validAccepted,
    valid_refused: result.validRefused,
    invalid_accepted: result.invalidAccepted,
    invalid_refused: result.invalidRefused,
  };
}

class Summary {
  #schemas = 0;
  #compiled = 0;
  readonly #refused = new Map<string, number>();
  readonly #instances = { valid_accepted: 0, valid_refused: 0, invalid_accepted: 0, invalid_refused: 0 };
  readonly #compileMicros: number[] = [];
  readonly #maskMicros: number[] = [];
  #seen = 0;

  add(result: CheckResult): void {
    this.#schemas++;
    if (result.compiled) {
      this.#compiled++;
      this.#compileMicros.push(result.compileMicros);
    } else {
      const name = result.refused ?? 'unknown';
      this.#refused.set(name, (this.#refused.get(name) ?? 0) + 1);
    }
    this.#instances.valid_accepted += result.validAccepted;
    this.#instances.valid_refused += result.validRefused;
    this.#instances.invalid_accepted += result.invalidAccepted;
    this.#instances.invalid_refused += result.invalidRefused;
    for (const time of result.maskMicros) {
      this.#seen++;
      if (this.#maskMicros.length < MAX_TIMES) this.#maskMicros.push(time);
      else if (Math.random() * this.#seen < MAX_TIMES) this.#maskMicros[Math.floor(Math.random() * MAX_TIMES)] = time;
    }
  }

  report(): Record<string, unknown> {
    return {
      schemas: this.#schemas,
      compiled: this.#compiled,
      refused: Object.fromEntries([...this.#refused].sort(([a], [b]) => (a < b ? -1 : 1))),
      ...this.#instances,
      compile_us: quantiles(this.#compileMicros),
      mask_us: quantiles(this.#maskMicros),
    };
  }
}

function quantiles(values: number[]): { p50: number; p99: number } {
  const sorted = Float64Array.from(values).sort();
  const round = (value: number) => Math.round(value * 10) / 10;
  return { p50: round(quantile([...sorted], 0.5)), p99: round(quantile([...sorted], 0.99)) };
}
