/** Token id -> exact bytes, as the tokenizer's decoder makes them. Shared by everything that turns ids into text. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from '../models/errors.ts';
import { show } from '../models/fields.ts';
import { TOKENIZER_FILE, type TokenizerFiles } from '../models/tokenizer-files.ts';

const encoder = new TextEncoder();

export class TokenTable {
  readonly size: number;
  readonly #decoder: TokenDecoder;
  readonly #vocabulary: string[];
  readonly #special: Uint8Array;
  readonly #bytes: Uint8Array;
  /** size + 1 offsets into #bytes. */
  readonly #offsets: Uint32Array;
  /** Made when they are first asked for; at most one per id. */
  readonly #shown: (ShownToken | undefined)[] = [];

  constructor(files: TokenizerFiles) {
    const decoder = readDecoder(files.tokenizer['decoder'] ?? null);
    this.#decoder = decoder;
    this.size = files.vocabulary.length;
    this.#vocabulary = files.vocabulary;
    this.#special = new Uint8Array(this.size);
    for (const token of files.addedTokens) if (token.special) this.#special[token.id] = 1;
    // Added tokens go through the decoder like the others: `▁▁` is two spaces.
    const pieces = files.vocabulary.map((text) => decoder.decode(text));
    this.#offsets = new Uint32Array(this.size + 1);
    for (const [id, piece] of pieces.entries()) this.#offsets[id + 1] = (this.#offsets[id] ?? 0) + piece.length;
    this.#bytes = new Uint8Array(this.#offsets[this.size] ?? 0);
    for (const [id, piece] of pieces.entries()) this.#bytes.set(piece, this.#offsets[id]);
  }

  /** Empty for ids beyond the tokenizer (padding rows of the embedding). Do not write to it. */
  bytes(id: number): Uint8Array {
    return this.#bytes.subarray(this.#offsets[id] ?? 0, this.#offsets[id + 1] ?? 0);
  }

  /** As the first token of a text, where a space may be the tokenizer's own (sentencepiece-like ones put one there). */
  firstBytes(id: number): Uint8Array {
    const bytes = this.bytes(id);
    if (this.#decoder.first === 'withoutMarks') return this.#decoder.decode(this.vocabularyText(id), true);
    return this.#decoder.first === 'withoutSpace' && bytes[0] === 0x20 ? bytes.subarray(1) : bytes;
  }

  isSpecial(id: number): boolean {
    return this.#special[id] === 1;
  }

  /** As the vocabulary writes it (`Ġhello`, `▁hello`). */
  vocabularyText(id: number): string {
    return this.#vocabulary[id] ?? '';
  }

  /** The token's own text; U+FFFD where its bytes are no whole characters. */
  text(id: number): string {
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(this.bytes(id));
  }

  /** The same object for each entry of a token: an answer may have a million. */
  shown(id: number): ShownToken {
    if (id < 0 || id >= this.size) return { token: '', bytes: [] };
    return (this.#shown[id] ??= { token: this.text(id), bytes: [...this.bytes(id)] });
  }

  idOf(text: string): number | null {
    const id = this.#vocabulary.indexOf(text);
    return id === -1 ? null : id;
  }
}

export interface ShownToken {
  token: string;
  /** UTF-8, exact. Shared: not to be written to. */
  bytes: number[];
}

/** Lower values, infinity included, have no JSON form that clients accept. */
export const LOGPROB_FLOOR = -9999;

export interface TokenEntry {
  token: string;
  logprob: number;
  bytes: number[];
  tokenId: number;
}

/** A token beside its log-probability, floored; missing and not-a-number count as the floor. */
export function tokenEntry(table: TokenTable, tokenId: number, logprob: number | undefined): TokenEntry {
  const value = logprob === undefined || Number.isNaN(logprob) ? LOGPROB_FLOOR : Math.max(logprob, LOGPROB_FLOOR);
  const { token, bytes } = table.shown(tokenId);
  return { token, logprob: value, bytes, tokenId };
}

interface TokenDecoder {
  decode: (text: string, withoutMarks?: boolean) => Uint8Array;
  /** What the first token of a text loses: nothing, one space, or all marks of spaces. */
  first: 'whole' | 'withoutSpace' | 'withoutMarks';
}

function unsupported(part: unknown): never {
  const name = isPlainObject(part) ? part['type'] : part;
  throw new ModelError(TOKENIZER_FILE, `decoder ${show(name ?? null)} is not supported.`);
}

function readDecoder(decoder: unknown): TokenDecoder {
  if (!isPlainObject(decoder)) return unsupported(decoder);
  if (decoder['type'] === 'ByteLevel') return { decode: byteLevelBytes, first: 'whole' };
  if (decoder['type'] === 'Metaspace') return readMetaspace(decoder);
  if (decoder['type'] === 'Sequence' && Array.isArray(decoder['decoders'])) return readSequence(decoder['decoders']);
  return unsupported(decoder);
}

function readMetaspace(decoder: Record<string, unknown>): TokenDecoder {
  const mark = typeof decoder['replacement'] === 'string' ? decoder['replacement'] : '\u2581';
  const strips = decoder['prepend_scheme'] !== 'never' && decoder['add_prefix_space'] !== false;
  const decode = (text: string, withoutMarks = false): Uint8Array =>
    encoder.encode(text.replaceAll(mark, withoutMarks ? '' : ' '));
  return { decode, first: strips ? 'withoutMarks' : 'whole' };
}

/** Replace, ByteFallback, Fuse and Strip in the order that sentencepiece conversions write them. */
function readSequence(parts: unknown[]): TokenDecoder {
  const replaces: [string, string][] = [];
  let byteFallback = false;
  let fused = false;
  let first: TokenDecoder['first'] = 'whole';
  for (const part of parts) {
    const type = isPlainObject(part) ? part['type'] : undefined;
    if (isPlainObject(part) && type === 'Replace' && !fused) replaces.push(readReplace(part));
    else if (type === 'ByteFallback' && !fused) byteFallback = true;
    else if (type === 'Fuse') fused = true;
    else if (isPlainObject(part) && type === 'Strip' && fused && isLeadingStrip(part)) first = 'withoutSpace';
    else if (type === 'ByteLevel' && parts.length === 1) return { decode: byteLevelBytes, first: 'whole' };
    else if (isPlainObject(part) && type === 'Metaspace' && parts.length === 1) return readMetaspace(part);
    else unsupported(part);
  }
  const decode = (text: string): Uint8Array => {
    const byte = byteFallback ? /^<0x([0-9A-Fa-f]{2})>$/.exec(text) : null;
    if (byte?.[1]) return Uint8Array.of(Number.parseInt(byte[1], 16));
    return encoder.encode(replaces.reduce((done, [from, to]) => done.replaceAll(from, to), text));
  };
  return { decode, first };
}

function readReplace(part: Record<string, unknown>): [string, string] {
  const pattern = isPlainObject(part['pattern']) ? part['pattern']['String'] : undefined;
  const content = part['content'];
  if (typeof pattern !== 'string' || pattern === '' || typeof content !== 'string') return unsupported(part);
  return [pattern, content];
}

function isLeadingStrip(part: Record<string, unknown>): boolean {
  return part['content'] === ' ' && part['start'] === 1 && (part['stop'] ?? 0) === 0;
}

/** GPT-2's map: printable Latin-1 stands for itself, the other bytes for U+0100 upwards. */
const BYTE_OF_CHAR: ReadonlyMap<string, number> = makeByteMap();

function makeByteMap(): Map<string, number> {
  const map = new Map<string, number>();
  let next = 256;
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    map.set(String.fromCharCode(printable ? byte : next++), byte);
  }
  return map;
}

function byteLevelBytes(text: string): Uint8Array {
  const bytes: number[] = [];
  for (const char of text) {
    const byte = BYTE_OF_CHAR.get(char);
    // A token outside the map is plain text to the original as well.
    if (byte === undefined) return encoder.encode(text);
    bytes.push(byte);
  }
  return Uint8Array.from(bytes);
}
