/**
 * Reads one Python literal that comes in pieces, each character once, and writes it as JSON text: None, True, False, numbers, strings,
 * lists, tuples, dicts. Integers keep all their digits. No expressions.
 */
import { isPythonSpace, isQuote, PythonStrings } from './python-strings.ts';

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
const WORD_LENGTH_MAX = 5;

/** An open bracket. */
interface Frame {
  close: ']' | ')' | '}';
  /** Values that began in it; of a dict, keys that were written. */
  values: number;
  hasComma: boolean;
  /** JSON text that is held back: all of a parenthesis, since (x) is x, and a dict's key; null elsewhere. */
  back: string | null;
}

type Part = 'value' | 'valueOrEnd' | 'sign' | 'number' | 'word' | 'string' | 'after';

export class PythonLiteral {
  /** `open` until it is complete, which of a word, a number or a string the character behind it tells. */
  status: 'open' | 'done' | 'invalid' = 'open';
  /** What was read since the JSON text that take() gave or will give. */
  held = '';
  #part: Part = 'value';
  #frames: Frame[] = [];
  /** A word or a number. */
  #token = '';
  #sign = '';
  #strings = new PythonStrings('');
  #json = '';
  #wrote = false;

  /** The JSON text since the last call. `isLast`: no more characters will be given. */
  take(isLast: boolean): string {
    if (this.#part === 'string') {
      this.#write(this.#strings.take(isLast));
      if (!this.#holder) this.held = this.#strings.held;
    }
    const json = this.#json;
    this.#json = '';
    return json;
  }

  /** False: the character was not read; either it is invalid, or it stands behind the literal. */
  accept(character: string): boolean {
    while (this.status === 'open') {
      this.#wrote = false;
      if (!this.#step(character)) continue;
      if (!this.#wrote) this.held += character;
      return true;
    }
    return false;
  }

  /** False: the character was not read; it is invalid, or it ended something and is to be read again. */
  #step(character: string): boolean {
    switch (this.#part) {
      case 'word':
        return this.#readWord(character);
      case 'number':
        return this.#readNumber(character);
      case 'string':
        return this.#readString(character);
    }
    if (isPythonSpace(character)) return true;
    switch (this.#part) {
      case 'value':
        return this.#beginValue(character);
      case 'valueOrEnd':
        return character === this.#frames.at(-1)?.close ? this.#close(character) : this.#beginValue(character);
      case 'sign':
        return this.#readSign(character);
      case 'after':
        return this.#readAfter(character);
    }
  }

  #beginValue(character: string): boolean {
    if (character === '[' || character === '(' || character === '{') return this.#open(character);
    if (isQuote(character)) {
      this.#beginString('');
      return this.#strings.accept(character);
    }
    if (/^[A-Za-z_]$/.test(character)) {
      this.#token = character;
      return this.#go('word');
    }
    this.#sign = '';
    return this.#readSign(character);
  }

  #readSign(character: string): boolean {
    if (character === '-') this.#sign = this.#sign === '-' ? '' : '-';
    if (character === '-' || character === '+') return this.#go('sign');
    if (!/^[0-9.]$/.test(character)) return this.#refuse();
    this.#token = character;
    return this.#go('number');
  }

