/**
 * Reads a Python string that comes in pieces, each character once, as JSON text: one literal, or several side by side, which are one.
 * Triple quotes, and the prefixes r and u; no byte strings, no f-strings.
 */
const ESCAPES: Readonly<Record<string, string>> = {
  '\n': '',
  '\\': '\\',
  "'": "'",
  '"': '"',
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};
const HEX_LENGTHS: Readonly<Record<string, number>> = { x: 2, u: 4, U: 8 };

const isHighSurrogate = (unit: string) => unit >= '\ud800' && unit <= '\udbff';
export const isQuote = (character: string) => character === '"' || character === "'";
/** What Python skips between brackets. */
export const isPythonSpace = (character: string) => ' \t\r\n\f'.includes(character);

export class PythonStrings {
  /** `open` until a character comes that does not belong to it. */
  status: 'open' | 'done' | 'invalid' = 'open';
  /** What was read and decides nothing yet: the beginning of an escape, or a prefix behind a string. */
  held = '';
  #part: 'prefix' | 'opening' | 'text' | 'escape' | 'after' = 'prefix';
  #isRaw: boolean;
  #quote = '';
  #isTriple = false;
  /** Quotes in a row that may open or close. */
  #run = 0;
  #value = '';

  /** `prefix`: r, u or nothing stood before the quote, which is the first character to be read. */
  constructor(prefix: string) {
    this.#isRaw = prefix.toLowerCase() === 'r';
  }

  /** JSON text, without quotes, of what was read since the last call. `isLast`: nothing will follow. */
  take(isLast: boolean): string {
    // The halves of a character are one in JSON only if they are written together.
    const end = this.#value.length - (!isLast && isHighSurrogate(this.#value.charAt(this.#value.length - 1)) ? 1 : 0);
    const json = JSON.stringify(this.#value.slice(0, end)).slice(1, -1);
    this.#value = this.#value.slice(end);
    return json;
  }

  /** False: the character was not read; either it is invalid, or it stands behind the string. */
  accept(character: string): boolean {
    switch (this.#part) {
      case 'prefix':
        return isQuote(character) ? this.#open(character) : this.#refuse();
      case 'opening':
        return this.#acceptOpening(character);
      case 'text':
        return this.#acceptText(character);
      case 'escape':
        return this.#acceptEscape(character);
      case 'after':
        return this.#acceptAfter(character);
    }
  }

  #open(quote: string): boolean {
    this.#quote = quote;
    this.#run = 1;
    this.#isTriple = false;
    return this.#go('opening');
  }

  /** After the first quote: a second one makes an empty string, a third a triple quote. */
  #acceptOpening(character: string): boolean {
    if (character !== this.#quote) {
      this.#part = this.#run === 2 ? 'after' : 'text';
      this.#run = 0;
      return this.accept(character);
    }
    if (++this.#run < 3) return true;
    this.#isTriple = true;
    this.#run = 0;
    return this.#go('text');
  }

  #acceptText(character: string): boolean {
    if (character === this.#quote) {
      if (this.#isTriple && ++this.#run < 3) return true;
      return this.#go('after');
    }
    this.#value += this.#quote.repeat(this.#run);
    this.#run = 0;
    if (character === '\\') return this.#go('escape', character);
    if (character === '\n' && !this.#isTriple) return this.#refuse();
    this.#value += character;
    return true;
  }

  #acceptEscape(character: string): boolean {
    if (this.#isRaw) return this.#endEscape(`\\${character}`);
    const kind = this.held.charAt(1);
    if (kind === '') return this.#beginEscape(character);
    const hexLength = HEX_LENGTHS[kind];
    if (hexLength === undefined) return this.#acceptOctal(character);
    if (!/^[0-9a-fA-F]$/.test(character)) return this.#refuse();
    const digits = this.held.slice(2) + character;
    if (digits.length < hexLength) return this.#go('escape', this.held + character);
    const code = Number.parseInt(digits, 16);
    return code > 0x10ffff ? this.#refuse() : this.#endEscape(String.fromCodePoint(code));
  }

  #beginEscape(character: string): boolean {
    const plain = Object.hasOwn(ESCAPES, character) ? ESCAPES[character] : undefined;
    if (plain !== undefined) return this.#endEscape(plain);
    if (Object.hasOwn(HEX_LENGTHS, character) || isOctal(character)) return this.#go('escape', this.held + character);
    return character === 'N' ? this.#refuse() : this.#endEscape(`\\${character}`);
  }

  /** Up to three digits. */
  #acceptOctal(character: string): boolean {
    const digits = this.held.slice(1) + (isOctal(character) ? character : '');
    if (isOctal(character) && digits.length < 3) return this.#go('escape', this.held + character);
    this.#endEscape(String.fromCharCode(Number.parseInt(digits, 8)));
    return isOctal(character) || this.accept(character);
  }

  #endEscape(text: string): boolean {
    this.#value += text;
    return this.#go('text');
  }

  #acceptAfter(character: string): boolean {
    if (isPythonSpace(character)) return true;
    if (!isQuote(character) && !/^[rRuU]$/.test(character)) {
      this.status = 'done';
      return false;
    }
    this.#isRaw = character.toLowerCase() === 'r';
    return isQuote(character) ? this.#open(character) : this.#go('prefix', character);
  }

  #go(part: 'prefix' | 'opening' | 'text' | 'escape' | 'after', held = ''): boolean {
    this.#part = part;
    this.held = held;
    return true;
  }

  #refuse(): boolean {
    this.status = 'invalid';
    return false;
  }
}

function isOctal(character: string): boolean {
  return character >= '0' && character <= '7';
}
