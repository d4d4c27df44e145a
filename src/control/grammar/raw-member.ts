/** The text of a member of a JSON object as it was written: numbers keep their digits. */

/** `text` must be valid JSON. Null where it is no object or has no such member; the last of several counts. */
export function rawMember(text: string, name: string): string | null {
  const scanner = /\s*(?:"((?:[^"\\]|\\.)*)"|[[\]{}:,]|[^\s[\]{}:,"]+)/gy;
  let depth = 0;
  let key: string | null = null;
  let begin = -1;
  let expectsKey = false;
  let found: string | null = null;
  for (let match = scanner.exec(text); match; match = scanner.exec(text)) {
    const token = match[0].trimStart();
    const at = scanner.lastIndex - token.length;
    if (depth === 1 && (token === ',' || token === '}')) {
      if (key === name && begin >= 0) found = text.slice(begin, at).trim();
      begin = -1;
      expectsKey = token === ',';
    } else if (depth === 1 && token === ':' && begin < 0) {
      begin = scanner.lastIndex;
    } else if (depth === 1 && expectsKey && match[1] !== undefined) {
      key = JSON.parse(token) as string;
      expectsKey = false;
    }
    if (token === '{' || token === '[') {
      if (depth === 0 && token === '[') return null;
      if (depth++ === 0) expectsKey = true;
    } else if (token === '}' || token === ']') {
      depth--;
    }
  }
  return found;
}
