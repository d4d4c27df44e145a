/**
 * Python literals as JSON text: None, True, False, numbers, strings, lists, tuples, dicts. Integers keep all their digits.
 * No expressions, no byte strings, no f-strings.
 */
const DEPTH_MAX = 64;
/** Longer integers in other bases are refused: their conversion is not linear. */
const BASED_DIGITS_MAX = 1000;

/** JSON's words are taken as well: models mix them up, and grammars write them. */
const WORDS: Readonly<Record<string, string>> = {
  None: 'null',
  True: 'true',
  False: 'false',
  null: 'null',
  true: 'true',
  false: 'false',
};
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

/** Ends the reading; never leaves this folder's functions. */
export class PythonSyntaxError extends Error {}

/** A recursive-descent reader; all methods throw PythonSyntaxError where the text is something else. */
export class PythonReader {
  readonly #text: string;
  #at: number;

  constructor(text: string) {
    this.#text = text;
    this.#at = 0;
  }

  get ended(): boolean {
    return this.#at >= this.#text.length;
  }

  space(): void {
    while (/^[ \t\r\n\f]$/.test(this.#text.charAt(this.#at))) this.#at++;
  }

  /** Takes the token, white space around it included, if it comes next. */
  accept(token: string): boolean {
    this.space();
    if (!this.#text.startsWith(token, this.#at)) return false;
    this.#at += token.length;
    this.space();
    return true;
  }

  expect(token: string): void {
    if (!this.accept(token)) throw new PythonSyntaxError(`expected ${token} at ${this.#at}`);
  }

  /** The longest piece that the sticky pattern matches here; the pattern must not backtrack. */
  match(pattern: RegExp): string | null {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0] ?? '';
    this.#at += found.length;
    return found === '' ? null : found;
  }

  /** Items up to `close`, comma between them, one allowed behind the last. Returns whether there was any comma. */
  items(close: string, item: () => void): boolean {
    let commas = false;
    while (!this.accept(close)) {
      item();
      if (this.accept(',')) commas = true;
      else {
        this.expect(close);
        break;
      }
    }
    return commas;
  }

  /** The next literal as JSON text. */
  literal(depth = 0): string {
    if (depth > DEPTH_MAX) throw new PythonSyntaxError('too deep');
    this.space();
    if (this.accept('[')) return this.#list(']', depth);
    if (this.accept('(')) return this.#tuple(depth);
    if (this.accept('{')) return this.#dict(depth);
    const word = this.match(/[A-Za-z_][A-Za-z_0-9]*/y);
    if (word !== null && Object.hasOwn(WORDS, word)) return WORDS[word] ?? '';
    if (word !== null && !this.#isQuote) throw new PythonSyntaxError(`unknown name ${word}`);
    if (this.#isQuote) return JSON.stringify(this.#strings(word ?? ''));
    return this.#number();
  }

  #list(close: string, depth: number): string {
    const values: string[] = [];
    this.items(close, () => values.push(this.literal(depth + 1)));
    return `[${values.join(', ')}]`;
  }

  /** (x) is x, (x,) a tuple. */
  #tuple(depth: number): string {
    const values: string[] = [];
    const commas = this.items(')', () => values.push(this.literal(depth + 1)));
    return values.length === 1 && !commas ? (values[0] ?? '') : `[${values.join(', ')}]`;
  }

  #dict(depth: number): string {
    const members: string[] = [];
    this.items('}', () => {
      const key = this.literal(depth + 1);
      if (key.startsWith('[') || key.startsWith('{')) throw new PythonSyntaxError('a key must be a scalar');
      this.expect(':');
      members.push(`${key.startsWith('"') ? key : JSON.stringify(key)}: ${this.literal(depth + 1)}`);
    });
    return `{${members.join(', ')}}`;
  }

  #number(): string {
    let sign = '';
    for (let mark = this.match(/[+-]/y); mark !== null; mark = this.match(/[+-]/y)) {
      if (mark === '-') sign = sign === '-' ? '' : '-';
      this.space();
    }
    const text =
      this.match(/0[xXoObB][0-9a-fA-F_]+/y) ??
      this.match(/[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][+-]?[0-9_]+)?/y) ??
      this.match(/\.[0-9][0-9_]*(?:[eE][+-]?[0-9_]+)?/y);
    const json = text === null ? null : numberAsJson(text);
    if (json === null) throw new PythonSyntaxError(`no literal at ${this.#at}`);
    return sign + json;
  }

  get #isQuote(): boolean {
    return this.#text.charAt(this.#at) === '"' || this.#text.charAt(this.#at) === "'";
  }

  /** One string literal, or several side by side, which are one. */
  #strings(prefix: string): string {
    let value = '';
    for (let next: string | null = prefix; next !== null;) {
      if (!/^[rRuU]?$/.test(next)) throw new PythonSyntaxError(`unknown string prefix ${next}`);
      value += this.#string(next.toLowerCase() === 'r');
      this.space();
      const from = this.#at;
      next = this.match(/[A-Za-z]+/y) ?? '';
      if (this.#isQuote) continue;
      this.#at = from;
      next = null;
    }
    return value;
  }

  #string(isRaw: boolean): string {
    const quote = this.#text.charAt(this.#at);
    const isTriple = this.#text.startsWith(quote.repeat(3), this.#at);
    const end = isTriple ? quote.repeat(3) : quote;
    this.#at += end.length;
    let value = '';
    while (!this.#text.startsWith(end, this.#at)) {
      const character = this.#text.charAt(this.#at++);
      if (character === '' || (character === '\n' && !isTriple)) throw new PythonSyntaxError('string without end');
      if (character !== '\\') value += character;
      else value += isRaw ? `\\${this.#text.charAt(this.#at++)}` : this.#escape();
    }
    this.#at += end.length;
    return value;
  }

  #escape(): string {
    const character = this.#text.charAt(this.#at++);
    const plain = Object.hasOwn(ESCAPES, character) ? ESCAPES[character] : undefined;
    if (plain !== undefined) return plain;
    const length = Object.hasOwn(HEX_LENGTHS, character) ? HEX_LENGTHS[character] : undefined;
    if (length !== undefined) {
      const digits = this.#text.slice(this.#at, this.#at + length);
      const code = Number.parseInt(digits, 16);
      if (!/^[0-9a-fA-F]+$/.test(digits) || digits.length < length || code > 0x10ffff) {
        throw new PythonSyntaxError('bad escape');
      }
      this.#at += length;
      return String.fromCodePoint(code);
    }
    if (/^[0-7]$/.test(character)) {
      this.#at--;
      return String.fromCharCode(Number.parseInt(this.match(/[0-7]{1,3}/y) ?? '0', 8));
    }
    if (character === 'N' || character === '') throw new PythonSyntaxError('bad escape');
    return `\\${character}`;
  }
}

