/** Random schemas with every keyword that the engine decides (and some combinations that it refuses). */
import type { Random } from './random.ts';
import type { Schema } from './random-schema.ts';

const NAMES = ['a', 'b', 'ab', 'name', 'é', 'c1'];
const PATTERNS = ['^a', 'b$', '[0-9]', '^[a-c]*$', 'é|x', '^.{1,2}$', '\\d+', '^(ab)+$'];
/** Few names, and more than are listed one by one: an object may use up those that begin alike, or all of them. */
const NAME_PATTERNS = [...PATTERNS, '^.$', '^[ab]{1,6}$', '^(a[a-z]|x.*)$'];
/** At most so many characters per name. */
const NAME_LENGTHS = [1, 1, 2, 3];

type Part = { [keyword: string]: unknown };

export function widerSchema(random: Random, depth: number): Schema {
  const inner = () => widerSchema(random, depth - 1);
  const simple = depth === 0;
  const kind = random.between(0, simple ? 5 : 13);
  switch (kind) {
    case 0:
      return random.chance(0.8)
        ? { type: random.pick(['string', 'number', 'integer', 'object', 'array', 'boolean', 'null']) }
        : random.chance(0.7);
    case 1:
      return {
        enum: Array.from({ length: random.between(1, 4) }, () =>
          random.pick(['a', 'ab', 1, 2, 0.5, null, true, [1], { a: 1 }]),
        ),
      };
    case 2:
      return numbers(random);
    case 3:
      return strings(random);
    case 4:
      return { const: random.pick(['é', 0, 12, false, [], { b: 'a' }]) };
    case 5:
      return { type: ['string', 'integer'] };
    case 6:
      return arrays(random, inner);
    case 7:
    case 8:
      return objects(random, inner);
    case 9:
      return { anyOf: [inner(), inner()] };
    case 10:
      return { allOf: [inner(), inner()] };
    case 11:
      return { oneOf: [inner(), inner()] };
    case 12:
      return { not: inner() };
    default:
      return { if: inner(), then: inner(), else: inner() };
  }
}

function some(random: Random, parts: Part): Part {
  const kept = Object.entries(parts).filter(([, value]) => value !== undefined && random.chance(0.4));
  return Object.fromEntries(kept);
}

function numbers(random: Random): Part {
  return some(random, {
    type: random.pick(['number', 'integer']),
    minimum: random.between(-10, 5),
    maximum: random.between(3, 130),
    exclusiveMinimum: random.between(-3, 2),
    multipleOf: random.pick([1, 2, 3, 0.5, 0.25]),
  });
}

function strings(random: Random): Part {
  return some(random, {
    type: 'string',
    minLength: random.between(0, 3),
    maxLength: random.between(1, 4),
    pattern: random.pick(PATTERNS),
  });
}

function arrays(random: Random, inner: () => Schema): Part {
  return some(random, {
    type: 'array',
    items: inner(),
    prefixItems: [inner(), inner()],
    minItems: random.between(0, 3),
    maxItems: random.between(1, 4),
    contains: random.chance(0.3) ? inner() : undefined,
  });
}

function names(random: Random): Part {
  return random.pick([
    { minLength: 1 },
    { maxLength: random.pick(NAME_LENGTHS) },
    { pattern: random.pick(NAME_PATTERNS) },
  ]);
}

function objects(random: Random, inner: () => Schema): Part {
  const named = NAMES.filter(() => random.chance(0.4));
  return some(random, {
    type: 'object',
    properties: Object.fromEntries(named.map((name) => [name, inner()])),
    required: NAMES.filter(() => random.chance(0.25)),
    additionalProperties: inner(),
    patternProperties: random.chance(0.4) ? { [random.pick(NAME_PATTERNS)]: inner() } : undefined,
    propertyNames: random.chance(0.4) ? names(random) : undefined,
    minProperties: random.between(0, 3),
    maxProperties: random.between(1, 4),
    dependentRequired: random.chance(0.3) ? { a: ['b'] } : undefined,
  });
}
