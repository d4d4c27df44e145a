/** What a stream holds that has ended and was not read to its end. */
export interface LingeringStream {
  readonly held: number;
  cut(): void;
}

const STREAMS_AT_LIMIT = 64;
const CROWDED_BYTES = 16 * 1024;

/**
 * What all slow readers together may hold. One reader may let `perStream` bytes pile up; once all of them hold more than
 * `total`, whoever holds more than `crowded` is cut: those whose stream has ended, the longest ago first, until the rest have room, and the
 * others at their next event. So ten thousand stalled readers cost bounded memory.
 */
export class StreamBuffers {
  readonly #perStream: number;
  readonly #total: number;
  readonly #crowded: number;
  /** Streams that have ended and were not read to their end. */
  readonly #lingering = new Set<LingeringStream>();
  #held = 0;

  constructor(perStreamBytes: number) {
    this.#perStream = perStreamBytes;
    this.#total = perStreamBytes * STREAMS_AT_LIMIT;
    this.#crowded = Math.min(perStreamBytes, CROWDED_BYTES);
  }

  /** Bytes that all streams hold. */
  get held(): number {
    return this.#held;
  }

  /** Books a change of one stream's bytes. */
  change(before: number, after: number): void {
    this.#held += after - before;
    if (after <= before || this.#held <= this.#total) return;
    for (const stream of this.#lingering) {
      if (stream.held > this.#crowded) stream.cut();
      if (this.#held <= this.#total) return;
    }
  }

  /** Of a stream that has ended: only its reader changes what it holds, and it may be cut for others. */
  linger(stream: LingeringStream): void {
    this.#lingering.add(stream);
  }

  forget(stream: LingeringStream): void {
    this.#lingering.delete(stream);
  }

  /** Whether a stream that holds this much must be cut. `atOnce`: what of it the reader had no time for yet. */
  exceeds(bytes: number, atOnce: number): boolean {
    return bytes > (this.#held > this.#total ? this.#crowded : this.#perStream + atOnce);
  }
}
