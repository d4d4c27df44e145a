/**
 * Objects whose names can be used up: at each position the mask is exactly the set of tokens after which some name that was not met
 * yet, or the closing brace, can still be reached, as a plain list of all names says.
 */
import { beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../../src/control/engine/native.ts';
import type { NativeMatcher, NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { compileGrammar } from '../../../src/control/grammar/compile.ts';
import { compile, END, generateOptions, makeVocabulary, Masks, smallTokens } from './drive.ts';
import { Random } from './random.ts';

const tokens = smallTokens();
const texts = tokens.map((token) => token.toString('latin1'));
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

/** All words of these letters with a length of least to most. */
function wordsOf(letters: readonly string[], least: number, most: number): string[] {
  const all: string[][] = [['']];
  while (all.length <= most) all.push((all.at(-1) ?? []).flatMap((word) => letters.map((letter) => word + letter)));
  return all.slice(least, most + 1).flat();
}

/** What was written of `{"name":true,...}`, names as they are spelled within the quotes. */
interface Written {
  readonly used: ReadonlySet<string>;
  /** The text since the last name that was finished, or the brace. */
  readonly rest: string;
  readonly done: boolean;
}

class Names {
  readonly #all: readonly string[];
  readonly #declared: readonly string[];
  readonly #least: number;

  constructor(all: readonly string[], declared: readonly string[], least: number) {
    this.#all = all;
    this.#declared = declared;
    this.#least = least;
  }

  /** Null where no document begins so. */
  feed(before: Written | null, text: string): Written | null {
    let now = before;
    for (let i = 0; i < text.length && now; i++) now = this.#step(now, text[i] ?? '');
    return now;
  }

  #step({ used, rest, done }: Written, byte: string): Written | null {
    if (done) return null;
    const lead = rest.startsWith('"') ? '":true' : '{';
    const opening = lead === '{' ? '{"' : '":true,"';
    if (rest === lead && byte === '}') return used.size >= this.#least ? { used, rest, done: true } : null;
    const left = this.#left(used);
    if (rest.length < opening.length) {
      const goesOn = opening[rest.length] === byte && (rest.length < lead.length || left.length > 0);
      return goesOn || (rest === '' && byte === '{') ? { used, rest: rest + byte, done } : null;
    }
    const name = rest.slice(opening.length);
    if (byte === '"' && left.includes(name)) return { used: new Set([...used, name]), rest: '"', done };
    return left.some((one) => one.startsWith(name + byte)) ? { used, rest: rest + byte, done } : null;
  }

  /** Names that may still come: declared ones in their order, and before the others. */
  #left(used: ReadonlySet<string>): string[] {
    const last = [...used].at(-1);
    const from = last === undefined ? 0 : this.#declared.includes(last) ? this.#declared.indexOf(last) + 1 : Infinity;
    const declared = this.#declared.slice(from);
    const others = this.#all.filter((name) => !this.#declared.includes(name) && !used.has(name));
    const left = [...declared, ...others];
    return left.filter((name) => used.size + this.#room(name, declared, others.length) >= this.#least);
  }

  /** Properties that can still come where `name` comes next. */
  #room(name: string, declared: readonly string[], others: number): number {
    const index = declared.indexOf(name);
    return index < 0 ? others : declared.length - index + others;
  }
}

interface Space {
  what: string;
  schema: object;
  all: string[];
  declared?: string[];
}

const SPACES: readonly Space[] = [
  {
    what: 'words of one length',
    schema: { patternProperties: { '^[ab]{7}$': { const: true } } },
    all: wordsOf(['a', 'b'], 7, 7),
  },
  {
    what: 'words of many lengths, beside declared ones',
    schema: {
      properties: { name: { const: true }, ab: { const: true } },
      patternProperties: { '^[ab]{1,6}$': { const: true } },
    },
    all: [...wordsOf(['a', 'b'], 1, 6), 'name'],
    declared: ['name', 'ab'],
  },
  {
    what: 'words with escapes',
    schema: { patternProperties: { '^[\\n"b\\u0001]{0,3}$': { const: true } } },
    all: wordsOf(['\\n', '\\"', 'b', '\\u0001'], 0, 3),
  },
  {
    what: 'names of which a few begin as none of the others',
    schema: { patternProperties: { '^([xa][a-z]|é{1,14})$': { const: true } } },
    all: [
      ...wordsOf(Array.from('abcdefghijklmnopqrstuvwxyz'), 1, 1).flatMap((letter) => [`a${letter}`, `x${letter}`]),
      ...Array.from({ length: 14 }, (_, i) => 'Ã©'.repeat(i + 1)),
    ],
  },
];

