/** `{% raw %}...{% endraw %}`, which @huggingface/jinja does not have: such a block becomes an expression that is its text. */

const BEGIN = /\{#|\{%([-+]?)\s*raw\s*(-?)%\}/g;
const END = /\{%([-+]?)\s*endraw\s*([-+]?)%\}/g;

/** White space goes as with jinja2's trim_blocks and lstrip_blocks. A block without an end is left as it is. */
export function withoutRawBlocks(source: string): string {
  let result = '';
  let from = 0;
  for (let at = 0; ;) {
    const begin = match(BEGIN, source, at);
    if (!begin) break;
    const inside = begin.index + begin[0].length;
    if (begin[0] === '{#') {
      at = source.indexOf('#}', inside);
      if (at === -1) break;
      continue;
    }
    const end = match(END, source, inside);
    if (!end) break;
    const [, before, trimsBegin] = begin;
    const [, trimsEnd, after] = end;
    const first = before === '' ? lineBegin(source, begin.index, 0) : begin.index;
    const last = trimsEnd === '' ? lineBegin(source, end.index, inside + 1) : end.index;
    const begun = trimsBegin === '-' ? source.slice(inside, last).trimStart() : source.slice(inside, last);
    const text = trimsEnd === '-' ? begun.trimEnd() : begun;
    const [open, close] = [before === '-' ? '{{-' : '{{', after === '-' ? '-}}' : '}}'];
    result += `${source.slice(from, first)}${open}'${escaped(text)}'${close}`;
    from = end.index + end[0].length;
    if (after === '' && source[from] === '\n') from++;
    at = from;
  }
  return result + source.slice(from);
}

function match(pattern: RegExp, text: string, from: number): RegExpExecArray | null {
  pattern.lastIndex = from;
  return pattern.exec(text);
}

/** Where the line begins, if `at` is behind nothing but its indentation; else `at`. No line that begins before `least` is looked for. */
function lineBegin(text: string, at: number, least: number): number {
  let begin = at;
  while (begin > least && (text[begin - 1] === ' ' || text[begin - 1] === '\t')) begin--;
  return begin === 0 || (begin >= least && text[begin - 1] === '\n') ? begin : at;
}

/** As a part of a string literal. */
function escaped(text: string): string {
  return text.replace(/[^\w ]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
}
