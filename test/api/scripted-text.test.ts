/** Text to the byte: characters split over tokens, stop strings across chunk borders, stop ids, special tokens, usage. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ASSISTANT, END, USER, writeScriptedModel } from './scripted-model.ts';
import { ApiServer, readEvents } from './server.ts';

// Each byte is a token: the emoji takes four, the arrow three.
const REPLY = 'Go: 😀→é\ndat';
const BYTES = [...Buffer.from(REPLY)];

let directory: string;
let server: ApiServer;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-scripted-'));
  writeScriptedModel(directory, REPLY);
  server = await ApiServer.start({
    flags: ['--model', directory, '--served-model-name', 'scripted,alias', '--enable-request-id-headers'],
  });
}, 90_000);
afterAll(async () => {
  await server?.stop();
  rmSync(directory, { recursive: true, force: true });
});

interface Choice {
  index: number;
  message: { content: string };
  finish_reason: string;
  stop_reason: string | number | null;
  token_ids: number[] | null;
  logprobs: { content: { token: string; bytes: number[] }[] } | null;
}
interface Answer {
  id: string;
  model: string;
  choices: Choice[];
  usage: object;
  prompt_token_ids: number[] | null;
}
interface Chunk {
  id: string;
  model: string;
  object: string;
  choices: {
    index: number;
    delta: { role?: string; content?: string };
    finish_reason: string | null;
    stop_reason?: string | number | null;
    token_ids?: number[] | null;
    logprobs: unknown;
  }[];
  prompt_token_ids?: number[] | null;
  usage?: object;
}

const messages = [{ role: 'user', content: 'x' }];
const PATH = '/v1/chat/completions';

async function whole(fields: object): Promise<Answer> {
  const response = await server.post(PATH, { messages, ...fields });
  expect(response.status).toBe(200);
  return (await response.json()) as Answer;
}
async function streamed(fields: object): Promise<Chunk[]> {
  const response = await server.post(PATH, { messages, stream: true, ...fields });
  expect(response.status).toBe(200);
  expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  const events = readEvents(await response.text());
  expect(events.pop()).toBe('[DONE]');
  expect(events).not.toContain('[DONE]');
  return events as Chunk[];
}
const contents = (chunks: Chunk[]) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '');

describe('characters split over tokens', () => {
  test('whole', async () => {
    const answer = await whole({});
    expect(answer.choices[0]).toMatchObject({ message: { content: REPLY }, finish_reason: 'stop', stop_reason: null });
    expect(answer.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: BYTES.length + 1 });
  });
  test('no chunk has half a character', async () => {
    const pieces = contents(await streamed({}));
    expect(pieces.join('')).toBe(REPLY);
    expect(pieces.filter((piece) => piece.includes('\ufffd'))).toEqual([]);
    expect(pieces.some((piece) => piece.includes('😀'))).toBe(true);
  });
  test.each(BYTES.map((_, at) => at + 1))('cut after %d tokens', async (max) => {
    const answer = await whole({ max_tokens: max });
    const pieces = contents(await streamed({ max_tokens: max }));
    expect(answer.choices[0]?.finish_reason).toBe('length');
    expect(pieces.join('')).toBe(answer.choices[0]?.message.content);
    expect(answer.usage).toMatchObject({ completion_tokens: max });
    // Whole characters come as they are; a cut one at the end becomes one replacement character, and nothing before it does.
    const content = answer.choices[0]?.message.content ?? '';
    expect(REPLY.startsWith(content.replace(/\ufffd+$/, ''))).toBe(true);
    expect(pieces.slice(0, -1).join('')).not.toContain('\ufffd');
  });
  test('logprob tokens keep exact bytes', async () => {
    const answer = await whole({ logprobs: true, max_tokens: BYTES.length });
    expect(answer.choices[0]?.logprobs?.content.flatMap((entry) => entry.bytes)).toEqual(BYTES);
    const named = await whole({ logprobs: true, max_tokens: 3, return_tokens_as_token_ids: true });
    expect(named.choices[0]?.logprobs?.content.map((entry) => entry.token)).toEqual(
      BYTES.slice(0, 3).map((id) => `token_id:${id}`),
    );
  });
});

describe('stops', () => {
  const STOPS: [string, string | string[], string, string][] = [
    ['across tokens', 'o: ', 'G', 'o: '],
    ['inside an emoji border', '😀→', 'Go: ', '😀→'],
    ['the first of several', ['dat', '→'], 'Go: 😀', '→'],
    ['overlapping ones', [': 😀', 'o: 😀→'], 'Go', ': 😀'],
    ['a line break', '\n', 'Go: 😀→é', '\n'],
    ['at the very start', 'G', '', 'G'],
    ['at the very end', 'dat', 'Go: 😀→é\n', 'dat'],
  ];
  test.each(STOPS)('%s', async (_name, stop, text, reason) => {
    const answer = await whole({ stop });
    expect(answer.choices[0]).toMatchObject({ message: { content: text }, finish_reason: 'stop', stop_reason: reason });
    const chunks = await streamed({ stop });
    expect(contents(chunks).join('')).toBe(text);
    expect(chunks.at(-1)?.choices[0]).toMatchObject({ finish_reason: 'stop', stop_reason: reason });
    const kept = await whole({ stop, include_stop_str_in_output: true });
    expect(kept.choices[0]?.message.content).toBe(text + reason);
    expect(contents(await streamed({ stop, include_stop_str_in_output: true })).join('')).toBe(text + reason);
  });
  test('a stop that does not come holds nothing back for good', async () => {
    expect(contents(await streamed({ stop: ['dax', '😀é', 'tt'] })).join('')).toBe(REPLY);
  });
  test('stop ids', async () => {
    const answer = await whole({ stop_token_ids: [0x3a], return_token_ids: true });
    expect(answer.choices[0]).toMatchObject({ message: { content: 'Go' }, finish_reason: 'stop', stop_reason: 0x3a });
    expect(answer.choices[0]?.token_ids).toEqual([...Buffer.from('Go:')]);
    const kept = await whole({ stop_token_ids: [0x3a], include_stop_str_in_output: true });
    expect(kept.choices[0]?.message.content).toBe('Go:');
  });
  test('min_tokens keeps the end away', async () => {
    const answer = await whole({ min_tokens: BYTES.length + 3, max_tokens: BYTES.length + 3, return_token_ids: true });
    expect(answer.choices[0]?.finish_reason).toBe('length');
    expect(answer.choices[0]?.token_ids).not.toContain(END);
  });
  test('ignore_eos goes on to the length', async () => {
    const answer = await whole({ ignore_eos: true, max_tokens: 2 * BYTES.length + 1 });
    expect(answer.choices[0]).toMatchObject({ finish_reason: 'length', message: { content: REPLY + REPLY } });
    const shown = await whole({ ignore_eos: true, max_tokens: BYTES.length + 2, skip_special_tokens: false });
    expect(shown.choices[0]?.message.content).toBe(`${REPLY}<|im_end|>G`);
  });
});

describe('token ids', () => {
  test('whole', async () => {
    const answer = await whole({ return_token_ids: true });
    expect(answer.prompt_token_ids).toEqual([USER, 0x78, ASSISTANT]);
    expect(answer.choices[0]?.token_ids).toEqual([...BYTES, END]);
    const plain = await whole({});
    expect(plain.prompt_token_ids).toBeNull();
    expect(plain.choices[0]?.token_ids).toBeNull();
  });
  test('streamed: the prompt in the first chunk only, then deltas', async () => {
    const chunks = await streamed({ return_token_ids: true });
    expect(chunks[0]?.prompt_token_ids).toEqual([USER, 0x78, ASSISTANT]);
    expect(chunks.slice(1).every((chunk) => chunk.prompt_token_ids === undefined)).toBe(true);
    expect(chunks.flatMap((chunk) => chunk.choices[0]?.token_ids ?? [])).toEqual([...BYTES, END]);
  });
});

describe('the stream, exactly', () => {
  test('role chunk, deltas, finish chunk', async () => {
    const chunks = await streamed({ max_tokens: 2 });
    const { id } = chunks[0] ?? { id: '' };
    expect(id).toMatch(/^chatcmpl-[0-9a-f]{32}$/);
    const head = { id, object: 'chat.completion.chunk', created: expect.any(Number) as number, model: 'scripted' };
    expect(chunks[0]).toEqual({
      ...head,
      choices: [{ index: 0, delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }],
      prompt_token_ids: null,
    });
    const last = chunks.at(-1);
    expect(last?.choices[0]).toMatchObject({
      finish_reason: 'length',
      stop_reason: null,
      token_ids: null,
      logprobs: null,
    });
    for (const chunk of chunks.slice(1, -1)) {
      expect(chunk).toEqual({
        ...head,
        choices: [
          {
            index: 0,
            delta: { content: expect.any(String) as string },
            logprobs: null,
            finish_reason: null,
            token_ids: null,
          },
        ],
      });
    }
  });

  test('usage: none, at the end, with every chunk', async () => {
    const usage = {
      prompt_tokens: 3,
      total_tokens: 8,
      completion_tokens: 5,
      prompt_tokens_details: { cached_tokens: 0 },
    };
    const none = await streamed({ max_tokens: 5, stream_options: {} });
    expect(none.some((chunk) => 'usage' in chunk)).toBe(false);
    const lonely = await streamed({ max_tokens: 5, stream_options: { continuous_usage_stats: true } });
    expect(lonely.some((chunk) => 'usage' in chunk)).toBe(false);
    const end = await streamed({ max_tokens: 5, stream_options: { include_usage: true } });
    expect(end.filter((chunk) => 'usage' in chunk)).toEqual([end.at(-1)]);
    expect(end.at(-1)).toMatchObject({ choices: [], usage });
    const always = await streamed({
      max_tokens: 5,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    });
    expect(always[0]?.usage).toEqual({ ...usage, total_tokens: 3, completion_tokens: 0 });
    expect(always.every((chunk) => chunk.usage !== undefined)).toBe(true);
    expect(always.at(-2)?.usage).toEqual(usage);
    expect(always.at(-1)).toMatchObject({ choices: [], usage });
  });

  test('n = 2: one choice per chunk, both finish, usage is the sum', async () => {
    const chunks = await streamed({ n: 2, stream_options: { include_usage: true } });
    expect(chunks.slice(0, 2).map((chunk) => [chunk.choices[0]?.index, chunk.choices[0]?.delta.role])).toEqual([
      [0, 'assistant'],
      [1, 'assistant'],
    ]);
    expect(chunks.slice(0, -1).every((chunk) => chunk.choices.length === 1)).toBe(true);
    for (const index of [0, 1]) {
      const own = chunks.filter((chunk) => chunk.choices[0]?.index === index);
      expect(contents(own).join('')).toBe(REPLY);
      expect(own.filter((chunk) => chunk.choices[0]?.finish_reason !== null)).toHaveLength(1);
    }
    expect(chunks.at(-1)?.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 2 * (BYTES.length + 1) });
  });
});

describe('ids and names', () => {
  test('the header beats the body; both may repeat', async () => {
    const ask = async (body: object, headers: Record<string, string>) => {
      const response = await server.post(PATH, { messages, max_tokens: 1, ...body }, { headers });
      return { id: ((await response.json()) as Answer).id, header: response.headers.get('x-request-id') };
    };
    const fromBody = { request_id: '../__proto__' };
    expect((await ask(fromBody, {})).id).toBe('chatcmpl-../__proto__');
    expect(await ask(fromBody, { 'x-request-id': 'mine' })).toEqual({ id: 'chatcmpl-mine', header: 'mine' });
    const twins = await Promise.all([ask(fromBody, {}), ask(fromBody, {})]);
    expect(twins.map((twin) => twin.id)).toEqual(['chatcmpl-../__proto__', 'chatcmpl-../__proto__']);
    expect((await ask({}, {})).header).toMatch(/^[0-9a-f]{32}$/);
    expect((await server.post(PATH, { messages }, { headers: { 'x-request-id': 'x'.repeat(300) } })).status).toBe(400);
  });
  test('the first served name answers for all', async () => {
    for (const model of [undefined, null, '', 'alias', 'scripted'])
      expect((await whole({ model, max_tokens: 1 })).model).toBe('scripted');
    const list = (await (await server.call('/v1/models')).json()) as { data: { id: string }[] };
    expect(list.data.map((model) => model.id)).toEqual(['scripted', 'alias']);
  });
});

test('a reply that looks like events stays data', async () => {
  const tricky = [{ role: 'assistant', content: 'data: [DONE]\n\n{"error":1}\r\n' }];
  const chunks = await streamed({ messages: [...tricky, ...messages], stop: ['data: [DONE]'] });
  expect(contents(chunks).join('')).toBe(REPLY);
});

test('token counts in the metrics', async () => {
  const names = [
    'prompt_tokens_total',
    'generation_tokens_total',
    'time_to_first_token_seconds_count',
    'e2e_request_latency_seconds_count',
  ];
  const read = () => Promise.all(names.map((name) => server.metric(`tandem_${name}`)));
  const before = await read();
  await Promise.all(Array.from({ length: 10 }, () => whole({ max_tokens: 10 })));
  const after = await read();
  expect(after.map((value, at) => value - (before[at] ?? 0))).toEqual([30, 100, 10, 10]);
});
