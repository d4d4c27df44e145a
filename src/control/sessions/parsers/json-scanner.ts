/**
 * Reads one JSON object or array (RFC 8259, nothing more) that comes in pieces, each character once, and notes where the
 * members of the outermost value lie. Offsets count from the first character fed.
 */
export interface JsonMember {
  /** JSON text of the key lies in [keyStart, keyEnd); both 0 in an array. */
  keyStart: number;
  keyEnd: number;
  /** JSON text of the value lies in [start, end). */
  start: number;
  end: number;
}

/** Deeper values are refused: readers that recurse must not be led to overflow. */
const DEPTH_MAX = 256;

type State =
  | 'root'
  | 'keyOrEnd'
  | 'key'
  | 'colon'
  | 'valueOrEnd'
  | 'value'
  | 'after'
  | 'string'
  | 'escape'
  | 'hex'
  | 'word'
  | 'number';

/** What has been read of a number; those in NUMBER_ENDS may end it. */
type NumberPart = 'minus' | 'zero' | 'integer' | 'point' | 'fraction' | 'e' | 'sign' | 'exponent';
const NUMBER_ENDS: ReadonlySet<NumberPart> = new Set(['zero', 'integer', 'fraction', 'exponent']);

const isDigit = (character: string) => character >= '0' && character <= '9';
const isSpace = (character: string) =>
  character === ' ' || character === '\n' || character === '\t' || character === '\r';
const isHex = (character: string) => isDigit(character) || /^[a-fA-F]$/.test(character);
const WORDS: Readonly<Record<string, string>> = { t: 'true', f: 'false', n: 'null' };

export class JsonScanner {
  status: 'open' | 'done' | 'invalid' = 'open';
  readonly members: JsonMember[] = [];
  /** The outermost value's bracket, '' before it. */
  root: '' | '{' | '[' = '';

  /** True: feed() also returns where a member's value begins and after it ended. */
  readonly #stopsAtMembers: boolean;
  #state: State = 'root';
  #closers: string[] = [];
  #offset = 0;
  #inKey = false;
  #hexLeft = 0;
  #wordRest = '';
  #numberPart: NumberPart = 'minus';
  #keyStart = 0;
  #keyEnd = 0;
  #open: JsonMember | null = null;

  constructor(options: { stopsAtMembers?: boolean } = {}) {
    this.#stopsAtMembers = options.stopsAtMembers ?? false;
  }

  /** The member whose value is being read; its end is not known yet. */
  get openMember(): JsonMember | null {
    return this.#open;
  }

  /** Reads from `at` on; returns the index after what belongs to the value. An invalid character is not read. */
  feed(text: string, at: number): number {
    while (this.status === 'open' && at < text.length) {
      const before = this.#open;
      const read = this.#state === 'string' ? this.#readString(text, at) : this.#readOne(text.charAt(at)) ? 1 : 0;
      at += read;
      this.#offset += read;
      if (this.#stopsAtMembers && this.#open !== before) break;
    }
    return at;
  }

  /** Number of characters read of a string from `at` on, its closing quote included. */
  #readString(text: string, at: number): number {
    for (let end = at; end < text.length; end++) {
      const code = text.charCodeAt(end);
      if (code === 0x22) {
        this.#endString(this.#offset + end - at + 1);
        return end - at + 1;
      }
      if (code === 0x5c) {
        this.#state = 'escape';
        return end - at + 1;
      }
      if (code < 0x20) {
        this.status = 'invalid';
        return end - at;
      }
    }
    return text.length - at;
  }

  /** False: the character was not read; either it is invalid, or it ended a number and is to be read again. */
  #readOne(character: string): boolean {
    if (this.#state === 'number') return this.#readNumber(character);
    if (this.#state === 'word') return this.#readWord(character);
    if (this.#state === 'escape' || this.#state === 'hex') return this.#readEscape(character);
    return isSpace(character) || this.#readStructure(character);
  }

  #readStructure(character: string): boolean {
    switch (this.#state) {
      case 'root':
        return character === '{' || character === '[' ? this.#beginValue(character) : this.#refuse();
      case 'keyOrEnd':
        return character === '}' ? this.#close(character) : this.#beginKey(character);
      case 'key':
        return this.#beginKey(character);
      case 'colon':
        return character === ':' ? this.#go('value') : this.#refuse();
      case 'valueOrEnd':
        return character === ']' ? this.#close(character) : this.#beginValue(character);
      case 'value':
        return this.#beginValue(character);
      default:
        return this.#readAfterValue(character);
    }
  }

  #readAfterValue(character: string): boolean {
    if (character !== ',') return this.#close(character);
    return this.#go(this.#closers.at(-1) === '}' ? 'key' : 'value');
  }

