/**
 * The trainers of the engine process. Their work is done in slices that the scheduler's loop grants between steps; where a slice ends
 * decides nothing but time. Calls of one trainer run in order; trainers take turns, call by call.
 */
import type { BackgroundWork } from '../scheduler/background.ts';
import { PAGE_SIZE, type NativeAdapter, type NativeAddon, type NativeModel } from './native.ts';
import type { NativeTrainer, TrainerOptions } from './native-train.ts';
import { joined, type TrainerAnswer, type TrainerWork } from './trainer-messages.ts';
import { RowRefusedError, type AdapterWeights, type RowRoom, type TrainerState } from './training.ts';

const CLOSED = 'The trainer is closed.';
/** Adapters that one trainer compares with. */
const MAX_REFERENCES = 16;

interface Call {
  work: TrainerWork;
  begun: boolean;
  resolve: (answer: TrainerAnswer) => void;
  reject: (error: Error) => void;
}

interface Session {
  /** null until it has begun. */
  trainer: NativeTrainer | null;
  /** What has come of the state to begin with. */
  parts: TrainerState[];
  references: Map<number, NativeAdapter>;
  calls: Call[];
  closed: boolean;
}

export class TrainerHost implements BackgroundWork {
  readonly #addon: NativeAddon;
  readonly #model: NativeModel;
  readonly #options: TrainerOptions;
  readonly #log: (line: string) => void;
  #planned = false;
  readonly #sessions = new Map<number, Session>();
  #slicing: Session | null = null;
  /** Of the running slice. */
  #sliceEnd: Promise<void> = Promise.resolve();
  /** Trainers are made one after the other: there is memory for one. */
  #made: Promise<unknown> = Promise.resolve();
  #ended = false;
  onPending: () => void = () => {};

  /** `log` is told what a row takes of memory, once. */
  constructor(addon: NativeAddon, model: NativeModel, options: TrainerOptions, log: (line: string) => void) {
    this.#log = log;
    this.#addon = addon;
    this.#model = model;
    this.#options = options;
  }

