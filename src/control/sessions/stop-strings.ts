/**
 * Stop strings in a text that comes in pieces. One Aho-Corasick automaton for all of a request's strings; the match that
 * ends first wins (of those, the longest), so the result does not depend on how the text is cut.
 */
interface StopNode {
  next: Map<number, StopNode>;
  fail: StopNode | null;
  /** Characters from the root. */
  depth: number;
  /** The longest stop string that ends here. */
  stop: string | null;
  /** Characters that a match still to come may begin with. */
  open: number;
}

export class StopStrings {
  readonly #root: StopNode = { next: new Map(), fail: null, depth: 0, stop: null, open: 0 };
  readonly isEmpty: boolean;

  constructor(stops: readonly string[]) {
    this.isEmpty = stops.length === 0;
    for (const stop of stops) this.#add(stop);
    this.#link();
  }

  #add(stop: string): void {
    let node = this.#root;
    for (let i = 0; i < stop.length; i++) {
      const unit = stop.charCodeAt(i);
      const child = node.next.get(unit) ?? { next: new Map(), fail: null, depth: node.depth + 1, stop: null, open: 0 };
      node.next.set(unit, child);
      node = child;
    }
    node.stop = stop;
  }

  /** Breadth first: a node's failure link is finished before its children's. */
  #link(): void {
    const queue: StopNode[] = [this.#root];
    for (const node of queue) {
      for (const [unit, child] of node.next) {
        child.fail = node === this.#root ? this.#root : this.step(node.fail ?? this.#root, unit);
        child.stop ??= child.fail.stop;
        child.open = child.next.size > 0 ? child.depth : child.fail.open;
        queue.push(child);
      }
    }
  }

  get root(): StopNode {
    return this.#root;
  }

  step(from: StopNode, unit: number): StopNode {
    let node: StopNode | null = from;
    while (node) {
      const next = node.next.get(unit);
      if (next) return next;
      node = node.fail;
    }
    return this.#root;
  }
}

export interface StopScan {
  /** Text that may go out now. */
  text: string;
  /** The stop string that was completed; nothing may follow. */
  stop: string | null;
}

/** One choice's position in the automaton and the text that is held back because a stop string may have begun. */
export class StopScanner {
  readonly #stops: StopStrings;
  readonly #includeStop: boolean;
  #node: StopNode;
  #held = '';

  constructor(stops: StopStrings, includeStop: boolean) {
    this.#stops = stops;
    this.#includeStop = includeStop;
    this.#node = stops.root;
  }

  /** Whether text may be held back at all. */
  get holdsBack(): boolean {
    return !this.#stops.isEmpty && !this.#includeStop;
  }

  /** `inert`: a match that ends in this piece does not count (min_tokens), one that only begins here does. */
  feed(piece: string, inert: boolean): StopScan {
    if (this.#stops.isEmpty) return { text: piece, stop: null };
    const text = this.#held + piece;
    for (let i = this.#held.length; i < text.length; i++) {
      this.#node = this.#stops.step(this.#node, text.charCodeAt(i));
      const { stop } = this.#node;
      if (stop === null || inert) continue;
      this.#held = '';
      return { text: text.slice(0, this.#includeStop ? i + 1 : i + 1 - stop.length), stop };
    }
    const keep = this.#includeStop ? 0 : this.#node.open;
    this.#held = text.slice(text.length - keep);
    return { text: text.slice(0, text.length - keep), stop: null };
  }

  /** The text ends: what was held back was no stop string. */
  flush(): string {
    const text = this.#held;
    this.#held = '';
    return text;
  }
}
