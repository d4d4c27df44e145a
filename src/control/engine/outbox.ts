import type { LedgerEntry, SequenceLedger } from './ledger.ts';
import type { SequenceRequest, ToEngine } from './protocol.ts';

/** Gathers submits and aborts until the end of the event loop's turn, so that a burst of requests is one message. */
export class Outbox {
  readonly #ledger: SequenceLedger;
  readonly #send: (message: ToEngine) => void;
  #submits: LedgerEntry[] = [];
  #aborts: number[] = [];
  #scheduled = false;
  #open = false;

  constructor(ledger: SequenceLedger, send: (message: ToEngine) => void) {
    this.#ledger = ledger;
    this.#send = send;
  }

  /** An engine is ready: everything unfinished is its work. */
  open(entries: LedgerEntry[]): void {
    this.#submits = entries;
    this.#aborts = [];
    this.#open = true;
    this.#flush();
  }

  /** No engine: what is submitted stays in the ledger until the next `open`. */
  close(): void {
    this.#open = false;
    this.#submits = [];
    this.#aborts = [];
  }

  submit(entries: LedgerEntry[]): void {
    if (!this.#open) return;
    this.#submits.push(...entries);
    this.#schedule();
  }

  /** The entry is off the ledger already; one that was never sent needs no message. */
  abort(entry: LedgerEntry): void {
    if (entry.sent) this.abortId(entry.id);
  }

  abortId(id: number): void {
    if (!this.#open) return;
    this.#aborts.push(id);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#flush();
    });
  }

  #flush(): void {
    const aborts = this.#aborts;
    const submits = this.#submits.filter((entry) => this.#ledger.has(entry));
    this.#aborts = [];
    this.#submits = [];
    if (submits.length > 0) this.#send({ type: 'submit', requests: submits.map(requestOf) });
    if (aborts.length > 0) this.#send({ type: 'abort', ids: aborts });
  }
}

function requestOf(entry: LedgerEntry): SequenceRequest {
  entry.sent = true;
  const { id, request, promptScored } = entry;
  return { ...request, id, resumeIds: Int32Array.from(entry.received), promptScored };
}
