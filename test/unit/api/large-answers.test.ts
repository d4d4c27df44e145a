/** Answers that are not streamed and have very many log-probabilities: the same JSON, made in pieces, and no larger than a setting allows. */
import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import type { WholeChoice } from '../../../src/api/generation/collect.ts';
import { isLarge, LARGE_ANSWER } from '../../../src/api/responses/answer-size.ts';
import { chatResponse, largeChatResponse } from '../../../src/api/responses/chat.ts';
import { completionResponse, largeCompletionResponse } from '../../../src/api/responses/completion.ts';
import type { Envelope } from '../../../src/api/responses/envelope.ts';
import { answerPieces, madeFrom } from '../../../src/api/responses/pieces.ts';
import { PromptPart } from '../../../src/api/responses/prompt-part.ts';
import type { TokenLogprob } from '../../../src/control/sessions/session.ts';
import { generationInput, SAMPLING } from '../../fixtures/generation-input.ts';
import { delta, errorOf, FakeGeneration, FakeSessions, KEY, startTestServer, type TestServer } from './fakes.ts';

const CHAT = '/v1/chat/completions';
const ALTERNATIVES = 20;
/** A text that looks like the places at which an answer is cut. */
const HOSTILE = '"choices":[] "logprobs":{"content":[]} 😀\n';

function scores(count: number): TokenLogprob[] {
  const entry = (tokenId: number) => ({
    token: `"${tokenId}"`,
    logprob: -tokenId / 7,
    bytes: [34, tokenId % 256],
    tokenId,
  });
  const top = (id: number) => Array.from({ length: ALTERNATIVES }, (_, rank) => entry(id + rank));
  return Array.from({ length: count }, (_, id) => ({ ...entry(id), top: top(id), chars: 1, at: id }));
}

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ maxAnswerBytes: 4 * 2 ** 20 });
});
afterAll(() => server.close());

const choice = (tokens: number): WholeChoice => ({
  text: HOSTILE,
  reasoning: HOSTILE,
  toolCalls: [{ id: 'c', name: 'f', arguments: JSON.stringify({ x: HOSTILE }) }],
  tokenIds: Array.from({ length: tokens }, (_, id) => id),
  logprobs: scores(tokens),
  finish: 'stop',
  stopReason: HOSTILE,
});
const choices = () => [choice(300), choice(0), choice(128), choice(257)];
const promptScores = [null, ...scores(200).map((score) => ({ ...score, rank: 3 }))];

function envelope(tokensAsIds: boolean, logprobs = true): Envelope {
  const output = { stream: false, includeUsage: false, continuousUsage: false, returnTokenIds: true, tokensAsIds };
  const facts = { id: HOSTILE, created: 1, model: HOSTILE, systemFingerprint: 'fp' };
  return { ...facts, output, logprobs, serviceTier: 'default' };
}

function fakeGeneration(n: number): FakeGeneration {
  const generation = new FakeGeneration(n, () => []);
  generation.scores = promptScores;
  return generation;
}

test.each([true, false])('the pieces of a chat are the JSON of its answer (tokens as ids: %j)', async (tokensAsIds) => {
  const shape = { role: 'assistant', tools: 'auto' as const, echo: HOSTILE };
  const generation = fakeGeneration(4);
  for (const logprobs of [true, false]) {
    const facts = envelope(tokensAsIds, logprobs);
    const written = answerPieces(largeChatResponse(facts, shape, generation, choices()));
    expect(await text(written)).toBe(JSON.stringify(chatResponse(facts, shape, generation, choices())));
  }
});

test.each([true, false])('so are those of a text completion (tokens as ids: %j)', async (tokensAsIds) => {
  const sessions = new FakeSessions();
  sessions.pieces = promptScores.map(() => 'é');
  const input = generationInput({
    prompt: { kind: 'text', text: 'é'.repeat(promptScores.length), addSpecialTokens: false },
    sampling: { ...SAMPLING, topLogprobs: 3 },
  });
  for (const [echo, promptLogprobs, logprobs] of [
    [true, 2, true],
    [true, null, true],
    [false, -1, false],
    [false, null, true],
  ] as const) {
    const facts = envelope(tokensAsIds, logprobs);
    const request = { output: facts.output, echo, promptLogprobs };
    const runs = [2, 2].map((n) => ({
      generation: fakeGeneration(n),
      n,
      deltas: new FakeGeneration(n, () => []).deltas,
    }));
    const prompts = runs.map((run) => new PromptPart(run, input, request, sessions));
    const written = answerPieces(largeCompletionResponse(facts, runs, prompts, choices()));
    expect(await text(written)).toBe(JSON.stringify(completionResponse(facts, runs, prompts, choices())));
  }
});

test('pieces are small, whatever the answer is made of', async () => {
  const sizes: number[] = [];
  const list = Array.from({ length: 100_000 }, (_, id) => id);
  for await (const piece of answerPieces({ ids: list, made: madeFrom(list, (id) => ({ id })), none: undefined }))
    sizes.push((piece as Buffer).length);
  expect(sizes.length).toBeGreaterThan(50);
  expect(Math.max(...sizes)).toBeLessThan(20_000);
});