/** null: no Python number, or one that JSON cannot hold. */
function numberAsJson(text: string): string | null {
  if (/__|_$|_\.|\._/.test(text)) return null;
  const plain = text.replaceAll('_', '');
  if (/^0[xXoObB][0-9a-fA-F]+$/.test(plain)) {
    if (plain.length > BASED_DIGITS_MAX) return null;
    try {
      return BigInt(plain).toString();
    } catch {
      return null;
    }
  }
  const parts = /^([0-9]*)(?:(\.)([0-9]*))?([eE][+-]?[0-9]+)?$/.exec(plain);
  if (!parts) return null;
  const [, whole = '', point, fraction = '', exponent = ''] = parts;
  const isInteger = point === undefined && exponent === '';
  if (isInteger && /^0+[1-9]/.test(whole)) return null;
  const digits = whole.replace(/^0+(?=[0-9])/, '') || '0';
  return digits + (point === undefined ? '' : `.${fraction || '0'}`) + exponent;
}

/** The text as one Python literal, as JSON text; null if it is none. */
export function pythonLiteralAsJson(text: string): string | null {
  try {
    const reader = new PythonReader(text);
    const json = reader.literal();
    reader.space();
    return reader.ended ? json : null;
  } catch (error) {
    if (error instanceof PythonSyntaxError) return null;
    throw error;
  }
}