  get pending(): boolean {
    for (const { calls } of this.#sessions.values()) if (calls.length > 0) return true;
    return false;
  }

  open(id: number): void {
    if (this.#ended || this.#sessions.has(id)) throw new Error('The trainer cannot be opened.');
    this.#sessions.set(id, { trainer: null, parts: [], references: new Map(), calls: [], closed: false });
  }

  call(id: number, work: TrainerWork): Promise<TrainerAnswer> {
    const session = this.#sessions.get(id);
    if (!session) return Promise.reject(new Error(CLOSED));
    if (work.kind === 'begin') return this.#begin(session);
    if (work.kind === 'load') {
      session.parts.push(work.part);
      return Promise.resolve(null);
    }
    return new Promise((resolve, reject) => {
      session.calls.push({ work, begun: false, resolve, reject });
      this.onPending();
    });
  }

  async #begin(session: Session): Promise<RowRoom> {
    if (session.trainer) throw new Error('The trainer has begun.');
    const making = this.#made.then(() => this.#make(session));
    this.#made = making.catch(() => undefined);
    const trainer = await making;
    session.trainer = trainer;
    const room = rowRoom(trainer, this.#options);
    if (!this.#planned) this.#log(memoryPlan(room, this.#options));
    this.#planned = true;
    return room;
  }

  /** When what was closed has given its memory back. */
  async #make(session: Session): Promise<NativeTrainer> {
    if (this.#slicing?.closed) await this.#sliceEnd;
    if (session.closed) throw new Error(CLOSED);
    const trainer = await this.#addon.createTrainer(this.#model, this.#options, joined(session.parts.splice(0)));
    if (!session.closed) return trainer;
    trainer.close();
    throw new Error(CLOSED);
  }

  /** Work that is under way ends with the running slice. Idempotent. */
  close(id: number): void {
    const session = this.#sessions.get(id);
    if (!session) return;
    this.#sessions.delete(id);
    session.closed = true;
    for (const { reject } of session.calls.splice(0)) reject(new Error(CLOSED));
    if (session !== this.#slicing) free(session);
  }

  end(): void {
    this.#ended = true;
    for (const id of [...this.#sessions.keys()]) this.close(id);
  }

  interrupt(): void {
    this.#slicing?.trainer?.interrupt();
  }

  async slice(micros: number): Promise<void> {
    const found = [...this.#sessions].find(([, { calls }]) => calls.length > 0);
    if (!found) return;
    const [id, session] = found;
    const call = session.calls[0] as Call;
    this.#slicing = session;
    let end = (): void => undefined;
    this.#sliceEnd = new Promise((resolve) => (end = resolve));
    try {
      const answer = await this.#advance(session, call, micros);
      if (answer !== undefined) this.#finish(id, session, () => call.resolve(answer));
    } catch (error) {
      this.#finish(id, session, () => call.reject(error instanceof Error ? error : new Error(String(error))));
    } finally {
      this.#slicing = null;
      if (session.closed) free(session);
      end();
    }
  }

  /** The call is over, and the next trainer's turn comes; one that was closed meanwhile has been told. */
  #finish(id: number, session: Session, tell: () => void): void {
    if (session.closed) return;
    session.calls.shift();
    this.#sessions.delete(id);
    this.#sessions.set(id, session);
    tell();
  }

  /** undefined: there is more to do. */
  async #advance(session: Session, call: Call, micros: number): Promise<TrainerAnswer | undefined> {
    const { trainer } = session;
    if (!trainer) throw new Error('The trainer has not begun.');
    const { work } = call;
    if (work.kind === 'state') return trainer.state(work.first, work.count);
    if (work.kind === 'load' || work.kind === 'begin') throw new Error('The trainer has begun.');
    if (work.kind === 'reference') return this.#addReference(session, work.key, work.weights);
    if (!call.begun) this.#start(trainer, session, work);
    call.begun = true;
    if (!(await trainer.slice(micros))) return undefined;
    if (work.kind === 'forward') return trainer.scores();
    return work.kind === 'optimize' ? trainer.outcome() : null;
  }

  #start(trainer: NativeTrainer, { references }: Session, work: SlicedWork): void {
    if (work.kind === 'backward') return trainer.backward(work.gradients);
    if (work.kind === 'optimize') return trainer.optimize(work.step);
    const { row, weights } = work;
    const adapter = typeof weights === 'string' ? weights : references.get(weights.adapter);
    if (!adapter) throw new Error('The trainer does not know the adapter to compare with.');
    const { maxRowTokens } = this.#options;
    if (row.tokens.length > maxRowTokens) {
      throw new RowRefusedError(
        `a packed row of ${row.tokens.length} tokens is longer than the ${maxRowTokens} of --max-training-row-tokens`,
      );
    }
    try {
      trainer.forward(row, adapter);
    } catch (error) {
      // Rows are well-formed: what is out of range is their size.
      throw error instanceof RangeError ? new RowRefusedError(error.message) : error;
    }
  }

  async #addReference(session: Session, key: number, weights: AdapterWeights): Promise<null> {
    if (session.references.size >= MAX_REFERENCES)
      throw new Error('The trainer has too many adapters to compare with.');
    const factors = weights.factors.map((each) => ({ ...each, scale: weights.scale }));
    const adapter = await this.#addon.loadAdapter(this.#model, { factors });
    session.references.get(key)?.close();
    session.references.set(key, adapter);
    return null;
  }
}

/** Bytes of a row are fixed ones (on a GPU), so many per token and so many per page: rows of three lengths tell them. */
function rowRoom(trainer: NativeTrainer, { maxRowTokens, maxRowBytes }: TrainerOptions): RowRoom {
  const pages = 64;
  const whole = pages * PAGE_SIZE;
  const bytes = trainer.rowBytes(whole);
  // Of whole pages, a token's share of its page included; and of one token with a page of its own.
  const shared = (trainer.rowBytes(2 * whole) - bytes) / whole;
  const alone = trainer.rowBytes(whole + 1) - bytes;
  const pageBytes = ((alone - shared) * PAGE_SIZE) / (PAGE_SIZE - 1);
  const tokenBytes = alone - pageBytes;
  return { maxTokens: maxRowTokens, bytes: maxRowBytes - (bytes - whole * shared), tokenBytes, pageBytes };
}

function memoryPlan(room: RowRoom, { maxRowBytes, recompute }: TrainerOptions): string {
  const perToken = room.tokenBytes + room.pageBytes / PAGE_SIZE;
  const tokens = Math.min(room.maxTokens, Math.floor(room.bytes / perToken));
  const way = recompute ? 'computing activations again' : 'keeping activations';
  return (
    `Training takes ${(perToken / 1024).toFixed(0)} KiB per token of a packed row, ${way}: ` +
    `rows of up to about ${tokens} tokens fit into --training-memory ${(maxRowBytes / 2 ** 20).toFixed(0)}M.`
  );
}

type SlicedWork = Extract<TrainerWork, { kind: 'forward' | 'backward' | 'optimize' }>;

function free({ trainer, references }: Session): void {
  trainer?.close();
  for (const adapter of references.values()) adapter.close();
  references.clear();
}
