/**
 * What all slow readers together may hold. One reader may let `perStream` bytes pile up; once all of them hold more than
 * `total`, whoever holds more than `crowded` is cut at its next event. So ten thousand stalled readers cost bounded memory.
 */
const STREAMS_AT_LIMIT = 64;
const CROWDED_BYTES = 16 * 1024;

export class StreamBuffers {
  readonly #perStream: number;
  readonly #total: number;
  readonly #crowded: number;
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
  }

  /** Whether a stream that holds this much must be cut. `atOnce`: what of it the reader had no time for yet. */
  exceeds(bytes: number, atOnce: number): boolean {
    return bytes > (this.#held > this.#total ? this.#crowded : this.#perStream + atOnce);
  }
}