function schemaOf({ schema }: Space, least: number): string {
  return JSON.stringify({ type: 'object', additionalProperties: false, minProperties: least, ...schema });
}

function check(matcher: NativeMatcher, names: Names, written: Written): void {
  const wanted = tokens.flatMap((_, id) =>
    (id === END ? written.done : names.feed(written, texts[id] ?? '') !== null) ? [id] : [],
  );
  expect(masks.allowed(matcher).map((id) => texts[id])).toEqual(wanted.map((id) => texts[id]));
}

/** One token on, and not to the end while there is a name left; null at the end. */
function goOn(matcher: NativeMatcher, names: Names, written: Written, random: Random): Written | null {
  const allowed = masks.allowed(matcher);
  const goingOn = allowed.filter((one) => !texts[one]?.includes('}'));
  const id = random.pick(goingOn.length > 0 ? goingOn : allowed);
  expect(matcher.advance(id)).toBe(true);
  return id === END ? null : names.feed(written, texts[id] ?? '');
}

async function start(space: Space, least: number): Promise<NativeMatcher | null> {
  const grammar = await compile(
    { kind: 'json_schema', text: schemaOf(space, least) },
    { ...generateOptions, anySpace: false },
  );
  if (!grammar) throw new Error('The schema is refused.');
  return grammar.empty ? null : grammar.createMatcher(vocabulary);
}

describe('names that can be used up', () => {
  for (const [index, space] of SPACES.entries()) {
    it(`${space.what}: ${space.all.length}`, async () => {
      const random = new Random(index);
      for (const least of [0, space.all.length]) {
        const matcher = await start(space, least);
        if (!matcher) throw new Error('The schema has documents.');
        const names = new Names(space.all, space.declared ?? [], least);
        let written: Written | null = { used: new Set(), rest: '', done: false };
        for (let step = 0; written; step++) {
          if (step % 101 === 50) endsFrom(matcher.clone(), names, written);
          if (step % 29 === 0) check(matcher, names, written);
          written = goOn(matcher, names, written, random);
        }
      }
      expect(await start(space, space.all.length + 1)).toBeNull();
    }, 120_000);
  }
});

/** The shortest ending leads to the end. */
function endsFrom(matcher: NativeMatcher, names: Names, written: Written): void {
  const ending = Array.from(matcher.completion() ?? []);
  const ended = ending.reduce<Written | null>((at, id) => names.feed(at, texts[id] ?? '\0'), written);
  expect(ended?.done).toBe(true);
}

describe('a name of a pattern that was begun', () => {
  const met = ['7', '3a', 'ab1', '0', '1', '2', '3', '4', '5', '6', '8', '9'];
  const encode = (text: string): Uint8Array => Buffer.from(text);

  it.each(['[0-9]', '^[0-9]+', '[0-9]$', '^[a-z]?[0-9]'])('%s is ended, however many were met', async (pattern) => {
    const schema = {
      type: 'object',
      properties: { n: true },
      patternProperties: { [pattern]: true },
      additionalProperties: false,
    };
    const grammar = await compile({ kind: 'json_schema', text: JSON.stringify(schema) }, generateOptions);
    if (!grammar) throw new Error('The schema is refused.');
    const names = met.filter((name) => new RegExp(pattern).test(name));
    for (let count = 0; count <= names.length; count++) {
      for (const begun of ['', 'x', 'xp-n', '7', '00']) {
        const matcher = grammar.createMatcher(vocabulary);
        const written = `{${names
          .slice(0, count)
          .map((name) => `"${name}":1,`)
          .join('')}"${begun}`;
        if (!matcher.advanceBytes(encode(written))) continue;
        const ending = matcher.completion();
        const text = written + [...(ending ?? [])].map((id) => texts[id]).join('');
        expect(Object.keys(JSON.parse(text) as object), text).toHaveLength(count + 1);
        matcher.release();
      }
    }
    grammar.release();
  });
});

it('names that lie ahead of too many places are refused before a text is begun', async () => {
  const names = Array.from({ length: 1000 }, (_, i) => ['x'.repeat(4100) + i, { type: 'null' }]);
  const text = JSON.stringify({ type: 'object', properties: Object.fromEntries(names) });
  const made = compileGrammar(loadNative(), { kind: 'json_schema', text }, generateOptions);
  await expect(made).rejects.toMatchObject({ kind: 'bound', message: 'the grammar needs too many states' });
});
