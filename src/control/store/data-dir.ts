/** The data directory itself: made with its parents, for its owner alone. */
import { chmodSync, closeSync, constants, mkdirSync, openSync, realpathSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';

/** Of the longest name in it that SQLite opens, `/server.lock`: SQLite's paths end at 504 bytes, links resolved or not. */
const MAX_PATH_BYTES = 504 - 12;
/** Of one folder's name, on all common file systems. */
const MAX_NAME_BYTES = 255;

/** At the end. A pipe of that name is refused: to open one waits for a reader, and no signal would be heard meanwhile. */
const APPEND = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_NONBLOCK;

/** Nothing where it is there. Throws a sentence that names it, before anything is made where its path is too long. */
export function makeDataDir(dataDir: string): void {
  const path = resolve(dataDir);
  checkLength(path);
  try {
    makeFolder(path);
  } catch (error) {
    throw new Error(`The data directory ${dataDir} cannot be made: ${(error as Error).message}`);
  }
}

/** A file in it, with the narrow mode from its first moment on. Throws a sentence that names it, and whose it is where that is the reason. */
export function makeOwnFile(path: string): void {
  try {
    closeSync(openSync(path, APPEND, 0o600));
    chmodSync(path, 0o600);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const owner = code === 'EACCES' || code === 'EPERM' ? ownerNote(path) : '';
    throw new Error(`${path} in the data directory cannot be opened for writing: ${message}${owner}`);
  }
}

/** What root has restored from a backup, or made with the keys command, is not the server's. */
function ownerNote(path: string): string {
  const me = process.getuid?.();
  for (const place of [path, dirname(path)]) {
    const owner = ownerOf(place);
    if (owner !== null && owner !== me)
      return ` (${basename(place)} belongs to user ${owner}, this process runs as ${me})`;
  }
  return '';
}

function ownerOf(path: string): number | null {
  try {
    return statSync(path).uid;
  } catch {
    return null;
  }
}

function checkLength(path: string): void {
  const name = Math.max(...path.split('/').map((part) => Buffer.byteLength(part)));
  const whole = Buffer.byteLength(path);
  if (whole > MAX_PATH_BYTES) throw tooLong(`The path of the data directory has ${whole} bytes`, MAX_PATH_BYTES);
  if (name > MAX_NAME_BYTES)
    throw tooLong(`A name in the path of the data directory has ${name} bytes`, MAX_NAME_BYTES);
  const real = Buffer.byteLength(realPath(path));
  if (real > MAX_PATH_BYTES)
    throw tooLong(`The path of the data directory, its links followed, has ${real} bytes`, MAX_PATH_BYTES);
}

function tooLong(what: string, limit: number): Error {
  return new Error(`${what}, and may have ${limit} at most: give --data-dir a shorter one.`);
}

/** Of what is there of it; what cannot be looked at, making it tells. */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    return dirname(path) === path ? path : join(realPath(dirname(path)), basename(path));
  }
}

/** Not by `recursive`, which never returns where a file system has no place for folders (/proc). */
function makeFolder(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  if (dirname(path) !== path) makeFolder(dirname(path));
  mkdirSync(path, { mode: 0o700 });
}
