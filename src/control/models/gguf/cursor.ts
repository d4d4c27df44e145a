/**
 * Reads a file's beginning from front to back through a window. Every length is compared with what the file still holds
 * before anything of that size is allocated.
 *
 * Synchronous: a header is hundreds of thousands of values of a few bytes, read once at start-up.
 */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { ModelError } from '../errors.ts';

const WINDOW_BYTES = 1024 * 1024;
/** A token may be a byte order mark. */
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

export class FileCursor {
  readonly file: string;
  readonly size: number;
  readonly #limit: number;
  readonly #descriptor: number;
  #window: Buffer = Buffer.alloc(0);
  /** Where in the file the window begins. */
  #start = 0;
  /** Read position within the window. */
  #at = 0;

  /** `limit`: bytes from the beginning of the file that may be read. Throws where the file cannot be opened. */
  constructor(path: string, file: string, limit: number) {
    this.file = file;
    this.#limit = limit;
    this.#descriptor = openSync(path, 'r');
    this.size = fstatSync(this.#descriptor).size;
  }

  close(): void {
    closeSync(this.#descriptor);
  }

  get position(): number {
    return this.#start + this.#at;
  }

  /** Bytes of the file behind the position. */
  get left(): number {
    return this.size - this.position;
  }

  fail(what: string, problem: string): never {
    throw new ModelError(this.file, `${what} ${problem}`);
  }

  /** Refuses a count of things of `least` bytes each that the rest of the file cannot hold. */
  room(count: bigint, least: number, what: string): number {
    if (count > BigInt(Math.floor(this.left / least))) {
      this.fail(what, `says ${count} entries, but only ${this.left} bytes of the file are left.`);
    }
    return Number(count);
  }

  uint8(what: string): number {
    return this.#view(1, what).readUInt8(this.#advance(1));
  }

  uint32(what: string): number {
    return this.#view(4, what).readUInt32LE(this.#advance(4));
  }

  uint64(what: string): bigint {
    return this.#view(8, what).readBigUInt64LE(this.#advance(8));
  }

  /** `bytes` at the position, valid until the next call. */
  bytes(bytes: number, what: string): Buffer {
    const view = this.#view(bytes, what);
    const at = this.#advance(bytes);
    return view.subarray(at, at + bytes);
  }

  /** A 64-bit length and as many bytes of UTF-8. */
  string(maxBytes: number, what: string): string {
    const length = this.uint64(`the length of ${what}`);
    if (length > BigInt(maxBytes)) this.fail(what, `is ${length} bytes long; at most ${maxBytes} are read.`);
    const bytes = this.bytes(Number(length), what);
    try {
      return decoder.decode(bytes);
    } catch {
      return this.fail(what, 'is not valid UTF-8.');
    }
  }

  #advance(bytes: number): number {
    const at = this.#at;
    this.#at += bytes;
    return at;
  }

  /** The window, with at least `bytes` behind the position. */
  #view(bytes: number, what: string): Buffer {
    if (this.#window.length - this.#at >= bytes) return this.#window;
    const { position } = this;
    if (bytes > this.left) this.fail(what, 'is cut off: the file is truncated.');
    if (position + bytes > this.#limit)
      this.fail(what, `lies beyond the ${this.#limit} bytes of metadata that are read.`);
    const window = Buffer.alloc(Math.min(Math.max(bytes, WINDOW_BYTES), this.left));
    for (let done = 0; done < window.length;) {
      const got = readSync(this.#descriptor, window, done, window.length - done, position + done);
      if (got === 0) this.fail(what, 'is cut off: the file is truncated.');
      done += got;
    }
    this.#window = window;
    this.#start = position;
    this.#at = 0;
    return window;
  }
}