  #readNumber(character: string): boolean {
    const isSign = character === '+' || character === '-';
    if (/^[0-9A-Za-z_.]$/.test(character) || (isSign && /^[0-9._]+[eE]$/.test(this.#token))) {
      this.#token += character;
      return true;
    }
    const json = numberAsJson(this.#token);
    if (json === null) return this.#refuse();
    this.#writeScalar(this.#sign + json);
    return this.#endValue(false);
  }

  #readWord(character: string): boolean {
    if (/^[A-Za-z_0-9]$/.test(character)) {
      this.#token += character;
      return this.#token.length <= WORD_LENGTH_MAX || this.#refuse();
    }
    if (isQuote(character) && /^[rRuU]$/.test(this.#token)) {
      this.#beginString(this.#token);
      return this.#strings.accept(character);
    }
    const json = Object.hasOwn(WORDS, this.#token) ? WORDS[this.#token] : undefined;
    if (json === undefined) return this.#refuse();
    this.#writeScalar(json);
    return this.#endValue(false);
  }

  #beginString(prefix: string): void {
    this.#writeScalar('"');
    this.#strings = new PythonStrings(prefix);
    this.#part = 'string';
  }

  #readString(character: string): boolean {
    if (this.#strings.accept(character)) return true;
    if (this.#strings.status === 'invalid') return this.#refuse();
    this.#write(`${this.#strings.take(true)}"`);
    return this.#endValue(false);
  }

  #open(character: '[' | '(' | '{'): boolean {
    if (this.#frames.length > DEPTH_MAX) return this.#refuse();
    if (character !== '(') this.#writeScalar(character);
    const close = character === '[' ? ']' : character === '(' ? ')' : '}';
    this.#frames.push({ close, values: 0, hasComma: false, back: character === '[' ? null : '' });
    return this.#go('valueOrEnd');
  }

  #close(character: string): boolean {
    const frame = this.#frames.at(-1);
    if (frame?.close !== character) return this.#refuse();
    this.#frames.pop();
    const { values, hasComma, back } = frame;
    if (character === ')') this.#writeScalar(values === 1 && !hasComma ? (back ?? '') : `[${back ?? ''}]`);
    else this.#write(character);
    return this.#endValue(true);
  }

  /** Behind a value that stands in brackets. */
  #readAfter(character: string): boolean {
    const frame = this.#frames.at(-1);
    if (!frame) return this.#refuse();
    if (frame.close === '}' && frame.back !== null)
      return character === ':' ? this.#endKey(frame, frame.back) : this.#refuse();
    if (character !== ',') return this.#close(character);
    frame.hasComma = true;
    if (frame.close === '}') frame.back = '';
    return this.#go('valueOrEnd');
  }

  /** Of a dict. JSON's keys are strings. */
  #endKey(frame: Frame, key: string): boolean {
    if (key.startsWith('[') || key.startsWith('{')) return this.#refuse();
    frame.back = null;
    this.#write(`${frame.values++ > 0 ? ', ' : ''}${key.startsWith('"') ? key : JSON.stringify(key)}: `);
    return this.#go('value');
  }

  /** The beginning of a value, or all of it. */
  #writeScalar(json: string): void {
    const frame = this.#frames.at(-1);
    const isItem = frame !== undefined && frame.close !== '}';
    this.#write(isItem && frame.values++ > 0 ? `, ${json}` : json);
  }

  /** Of what is written: the innermost of the brackets that hold text back. */
  get #holder(): Frame | undefined {
    return this.#frames.findLast(({ back }) => back !== null);
  }

  #write(json: string): void {
    if (json === '') return;
    const holder = this.#holder;
    if (holder) {
      holder.back += json;
      return;
    }
    this.#json += json;
    this.held = '';
    this.#wrote = true;
  }

  #endValue(isRead: boolean): boolean {
    this.#part = 'after';
    if (this.#frames.length === 0) this.status = 'done';
    return isRead;
  }

  #go(part: Part): boolean {
    this.#part = part;
    return true;
  }

  #refuse(): boolean {
    this.status = 'invalid';
    return false;
  }
}

/** null: no Python number, or one that JSON cannot hold. */
function numberAsJson(text: string): string | null {
  if (!/^\.?[0-9]/.test(text) || /__|_$|_\.|\._/.test(text)) return null;
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
  const literal = new PythonLiteral();
  let at = 0;
  while (at < text.length && literal.accept(text.charAt(at))) at++;
  // What stands behind a literal ends it.
  literal.accept(',');
  while (isPythonSpace(text.charAt(at)) && at < text.length) at++;
  return literal.status === 'done' && at === text.length ? literal.take(true) : null;
}
