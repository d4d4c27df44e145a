import type { NativeProgram } from '../engine/native-grammar.ts';
import type { PinnedAdapter } from '../engine/adapter-store.ts';
import { FINISH, PAGE_SIZE, type StepResult } from '../engine/native.ts';
import type { EngineStats, SequenceRequest } from '../engine/protocol.ts';
import { checkOptions, PageBudget, type SchedulerOptions } from './admission.ts';
import { AdvisedSequences, type EndedSequence } from './advice.ts';
import { compressed, FairQueue } from './fair-queue.ts';
import { before } from './heap-queue.ts';
import { Holds } from './holds.ts';
import { BlockImports } from './imports.ts';
import { jumpForward, type Speller } from './jumps.ts';
import { PagePool, pagesFor } from './pages.ts';
import { PlanBuilder, type PlannedStep } from './plan.ts';
import { enoughVictims, pageVictim, victimsFor } from './preemption.ts';
import { PrefixCache } from './prefix-cache.ts';
import { Prefixes } from './prefixes.ts';
import { refusal } from './refusal.ts';
import { appendTokens, isSpoilt, ownersOfScores, type ResultOwners, type RowResults, rowResults } from './results.ts';
import { Sequence } from './sequence.ts';
import { SlotTable } from './slots.ts';
import { StepBudget } from './step-budget.ts';
import { StepCounts } from './step-counts.ts';
import { Speculation } from './speculation.ts';

/** Most sequences that are passed over in one step because the beginning of their prompt is being computed. */
const MAX_ASIDE = 64;

export interface Started {
  id: number;
  /** Prompt tokens found in the prefix cache. */
  cachedTokens: number;
}

/**
 * Decides who runs, how many tokens each is fed and in which pages: `plan`, run it, `apply`, and again. There are no
 * prefill and decode phases: every step feeds each sequence what it misses, running ones first, within one token budget.
 *
 * `plan` counts positions as fed when it plans them, and a plan names sampled tokens by slot rather than by value, so that
 * `planAhead` can make the next step while one still runs: between the two calls nothing is known of what that one samples, only
 * how much. Steps are applied in order.
 */
export class Scheduler {
  readonly #options: SchedulerOptions;
  readonly #byPriority: boolean;
  readonly #ageingMs: number;
  readonly #now: () => number;
  readonly #cache: PrefixCache;
  readonly #pool: PagePool;
  readonly #prefixes: Prefixes;
  readonly #slots: SlotTable;
  readonly #waiting: FairQueue;
  readonly #budget: PageBudget;
  /** That of the plan made last comes first. */
  readonly #builders: [PlanBuilder, PlanBuilder];
  readonly #advised: AdvisedSequences;
  readonly #speller: Speller | null;
  /** null: nothing is ever proposed. */
  readonly #speculation: Speculation | null;
  /** Of finished prompts, for peers; and from peers, for prompts to come. */
  readonly holds: Holds;
  readonly imports: BlockImports;
  /** In admission order; under 'priority' in the order of the queue. The last are the first to lose their pages. */
  readonly #running: Sequence[] = [];
  readonly #byId = new Map<number, Sequence>();
  /** Sequences of #running that have left (aborted or finished) and are not yet taken off the list. */
  #leaving = 0;
  #started: Started[] = [];
  /** The step planned last, until it is applied, and the tokens that it has room for. */
  #planned: PlannedStep | null = null;
  #room = 0;
  /** Sequences wait for pages that only a preemption can give them, or for a prefix that is being computed. */
  #crowded = false;
  #aside = false;
  #arrivals = 0;
  #preemptions = 0;
  #promptTokens = 0;
  #generatedTokens = 0;
  readonly #steps = new StepCounts();
  readonly #stepBudget: StepBudget;

