/**
 * Random schemas and regular expressions, for a bounded time: at each position of a random walk the mask is exactly the set of
 * tokens that an independent matcher allows, every document made under masks validates with ajv, and every instance is accepted
 * exactly when ajv accepts it.
 *
 * TANDEM_FUZZ_SECONDS: time per test (default 3). TANDEM_FUZZ_CASES: that many cases instead, however long they take.
 * TANDEM_FUZZ_SEED: the first case (default 1, so that every run starts with the same cases; `time` for others each time); each
 * case has the number after the last one's as its seed.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { beforeAll, describe, expect, it } from 'vitest';
import type { NativeGrammar, NativeMatcher, NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { acceptOptions, compile, END, generateOptions, makeVocabulary, Masks, reads, smallTokens } from './drive.ts';
import { after, canEnd, forget, NONE, type Language } from './language.ts';
import { randomInstance, randomText } from './random-instance.ts';
import { randomRegex, spellUtf8 } from './random-regex.ts';
import { SchemaLanguages, type Schema } from './random-schema.ts';
import { widerSchema } from './wider-schema.ts';
import { Random } from './random.ts';

const SECONDS = Number(process.env['TANDEM_FUZZ_SECONDS'] ?? 3);
const CASES = Number(process.env['TANDEM_FUZZ_CASES'] ?? 0);
const SEED = process.env['TANDEM_FUZZ_SEED'] ?? '1';
const FIRST_SEED = SEED === 'time' ? Date.now() % 1_000_000_000 : Number(SEED);
const LEAST_CASES = 10;
const LIMIT_MS = CASES > 0 ? 3_600_000 : 300_000;
const STEPS = 20;

const tokens = smallTokens();
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

/** Runs cases until the time is up; the seed of a failing one is in the message. */
async function fuzz(run: (random: Random) => Promise<boolean>): Promise<number> {
  const deadline = performance.now() + SECONDS * 1000;
  let judged = 0;
  for (let i = 0; CASES > 0 ? judged < CASES : judged < LEAST_CASES || performance.now() < deadline; i++) {
    const seed = FIRST_SEED + i;
    try {
      if (await run(new Random(seed))) judged++;
    } catch (error) {
      throw new Error(`seed ${seed}: ${error instanceof Error ? error.message : String(error)}`, { cause: error });
    }
    forget();
    if (i > 20 * (judged + 100)) throw new Error('Nearly every case is refused.');
  }
  return judged;
}

function show(ids: readonly number[]): string {
  return ids.map((id) => JSON.stringify(tokens[id]?.toString('latin1') ?? '')).join(' ');
}

/** A random walk under masks, each compared with the independent matcher; the bytes written, closed by a shortest ending. */
function walk(grammar: NativeGrammar, language: Language, random: Random, what: string): Buffer {
  const matcher = grammar.createMatcher(vocabulary);
  const written: Buffer[] = [];
  let left = language;
  for (let step = 0; step < STEPS; step++) {
    const allowed = masks.allowed(matcher);
    const wanted = tokens.flatMap((token, id) =>
      (id === END ? canEnd(left) : after(left, token) !== NONE) ? [id] : [],
    );
    if (allowed.join() !== wanted.join()) fail(what, written, allowed, wanted);
    const id = random.pick(allowed);
    if (!matcher.advance(id)) throw new Error(`${what}: token ${id} is in the mask and refused.`);
    if (id === END) return Buffer.concat(written);
    written.push(tokens[id] ?? Buffer.alloc(0));
    left = after(left, tokens[id] ?? Buffer.alloc(0));
  }
  return Buffer.concat([...written, close(matcher, what)]);
}

function fail(what: string, written: Buffer[], allowed: number[], wanted: number[]): never {
  const more = allowed.filter((id) => !wanted.includes(id));
  const less = wanted.filter((id) => !allowed.includes(id));
  const at = JSON.stringify(Buffer.concat(written).toString('latin1'));
  throw new Error(
    `${what} after ${at}: wrongly allowed ${show(more.slice(0, 9))}; wrongly masked ${show(less.slice(0, 9))}`,
  );
}

function close(matcher: NativeMatcher, what: string): Buffer {
  const ending = matcher.completion();
  if (!ending) throw new Error(`${what}: there is no way to end.`);
  for (const id of ending) if (!matcher.advance(id)) throw new Error(`${what}: the ending is refused.`);
  expect(matcher.canEnd()).toBe(true);
  return Buffer.concat(Array.from(ending, (id) => tokens[id] ?? Buffer.alloc(0)));
}

/** One for all: each would compile the metaschema anew, which takes most of a case's time. */
const ajv = new Ajv2020({ strict: false, validateFormats: false, logger: false, addUsedSchema: false });