test('a large answer leaves no warning in the log', async () => {
  const warnings: string[] = [];
  const note = (warning: Error) => void warnings.push(warning.message);
  process.on('warning', note);
  const logprobs = scores(1000);
  server.sessions.script = () => [
    delta({ text: 'x', tokenIds: logprobs.map(({ tokenId }) => tokenId), logprobs, finish: 'stop' }),
  ];
  const response = await server.post(CHAT, { messages: [], logprobs: true, top_logprobs: ALTERNATIVES });
  expect((await response.text()).length).toBeGreaterThan(1_000_000);
  // They come with the next turn of the loop.
  await new Promise((resolve) => setImmediate(resolve));
  process.off('warning', note);
  expect(warnings).toEqual([]);
});

test('an answer is large by its log-probabilities and its text, and by what it tells of its prompt', () => {
  const short = { ...choice(0), reasoning: '' };
  const none = { entries: 0, chars: 0, ids: 0 };
  expect(isLarge([short], { ...none, entries: LARGE_ANSWER - 10 })).toBe(false);
  expect(isLarge([short], { ...none, entries: LARGE_ANSWER })).toBe(true);
  expect(isLarge([{ ...short, text: 'x'.repeat(100 * LARGE_ANSWER) }], none)).toBe(true);
  expect(isLarge([choice(LARGE_ANSWER / (ALTERNATIVES + 1) + 1)], none)).toBe(true);
  expect(isLarge([short], { ...none, chars: 100 * LARGE_ANSWER })).toBe(true);
  expect(isLarge([short], { ...none, ids: 100 * LARGE_ANSWER })).toBe(true);
});

test.each([
  [CHAT, { messages: [{ role: 'assistant', content: 'x'.repeat(400_000) }], continue_final_message: true, echo: true }],
  ['/v1/completions', { prompt: 'x'.repeat(400_000), echo: true }],
])('%s: a prompt that every choice repeats is written in pieces', async (path, body) => {
  server.sessions.script = ({ sampling }) =>
    Array.from({ length: sampling.n }, (_, index) => delta({ index, text: '!', finish: 'stop' }));
  const one = await server.post(path, body);
  expect(one.headers.get('content-length')).not.toBeNull();
  const four = await server.post(path, { ...body, n: 4 });
  expect(four.headers.get('content-length')).toBeNull();
  expect((await four.text()).length).toBeGreaterThan(1_600_000);
  await one.text();
});

test('a large answer arrives whole', async () => {
  const logprobs = scores(Math.ceil(LARGE_ANSWER / ALTERNATIVES));
  server.sessions.script = () => [delta({ text: 'Hi', tokenIds: [1], logprobs, finish: 'stop' })];
  const completion = await server.post('/v1/completions', { prompt: 'a', logprobs: ALTERNATIVES });
  expect(completion.headers.get('content-length')).toBeNull();
  const lists = ((await completion.json()) as { choices: { logprobs: Record<string, object[]> }[] }).choices[0]
    ?.logprobs;
  expect(Object.values(lists ?? {}).map(({ length }) => length)).toEqual(Array(4).fill(logprobs.length));
  const response = await server.post(CHAT, { messages: [], logprobs: true, top_logprobs: ALTERNATIVES });
  expect(response.headers.get('content-type')).toBe('application/json; charset=utf-8');
  const answer = (await response.json()) as { choices: { message: object; logprobs: { content: object[] } }[] };
  expect(answer.choices[0]?.message).toMatchObject({ role: 'assistant', content: 'Hi' });
  expect(answer.choices[0]?.logprobs.content).toHaveLength(logprobs.length);
  expect(answer.choices[0]?.logprobs.content.at(-1)).toMatchObject({ token: `"${logprobs.length - 1}"` });
});

test.each([
  [CHAT, { messages: [], logprobs: true }],
  ['/v1/completions', { prompt: 'Hi', logprobs: 1 }],
])('%s: one that grows too large ends with an error, and its generation with it', async (path, body) => {
  const piece = scores(100);
  server.sessions.script = async function* (_, generation) {
    while (!generation.aborted) yield await Promise.resolve(delta({ tokenIds: [1], logprobs: piece }));
  };
  const response = await server.post(path, body);
  expect(response.status).toBe(400);
  expect((await errorOf(response)).message).toContain('--max-answer-size');
  expect(server.sessions.generations.at(-1)?.aborted).toBe(true);
});

test('a reader that takes nothing of an answer is cut; one that rests between answers is not', async () => {
  const idle = await startTestServer({}, {}, 200);
  const socket = connect(idle.port, '127.0.0.1');
  const ask = (fields: object) => {
    const body = JSON.stringify({ messages: [], ...fields });
    const head = `Host: a\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}`;
    socket.write(`POST ${CHAT} HTTP/1.1\r\n${head}\r\n\r\n${body}`);
  };
  let [read, failed] = ['', false];
  socket.on('data', (bytes) => (read += bytes.toString('latin1')));
  socket.on('error', () => (failed = true));
  try {
    ask({});
    await vi.waitFor(() => expect(read).toContain('"finish_reason":"stop"'), { timeout: 20_000 });
    await new Promise((resolve) => setTimeout(resolve, 1000));
    expect(socket.readyState).toBe('open');
    const logprobs = scores(2 * LARGE_ANSWER);
    idle.sessions.script = () => [delta({ text: 'Hi', tokenIds: [1], logprobs, finish: 'stop' })];
    socket.pause();
    ask({ logprobs: true });
    // What is sent to a connection that has gone fails, whether anything was read of it or not.
    const send = () => socket.write('\n') && expect(failed).toBe(true);
    await vi.waitFor(send, { timeout: 30_000, interval: 100 });
  } finally {
    socket.destroy();
    await idle.close();
  }
}, 60_000);
