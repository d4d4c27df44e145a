/**
 * The JSON Schema Test Suite, where the shared data is at hand, and a few schemas of our own where it is not: every document that
 * generate mode makes validates with ajv.
 */
import { Ajv } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats, { type FormatsPlugin } from 'ajv-formats';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { NativeGrammar, NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { SHARED_DATA } from '../../unit/sessions/shared-data.ts';
import { compile, END, generateOptions, makeVocabulary, Masks, smallTokens } from './drive.ts';
import { Random } from './random.ts';
import type { Schema } from './random-schema.ts';

const SUITE = join(SHARED_DATA, 'suites/JSON-Schema-Test-Suite/tests');
const WALKS = 3;
const STEPS = 60;
/** Names that ajv-formats knows and asserts as this engine does; the others are left to be annotations. */
const FORMATS = ['date', 'uuid', 'ipv4', 'json-pointer'] as const;
/** ajv divides doubles: 0.0007 is no multiple of 0.0001 to it. */
const PRECISION = 9;

/** ajv reads the identifier beside a draft 7 reference all the same, against the suite. */
const MISREAD = new Set(['$ref prevents a sibling $id from changing the base uri']);

const tokens = smallTokens();
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

function write(grammar: NativeGrammar, random: Random): string {
  const matcher = grammar.createMatcher(vocabulary);
  const written: Uint8Array[] = [];
  for (let step = 0; step < STEPS; step++) {
    const id = random.pick(masks.allowed(matcher));
    expect(matcher.advance(id)).toBe(true);
    if (id === END) return Buffer.concat(written).toString('utf8');
    written.push(tokens[id] ?? new Uint8Array(0));
  }
  const ending = matcher.completion();
  if (!ending) throw new Error('There is no way to end.');
  for (const id of ending) expect(matcher.advance(id)).toBe(true);
  return Buffer.concat([...written, ...Array.from(ending, (id) => tokens[id] ?? new Uint8Array(0))]).toString('utf8');
}

/** Null for the few schemas that ajv itself cannot compile: identifiers in places that are no schemas, endless references. */
function validator(schema: Schema, draft7: boolean): ((value: unknown) => boolean) | null {
  const options = {
    strict: false,
    validateSchema: false,
    multipleOfPrecision: PRECISION,
    ownProperties: true,
    logger: false,
  } as const;
  const ajv = draft7 ? new Ajv(options) : new Ajv2020(options);
  (addFormats as unknown as FormatsPlugin)(ajv, [...FORMATS]);
  try {
    return ajv.compile(schema);
  } catch {
    return null;
  }
}

interface Group {
  schema: Schema;
  description: string;
}

function groupsOf(draft: string): Group[] {
  const folders = ['', 'optional'].map((folder) => join(SUITE, draft, folder));
  const files = folders.flatMap((folder) =>
    readdirSync(folder)
      .filter((name) => name.endsWith('.json'))
      .map((name) => join(folder, name)),
  );
  const groups = files.flatMap((file) => JSON.parse(readFileSync(file, 'utf8')) as Group[]);
  return groups.filter((group) => !MISREAD.has(group.description));
}

/** Of the schemas: how many documents were made, those of which ajv says no, and how many schemas it does not compile. */
async function judge(
  groups: readonly Group[],
  draft7: boolean,
): Promise<{ made: number; wrong: string[]; unjudged: number }> {
  const wrong: string[] = [];
  let made = 0;
  let unjudged = 0;
  for (const [index, { schema, description }] of groups.entries()) {
    const text = JSON.stringify(schema);
    const grammar = await compile({ kind: 'json_schema', text }, { ...generateOptions, draft7 });
    if (!grammar || grammar.empty) continue;
    const valid = validator(schema, draft7);
    if (!valid) unjudged++;
    const random = new Random(index);
    for (let i = 0; valid && i < WALKS; i++) {
      const document = write(grammar, random);
      if (!valid(JSON.parse(document) as unknown)) wrong.push(`${description}: ${text} against ${document}`);
      made++;
    }
  }
  return { made, wrong, unjudged };
}

const OWN: Group[] = [
  { description: 'object', schema: { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] } },
  { description: 'closed', schema: { properties: { a: true }, additionalProperties: false, type: 'object' } },
  { description: 'others', schema: { type: 'object', additionalProperties: { type: 'integer' }, minProperties: 1 } },
  { description: 'array', schema: { type: 'array', items: { enum: ['a', 1, null] }, minItems: 2 } },
  { description: 'number', schema: { type: 'number', exclusiveMinimum: 0.5, maximum: 12.25 } },
  { description: 'formats', schema: { anyOf: FORMATS.map((format) => ({ type: 'string', format })) } },
  { description: 'branches', schema: { if: { type: 'string' }, then: { maxLength: 2 }, else: { type: 'integer' } } },
];

describe('documents of generate mode', () => {
  it('validate, for schemas of our own', async () => {
    const { made, wrong } = await judge(OWN, false);
    expect(wrong).toEqual([]);
    expect(made).toBe(OWN.length * WALKS);
  });

  for (const [draft, draft7] of [
    ['draft7', true],
    ['draft2020-12', false],
  ] as const) {
    it.skipIf(!existsSync(SUITE))(
      `validate, for the suite's schemas of ${draft}`,
      async () => {
        const { made, wrong, unjudged } = await judge(groupsOf(draft), draft7);
        expect(wrong).toEqual([]);
        expect(unjudged).toBeLessThan(25);
        expect(made).toBeGreaterThan(500);
      },
      300_000,
    );
  }
});
