/**
 * Random schemas with the language of the documents that generate mode writes for them (docs/grammar.md): one spelling per
 * character, declared order, at most one space or a line break with 32 spaces, 16 digits.
 */
import { alt, bytes, cat, EMPTY, optional, range, repeat, word, type Language } from './language.ts';
import { randomRegex, type Spell } from './random-regex.ts';
import type { Random } from './random.ts';

export type Schema = boolean | { [keyword: string]: unknown };

export interface RandomSchema {
  readonly schema: Schema;
  readonly language: Language;
}

const SHORT: Readonly<Record<number, string>> = { 8: 'b', 9: 't', 10: 'n', 12: 'f', 13: 'r', 34: '"', 92: '\\' };

/** A character within a JSON string, as generate mode spells it. */
const spellJson: Spell = (code) => {
  const short = SHORT[code];
  if (short !== undefined) return word(`\\${short}`);
  if (code < 0x20) return word(`\\u${code.toString(16).padStart(4, '0')}`);
  return word(String.fromCodePoint(code));
};

export class SchemaLanguages {
  readonly #random: Random;
  readonly #space: Language;
  readonly #character: Language;

  constructor(random: Random, spaced: boolean) {
    this.#random = random;
    this.#space = spaced ? alt(EMPTY, word(' '), cat(word('\n'), repeat(word(' '), 0, 32))) : EMPTY;
    this.#character = anyCharacter();
  }

  value(depth: number): RandomSchema {
    const kinds = depth > 0 ? 9 : 6;
    switch (this.#random.between(0, kinds)) {
      case 0:
        return { schema: { type: 'boolean' }, language: alt(word('true'), word('false')) };
      case 1:
        return { schema: { type: 'null' }, language: word('null') };
      case 2:
        return this.#integer();
      case 3:
        return this.#text();
      case 4:
        return this.#pattern();
      case 5:
        return this.#constants();
      case 6:
        return { schema: { type: 'number' }, language: anyNumber() };
      case 7:
        return this.#array(depth);
      case 8:
        return this.#object(depth);
      default: {
        const parts = Array.from({ length: this.#random.between(2, 3) }, () => this.value(depth - 1));
        return {
          schema: { anyOf: parts.map((part) => part.schema) },
          language: alt(...parts.map((part) => part.language)),
        };
      }
    }
  }

  #integer(): RandomSchema {
    if (this.#random.chance(0.3)) return { schema: { type: 'integer' }, language: anyInteger() };
    const low = this.#random.between(-120, 40);
    const high = low + this.#random.between(0, 150);
    const all = Array.from({ length: high - low + 1 }, (_, i) => word(String(low + i)));
    return { schema: { type: 'integer', minimum: low, maximum: high }, language: alt(...all) };
  }

  #text(): RandomSchema {
    const least = this.#random.between(0, 3);
    const most = this.#random.chance(0.5) ? least + this.#random.between(0, 4) : Infinity;
    const schema = { type: 'string', minLength: least, ...(most < Infinity ? { maxLength: most } : {}) };
    return { schema, language: quoted(repeat(this.#character, least, most)) };
  }

  #pattern(): RandomSchema {
    const { pattern, language } = randomRegex(this.#random, spellJson);
    return { schema: { type: 'string', pattern: `^(?:${pattern})$` }, language: quoted(language) };
  }

  #constants(): RandomSchema {
    const pool = ['a', 'ab', 'a"b', 'line\n', 'é', '', null, true, false, 0, 7, -12, 120, 2.5, -0.125];
    const chosen = Array.from({ length: this.#random.between(1, 4) }, () => this.#random.pick(pool));
    const values = [...new Set(chosen)];
    return { schema: { enum: values }, language: alt(...values.map(constant)) };
  }

  #array(depth: number): RandomSchema {
    const item = this.value(depth - 1);
    const least = this.#random.between(0, 2);
    const most = this.#random.chance(0.6) ? least + this.#random.between(0, 2) : Infinity;
    const next = cat(this.#space, word(','), this.#space, item.language);
    const some = cat(this.#space, item.language, repeat(next, Math.max(0, least - 1), most - 1));
    const inner = most === 0 ? EMPTY : least === 0 ? optional(some) : some;
    const schema = {
      type: 'array',
      items: item.schema,
      minItems: least,
      ...(most < Infinity ? { maxItems: most } : {}),
    };
    return { schema, language: cat(word('['), inner, this.#space, word(']')) };
  }

  #object(depth: number): RandomSchema {
    const names = ['a', 'ab', 'b', 'name', 'x"y', 'é'].filter(() => this.#random.chance(0.5));
    const members = names.map((name) => ({ name, required: this.#random.chance(0.4), ...this.value(depth - 1) }));
    const schema = {
      type: 'object',
      properties: Object.fromEntries(members.map(({ name, schema: own }) => [name, own])),
      required: members.filter((member) => member.required).map((member) => member.name),
      additionalProperties: false,
    };
    const spelled = members.map(({ name, language }) =>
      cat(constant(name), this.#space, word(':'), this.#space, language),
    );
    const from = (index: number, first: boolean): Language => {
      const own = spelled[index];
      if (own === undefined) return cat(this.#space, word('}'));
      const before = first ? this.#space : cat(this.#space, word(','), this.#space);
      const taken = cat(before, own, from(index + 1, false));
      return members[index]?.required ? taken : alt(taken, from(index + 1, first));
    };
    return { schema, language: cat(word('{'), from(0, true)) };
  }
}

function quoted(text: Language): Language {
  return cat(word('"'), text, word('"'));
}

function constant(value: string | number | boolean | null): Language {
  if (typeof value === 'string') return quoted(cat(...Array.from(value, (one) => spellJson(one.codePointAt(0) ?? 0))));
  return word(String(value));
}

function digits(least: number, most: number): Language {
  return repeat(range(48, 57), least, most);
}

function anyInteger(): Language {
  const positive = cat(range(49, 57), digits(0, 14));
  return alt(word('0'), positive, cat(word('-'), positive));
}

function anyNumber(): Language {
  const whole = alt(word('0'), cat(range(49, 57), digits(0, 15)));
  const exponent = cat(bytes([69, 101]), optional(bytes([43, 45])), digits(1, 2));
  return cat(optional(word('-')), whole, optional(cat(word('.'), digits(1, 16))), optional(exponent));
}

function anyCharacter(): Language {
  const plain = Array.from({ length: 0x60 }, (_, i) => 0x20 + i).filter((code) => code !== 34 && code !== 92);
  const escaped = [...Array.from({ length: 32 }, (_, i) => i), 34, 92].map(spellJson);
  const more = range(0x80, 0xbf);
  const wide = [
    cat(range(0xc2, 0xdf), more),
    cat(bytes([0xe0]), range(0xa0, 0xbf), more),
    cat(range(0xe1, 0xec), more, more),
    cat(bytes([0xed]), range(0x80, 0x9f), more),
    cat(range(0xee, 0xef), more, more),
    cat(bytes([0xf0]), range(0x90, 0xbf), more, more),
    cat(range(0xf1, 0xf3), more, more, more),
    cat(bytes([0xf4]), range(0x80, 0x8f), more, more),
  ];
  return alt(bytes(plain), ...escaped, ...wide);
}