  #beginKey(character: string): boolean {
    if (character !== '"') return this.#refuse();
    this.#inKey = true;
    if (this.#closers.length === 1) this.#keyStart = this.#offset;
    return this.#go('string');
  }

  #beginValue(character: string): boolean {
    const opens = character === '{' || character === '[';
    const word = WORDS[character];
    const isNumber = character === '-' || isDigit(character);
    if (!opens && word === undefined && !isNumber && character !== '"') return this.#refuse();
    if (opens && this.#closers.length >= DEPTH_MAX) return this.#refuse();
    if (this.#closers.length === 1) {
      this.#open = { keyStart: this.#keyStart, keyEnd: this.#keyEnd, start: this.#offset, end: 0 };
    }
    if (opens) return this.#openBracket(character);
    if (word !== undefined) {
      this.#wordRest = word.slice(1);
      return this.#go('word');
    }
    if (!isNumber) return this.#go('string');
    this.#numberPart = character === '-' ? 'minus' : character === '0' ? 'zero' : 'integer';
    return this.#go('number');
  }

  #openBracket(character: '{' | '[' | string): boolean {
    const isObject = character === '{';
    if (this.#closers.length === 0) this.root = isObject ? '{' : '[';
    this.#closers.push(isObject ? '}' : ']');
    return this.#go(isObject ? 'keyOrEnd' : 'valueOrEnd');
  }

  #close(character: string): boolean {
    if (character !== this.#closers.at(-1)) return this.#refuse();
    this.#closers.pop();
    if (this.#closers.length === 0) this.status = 'done';
    else this.#endValue(this.#offset + 1);
    return true;
  }

  #endString(end: number): void {
    if (!this.#inKey) return this.#endValue(end);
    this.#inKey = false;
    if (this.#closers.length === 1) this.#keyEnd = end;
    this.#state = 'colon';
  }

  #endValue(end: number): void {
    this.#state = 'after';
    if (this.#closers.length !== 1 || !this.#open) return;
    this.members.push({ ...this.#open, end });
    this.#open = null;
  }

  #readEscape(character: string): boolean {
    if (this.#state === 'escape') {
      if (character === 'u') {
        this.#hexLeft = 4;
        return this.#go('hex');
      }
      return '"\\/bfnrt'.includes(character) ? this.#go('string') : this.#refuse();
    }
    if (!isHex(character)) return this.#refuse();
    if (--this.#hexLeft === 0) this.#state = 'string';
    return true;
  }

  #readWord(character: string): boolean {
    if (character !== this.#wordRest[0]) return this.#refuse();
    this.#wordRest = this.#wordRest.slice(1);
    if (this.#wordRest === '') this.#endValue(this.#offset + 1);
    return true;
  }

  #readNumber(character: string): boolean {
    const next = nextNumberPart(this.#numberPart, character);
    if (next !== null) {
      this.#numberPart = next;
      return true;
    }
    if (!NUMBER_ENDS.has(this.#numberPart)) return this.#refuse();
    this.#endValue(this.#offset);
    return false;
  }

  #go(state: State): boolean {
    this.#state = state;
    return true;
  }

  #refuse(): boolean {
    this.status = 'invalid';
    return false;
  }
}

function nextNumberPart(part: NumberPart, character: string): NumberPart | null {
  if (isDigit(character)) {
    if (part === 'minus') return character === '0' ? 'zero' : 'integer';
    if (part === 'zero') return null;
    if (part === 'point') return 'fraction';
    return part === 'e' || part === 'sign' ? 'exponent' : part;
  }
  if (character === '.') return part === 'zero' || part === 'integer' ? 'point' : null;
  if (character === 'e' || character === 'E') {
    return part === 'zero' || part === 'integer' || part === 'fraction' ? 'e' : null;
  }
  return (character === '+' || character === '-') && part === 'e' ? 'sign' : null;
}

/** Whether the text is one JSON object or array, white space around it allowed; the scanner that read it, or null. */
export function scanJson(text: string): JsonScanner | null {
  const scanner = new JsonScanner();
  const end = scanner.feed(text, 0);
  return scanner.status === 'done' && text.slice(end).trim() === '' ? scanner : null;
}
