/** Beam search over an engine whose next-token distribution is a formula, against an exhaustive search. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { QueueFullError, type PartOf, type Places, type SequenceHandle } from '../../../src/control/engine/client.ts';
import type { SequenceOutput } from '../../../src/control/engine/protocol.ts';
import { Beams } from '../../../src/control/sessions/beams.ts';
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import type { SamplingRequest, Sessions } from '../../../src/control/sessions/session.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { FakeEngine, type Submitted } from './fake-engine.ts';
import { collect, input } from './inputs.ts';

const EOS = 257;
const IDS = [97, 98, EOS];
const PROMPT = [104, 105];

/** Log-probabilities of IDS after a text, from a hash of it. */
function distribution(ids: readonly number[]): number[] {
  let state = 17;
  const weights = IDS.map((id) => {
    for (const token of [...ids, id]) state = (state * 31 + token * 7919) % 65_521;
    return 1 + (state % 97);
  });
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  return weights.map((weight) => Math.fround(Math.log(weight / total)));
}

class FormulaEngine extends FakeEngine {
  steps = 0;
  full = false;
  /** By submission. */
  kept: (Places | undefined)[] = [];
  silent = false;
  last: Submitted[] = [];
  override submit(
    requests: Submitted[],
    sink: (index: number, output: SequenceOutput) => void,
    of?: PartOf,
  ): SequenceHandle[] {
    if (this.full) throw new QueueFullError('full', 1);
    this.kept.push(of?.places);
    this.steps++;
    this.last = requests;
    if (!this.silent) setImmediate(() => requests.forEach((request, index) => sink(index, answer(request, index))));
    return super.submit(requests, sink);
  }
}

function answer(request: Submitted, index: number): SequenceOutput {
  const order = distribution([...request.promptIds])
    .map((logprob, at) => ({ id: IDS[at] ?? 0, logprob }))
    .sort((a, b) => b.logprob - a.logprob)
    .slice(0, request.sampling.logprobs);
  const top = {
    ids: Int32Array.from(order, ({ id }) => id),
    logprobs: Float32Array.from(order, ({ logprob }) => logprob),
  };
  const tokens = [...top.ids.slice(0, 1)];
  const logprobs = [...top.logprobs.slice(0, 1)];
  return { id: index, tokens, logprobs, ranks: [1], top: [top], finish: 'length', cachedTokens: 0 };
}

/** Every output of at most so many tokens, best first. */
function exhaustive(maxTokens: number, lengthPenalty: number): { tokens: number[]; value: number }[] {
  const done: { tokens: number[]; value: number }[] = [];
  const visit = (tokens: number[], score: number): void => {
    const ended = tokens.at(-1) === EOS;
    if (ended || tokens.length === maxTokens) {
      const length = PROMPT.length + tokens.length - (ended ? 1 : 0);
      done.push({ tokens, value: score / length ** lengthPenalty });
      return;
    }
    distribution([...PROMPT, ...tokens]).forEach((logprob, at) => visit([...tokens, IDS[at] ?? 0], score + logprob));
  };
  visit([], 0);
  return done.sort((a, b) => b.value - a.value);
}

let engine: FormulaEngine;
let sessions: Sessions;
beforeAll(async () => {
  engine = new FormulaEngine();
  sessions = await createSessions({
    modelPath: writeModel({ tokenizerConfig: byteTokenizer().config }),
    engine,
    maxModelLen: 64,
    workers: 1,
    renderTimeoutMs: 10_000,
  });
});
afterAll(() => sessions.close());
beforeEach(() => {
  engine.full = false;
  engine.silent = false;
});

const search = (fields: Partial<SamplingRequest>) =>
  sessions.start({
    ...input(
      { temperature: 0, maxTokens: 3, beamSearch: { lengthPenalty: 1 }, ...fields },
      { kind: 'ids', ids: [...PROMPT] },
    ),
    reply: null,
  });

