import type { LedgerEntry, SequenceLedger } from './ledger.ts';
import type { SequenceRequest, ToEngine } from './protocol.ts';

/**
 * Gathers submits and aborts until the end of the event loop's turn, so that a burst of requests is one message.
 *
 * After a restart the sequences that were running in two crashes, or waiting in three, are tried one at a time, and everything else waits: so the one
 * that brings the engine down does not take others with it, nor the engine. A replayed sequence repeats what it did last before anything
 * else, hence its next token acquits it.
 */
export class Outbox {
  readonly #ledger: SequenceLedger;
  readonly #send: (message: ToEngine) => void;
  #submits: LedgerEntry[] = [];
  #aborts: number[] = [];
  #scheduled = false;
  #open = false;
  #suspects: LedgerEntry[] = [];
  /** The suspect that runs, and the tokens that it had before. */
  #trial: { entry: LedgerEntry; received: number } | null = null;

  constructor(ledger: SequenceLedger, send: (message: ToEngine) => void) {
    this.#ledger = ledger;
    this.#send = send;
  }

  /** An engine is ready: everything unfinished is its work. */
  open(entries: LedgerEntry[]): void {
    this.#open = true;
    this.#suspects = entries.filter((entry) => this.#ledger.isSuspect(entry));
    this.#submits = entries;
    if (this.#suspects.length > 0) this.#nextTrial();
    this.#flush();
  }

  /** No engine: what is submitted stays in the ledger until the next `open`. */
  close(): void {
    this.#open = false;
    this.#submits = [];
    this.#aborts = [];
    this.#suspects = [];
    this.#trial = null;
  }

  /** To be called when the ledger has changed: a trial may have ended. */
  review(): void {
    if (!this.#trial) return;
    const { entry, received } = this.#trial;
    const present = this.#ledger.has(entry);
    if (present && entry.received.length === received) return;
    if (present) this.#ledger.acquit(entry);
    this.#nextTrial();
    this.#schedule();
  }

  submit(entries: LedgerEntry[]): void {
    if (!this.#open || this.#trial) return;
    this.#submits.push(...entries);
    this.#schedule();
  }

  /** The entry is off the ledger already; one that was never sent needs no message. */
  abort(entry: LedgerEntry): void {
    if (entry.sent) this.abortId(entry.id);
    this.review();
  }

  abortId(id: number): void {
    if (!this.#open) return;
    this.#aborts.push(id);
    this.#schedule();
  }

  #nextTrial(): void {
    const entry = this.#suspects.find((suspect) => this.#ledger.has(suspect));
    this.#suspects = this.#suspects.filter((suspect) => suspect !== entry && this.#ledger.has(suspect));
    this.#trial = entry ? { entry, received: entry.received.length } : null;
    this.#submits = entry ? [entry] : this.#ledger.entries().filter(({ sent }) => !sent);
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
