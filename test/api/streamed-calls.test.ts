/** Calls that are not JSON in what the model writes: piece by piece in a stream, and the same as in the whole answer. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeScriptedModel } from './scripted-model.ts';
import { ApiServer, readEvents } from './server.ts';

// No byte twice: see the scripted model.
const REPLY = '[f(a={1:2})]';

let directory: string;
let server: ApiServer;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-calls-'));
  writeScriptedModel(directory, REPLY);
  server = await ApiServer.start({ flags: ['--model', directory, '--tool-call-parser', 'pythonic'] });
}, 90_000);
afterAll(async () => {
  await server?.stop();
  rmSync(directory, { recursive: true, force: true });
});

interface Call {
  function: { name?: string; arguments?: string };
}
interface Message {
  content: string | null;
  tool_calls?: Call[];
}

const asked = {
  messages: [{ role: 'user', content: 'x' }],
  tools: [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }],
};

async function whole(fields: object) {
  const response = await server.post('/v1/chat/completions', { ...asked, ...fields });
  expect(response.status).toBe(200);
  const { choices } = (await response.json()) as { choices: { message: Message; finish_reason: string }[] };
  return choices[0];
}

async function streamed(fields: object) {
  const response = await server.post('/v1/chat/completions', { ...asked, ...fields, stream: true });
  const chunks = readEvents(await response.text()).slice(0, -1) as {
    choices: { delta: Message; finish_reason: string | null }[];
  }[];
  const choices = chunks.flatMap((chunk) => chunk.choices);
  const calls = choices.flatMap(({ delta }) => delta.tool_calls ?? []).map((call) => call.function);
  return {
    name: calls.map(({ name = '' }) => name).join(''),
    pieces: calls.flatMap(({ arguments: piece = '' }) => (piece === '' ? [] : [piece])),
    content: choices.map(({ delta }) => delta.content ?? '').join(''),
    finish: choices.at(-1)?.finish_reason,
  };
}

test('a Python call comes piece by piece, and is what the whole answer has', async () => {
  const got = await streamed({});
  expect(got).toMatchObject({ name: 'f', content: '', finish: 'tool_calls' });
  expect(got.pieces.length).toBeGreaterThan(2);
  const choice = await whole({});
  expect(choice?.finish_reason).toBe('tool_calls');
  expect(choice?.message.tool_calls?.map((call) => call.function)).toEqual([
    { name: 'f', arguments: got.pieces.join('') },
  ]);
  expect(got.pieces.join('')).toBe('{"a": {"1": 2}}');
});

test.each(Array.from(REPLY, (_, at) => at + 1))('cut after %d tokens', async (max) => {
  const got = await streamed({ max_tokens: max });
  const isWhole = max >= REPLY.indexOf(')') + 1;
  expect(got.finish).toBe('length');
  expect('{"a": {"1": 2}}'.startsWith(got.pieces.join(''))).toBe(true);
  expect(got.content).toBe(got.pieces.length > 0 ? '' : REPLY.slice(0, max));
  const { message } = (await whole({ max_tokens: max })) ?? {};
  expect(message?.tool_calls?.length ?? 0).toBe(isWhole ? 1 : 0);
  if (!isWhole) expect(message?.content).toBe(REPLY.slice(0, max));
});