  constructor(options: SchedulerOptions) {
    checkOptions(options);
    const { schedulingPolicy = 'fcfs', enablePrefixCaching = true, priorityAgeingSeconds = 10 } = options;
    this.#options = options;
    this.#byPriority = schedulingPolicy === 'priority';
    this.#ageingMs = 1000 * priorityAgeingSeconds;
    this.#now = options.now ?? (() => performance.now());
    this.#cache = new PrefixCache(options.pages, this.#now);
    this.#pool = new PagePool(options.pages, this.#cache);
    this.#prefixes = new Prefixes(enablePrefixCaching, this.#cache, this.#pool);
    const { holdShare = 0, holdMs = 0 } = options;
    const maxPages = Math.floor(options.pages * holdShare);
    this.holds = new Holds(this.#pool, { maxPages, holdMs, now: this.#now });
    this.imports = new BlockImports(this.#pool, this.#prefixes, options.maxModelLen);
    this.#slots = new SlotTable(options.maxSequences);
    this.#waiting = new FairQueue(schedulingPolicy, this.#ageingMs, this.#now);
    this.#budget = new PageBudget(this.#pool);
    this.#builders = [new PlanBuilder(options), new PlanBuilder(options)];
    this.#stepBudget = new StepBudget(options);
    this.#advised = new AdvisedSequences(options.adviser ?? null);
    this.#speller = options.speller ?? null;
    this.#speculation = options.speculation ? new Speculation(options.speculation, options.maxBatchTokens) : null;
  }

  get hasWork(): boolean {
    return this.#running.length > 0 || this.#waiting.size > 0;
  }

  /** Pages are on their way from or to a peer: they come back in a bounded time. */
  get transfersPages(): boolean {
    return this.imports.open > 0 || this.holds.loans > 0;
  }

  /**
   * Queues the sequence, or returns the sentence that says why it can never run. `grammar`: the request's, compiled; `adapter`: released
   * when the sequence ends.
   */
  submit(
    request: SequenceRequest,
    grammar: NativeProgram | null = null,
    adapter: PinnedAdapter | null = null,
  ): string | null {
    if (this.#byId.has(request.id)) throw new Error(`Sequence ${request.id} is there already.`);
    const reason = refusal(request, this.#options);
    if (reason !== null) return reason;
    const priority = this.#byPriority ? request.priority : 0;
    const mayJump = this.#speller !== null;
    const sequence = new Sequence({ ...request, priority }, this.#options.maxModelLen, grammar, mayJump);
    if (sequence.known >= sequence.maxLength) return 'The sequence to resume has all its tokens already.';
    sequence.adapter = adapter;
    this.#advised.attach(sequence, request);
    if (this.#speller) jumpForward(sequence, this.#speller);
    sequence.arrival = this.#arrivals++;
    sequence.arrivedAt = this.#now();
    sequence.rank = this.#byPriority ? compressed(priority) + sequence.arrivedAt / this.#ageingMs : 0;
    this.#prefixes.prepare(sequence);
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
      this.#end(sequence);
    } else {
      sequence.aborted = true;
      this.#leaving++;
    }
  }

  /** Forgets all that was computed for later sequences to find; those that run go on. */
  resetPrefixCache(): void {
    this.#prefixes.reset();
  }

  /** The next step, or null when no sequence has anything to feed. All steps before it have been applied. */
  plan(): PlannedStep | null {
    for (const { id } of this.#advised.endings(this.#running)) this.abort(id);
    this.#dropLeaving();
    // Before the running ones have rows: who has one in this plan must stay.
    this.#displace();
    return this.#make(false);
  }

  /** The step after the one planned last, whose results are not known; null: they are needed. Nobody loses its place here. */
  planAhead(): PlannedStep | null {
    this.#dropLeaving();
    this.#room = 0;
    return this.#mayPlanAhead() ? this.#make(true) : null;
  }

  /** Whether waiting sequences may find room in the step planned ahead. */
  get mayJoin(): boolean {
    const room = this.#planned?.ahead === true && this.#room > 0 && this.#running.length < this.#options.maxSequences;
    return room && this.#waiting.size > 0;
  }

  /** The step planned ahead again, with those that may join it. It has not begun. */
  join(): PlannedStep {
    if (!this.mayJoin) throw new Error('There is no step to join.');
    this.#room = this.#admit(this.#room);
    return this.#finishPlan() as PlannedStep;
  }

  /** Takes in the step's results. */
  apply(step: PlannedStep, result: StepResult): ResultOwners {
    if (this.#planned === step) this.#planned = null;
    this.#steps.add(step.tokens, result.micros);
    if (step.samples.reduce((sum, count) => sum + count, 0) === step.tokens)
      this.#speculation?.noteStep(step.tokens, result.micros);
    else this.#stepBudget.note(step.tokens, result.micros);
    const promptIds = ownersOfScores(step, result);
    const owners = { ids: new Float64Array(result.slots.length).fill(-1), promptIds, forced: [] };
    const rows = rowResults(step, result);
    for (const row of rows) this.#applyRow(step, row, result, owners);
    this.#store(step, rows, result);
    for (const row of rows) if (row.end > row.begin && !row.sequence.aborted) this.#goOn(row, result);
    return owners;
  }

  /** Those that have begun to run since the last call. */
  takeStarted(): Started[] {
    const started = this.#started;
    this.#started = [];
    return started;
  }

  /** Those that ended without a result of the engine since the last call. */
  takeEnded(): EndedSequence[] {
    return this.#advised.takeEnded();
  }

  stats(): EngineStats {
    return {
      running: this.#running.length - this.#leaving,
      waiting: this.#waiting.size,
      pagesTotal: this.#pool.total,
      pagesUsed: this.#pool.used,
      preemptions: this.#preemptions,
      steps: this.#steps.steps,
      promptTokens: this.#promptTokens,
      generatedTokens: this.#generatedTokens,
      stepMicros: this.#steps.micros,
      stepTokens: this.#steps.tokens(),
      ...this.#prefixes.counters,
      ...(this.#speculation && { speculation: structuredClone(this.#speculation.stats) }),
    };
  }

  /** To be called when there is no work: everything that was taken must be back. Throws when it is not. */
  checkIdle(): void {
    this.#pool.checkIntegrity();
    this.#cache.checkIntegrity((page) => this.#pool.readers(page) > 0);
    const lent = new Set([...this.holds.distinctPages(), ...this.imports.distinctPages()]);
    const left = { pages: this.#pool.used - lent.size, slots: this.#slots.used, sequences: this.#byId.size };
    if (left.pages + left.slots + left.sequences === 0) return;
    throw new Error(
      `The idle scheduler still holds ${left.pages} pages, ${left.slots} slots, ${left.sequences} sequences.`,
    );
  }

  /** The row's tokens are its sequence's; fills in whose its results are. */
  #applyRow(step: PlannedStep, row: RowResults, result: StepResult, { ids, forced }: ResultOwners): void {
    const { sequence, begin, end } = row;
    if (begin === end) return;
    sequence.awaited--;
    if ((step.samples[row.row] as number) > 1) this.#applyProposal(step, row.row, end - begin - 1);
    if (sequence.aborted) return;
    ids.fill(sequence.id, begin, end);
    if (sequence.forced) {
      const output = sequence.takeForced();
      this.#generatedTokens += output.tokens.length;
      forced.push(output);
    }
    this.#generatedTokens += appendTokens(row, result);
  }

  /** So many of the proposed tokens were sampled: they count as fed. */
  #applyProposal(step: PlannedStep, row: number, accepted: number): void {
    const sequence = step.sampled[row] as Sequence;
    this.#speculation?.noteDraft(sequence, (step.samples[row] as number) - 1, accepted);
    if (sequence.aborted) return;
    sequence.planned += accepted;
    const fed = step.sampledRows[row] as number;
    step.fedTo[fed] = (step.fedTo[fed] as number) + accepted;
    this.#waiting.charge(sequence, accepted);
  }

  /** After the last result of its row: it ends, jumps over what is forced now, or samples again. */
  #goOn({ sequence, end }: RowResults, result: StepResult): void {
    this.#applyFinish(sequence, result.finish[end - 1] as number);
    if (result.forced[end - 1] === 1 && this.#speller) jumpForward(sequence, this.#speller);
  }

  #applyFinish(sequence: Sequence, finish: number): void {
    if (finish === FINISH.none) return;
    if (sequence.holdsBlocks && finish !== FINISH.notFinite) this.holds.keep(sequence);
    this.#byId.delete(sequence.id);
    this.#leave(sequence);
    this.#leaving++;
  }

  /** Makes the computed pages findable, but not those of a sequence whose numbers went wrong. */
  #store(step: PlannedStep, rows: RowResults[], result: StepResult): void {
    const spoilt = new Set(rows.filter((row) => isSpoilt(row, result)).map(({ sequence }) => sequence));
    step.fed.forEach((sequence, index) => {
      // One that left while the step ran has no pages any more; of an aborted one the last tokens were never learned.
      if (sequence.state === 'running' && !spoilt.has(sequence))
        this.#prefixes.storeTo(sequence, Math.min(step.fedTo[index] as number, sequence.known));
    });
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

  #end(sequence: Sequence): void {
    sequence.state = 'done';
    sequence.adapter?.release();
  }

  #leave(sequence: Sequence): void {
    this.#end(sequence);
    this.#release(sequence);
    this.#waiting.ended(sequence);
  }

  #release(sequence: Sequence): void {
    this.#pool.release(sequence.pages.view());
    this.#slots.giveBack(sequence.slot);
    sequence.pages.clear();
  }

  /** The next to run. Those whose advice is to end leave the queue here. */
  #head(): Sequence | undefined {
    for (;;) {
      const next = this.#waiting.peek();
      if (!next || this.#advised.endings([next]).length === 0) return next;
      this.abort(next.id);
    }
  }

  /** Makes room for the next waiting sequence where others must give way to it. */
  #displace(): void {
    const candidate = this.#head();
    for (const victim of this.#displacedBy(candidate)) {
      victim.displacedBy = candidate?.id ?? -1;
      this.#preempt(this.#running.indexOf(victim));
    }
  }

  #displacedBy(candidate: Sequence | undefined): Sequence[] {
    if (!candidate || this.#running.length === 0) return [];
    if (!this.#byPriority && this.#waiting.runningOf(candidate.tenant) > 0) return [];
    const found = this.#prefixes.find(candidate);
    this.#budget.begin(this.#running);
    const shortage = this.#budget.shortage(candidate, found);
    if (this.#running.length < this.#options.maxSequences && shortage <= 0) return [];
    this.#prefixes.beginPlan(this.#running);
    if (this.#prefixes.isComing(candidate, found)) return [];
    return enoughVictims(victimsFor(candidate, this.#running, this.#waiting), shortage, this.#pool);
  }

  /** What the results of the step that runs decide must not be decided before them. */
  #mayPlanAhead(): boolean {
    const last = this.#planned;
    // How many proposed tokens come true decides where a sequence stands.
    if (!last || this.#crowded || this.#aside || last.samples.some((count) => count > 1)) return false;
    if (this.#speculation?.mayPropose(this.#running.length)) return false;
    if (this.#running.some(({ needsItsTokens }) => needsItsTokens)) return false;
    return this.#displacedBy(this.#head()).length === 0;
  }

  #make(ahead: boolean): PlannedStep | null {
    this.#builders.reverse();
    this.#builders[0].begin(ahead);
    this.#aside = false;
    const { budget, preempted } = this.#planRunning(this.#stepBudget.tokens(this.#running), ahead);
    // What a preemption freed is the preempting sequences' to use; admitting now would start a storm of preemptions.
    if (!preempted && !this.#crowded) this.#room = this.#admit(budget);
    return this.#finishPlan();
  }

  #finishPlan(): PlannedStep | null {
    const step = this.#builders[0].finish(() => this.#slots.takeCloses());
    if (step) this.#planned = step;
    return step;
  }

  #planRunning(budget: number, ahead: boolean): { budget: number; preempted: boolean } {
    this.#crowded = false;
    const preemptions = this.#preemptions;
    const proposes = !ahead && this.#waiting.size === 0;
    const drafts = proposes ? this.#speculation?.draftsFor(this.#running, budget) : undefined;
    // A long prompt leaves a token for each of the sequences after it that only miss one.
    let reserved = this.#running.reduce((sum, { missing }) => sum + (missing === 1 ? 1 : 0), 0);
    for (let index = 0; index < this.#running.length && budget > 0; index++) {
      const sequence = this.#running[index] as Sequence;
      if (sequence.missing === 1) reserved--;
      const count = Math.min(sequence.missing, budget - reserved);
      if (count < 1) continue;
      if (!this.#makeRoom(sequence, index, count, ahead)) break;
      const draft = drafts?.get(sequence);
      const proposed = draft && this.#hasRoom(sequence, draft) ? draft : undefined;
      this.#builders[0].row(sequence, count, proposed);
      this.#waiting.charge(sequence, count);
      budget -= count + (proposed?.length ?? 0);
    }
    return { budget, preempted: this.#preemptions > preemptions };
  }

  /** Gives a running sequence its pages, at the cost of others after it; false when it was itself the last, or `ahead` of results. */
  #makeRoom(sequence: Sequence, index: number, count: number, ahead: boolean): boolean {
    const needed = pagesFor(sequence.planned + count) - sequence.pages.length;
    while (needed > 0) {
      if (this.#pool.allocate(needed, sequence.pages, sequence.tenant, this.#running.length === 1)) return true;
      if (this.holds.releaseOldest()) continue;
      this.#crowded = ahead;
      if (ahead) return false;
      const victim = pageVictim(this.#running, index, this.#waiting);
      this.#preempt(victim);
      if (victim === index) return false;
    }
    return true;
  }

  /** Gives a sequence the pages that its proposed tokens need beside its next one, if there are any left. */
  #hasRoom(sequence: Sequence, draft: Int32Array): boolean {
    const needed = pagesFor(sequence.planned + 1 + draft.length) - sequence.pages.length;
    return needed <= 0 || this.#pool.allocate(needed, sequence.pages, sequence.tenant);
  }

  /** Recompute: the tokens stay, their keys and values are dropped, unless the prefix cache still has them later. */
  #preempt(index: number): void {
    const [victim] = this.#running.splice(index, 1) as [Sequence];
    this.#preemptions++;
    this.#release(victim);
    victim.resetToWaiting();
    this.#waiting.requeue(victim);
    this.#waiting.ended(victim);
  }

  /** Gives waiting sequences rows within so many tokens; returns what is left of these. */
  #admit(budget: number): number {
    if (this.#waiting.size === 0) return budget;
    this.#budget.begin(this.#running);
    this.#prefixes.beginPlan(this.#running);
    const aside: Sequence[] = [];
    while (budget > 0 && this.#running.length < this.#options.maxSequences && aside.length < MAX_ASIDE) {
      const next = this.#head();
      if (!next) break;
      const found = this.#prefixes.find(next);
      if (this.#prefixes.isComing(next, found)) {
        this.#waiting.takeHead(next);
        aside.push(next);
        continue;
      }
      const fed = this.#tryStart(next, found, budget);
      if (fed === 0) break;
      budget -= fed;
    }
    this.#aside ||= aside.length > 0;
    for (const sequence of aside.reverse()) this.#waiting.requeue(sequence);
    return budget;
  }

  /** Tokens that the sequence is fed in this step; 0: it does not fit and waits on. */
  #tryStart(sequence: Sequence, found: readonly number[], budget: number): number {
    const missing = sequence.known - found.length * PAGE_SIZE;
    const count = Math.min(missing, budget);
    if (count < missing && !this.#options.enableChunkedPrefill) return 0;
    const alone = this.#running.length === 0;
    while (!this.#budget.admits(sequence, found, alone)) if (!alone || !this.holds.releaseOldest()) return 0;
    this.#waiting.takeHead(sequence);
    this.#start(sequence, found, count);
    return count;
  }

  #start(sequence: Sequence, found: readonly number[], count: number): void {
    const freeBefore = this.#pool.free;
    this.#prefixes.attach(sequence, found);
    const needed = pagesFor(sequence.planned + count) - found.length;
    // By force: the budget has decided, and since then a tenant may have been idle for long enough to move the others' floors.
    if (!this.#pool.allocate(needed, sequence.pages, sequence.tenant, true))
      throw new Error('The page budget admitted more than there is.');
    this.#budget.allocated(freeBefore - this.#pool.free);
    sequence.state = 'running';
    sequence.slot = this.#slots.take();
    this.#waiting.began(sequence);
    this.#insert(sequence);
    this.#builders[0].open(sequence);
    this.#builders[0].row(sequence, count);
    this.#waiting.charge(sequence, count);
    this.#prefixes.addComing(sequence);
    if (sequence.started) return;
    sequence.started = true;
    this.#started.push({ id: sequence.id, cachedTokens: sequence.cachedTokens });
    this.#promptTokens += sequence.promptLength;
  }

  #insert(sequence: Sequence): void {
    let index = this.#running.length;
    while (this.#byPriority && index > 0 && before(sequence, this.#running[index - 1] as Sequence)) index--;
    this.#running.splice(index, 0, sequence);
  }
}
