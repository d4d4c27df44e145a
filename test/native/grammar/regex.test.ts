/**
 * Random regular expressions beside JavaScript's own, with the `u` flag: as the whole text (`structured_outputs.regex`) and searched for (`pattern`).
 * What is not read says what it is.
 */
import { beforeAll, expect, it } from 'vitest';
import type { NativeGrammarSource, NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { compile, END, generateOptions, makeVocabulary, Masks, reads } from './drive.ts';
import { Random } from './random.ts';

const CASES = 80;
/** As ids: the byte and one. */
const tokens = [Buffer.alloc(0), ...Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]))];
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

interface Part {
  pattern: string;
  /** A text of it, but for what anchors and empty classes forbid. */
  text: () => string;
}

const CHARACTERS = ['a', 'b', 'A', '0', '_', '-', ' ', '\n', '\u0001', '"', '\\', 'é', '日', '😀', '\u2028', ']', '^'];
const CLASSES = [
  '\\d',
  '\\D',
  '\\w',
  '\\W',
  '\\s',
  '\\S',
  '.',
  '\\p{L}',
  '\\p{Script=Han}',
  '\\P{scx=Latn}',
  '\\p{ID_Continue}',
  '\\P{White_Space}',
  '\\P{Lu}',
  '[^]',
  '[]',
  '[^é-日]',
  '[\\w-]',
];
const escaped = (character: string) => character.replace(/[\\^$.*+?()[\]{}|/-]/, '\\$&');

class Patterns {
  readonly #random: Random;

  constructor(random: Random) {
    this.#random = random;
  }

  character(): Part {
    const character = this.#random.pick(CHARACTERS);
    const code = character.codePointAt(0) ?? 0;
    const spelled = this.#random.chance(0.2)
      ? `\\u{${code.toString(16)}}`
      : character.replace(/[\\^$.*+?()[\]{}|/]/, '\\$&');
    return { pattern: spelled, text: () => character };
  }

  set(): Part {
    const members = Array.from({ length: this.#random.between(1, 3) }, () => this.#random.pick(CHARACTERS));
    const negated = this.#random.chance(0.3);
    const pattern = `[${negated ? '^' : ''}${members.map(escaped).join('')}]`;
    return { pattern, text: () => this.#random.pick(negated ? CHARACTERS : members) };
  }

  part(depth: number): Part {
    const kind = this.#random.between(0, depth === 0 ? 3 : 8);
    if (kind <= 1) return this.character();
    if (kind === 2) return this.set();
    if (kind === 3) return { pattern: this.#random.pick(CLASSES), text: () => this.#random.pick(CHARACTERS) };
    if (kind === 4 && this.#random.chance(0.3))
      return { pattern: this.#random.pick(['^', '$', '(?:)']), text: () => '' };
    const parts = Array.from({ length: this.#random.between(1, 3) }, () => this.part(depth - 1));
    if (kind <= 6)
      return {
        pattern: parts.map(({ pattern }) => pattern).join(''),
        text: () => parts.map(({ text }) => text()).join(''),
      };
    const group = {
      pattern: `(${parts.map(({ pattern }) => pattern).join('|')})`,
      text: () => this.#random.pick(parts).text(),
    };
    return kind === 7 ? group : this.repeated(group);
  }

  repeated({ pattern, text }: Part): Part {
    const mark = this.#random.pick(['*', '+', '?', '{2}', '{1,2}', '{2,}', '*?', '{0,1}?']);
    const count = () => (mark.startsWith('{2') ? 2 : this.#random.between(mark === '+' ? 1 : 0, 1));
    return { pattern: pattern + mark, text: () => Array.from({ length: count() }, text).join('') };
  }
}

/** Every prefix of a text that belongs to it is let through, and no text ends that does not. */
async function judge(
  source: NativeGrammarSource,
  written: (text: string) => string,
  texts: string[],
  judged: RegExp,
): Promise<void> {
  const grammar = await compile(source, { ...generateOptions, anySpace: false });
  for (const text of texts) {
    const ids = Array.from(Buffer.from(written(text)), (byte) => byte + 1);
    const read = grammar?.empty === false && reads(grammar.createMatcher(vocabulary), masks, ids);
    expect(read, `${judged} ${JSON.stringify(text)}`).toBe(judged.test(text));
  }
  grammar?.release();
}

it('reads them as JavaScript does', async () => {
  for (let seed = 1; seed <= CASES; seed++) {
    const random = new Random(seed);
    const { pattern, text } = new Patterns(random).part(3);
    const own = Array.from({ length: 6 }, text).filter(({ length }) => length < 12);
    const near = own.map(
      (member) => [...member].slice(random.between(0, 1)).join('') + random.pick(['', 'a', '\n', '日']),
    );
    const texts = ['', ...own, ...near];
    const whole = new RegExp(`^(?:${pattern})$`, 'u');
    await judge({ kind: 'regex', text: pattern }, (member) => member, texts, whole);
    const schema = JSON.stringify({ type: 'string', pattern });
    await judge(
      { kind: 'json_schema', text: schema },
      (member) => JSON.stringify(member),
      texts,
      new RegExp(pattern, 'u'),
    );
  }
});
