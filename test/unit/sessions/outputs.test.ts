/** Outputs beside their text: prompt scores, and ends that sessions find themselves. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import { checkPromptScores } from '../../../src/control/sessions/prompt-scores.ts';
import type { Sessions } from '../../../src/control/sessions/session.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { FakeEngine } from './fake-engine.ts';
import { bytes, collect, input, merged } from './inputs.ts';

const TEMPLATE = "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}";

let engine: FakeEngine;
let sessions: Sessions;
beforeAll(async () => {
  engine = new FakeEngine();
  sessions = await createSessions({
    modelPath: writeModel({ tokenizerConfig: { ...byteTokenizer().config, chat_template: TEMPLATE } }),
    engine,
    maxModelLen: 64,
    workers: 1,
    renderTimeoutMs: 10_000,
  });
});
afterAll(() => sessions.close());
beforeEach(() => {
  engine.aborted = [];
});

describe('prompt scores', () => {
  const scores = (start: number, logprobs: number[]) => ({
    promptLogprobs: {
      start,
      logprobs: Float32Array.from(logprobs),
      ranks: Int32Array.from(logprobs, () => 1),
      top: logprobs.map(() => ({ ids: Int32Array.of(97), logprobs: Float32Array.of(-0.5) })),
    },
  });
  it('are asked for once, and hold every delta back until they are complete', async () => {
    const prompt = { kind: 'ids', ids: [97, 98, 99] } as const;
    const generation = await sessions.start(input({ n: 2, promptLogprobs: 1 }, { ...prompt, ids: [...prompt.ids] }));
    expect(engine.requests.map((request) => request.promptLogprobs)).toEqual([1, undefined]);
    let got = 0;
    const reading = (async () => {
      for await (const delta of generation.deltas) got += delta.tokenIds.length;
    })();
    engine.emit(1, bytes('x'), 'length');
    engine.emit(0, [], null, scores(1, [-0.5]));
    await new Promise(setImmediate);
    expect(got).toBe(0);
    engine.emit(0, [], null, scores(2, [Number.NaN]));
    await new Promise(setImmediate);
    expect(got).toBe(1);
    engine.emit(0, bytes('y'), 'length');
    await reading;
    expect(generation.promptLogprobs()?.map((score) => score && [score.tokenId, score.logprob, score.rank])).toEqual([
      null,
      [98, -0.5, 1],
      [99, -9999, 1],
    ]);
    expect(generation.promptLogprobs()?.[1]?.top[0]).toMatchObject({ token: 'a', tokenId: 97 });
  });
  it('are bounded', () => {
    expect(() => checkPromptScores(100_000, 20)).toThrow('an answer has at most 262144');
    checkPromptScores(4096, 20);
  });
  it('alone: no token is shown', async () => {
    const generation = await sessions.start(input({ maxTokens: 0, promptLogprobs: 0 }, { kind: 'ids', ids: [97] }));
    expect(engine.requests[0]?.sampling.maxTokens).toBe(1);
    engine.emit(0, bytes('x'), 'length');
    expect(merged(await collect(generation))).toMatchObject({ text: '', tokenIds: [], finish: 'length' });
    expect(generation.usage().completionTokens).toEqual([0]);
  });
});

it('tokens with log-probabilities say how many characters the text gets by them', async () => {
  const ids = [...bytes('a🙂'), 256, ...bytes('é!'), 257];
  const generation = await sessions.start(input({ topLogprobs: 0, ignoreEos: true }));
  engine.emit(0, ids, 'length', { logprobs: ids.map(() => 0) });
  const deltas = await collect(generation);
  expect(merged(deltas).text).toBe('a🙂é!');
  const chars = deltas.flatMap(({ logprobs }) => logprobs.map((entry) => entry.chars));
  // Special tokens are not shown, and a character counts where it is complete.
  expect(chars).toEqual([1, 0, 0, 0, 1, 0, 0, 1, 1, 0]);
});

it('pieces of a text are its tokens, special ones too', () => {
  const ids = [256, ...bytes('aé'), 0xf0];
  const pieces = sessions.textPieces(Int32Array.from(ids));
  expect(pieces).toEqual(['<s>', 'a', '', 'é', '\ufffd']);
  expect(pieces.join('')).toBe(sessions.detokenize(ids));
});

it('the salt goes to every sequence', async () => {
  await sessions.start({ ...input({ n: 2 }), cacheSalt: 'pepper' });
  expect(engine.requests.map((request) => request.cacheSalt)).toEqual(['pepper', 'pepper']);
});

describe('repetition detection', () => {
  const rule = { minSize: 1, maxSize: 3, minCount: 3 };
  it('ends the choice after the copies, and its sequence', async () => {
    const generation = await sessions.start(input({ repetition: rule }));
    engine.aborted = [];
    for (const byte of bytes('zabcabcabcab')) engine.emit(0, [byte]);
    expect(merged(await collect(generation))).toMatchObject({
      text: 'zabcabcabc',
      finish: 'repetition',
      stopReason: 'repetition_detected',
    });
    expect(engine.aborted).toEqual([0]);
  });
  it('yields to length, stop ids and stop strings at the same token', async () => {
    const byLength = await sessions.start(input({ repetition: rule }));
    engine.emit(0, bytes('aaa'), 'length');
    expect(merged(await collect(byLength))).toMatchObject({ finish: 'length', stopReason: null });
    const byString = await sessions.start(input({ repetition: rule, stop: ['aa.', 'aaa'] }));
    engine.emit(0, bytes('aaa'));
    expect(merged(await collect(byString))).toMatchObject({ finish: 'stop', stopReason: 'aaa' });
    // The engine knows nothing of either.
    expect(engine.aborted).toEqual([0]);
  });
  it('releases what a stop string that never came held back', async () => {
    const generation = await sessions.start(input({ repetition: rule, stop: ['ax'] }));
    engine.emit(0, bytes('aaa'));
    expect(merged(await collect(generation))).toMatchObject({ text: 'aaa', finish: 'repetition' });
  });
  it('waits for min_tokens', async () => {
    const generation = await sessions.start(input({ repetition: rule, minTokens: 5 }));
    engine.emit(0, bytes('aaaaaaaa'));
    expect(merged(await collect(generation)).text).toBe('aaaaa');
  });
});
