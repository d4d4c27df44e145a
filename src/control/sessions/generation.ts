/**
 * A running generation: all choices of one request. Outputs that come while the reader is busy are merged per choice
 * into one delta, so the hot path makes no promise per token and a slow reader holds one delta per choice.
 */
import { EngineUnavailableError, QueueFullError, type EngineClient, type SequenceHandle } from '../engine/client.ts';
import type { GrammarSpec } from '../engine/native-grammar.ts';
import type { SamplingSpec } from '../engine/native.ts';
import type { ExtensionArguments } from '../extensions/extension.ts';
import type { PromptLogprobs, SequenceOutput } from '../engine/protocol.ts';
import type { AdapterRef } from '../engine/training.ts';
import { addPieces, type ChoiceStream } from './choice-stream.ts';
import type { BlockHandle, KvTransferRequest } from '../transfer/transfer.ts';
import type { PromptScores } from './prompt-scores.ts';
import {
  SessionError,
  type ChoiceDelta,
  type Generation,
  type GenerationUsage,
  type PromptTokenLogprob,
} from './session.ts';

export interface GenerationStart {
  promptIds: Int32Array;
  /** One per choice. */
  sampling: SamplingSpec[];
  choices: ChoiceStream[];
  countsReasoning: boolean;
  priority: number;
  tenant: string;
  cacheSalt: string | null;
  extensionArguments: ExtensionArguments | null;
  adapter: AdapterRef | null;
  /** What the outputs must be; null = anything. */
  grammar: GrammarSpec | null;
  /** Of several prompts; undefined = this is all of it. */
  request: object | undefined;
  /** Text that the grammar forces may be appended instead of sampled. */
  jumpForward: boolean;
  kvTransfer: KvTransferRequest | null;
  /** Of the first choice's sequence; null = the prompt is not scored. */
  promptScores: { alternatives: number; scores: PromptScores } | null;
}

interface Reader {
  resolve: (result: IteratorResult<ChoiceDelta, undefined>) => void;
  reject: (error: Error) => void;
}

const DONE: IteratorResult<ChoiceDelta, undefined> = { done: true, value: undefined };

export class RunningGeneration implements Generation {
  readonly promptIds: Int32Array;
  readonly deltas: AsyncIterable<ChoiceDelta>;
  readonly #choices: ChoiceStream[];
  readonly #countsReasoning: boolean;
  readonly #scores: PromptScores | null;
  readonly #open: Set<number>;
  /** Per choice what has not been read, and the choices that have something in the order in which they got it. */
  readonly #pending: (ChoiceDelta | undefined)[] = [];
  readonly #order: number[] = [];
  readonly #handles: SequenceHandle[];
  #cachedTokens: number | null = null;
  #heldBlocks: BlockHandle | null = null;
  #reader: Reader | null = null;
  #failure: SessionError | null = null;
  #ended = false;

