/** Reading the small files of a model directory, which are as hostile as any request: bounded in bytes, depth and names. */
import { open, realpath, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { GIT_LFS_MARK, GIT_LFS_POINTER, ModelError } from './errors.ts';

export type JsonObject = Record<string, unknown>;

/** Deeper files than this are refused before JSON.parse recurses into them. */
const MAX_JSON_DEPTH = 64;

/** Opens `name` in the directory. Links are followed (hub caches are made of them) but must end at a regular file. */
export async function resolveModelFile(
  directory: string,
  name: string,
): Promise<{ path: string; size: number } | null> {
  if (name !== basename(name) || name === '.' || name === '..' || name === '' || /[\0\\]/.test(name)) {
    throw new ModelError(name, 'is not a plain file name inside the model directory.');
  }
  let path: string;
  try {
    path = await realpath(join(directory, name));
  } catch (error) {
    if (isMissing(error)) return null;
    throw new ModelError(name, 'cannot be opened.');
  }
  const info = await stat(path);
  if (!info.isFile()) throw new ModelError(name, 'is not a regular file.');
  return { path, size: info.size };
}

function isMissing(error: unknown): boolean {
  return error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENOTDIR');
}

/** The text of a file, or null where there is none. */
export async function readModelText(directory: string, name: string, maxBytes: number): Promise<string | null> {
  const file = await resolveModelFile(directory, name);
  if (!file) return null;
  if (file.size > maxBytes) throw new ModelError(name, `is larger than ${maxBytes} bytes.`);
  const bytes = await readExactly(name, file.path, 0, file.size);
  return decodeUtf8(name, bytes);
}

/** Reads exactly `length` bytes at `offset`; a file that has shrunk since it was measured is an error. */
export async function readExactly(name: string, path: string, offset: number, length: number): Promise<Buffer> {
  const handle = await open(path, 'r');
  try {
    const buffer = Buffer.alloc(length);
    let done = 0;
    while (done < length) {
      const { bytesRead } = await handle.read(buffer, done, length - done, offset + done);
      if (bytesRead === 0) throw new ModelError(name, 'is truncated.');
      done += bytesRead;
    }
    return buffer;
  } finally {
    await handle.close();
  }
}

export function decodeUtf8(name: string, bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new ModelError(name, 'is not valid UTF-8.');
  }
}

export async function readModelJson(directory: string, name: string, maxBytes: number): Promise<JsonObject | null> {
  const text = await readModelText(directory, name, maxBytes);
  return text === null ? null : parseJsonObject(name, text);
}

/** JSON.parse with a depth bound; `uniqueKeys` also refuses a name given twice in one object, which JSON.parse hides. */
export function parseJsonObject(name: string, text: string, options: { uniqueKeys?: boolean } = {}): JsonObject {
  scanJson(name, text, options.uniqueKeys === true);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new ModelError(name, text.startsWith(GIT_LFS_MARK) ? GIT_LFS_POINTER : 'is not valid JSON.');
  }
  if (!isPlainObject(value)) throw new ModelError(name, 'must hold a JSON object.');
  return value;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** One pass over the text without recursion. Leaves syntax errors to JSON.parse. */
function scanJson(name: string, text: string, uniqueKeys: boolean): void {
  const stack: (Set<string> | null)[] = [];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code === QUOTE) {
      const end = endOfString(text, i);
      const keys = stack.at(-1);
      if (uniqueKeys && keys && isKey(text, end + 1)) rememberKey(name, keys, text.slice(i, end + 1));
      i = end;
    } else if (code === 0x7b || code === 0x5b) {
      if (stack.length >= MAX_JSON_DEPTH) throw new ModelError(name, `is nested deeper than ${MAX_JSON_DEPTH} levels.`);
      stack.push(code === 0x7b && uniqueKeys ? new Set() : null);
    } else if (code === 0x7d || code === 0x5d) {
      stack.pop();
    }
  }
}

function endOfString(text: string, start: number): number {
  let i = start + 1;
  while (i < text.length && text.charCodeAt(i) !== QUOTE) i += text.charCodeAt(i) === BACKSLASH ? 2 : 1;
  return i;
}

function isKey(text: string, from: number): boolean {
  let i = from;
  while (i < text.length && ' \t\r\n'.includes(text[i] ?? '')) i++;
  return text[i] === ':';
}

function rememberKey(name: string, keys: Set<string>, quoted: string): void {
  let key: unknown = quoted;
  try {
    key = JSON.parse(quoted);
  } catch {
    // Left to JSON.parse of the whole.
  }
  const text = String(key);
  if (keys.has(text)) throw new ModelError(name, `names ${JSON.stringify(text.slice(0, 200))} twice.`);
  keys.add(text);
}