function validator(schema: Schema): (value: unknown) => boolean {
  const apart = containsApart(schema) as Schema;
  const validate = ajv.compile(apart);
  // It would be kept with all that it compiled.
  if (typeof apart === 'object') ajv.removeSchema(apart);
  return validate;
}

/**
 * The same schema with `contains` in an allOf of its own: ajv 8.20 takes an empty array for valid where `contains` stands beside
 * `prefixItems`.
 */
function containsApart(schema: unknown): unknown {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) {
    return Array.isArray(schema) ? schema.map(containsApart) : schema;
  }
  const { contains, minContains, maxContains, ...rest } = schema as { [keyword: string]: unknown };
  const others = Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, containsApart(value)]));
  if (contains === undefined) return others;
  const counted = { contains: containsApart(contains), minContains, maxContains };
  const bounds = Object.fromEntries(Object.entries(counted).filter(([, value]) => value !== undefined));
  return { allOf: [bounds, others] };
}

describe('masks and documents of random sources', () => {
  it(
    'are those of the independent matcher, for schemas',
    async () => {
      const judged = await fuzz(async (random) => {
        const spaced = random.chance(0.5);
        const { schema, language } = new SchemaLanguages(random, spaced).value(2);
        const text = JSON.stringify(schema);
        const grammar = await compile({ kind: 'json_schema', text }, { ...generateOptions, anySpace: spaced });
        if (!grammar) throw new Error(`${text} is refused.`);
        expect(grammar.empty).toBe(language === NONE);
        if (grammar.empty) return false;
        const written = walk(grammar, language, random, text).toString('utf8');
        expect(validator(schema)(JSON.parse(written)), `${text} against ${written}`).toBe(true);
        return true;
      });
      expect(judged).toBeGreaterThan(0);
    },
    LIMIT_MS,
  );

  it(
    'are those of the independent matcher, for regular expressions',
    async () => {
      const judged = await fuzz(async (random) => {
        const { pattern, language } = randomRegex(random, spellUtf8, 4);
        const grammar = await compile({ kind: 'regex', text: pattern }, generateOptions);
        if (!grammar) throw new Error(`${pattern} is refused.`);
        const written = walk(grammar, language, random, pattern).toString('utf8');
        expect(new RegExp(`^(?:${pattern})$`, 'u').test(written), `${pattern} against ${written}`).toBe(true);
        return true;
      });
      expect(judged).toBeGreaterThan(0);
    },
    LIMIT_MS,
  );

  it(
    'agree with ajv in both modes, for schemas with every keyword',
    async () => {
      const judged = await fuzz((random) => agrees(widerSchema(random, 2), random));
      expect(judged).toBeGreaterThan(0);
    },
    LIMIT_MS,
  );
});

/** False where the schema is refused: both modes refuse alike. */
async function agrees(schema: Schema, random: Random): Promise<boolean> {
  const text = JSON.stringify(schema);
  const accept = await compile({ kind: 'json_schema', text }, acceptOptions);
  const generate = await compile({ kind: 'json_schema', text }, generateOptions);
  if (!accept || !generate) return false;
  const valid = validator(schema);
  for (let i = 0; i < 8; i++) {
    const value = randomInstance(random, 2);
    const spelled = Buffer.from(randomText(random, value), 'utf8');
    const accepted = reads(accept.createMatcher(vocabulary), masks, spell(spelled, random));
    expect(accepted, `${text} against ${spelled.toString()}`).toBe(valid(value));
  }
  expect(generate.empty).toBe(accept.empty);
  for (let i = 0; i < 3 && !generate.empty; i++) {
    const written = write(generate, random, text).toString('utf8');
    expect(valid(JSON.parse(written)), `${text} against ${written}`).toBe(true);
  }
  return true;
}

/** A document by a random walk under masks. */
function write(grammar: NativeGrammar, random: Random, what: string): Buffer {
  const matcher = grammar.createMatcher(vocabulary);
  const written: Buffer[] = [];
  for (let step = 0; step < STEPS; step++) {
    const id = random.pick(masks.allowed(matcher));
    if (!matcher.advance(id)) throw new Error(`${what}: token ${id} is in the mask and refused.`);
    if (id === END) return Buffer.concat(written);
    written.push(tokens[id] ?? Buffer.alloc(0));
  }
  return Buffer.concat([...written, close(matcher, what)]);
}

/** Some tokens that spell the text. */
function spell(text: Buffer, random: Random): number[] {
  const out: number[] = [];
  for (let at = 0; at < text.length;) {
    const fitting = tokens.flatMap((token, id) =>
      token.length > 0 && text.subarray(at, at + token.length).equals(token) ? [id] : [],
    );
    const id = random.pick(fitting);
    out.push(id);
    at += tokens[id]?.length ?? 1;
  }
  return out;
}
