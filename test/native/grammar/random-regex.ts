/** Random regular expressions with their language, built side by side. */
import { alt, bytes, cat, EMPTY, repeat, type Language } from './language.ts';
import type { Random } from './random.ts';

export interface RandomRegex {
  readonly pattern: string;
  readonly language: Language;
}

/** The language of one character of a decoded text. */
export type Spell = (codePoint: number) => Language;

export const spellUtf8: Spell = (codePoint) =>
  cat(...Array.from(Buffer.from(String.fromCodePoint(codePoint), 'utf8'), (byte) => bytes([byte])));

const LETTERS = ['a', 'b', 'c', 'x', '0', '1', '-', ' ', 'é', '日'];
const CLASSES: readonly (readonly [string, string])[] = [
  ['[a-c]', 'abc'],
  ['[01]', '01'],
  ['[a-cx0]', 'abcx0'],
  ['\\d', '0123456789'],
  ['[é日a]', 'é日a'],
  ['[^\\D8x]', '012345679'],
];

export function randomRegex(random: Random, spell: Spell, depth = 3): RandomRegex {
  const kind = depth === 0 ? 0 : random.between(0, 5);
  switch (kind) {
    case 0:
    case 1: {
      const letter = random.pick(LETTERS);
      return { pattern: letter, language: spell(letter.codePointAt(0) ?? 0) };
    }
    case 2: {
      const [pattern, members] = random.pick(CLASSES);
      return { pattern, language: alt(...Array.from(members, (member) => spell(member.codePointAt(0) ?? 0))) };
    }
    case 3: {
      const parts = Array.from({ length: random.between(2, 3) }, () => randomRegex(random, spell, depth - 1));
      return {
        pattern: parts.map((part) => part.pattern).join(''),
        language: cat(...parts.map((part) => part.language)),
      };
    }
    case 4: {
      const parts = Array.from({ length: random.between(2, 3) }, () => randomRegex(random, spell, depth - 1));
      return {
        pattern: `(${parts.map((part) => part.pattern).join('|')})`,
        language: alt(...parts.map((part) => part.language)),
      };
    }
    default:
      return repeated(random, randomRegex(random, spell, depth - 1));
  }
}

function repeated(random: Random, { pattern, language }: RandomRegex): RandomRegex {
  const group = `(?:${pattern})`;
  const least = random.between(0, 2);
  const most = least + random.between(1, 3);
  switch (random.between(0, 3)) {
    case 0:
      return { pattern: `${group}*`, language: repeat(language, 0, Infinity) };
    case 1:
      return { pattern: `${group}+`, language: repeat(language, 1, Infinity) };
    case 2:
      return { pattern: `${group}?`, language: alt(EMPTY, language) };
    default:
      return { pattern: `${group}{${least},${most}}`, language: repeat(language, least, most) };
  }
}
