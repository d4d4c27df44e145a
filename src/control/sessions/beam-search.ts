/**
 * Beam search over engine requests of one token each: every step asks for the alternatives of each beam's next token. The
 * prefix cache keeps what the beams share. All choices come at the end, best first.
 */
import type { EngineClient, Places, SequenceHandle } from '../engine/client.ts';
import type { SamplingSpec } from '../engine/native.ts';
import type { SequenceOutput, TopLogprobs } from '../engine/protocol.ts';
import { withResolvers } from '../with-resolvers.ts';
import { barredCount, Beams, type Beam } from './beams.ts';
import { failureOf, submit, type GenerationStart } from './generation.ts';
import type { ChoiceDelta, Generation, GenerationUsage } from './session.ts';

export interface BeamStart extends Omit<GenerationStart, 'sampling'> {
  /** As for a generation of its own: stopIds, barredIds, minTokens and maxTokens rule the search. */
  sampling: SamplingSpec;
  lengthPenalty: number;
  vocabSize: number;
}

export class BeamGeneration implements Generation {
  readonly promptIds: Int32Array;
  readonly deltas: AsyncIterable<ChoiceDelta>;
  readonly #engine: EngineClient;
  readonly #start: BeamStart;
  readonly #beams: Beams;
  /** Of all beams, from the first step to the end: between two steps newcomers would take them, again and again. */
  readonly #places: Places;
  #handles: SequenceHandle[] = [];
  #cachedTokens: number | null = null;
  #startedAt: number | null = null;
  #aborted = false;
  /** Ends the step that runs. */
  #release: () => void = () => undefined;

  /** Queues the first step; throws SessionError. */
  constructor(engine: EngineClient, start: BeamStart) {
    this.promptIds = start.promptIds;
    this.#engine = engine;
    this.#start = start;
    const { sampling, choices, lengthPenalty } = start;
    this.#beams = new Beams({
      width: choices.length,
      endIds: new Set(sampling.stopIds),
      barredIds: new Set(sampling.barredIds),
      minTokens: sampling.minTokens,
      lengthPenalty,
      promptTokens: start.promptIds.length,
    });
    this.#places = submit(() => engine.reserve(start.tenant, choices.length));
    const first = this.#firstStep();
    // Its failure is told to the reader, who may not have come yet.
    first.catch(() => undefined);
    this.deltas = { [Symbol.asyncIterator]: () => this.#run(first) };
  }

  usage(): GenerationUsage {
    const { choices, countsReasoning } = this.#start;
    return {
      promptTokens: this.promptIds.length,
      completionTokens: choices.map((choice) => choice.tokens),
      reasoningTokens: countsReasoning ? choices.map((choice) => choice.reasoningTokens) : null,
      cachedTokens: this.#cachedTokens ?? 0,
    };
  }

  promptLogprobs(): ReturnType<Generation['promptLogprobs']> {
    return this.#start.promptScores?.scores.read() ?? null;
  }

  heldBlocks(): null {
    return null;
  }

  startedAt(): number | null {
    return this.#startedAt;
  }

  /** Nothing is streamed before the search is over. */
  markStreamed(): void {}

  abort(): void {
    this.#aborted = true;
    for (const handle of this.#handles) handle.abort();
    this.#places.release();
    this.#release();
  }

  async *#run(first: Promise<SequenceOutput[]>): AsyncGenerator<ChoiceDelta, undefined> {
    try {
      for (let step = 0; step < this.#start.sampling.maxTokens && this.#beams.open.length > 0; step++) {
        const outputs = await (step === 0 ? first : submit(() => this.#step()));
        if (this.#aborted) return undefined;
        this.#beams.extend(outputs);
      }
      yield* this.#results();
    } finally {
      this.abort();
    }
    return undefined;
  }

  *#results(): Generator<ChoiceDelta> {
    for (const [index, beam] of this.#beams.best().entries()) {
      const delta = this.#start.choices[index]?.push(toOutput(beam, this.#start.sampling.logprobs));
      if (delta) yield delta;
    }
  }

  #firstStep(): Promise<SequenceOutput[]> {
    try {
      return submit(() => this.#step());
    } catch (error) {
      this.#places.release();
      throw error;
    }
  }

  /** One token for every open beam. Throws at once when the engine takes nothing. */
  #step(): Promise<SequenceOutput[]> {
    const beams = this.#beams.open;
    const outputs = new Map<number, SequenceOutput>();
    const { promise, resolve, reject } = withResolvers<SequenceOutput[]>();
    this.#release = () => resolve([]);
    this.#handles = this.#engine.submit(
      beams.map((beam) => this.#request(beam)),
      (index, output) => {
        this.#cachedTokens ??= output.cachedTokens;
        if (output.promptLogprobs) this.#start.promptScores?.scores.add(output.promptLogprobs);
        if (output.finish === 'error') reject(failureOf(output));
        if (output.tokens.length === 0) return;
        this.#startedAt ??= this.#handles[0]?.startedAt ?? null;
        outputs.set(index, output);
        if (outputs.size === beams.length) resolve(beams.map((_, at) => outputs.get(at) ?? output));
      },
      { places: this.#places, request: this.#start.request },
    );
    return promise;
  }

  #request({ tokens }: Beam): Parameters<EngineClient['submit']>[0][number] {
    const { promptIds, sampling, choices, priority, tenant, cacheSalt, adapter, promptScores, vocabSize } = this.#start;
    const ids = new Int32Array(promptIds.length + tokens.length);
    ids.set(promptIds);
    ids.set(tokens, promptIds.length);
    // Those that must not come yet come besides: enough must be left to go on with.
    const barred = barredCount(sampling, tokens.length);
    const alternatives = Math.min(Math.max(2 * choices.length + barred, sampling.logprobs), vocabSize);
    const { temperature, seed, choice, logprobsMode } = sampling;
    // Filters would leave fewer beams than the width: nothing is drawn that they were made for.
    const filters = { topP: 1, topK: 0, minP: 0 };
    const shape = { temperature, ...filters, seed, choice, ...(logprobsMode ? { logprobsMode } : {}) };
    return {
      promptIds: ids,
      sampling: { ...shape, maxTokens: 1, minTokens: 0, stopIds: new Int32Array(0), logprobs: alternatives },
      priority,
      tenant,
      cacheSalt,
      adapter,
      ...(promptScores && tokens.length === 0 ? { promptLogprobs: promptScores.alternatives } : {}),
    };
  }
}

/** As one output of the engine. A search asks for more alternatives than the client, who gets the best `keep`. */
function toOutput(beam: Beam, keep: number): SequenceOutput {
  return {
    id: -1,
    tokens: beam.tokens,
    logprobs: beam.logprobs,
    ranks: beam.ranks,
    top: beam.top.map((top) => cut(top, Math.max(keep, 0))),
    finish: beam.ended ? 'stop' : 'length',
    cachedTokens: 0,
  };
}

function cut({ ids, logprobs }: TopLogprobs, count: number): TopLogprobs {
  return { ids: ids.subarray(0, count), logprobs: logprobs.subarray(0, count) };
}
