/** A growable Int32Array that is filled and emptied every step without allocating (once it has grown). */
export class IntBuffer {
  #data: Int32Array;
  #length = 0;

  constructor(capacity: number) {
    this.#data = new Int32Array(Math.max(1, capacity));
  }

  get length(): number {
    return this.#length;
  }

  clear(): void {
    this.#length = 0;
  }

  push(value: number): void {
    if (this.#length === this.#data.length) this.#reserve(this.#length + 1);
    this.#data[this.#length++] = value;
  }

  append(values: Int32Array): void {
    this.#reserve(this.#length + values.length);
    this.#data.set(values, this.#length);
    this.#length += values.length;
  }

  at(index: number): number {
    const value = index < this.#length ? this.#data[index] : undefined;
    if (value === undefined) throw new RangeError(`Index ${index} is outside of ${this.#length} values.`);
    return value;
  }

  /** A window on the buffer: valid until the next push, append or clear. */
  view(start = 0, end = this.#length): Int32Array {
    return this.#data.subarray(start, end);
  }

  #reserve(length: number): void {
    if (length <= this.#data.length) return;
    const grown = new Int32Array(Math.max(length, 2 * this.#data.length));
    grown.set(this.view());
    this.#data = grown;
  }
}
