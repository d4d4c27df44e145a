/** llama.cpp behind the surface of the native engine: the scheduler's plans as batches of one context, a slot per sequence. */
import {
  FINISH,
  type FinishCode,
  type NativeEngine,
  type SequenceOpen,
  type StepPlan,
  type StepResult,
} from '../engine/native.ts';
import type { LlamaBinding, LlamaContext, LlamaModel } from './binding.ts';
import { SequenceSampler, type Vocabulary } from './sampler.ts';

/** Tokens of one call: llama.cpp's own batch. Its buffers grow with the vocabulary times this. */
export const LLAMA_BATCH = 512;

const SAMPLED_LAST = -1;

interface Slot {
  readonly id: number;
  readonly open: SequenceOpen;
  readonly stopIds: ReadonlySet<number>;
  readonly sampler: SequenceSampler;
  /** Prompt and outputs, by position. */
  readonly history: number[];
  /** Positions that llama.cpp has. */
  fed: number;
}

interface Row {
  slot: Slot;
  position: number;
  ids: Uint32Array;
  samples: boolean;
  token: number;
}

/** A part of a row in one batch. */
interface Piece {
  row: Row;
  from: number;
  count: number;
}

export interface LlamaParts {
  binding: LlamaBinding;
  model: LlamaModel;
  context: LlamaContext;
  vocabulary: Vocabulary;
}

/** What it cannot do has been refused with the request; here it is an error of ours. */
export class LlamaEngine implements NativeEngine {
  readonly #parts: LlamaParts;
  readonly #slots = new Map<number, Slot>();

  constructor(parts: LlamaParts) {
    this.#parts = parts;
  }

  async step(plan: StepPlan): Promise<StepResult> {
    const begun = performance.now();
    for (const id of plan.closes) this.#close(id);
    for (const open of plan.opens) this.#open(open);
    const rows = this.#rows(plan);
    // llama.cpp computes sequences together whose numbers follow each other.
    for (const batch of batchesOf([...rows].sort((a, b) => a.slot.id - b.slot.id))) await this.#run(batch);
    const sampled = rows.filter(({ samples }) => samples);
    return resultOf(sampled, Math.round(1000 * (performance.now() - begun)));
  }

  readPages(): Promise<never> {
    return Promise.reject(new Error('llama.cpp lends no pages.'));
  }

  writePages(): Promise<never> {
    return Promise.reject(new Error('llama.cpp takes no pages.'));
  }

  /** Nothing: the memory goes with the process. */
  close(): void {}

  #open(open: SequenceOpen): void {
    const { slot: id, sampling, cached, adapter, constraint, promptLogprobs } = open;
    const asks = cached ?? adapter ?? constraint ?? promptLogprobs ?? sampling.allowedIds ?? sampling.badWords;
    if (asks !== undefined || sampling.logprobs >= 0) throw new Error(`Slot ${id} asks for what llama.cpp lacks.`);
    const { binding, model, vocabulary } = this.#parts;
    const sampler = new SequenceSampler(binding, model, sampling, vocabulary);
    this.#slots.set(id, { id, open, stopIds: new Set(sampling.stopIds), sampler, history: [], fed: 0 });
  }

  #close(id: number): void {
    this.#slots.get(id)?.sampler.dispose();
    this.#slots.delete(id);
    this.#parts.context.disposeSequence(id);
  }

  #rows({ rows, tokens }: StepPlan): Row[] {
    const found: Row[] = [];
    let offset = 0;
    for (let at = 0; at < rows.length; at += 4) {
      const [id, position, count, samples] = rows.subarray(at, at + 4) as unknown as [number, number, number, number];
      const slot = this.#slots.get(id);
      if (!slot || slot.fed !== position || samples > 1) throw new Error(`The plan has a wrong row of slot ${id}.`);
      for (let index = 0; index < count; index++) {
        const token = tokens[offset + index] as number;
        if (token !== SAMPLED_LAST) slot.history[position + index] = token;
      }
      slot.fed += count;
      const ids = Uint32Array.from(slot.history.slice(position, slot.fed));
      if (ids.length !== count) throw new Error(`Slot ${id} has sampled no token yet.`);
      found.push({ slot, position, ids, samples: samples === 1, token: SAMPLED_LAST });
      offset += count;
    }
    return found;
  }

  async #run(batch: Piece[]): Promise<void> {
    const { context } = this.#parts;
    context.initBatch(batch.reduce((sum, { count }) => sum + count, 0));
    const ready = batch.flatMap((piece) => this.#add(piece));
    await context.decodeBatch();
    // The first one puts the rows of logits in order; the others then only read them.
    const [first, ...others] = ready;
    if (first) await this.#sample(first);
    await Promise.all(others.map((each) => this.#sample(each)));
  }

  #add({ row, from, count }: Piece): { row: Row; place: number }[] {
    const samples = row.samples && from + count === row.ids.length;
    const ids = row.ids.subarray(from, from + count);
    const logits = Uint32Array.from(samples ? [count - 1] : []);
    const [place] = this.#parts.context.addToBatch(row.slot.id, row.position + from, ids, logits);
    return place === undefined ? [] : [{ row, place }];
  }

  async #sample({ row, place }: { row: Row; place: number }): Promise<void> {
    const { sampler, history, open } = row.slot;
    row.token = await sampler.next(this.#parts.context, place, history, open.promptLength);
    if (row.token >= 0) history.push(row.token);
  }
}

function* batchesOf(rows: Row[]): Generator<Piece[]> {
  let batch: Piece[] = [];
  let room = LLAMA_BATCH;
  for (const row of rows) {
    for (let from = 0; from < row.ids.length;) {
      const count = Math.min(room, row.ids.length - from);
      batch.push({ row, from, count });
      from += count;
      room -= count;
      if (room > 0) continue;
      yield batch;
      batch = [];
      room = LLAMA_BATCH;
    }
  }
  if (batch.length > 0) yield batch;
}

function finishOf({ token, slot }: Row): FinishCode {
  const { open, stopIds, history } = slot;
  if (token < 0) return FINISH.notFinite;
  if (stopIds.has(token)) return FINISH.stopToken;
  return history.length - open.promptLength >= open.sampling.maxTokens ? FINISH.length : FINISH.none;
}

function resultOf(rows: Row[], micros: number): StepResult {
  const none = new Int32Array(0);
  return {
    slots: Int32Array.from(rows, ({ slot }) => slot.id),
    tokens: Int32Array.from(rows, ({ token }) => token),
    finish: Uint8Array.from(rows, finishOf),
    forced: new Uint8Array(rows.length),
    logprobs: new Float32Array(rows.length).fill(NaN),
    ranks: new Int32Array(rows.length),
    topRanges: new Int32Array(2 * rows.length),
    topIds: none,
    topLogprobs: new Float32Array(0),
    promptSlots: none,
    promptPositions: none,
    promptLogprobs: new Float32Array(0),
    promptRanks: none,
    promptTopRanges: none,
    micros,
  };
}