it.each([-1, 0, 1, 2.5])('a width that holds everything finds the best outputs, length penalty %d', async (penalty) => {
  const deltas = await collect(await search({ n: 8, beamSearch: { lengthPenalty: penalty } }));
  expect(deltas.map((delta) => delta.tokenIds)).toEqual(
    exhaustive(3, penalty)
      .slice(0, 8)
      .map(({ tokens }) => tokens),
  );
  expect(deltas.map(({ index }) => index)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  for (const { tokenIds, text, finish, stopReason } of deltas) {
    const ended = tokenIds.at(-1) === EOS;
    expect([finish, stopReason]).toEqual(ended ? ['stop', EOS] : ['length', null]);
    expect(text).toBe(String.fromCharCode(...tokenIds.filter((id) => id !== EOS)));
  }
});

it('a step is one token of every beam, with twice the width of alternatives', async () => {
  const generation = await search({ n: 2, topLogprobs: 1 });
  const deltas = await collect(generation);
  expect(engine.last).toHaveLength(2);
  expect(engine.last[0]?.sampling).toMatchObject({ maxTokens: 1, logprobs: 4 });
  for (const { logprobs, tokenIds } of deltas) {
    expect(logprobs.map((entry) => entry.tokenId)).toEqual(tokenIds);
    expect(logprobs.every((entry) => entry.top.length === 1)).toBe(true);
  }
  expect(generation.usage().completionTokens).toEqual(deltas.map((delta) => delta.tokenIds.length));
});

it('the alternatives that the client is shown lead to no other outputs', async () => {
  const found = async (topLogprobs: number) => {
    const fields = { n: 1, maxTokens: 8, beamSearch: { lengthPenalty: 0 }, topLogprobs };
    const prompt = { kind: 'ids' as const, ids: [2, ...PROMPT] };
    const generation = await sessions.start({ ...input({ temperature: 0, ...fields }, prompt), reply: null });
    return (await collect(generation)).map(({ tokenIds }) => tokenIds);
  };
  expect(await found(3)).toEqual(await found(0));
});

it('ignore_eos and min_tokens keep outputs going', async () => {
  for (const fields of [{ ignoreEos: true }, { minTokens: 3 }, { ignoreEos: true, minTokens: 3 }]) {
    const deltas = await collect(await search({ n: 3, ...fields }));
    expect(deltas.map(({ tokenIds }) => tokenIds.length)).toEqual([3, 3, 3]);
    expect(deltas.some(({ tokenIds }) => tokenIds.includes(EOS))).toBe(fields.minTokens === undefined);
  }
});

it('asks for enough alternatives to go on with, whatever may not end a beam yet or would be filtered', async () => {
  const filters = { topK: 1, topP: 0.1, minP: 0.9, logprobsMode: 'processed' } as const;
  const unfiltered = { topK: 0, topP: 1, minP: 0, temperature: 1, logprobsMode: 'processed' };
  for (const ignoreEos of [false, true]) {
    const barring = { minTokens: 3, stopTokenIds: [5, 6, 7], ignoreEos };
    await collect(await search({ n: 2, temperature: 1, ...barring, ...filters }));
    // Twice the width, the tokenizer's end and three more.
    expect(engine.last[0]?.sampling).toMatchObject({ ...unfiltered, logprobs: 8 });
  }
  const many = Array.from({ length: 33 }, (_, id) => id);
  await expect(search({ n: 2, minTokens: 1, stopTokenIds: many })).rejects.toMatchObject({ param: 'stop_token_ids' });
  await collect(await search({ n: 2, stopTokenIds: [5, 6, 7] }));
  expect(engine.last[0]?.sampling.logprobs).toBe(4);
});

it('keeps places for all of its beams from its first step to its end; without them it is refused', async () => {
  const full = new QueueFullError('full', 1);
  engine.refuseWith = full;
  await expect(search({ n: 2 })).rejects.toMatchObject({ code: 'queue_full' });
  engine.refuseWith = null;
  // There are places, but not for so long a prompt.
  engine.full = true;
  await expect(search({ n: 2 })).rejects.toMatchObject({ code: 'queue_full' });
  engine.full = false;
  expect(engine.places).toBe(0);
  engine.kept = [];
  const generation = await search({ n: 2, ignoreEos: true });
  const left = await search({ n: 3 });
  expect(engine.places).toBe(5);
  await collect(generation);
  expect(engine.places).toBe(3);
  left.abort();
  expect(engine.places).toBe(0);
  // Three steps of one search, one of the other.
  expect(engine.kept.map((places) => engine.kept.indexOf(places))).toEqual([0, 1, 0, 0]);
  await expect(search({ n: 17 })).rejects.toMatchObject({ param: 'n' });
});

it('ends when it is aborted', async () => {
  engine.silent = true;
  const generation = await search({ n: 2 });
  const reading = collect(generation);
  generation.abort();
  expect(await reading).toEqual([]);
});

it('fails with its engine, and leaves no sequence behind', async () => {
  engine.silent = true;
  engine.aborted = [];
  const generation = await search({ n: 2 });
  engine.emit(0, [], 'error', { error: 'its logits were not finite' });
  await expect(collect(generation)).rejects.toMatchObject({ code: 'engine_failed' });
  expect(engine.aborted).toEqual([0]);
});

it('scores its prompt once, with the first step', async () => {
  const asked: (number | undefined)[] = [];
  const submit = engine.submit.bind(engine);
  engine.submit = (requests, sink, places) => {
    asked.push(requests[0]?.promptLogprobs);
    return submit(requests, sink, places);
  };
  await collect(await search({ n: 2, promptLogprobs: 1, ignoreEos: true }));
  engine.submit = submit;
  expect(asked).toEqual([1, undefined, undefined]);
});

it('goes on with nothing that cannot come', () => {
  const none = new Set<number>();
  const beams = new Beams({ width: 4, endIds: none, barredIds: none, minTokens: 0, lengthPenalty: 1, promptTokens: 1 });
  const top = { ids: Int32Array.of(1, 2), logprobs: Float32Array.of(-1, -Infinity) };
  beams.extend([{ top: [top] } as Partial<SequenceOutput> as SequenceOutput]);
  expect(beams.open.map(({ tokens }) => tokens)).toEqual([[1]]);
});
