/** JSON whose numbers keep their spelling's meaning: 1.0 stays a float and 64-bit integers keep their digits. */
import { randomBytes } from 'node:crypto';

export class JsonNumber {
  readonly source: string;
  constructor(source: string) {
    this.source = source;
  }

  get isInteger(): boolean {
    return !/[.eE]/.test(this.source);
  }
}

const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
/** What JavaScript's numbers would change. */
const DELICATE = /\d[.eE]|\d{16}/;
/** No text that a client or a model writes begins with it. */
const TAG = `number:${randomBytes(16).toString('hex')}:`;

/** JSON.parse; numbers are JsonNumbers where a plain number could lose something. Throws SyntaxError. */
export function parseJsonNumbers(text: string): unknown {
  if (!DELICATE.test(text)) return JSON.parse(text);
  // The text must be JSON before it is rewritten, so that the rewriting cannot make JSON of something else.
  JSON.parse(text);
  const tagged = text.replace(STRING_OR_NUMBER, (token) =>
    token.startsWith('"') ? token : JSON.stringify(TAG + token),
  );
  return JSON.parse(tagged, (_, value: unknown) =>
    typeof value === 'string' && value.startsWith(TAG) ? new JsonNumber(value.slice(TAG.length)) : value,
  );
}
