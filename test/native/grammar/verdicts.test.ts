/** Schemas that were once decided wrongly, with texts that belong to them and texts that do not. Accept mode, byte by byte. */
import { beforeAll, describe, expect, it } from 'vitest';
import type { NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { acceptOptions, compile, END, makeVocabulary, Masks, reads, smallTokens } from './drive.ts';
import type { Schema } from './random-schema.ts';

interface Verdict {
  what: string;
  schema: Schema;
  valid: string[];
  invalid: string[];
}

/** An object with exactly these properties. */
function closed(properties: Record<string, Schema>): Schema {
  return { type: 'object', properties, required: Object.keys(properties), additionalProperties: false };
}

const VERDICTS: readonly Verdict[] = [
  {
    what: 'another array than a constant one may be shorter, longer or hold other items',
    schema: { not: { const: [1, 2] } },
    valid: ['[]', '[1]', '[2]', '[1,3]', '[2,2]', '[1,2,3]', 'null'],
    invalid: ['[1,2]', '[1.0,2e0]'],
  },
  {
    what: 'another array than those of an enum',
    schema: { not: { enum: [[], [1], ['a', []]] } },
    valid: ['[2]', '["a"]', '["a",[],1]', '["a",[1]]', '[[]]', '{}'],
    invalid: ['[]', '[1]', '["a",[]]'],
  },
  {
    what: 'a condition over constant arrays, negated',
    schema: {
      not: {
        if: { enum: [[1], [1]] },
        then: { minimum: -6, exclusiveMinimum: 0 },
        else: { type: 'string', minLength: 0, maxLength: 2 },
      },
    },
    valid: ['[]', '[1,1]', '"abc"', '{}'],
    invalid: ['[1]', '""', '"ab"'],
  },
  {
    what: 'what two lists of a oneOf share is in neither',
    schema: { oneOf: [{ enum: [1, [1, 'a'], 'x'] }, { enum: [2, [1, 'a'], 'y'] }] },
    valid: ['1', '2', '"x"', '"y"'],
    invalid: ['[1,"a"]', '3', '[2]'],
  },
  {
    what: 'closed objects behind references, of which a constant tells the kind',
    schema: {
      oneOf: [{ $ref: '#/$defs/cat' }, { $ref: '#/$defs/pet' }],
      $defs: {
        cat: closed({ kind: { const: 'cat' }, lives: { type: 'integer' } }),
        pet: { $ref: '#/$defs/dog' },
        dog: closed({ kind: { $ref: '#/$defs/woof' }, friend: { $ref: '#' } }),
        woof: { const: 'dog' },
      },
    },
    valid: ['{"kind":"cat","lives":7}', '{"kind":"dog","friend":{"lives":1,"kind":"cat"}}'],
    invalid: [
      '{"kind":"cat"}',
      '{"kind":"dog","lives":7}',
      '{"kind":"cat","lives":7,"friend":1}',
      '{"kind":"cow","lives":7}',
    ],
  },
  {
    what: 'closed objects of which each must have what the other rules out',
    schema: { oneOf: [closed({ id: { type: 'integer' } }), closed({ name: {} }), closed({})] },
    valid: ['{"id":7}', '{"name":7}', '{}'],
    invalid: ['{"id":7,"name":7}', '{"id":"x"}', '{"other":1}', '7'],
  },
  {
    what: 'a closed object and one that needs what the first rules out',
    schema: { oneOf: [closed({ a: {} }), { type: 'object', required: ['b'] }] },
    valid: ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'],
    invalid: ['{"c":1}', '{}', '7'],
  },
  {
    what: 'open objects that need different names share those with both',
    schema: { oneOf: ['a', 'b'].map((name) => ({ type: 'object', required: [name] })) },
    valid: ['{"a":1}', '{"b":1}', '{"c":1,"b":1}'],
    invalid: ['{"a":1,"b":1}', '{}'],
  },
  {
    what: 'what two references of a oneOf share is in neither',
    schema: {
      oneOf: [{ $ref: '#/$defs/a' }, { $ref: '#/$defs/b' }],
      $defs: { a: { enum: [1, 2] }, b: { enum: [2, 3] } },
    },
    valid: ['1', '3'],
    invalid: ['2', '4'],
  },
  {
    what: 'a dependent schema says nothing about what is no object',
    schema: { dependentSchemas: { a: { type: 'object', required: ['b'] } } },
    valid: ['1.5', 'null', '"a"', '["a"]', '{}', '{"b":1}', '{"a":1,"b":2}'],
    invalid: ['{"a":1}'],
  },
];

const tokens = smallTokens();
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

/** The tokens of single bytes. */
function spell(text: string): number[] {
  return Array.from(Buffer.from(text, 'utf8'), (byte) =>
    tokens.findIndex((token) => token.length === 1 && token[0] === byte),
  );
}

describe('texts are read as the schema says', () => {
  for (const { what, schema, valid, invalid } of VERDICTS) {
    it(what, async () => {
      const grammar = await compile({ kind: 'json_schema', text: JSON.stringify(schema) }, acceptOptions);
      if (!grammar) throw new Error('The schema is refused.');
      const verdict = (text: string): boolean => reads(grammar.createMatcher(vocabulary), masks, spell(text));
      expect(valid.filter((text) => !verdict(text))).toEqual([]);
      expect(invalid.filter(verdict)).toEqual([]);
    });
  }
});
