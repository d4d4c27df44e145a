/** Answers that are not streamed and have very many log-probabilities: the same JSON, made in pieces, and no larger than a setting allows. */
import { text } from 'node:stream/consumers';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { WholeChoice } from '../../../src/api/generation/collect.ts';
import { chatResponse } from '../../../src/api/responses/chat.ts';
import { chatAnswerPieces, isLarge, LARGE_ANSWER } from '../../../src/api/responses/pieces.ts';
import type { TokenLogprob } from '../../../src/control/sessions/session.ts';
import { delta, errorOf, FakeGeneration, startTestServer, type TestServer } from './fakes.ts';

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
  return Array.from({ length: count }, (_, id) => ({ ...entry(id), top: top(id), chars: 1 }));
}

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ maxAnswerBytes: 4 * 2 ** 20 });
});
afterAll(() => server.close());

test.each([true, false])('the pieces are the JSON of the answer (tokens as ids: %j)', async (tokensAsIds) => {
  const choice = (tokens: number): WholeChoice => ({
    text: HOSTILE,
    reasoning: HOSTILE,
    toolCalls: [{ id: 'c', name: 'f', arguments: JSON.stringify({ x: HOSTILE }) }],
    tokenIds: [1, 2],
    logprobs: scores(tokens),
    finish: 'stop',
    stopReason: HOSTILE,
  });
  const choices = () => [choice(300), choice(0), choice(128), choice(257)];
  const output = { stream: false, includeUsage: false, continuousUsage: false, returnTokenIds: true, tokensAsIds };
  const facts = { id: HOSTILE, created: 1, model: HOSTILE, systemFingerprint: 'fp' };
  const envelope = { ...facts, output, logprobs: true, serviceTier: 'default' as const };
  const shape = { role: 'assistant', tools: 'auto' as const, echo: HOSTILE };
  const generation = new FakeGeneration(4, () => []);
  expect(isLarge(choices())).toBe(true);
  const written = chatAnswerPieces(chatResponse(envelope, shape, generation, []), envelope, shape, choices());
  expect(await text(written)).toBe(JSON.stringify(chatResponse(envelope, shape, generation, choices())));
});

test('a large answer arrives whole', async () => {
  const logprobs = scores(Math.ceil(LARGE_ANSWER / ALTERNATIVES));
  server.sessions.script = () => [delta({ text: 'Hi', tokenIds: [1], logprobs, finish: 'stop' })];
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
