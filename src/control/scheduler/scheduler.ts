import type { StepResult } from '../engine/native.ts';
import type { EngineStats, SequenceRequest } from '../engine/protocol.ts';
import { checkOptions, PageBudget, refusal, type SchedulerOptions } from './admission.ts';
import { PagePool, pagesFor } from './pages.ts';
import { PlanBuilder, type PlannedStep } from './plan.ts';
import { Sequence } from './sequence.ts';
import { SlotTable } from './slots.ts';
import { FcfsQueue, type WaitingQueue } from './waiting.ts';

/**
 * Decides who runs, how many tokens each is fed and in which pages: `plan`, run it, `apply`, and again. There are no
 * prefill and decode phases: every step feeds each sequence what it misses, running ones first, within one token budget.
 *
 * `plan` counts positions as fed when it plans them, and a plan names sampled tokens by slot rather than by value, so that
 * a step can be planned while the one before still runs.
 */
export class Scheduler {
  readonly #options: SchedulerOptions;
  readonly #pool: PagePool;
  readonly #slots: SlotTable;
  readonly #waiting: WaitingQueue;
  readonly #budget: PageBudget;
  readonly #builder: PlanBuilder;
  /** In admission order. */
  readonly #running: Sequence[] = [];
  readonly #byId = new Map<number, Sequence>();
  /** Sequences of #running that have left (aborted or finished) and are not yet taken off the list. */
  #leaving = 0;
  #started: number[] = [];
  #preemptions = 0;
  #steps = 0;
  #promptTokens = 0;
  #generatedTokens = 0;
  #stepMicros = 0;

  constructor(options: SchedulerOptions, waiting: WaitingQueue = new FcfsQueue()) {
    checkOptions(options);
    this.#options = options;
    this.#pool = new PagePool(options.pages);
    this.#slots = new SlotTable(options.maxSequences);
    this.#waiting = waiting;
    this.#budget = new PageBudget(this.#pool);
    this.#builder = new PlanBuilder(options.maxSequences, options.maxBatchTokens);
  }

  get hasWork(): boolean {
    return this.#running.length > 0 || this.#waiting.size > 0;
  }

