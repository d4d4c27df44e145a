/**
 * The engine's sequence slots. A slot given back is closed by the next plan; it may be taken again at once, because a plan
 * closes before it opens.
 */
export class SlotTable {
  /** One byte per slot: 1 = in use. */
  readonly #inUse: Uint8Array;
  readonly #free: number[];
  /** Slots that native code still holds open although nobody uses them. */
  readonly #toClose = new Set<number>();

  constructor(count: number) {
    this.#inUse = new Uint8Array(count);
    this.#free = Array.from({ length: count }, (_, index) => count - 1 - index);
  }

  get used(): number {
    return this.#inUse.length - this.#free.length;
  }

  take(): number {
    const slot = this.#free.pop();
    if (slot === undefined) throw new Error('No sequence slot is free.');
    this.#inUse[slot] = 1;
    return slot;
  }

  giveBack(slot: number): void {
    if (this.#inUse[slot] !== 1) throw new Error(`Slot ${slot} is not in use.`);
    this.#inUse[slot] = 0;
    this.#free.push(slot);
    this.#toClose.add(slot);
  }

  /** The slots to close in this plan; they count as told. */
  takeCloses(): number[] {
    const closes = [...this.#toClose];
    this.#toClose.clear();
    return closes;
  }
}