  /** Queues all choices or none; throws SessionError. */
  constructor(engine: EngineClient, start: GenerationStart) {
    this.promptIds = start.promptIds;
    this.#choices = start.choices;
    this.#countsReasoning = start.countsReasoning;
    this.#scores = start.promptScores?.scores ?? null;
    this.#open = new Set(start.choices.keys());
    this.deltas = { [Symbol.asyncIterator]: () => this.#iterator() };
    const requests = start.sampling.map((sampling, index) => ({
      promptIds: start.promptIds,
      sampling,
      priority: start.priority,
      tenant: start.tenant,
      cacheSalt: start.cacheSalt,
      ...kvTransferOf(start.kvTransfer, index),
      ...(start.extensionArguments && { extensionArguments: start.extensionArguments }),
      adapter: start.adapter,
      ...(start.grammar ? { grammar: start.grammar, jumpForward: start.jumpForward } : {}),
      ...(start.promptScores && index === 0 ? { promptLogprobs: start.promptScores.alternatives } : {}),
    }));
    const sink = (index: number, output: SequenceOutput) => this.#receive(index, output);
    this.#handles = submit(() => engine.submit(requests, sink, { request: start.request }));
    // Choices that ended while submit ran had no handle yet.
    for (const [index, handle] of this.#handles.entries()) if (!this.#open.has(index)) handle.abort();
  }

  usage(): GenerationUsage {
    return {
      promptTokens: this.promptIds.length,
      completionTokens: this.#choices.map((choice) => choice.tokens),
      reasoningTokens: this.#countsReasoning ? this.#choices.map((choice) => choice.reasoningTokens) : null,
      cachedTokens: this.#cachedTokens ?? 0,
    };
  }

  promptLogprobs(): (PromptTokenLogprob | null)[] | null {
    return this.#scores?.read() ?? null;
  }

  heldBlocks(): BlockHandle | null {
    return this.#heldBlocks;
  }

  startedAt(): number | null {
    const times = this.#handles.map((handle) => handle.startedAt ?? Infinity);
    const first = Math.min(...times);
    return Number.isFinite(first) ? first : null;
  }

  markStreamed(): void {
    for (const index of this.#open) this.#handles[index]?.markStreamed();
  }

  /** Idempotent; the iteration ends without further deltas. */
  abort(): void {
    if (this.#ended) return;
    this.#ended = true;
    for (const index of this.#open) this.#handles?.[index]?.abort();
    this.#open.clear();
    this.#pending.length = 0;
    this.#order.length = 0;
    this.#wake();
  }

  #receive(index: number, output: SequenceOutput): void {
    if (!this.#open.has(index)) return;
    this.#cachedTokens ??= output.cachedTokens;
    this.#heldBlocks ??= output.blocks ?? null;
    if (output.promptLogprobs) this.#score(output.promptLogprobs);
    if (output.finish === 'error') {
      this.#fail(failureOf(output));
      return;
    }
    const choice = this.#choices[index];
    if (!choice) return;
    const delta = choice.push(output);
    if (delta.finish !== null) this.#open.delete(index);
    if (choice.cut) this.#handles?.[index]?.abort();
    if (delta.tokens > 0 || delta.finish !== null) this.#add(delta);
  }

  #score(piece: PromptLogprobs): void {
    this.#scores?.add(piece);
    if (this.#scores?.complete) this.#wake();
  }

  #add(piece: ChoiceDelta): void {
    const waiting = this.#pending[piece.index];
    if (waiting) {
      waiting.text += piece.text;
      waiting.reasoning += piece.reasoning;
      for (const call of piece.toolCalls) waiting.toolCalls.push(call);
      if (piece.pieces) addPieces(waiting, piece.pieces);
      waiting.tokens += piece.tokens;
      waiting.reasoningTokens += piece.reasoningTokens;
      for (const id of piece.tokenIds) waiting.tokenIds.push(id);
      for (const logprob of piece.logprobs) waiting.logprobs.push(logprob);
      waiting.finish = piece.finish;
      if (piece.textEnd !== undefined) waiting.textEnd = piece.textEnd;
      waiting.stopReason = piece.stopReason;
    } else {
      this.#pending[piece.index] = piece;
      this.#order.push(piece.index);
    }
    this.#wake();
  }

  #fail(error: SessionError): void {
    this.#failure = error;
    const open = [...this.#open];
    this.#open.clear();
    for (const index of open) this.#handles?.[index]?.abort();
    this.#wake();
  }

  #wake(): void {
    const reader = this.#reader;
    if (!reader) return;
    this.#reader = null;
    this.#next(reader);
  }

  /** Answers a reader, or keeps it until something comes. What was generated before a failure is delivered first. */
  #next(reader: Reader): void {
    // Another choice may be ahead of the one whose sequence scores the prompt.
    const held = this.#scores?.complete === false && this.#open.has(0);
    const delta = held ? undefined : this.#takeFirst();
    if (delta) {
      reader.resolve({ done: false, value: delta });
    } else if (this.#failure && !this.#ended) {
      this.#ended = true;
      reader.reject(this.#failure);
    } else if (this.#ended || this.#open.size === 0) {
      this.#ended = true;
      reader.resolve(DONE);
    } else {
      this.#reader = reader;
    }
  }

  #takeFirst(): ChoiceDelta | undefined {
    const index = this.#order.shift();
    if (index === undefined) return undefined;
    const delta = this.#pending[index];
    this.#pending[index] = undefined;
    return delta;
  }

  #iterator(): AsyncIterator<ChoiceDelta, undefined> {
    return {
      next: () => new Promise((resolve, reject) => this.#next({ resolve, reject })),
      return: () => {
        this.abort();
        return Promise.resolve(DONE);
      },
    };
  }
}

/** All choices begin with a peer's blocks; the prompt is held once. */
function kvTransferOf(asked: KvTransferRequest | null, choice: number): { kvTransfer?: KvTransferRequest } {
  return asked === null || ('hold' in asked && choice > 0) ? {} : { kvTransfer: asked };
}

/** Of an output that ends its sequence with an error. */
export function failureOf({ requestError, unavailable, error }: SequenceOutput): SessionError {
  const code = requestError ? 'bad_request' : unavailable ? 'unavailable' : 'engine_failed';
  return new SessionError(code, error ?? 'The engine could not finish the request.');
}

/** The engine's refusals as errors for the client. */
export function submit<Result>(call: () => Result): Result {
  try {
    return call();
  } catch (error) {
    if (error instanceof QueueFullError)
      throw new SessionError('queue_full', error.message, null, error.retryAfterSeconds);
    if (error instanceof EngineUnavailableError) throw new SessionError('unavailable', error.message);
    throw error;
  }
}