  /** Queues the sequence, or returns the sentence that says why it can never run. */
  submit(request: SequenceRequest): string | null {
    if (this.#byId.has(request.id)) throw new Error(`Sequence ${request.id} is there already.`);
    const reason = refusal(request, this.#options);
    if (reason !== null) return reason;
    const sequence = new Sequence(request, this.#options.maxModelLen);
    if (sequence.known >= sequence.maxLength) return 'The sequence to resume has all its tokens already.';
    this.#byId.set(request.id, sequence);
    this.#waiting.push(sequence);
    return null;
  }

  /** A waiting sequence leaves at once, a running one at the next plan. Unknown ids are those that have just finished. */
  abort(id: number): void {
    const sequence = this.#byId.get(id);
    if (!sequence) return;
    this.#byId.delete(id);
    if (sequence.state === 'waiting') {
      this.#waiting.remove(sequence);
      sequence.state = 'done';
    } else {
      sequence.aborted = true;
      this.#leaving++;
    }
  }

  /** The next step, or null when no sequence has anything to feed. */
  plan(): PlannedStep | null {
    this.#dropLeaving();
    this.#builder.begin();
    const { budget, preempted } = this.#planRunning(this.#options.maxBatchTokens);
    // What a preemption freed is the preempting sequences' to use; admitting now would start a storm of preemptions.
    if (!preempted) this.#admit(budget);
    return this.#builder.finish(() => this.#slots.takeCloses());
  }

  /** Takes in the step's results. Returns the id of each result's sequence, -1 for one that was aborted meanwhile. */
  apply(step: PlannedStep, result: StepResult): Float64Array {
    if (result.slots.length !== step.sampled.length) {
      throw new Error(`The engine returned ${result.slots.length} results for ${step.sampled.length} sampling rows.`);
    }
    this.#steps++;
    this.#stepMicros += result.micros;
    const ids = new Float64Array(step.sampled.length).fill(-1);
    step.sampled.forEach((sequence, index) => {
      if (result.slots[index] !== sequence.slot) throw new Error(`Result ${index} is not of slot ${sequence.slot}.`);
      if (sequence.aborted) return;
      ids[index] = sequence.id;
      this.#applyOne(sequence, result.tokens[index] as number, result.finish[index] as number);
    });
    return ids;
  }

  /** Ids that have begun to run since the last call. */
  takeStarted(): number[] {
    const started = this.#started;
    this.#started = [];
    return started;
  }

  stats(): EngineStats {
    return {
      running: this.#running.length - this.#leaving,
      waiting: this.#waiting.size,
      pagesTotal: this.#pool.total,
      pagesUsed: this.#pool.used,
      preemptions: this.#preemptions,
      steps: this.#steps,
      promptTokens: this.#promptTokens,
      generatedTokens: this.#generatedTokens,
      stepMicros: this.#stepMicros,
    };
  }

  /** To be called when there is no work: everything that was taken must be back. Throws when it is not. */
  checkIdle(): void {
    this.#pool.checkIntegrity();
    const left = { pages: this.#pool.used, slots: this.#slots.used, sequences: this.#byId.size };
    if (left.pages + left.slots + left.sequences === 0) return;
    throw new Error(
      `The idle scheduler still holds ${left.pages} pages, ${left.slots} slots, ${left.sequences} sequences.`,
    );
  }

  #applyOne(sequence: Sequence, token: number, finish: number): void {
    if (finish !== 3) {
      sequence.append(token);
      this.#generatedTokens++;
    }
    if (finish === 0) return;
    this.#byId.delete(sequence.id);
    this.#leave(sequence);
    this.#leaving++;
  }

  /** Takes finished and aborted sequences off the list, keeping the order. */
  #dropLeaving(): void {
    if (this.#leaving === 0) return;
    let kept = 0;
    for (const sequence of this.#running) {
      if (sequence.aborted && sequence.state === 'running') this.#leave(sequence);
      if (sequence.state === 'running') this.#running[kept++] = sequence;
    }
    this.#running.length = kept;
    this.#leaving = 0;
  }

  #leave(sequence: Sequence): void {
    sequence.state = 'done';
    this.#release(sequence);
  }

  #release(sequence: Sequence): void {
    this.#pool.release(sequence.pages.view());
    this.#slots.giveBack(sequence.slot);
    sequence.pages.clear();
  }

  #planRunning(budget: number): { budget: number; preempted: boolean } {
    const before = this.#preemptions;
    for (let index = 0; index < this.#running.length && budget > 0; index++) {
      const sequence = this.#running[index] as Sequence;
      const count = Math.min(sequence.missing, budget);
      if (!this.#makeRoom(sequence, count)) break;
      this.#builder.row(sequence, count);
      budget -= count;
    }
    return { budget, preempted: this.#preemptions > before };
  }

  /** Gives a running sequence its pages, at the cost of those admitted last; false when it was itself the last. */
  #makeRoom(sequence: Sequence, count: number): boolean {
    const needed = pagesFor(sequence.planned + count) - sequence.pages.length;
    while (needed > 0 && !this.#pool.allocate(needed, sequence.pages)) {
      const victim = this.#running.pop() as Sequence;
      this.#preempt(victim);
      if (victim === sequence) return false;
    }
    return true;
  }

  /** Recompute: the tokens stay, their keys and values are dropped. */
  #preempt(victim: Sequence): void {
    this.#preemptions++;
    this.#release(victim);
    victim.resetToWaiting();
    this.#waiting.requeue(victim);
  }

  #admit(budget: number): void {
    if (this.#waiting.size === 0) return;
    this.#budget.begin(this.#running);
    while (budget > 0 && this.#running.length < this.#options.maxSequences) {
      const next = this.#waiting.peek();
      if (!next) return;
      const count = Math.min(next.missing, budget);
      if (count < next.missing && !this.#options.enableChunkedPrefill) return;
      if (!this.#budget.admits(next)) return;
      this.#waiting.take();
      this.#start(next, count);
      budget -= count;
    }
  }

  #start(sequence: Sequence, count: number): void {
    const needed = pagesFor(count);
    if (!this.#pool.allocate(needed, sequence.pages)) throw new Error('The page budget admitted more than there is.');
    this.#budget.allocated(needed);
    sequence.state = 'running';
    sequence.slot = this.#slots.take();
    this.#running.push(sequence);
    this.#builder.open(sequence);
    this.#builder.row(sequence, count);
    if (sequence.started) return;
    sequence.started = true;
    this.#started.push(sequence.id);
    this.#promptTokens += sequence.promptLength;
  }
}
