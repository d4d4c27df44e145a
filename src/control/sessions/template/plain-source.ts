/**
 * A template's source as the lexer of @huggingface/jinja reads it right. It has no `{% raw %}` and no `+` beside a tag, takes white space in
 * texts and in strings that only look like tags, and needs quadratic time where there is much of it. So texts become expressions that are their
 * literals, without what jinja2's trim_blocks and lstrip_blocks take, and tags lose their signs. The time is linear in the source.
 */
import { SPACE, strip } from './strings.ts';

const S = `[${SPACE}]`;
const OPEN = new RegExp(`\\{%([-+]?)${S}*(raw)${S}*(?:-%\\}${S}*|%\\})|\\{([%{#])([-+]?)`, 'g');
const END_OF_RAW = new RegExp(`\\{%([-+]?)${S}*endraw${S}*(?:\\+%\\}|-%\\}${S}*|%\\}\\n?)`, 'g');
const END_OF_COMMENT = new RegExp(`\\+#\\}|-#\\}${S}*|#\\}\\n?`, 'g');
const END_OF_BLOCK = new RegExp(`\\+%\\}|-%\\}${S}*|%\\}\\n?`, 'y');
const END_OF_EXPRESSION = new RegExp(`-\\}\\}${S}*|\\}\\}`, 'y');
/** Within a tag: a text in quotes, white space, a bracket, or what is none of these up to where the tag may end. */
const PART = new RegExp(
  `'[^'\\\\]*(?:\\\\.[^'\\\\]*)*'|"[^"\\\\]*(?:\\\\.[^"\\\\]*)*"|${S}+|[([{]|[)\\]}]|[^'"${SPACE}()[\\]{}%+-]+|.`,
  'sy',
);
const ESCAPE = /\\([0-7]{1,3}|U[\da-fA-F]{0,8}|[^])/g;
/** `N` is none, but must not become a text. */
const KNOWN_ESCAPES = new Set('\\\'"nrtbfvxuN');
const MANY = new RegExp(`${S}{64,}`, 'g');

/** Throws SyntaxError for what has no end. */
export function plainSource(source: string): string {
  return new SourceReader(source.replaceAll(/\r\n?/g, '\n').replace(/\n$/, '')).read();
}

class SourceReader {
  readonly #source: string;
  readonly #parts: string[] = [];
  #at = 0;

  constructor(source: string) {
    this.#source = source;
  }

  read(): string {
    for (let open = this.#find(OPEN); open; open = this.#find(OPEN)) {
      const [whole, rawSign = '', raw, kind = '%', sign = rawSign] = open;
      this.#text(open.index, sign, kind !== '{');
      this.#at = open.index + whole.length;
      if (raw !== undefined) this.#raw();
      else if (kind === '#') this.#at = endOf(this.#find(END_OF_COMMENT), 'comment');
      else this.#tag(kind);
    }
    this.#push(this.#source.slice(this.#at));
    return this.#parts.join('');
  }

  #find(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#source);
  }

  #raw(): void {
    const end = this.#find(END_OF_RAW);
    const behind = endOf(end, 'raw block');
    this.#text(end?.index ?? behind, end?.[1] ?? '', true);
    this.#at = behind;
  }

  /** Text up to `end`, where a tag begins: `-` takes the white space before it, and a block that is alone in its line takes its indentation. */
  #text(end: number, sign: string, isBlock: boolean): void {
    const text = this.#source.slice(this.#at, end);
    if (sign === '-') return this.#push(strip(text, null, 'right'));
    const line = text.lastIndexOf('\n') + 1;
    const beginsLine = line > 0 || this.#at === 0 || this.#source[this.#at - 1] === '\n';
    const isAlone = isBlock && sign === '' && beginsLine && strip(text.slice(line), null, 'left') === '';
    this.#push(isAlone ? text.slice(0, line) : text);
  }

  #push(text: string): void {
    if (text !== '')
      this.#parts.push(
        `{{ '${text.replaceAll(/['\\]/g, '\\$&').replaceAll('{', '\\x7b').replaceAll(MANY, escaped)}' }}`,
      );
  }

  #tag(kind: string): void {
    const inner: string[] = [];
    const end = kind === '{' ? END_OF_EXPRESSION : END_OF_BLOCK;
    for (let depth = 0; ;) {
      const closing = depth === 0 ? this.#find(end) : null;
      const part = closing ?? this.#find(PART);
      if (!part) throw new SyntaxError(`a tag has no end.`);
      const [text] = part;
      this.#at += text.length;
      if (closing) break;
      if (text === "'" || text === '"') throw new SyntaxError('a string has no end.');
      if ('([{'.includes(text)) depth++;
      else if (')]}'.includes(text)) depth--;
      inner.push(inTag(text));
    }
    const content = inner.join('');
    this.#parts.push(kind === '{' ? `{{ ${content} }}` : `{% ${content} %}`);
  }
}

function endOf(found: RegExpExecArray | null, what: string): number {
  if (!found) throw new SyntaxError(`a ${what} has no end.`);
  return found.index + found[0].length;
}

function inTag(text: string): string {
  if (text.startsWith("'") || text.startsWith('"')) {
    const plain = text.replace(ESCAPE, (whole: string, kind: string) => unescaped(whole, kind));
    return plain.replaceAll('{%', '\\x7b%').replaceAll(MANY, escaped);
  }
  return strip(text, null, 'left') === '' ? ' ' : text;
}

/** What Python's escapes stand for, where the lexer does not know them; a backslash before any other character is one. */
function unescaped(whole: string, kind: string): string {
  if (kind === '\n') return '';
  if (kind === 'a') return escaped('\x07');
  if (/^[0-7]/.test(kind)) return escaped(String.fromCharCode(Number.parseInt(kind, 8)));
  if (kind.startsWith('U')) return character(kind.slice(1));
  return KNOWN_ESCAPES.has(kind) ? whole : `\\${whole}`;
}

function character(hex: string): string {
  const code = Number.parseInt(hex, 16);
  if (hex.length !== 8 || !(code <= 0x10ffff)) throw new SyntaxError(`\\U${hex} is no character.`);
  return escaped(String.fromCodePoint(code));
}

/** Within a string literal. */
function escaped(text: string): string {
  return text.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
