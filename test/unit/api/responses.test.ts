/** /v1/responses over sessions in memory: answers, how a stream goes and ends, what is stored. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { ApiDeps } from '../../../src/api/deps.ts';
import type { Generation, GenerationInput } from '../../../src/control/sessions/session.ts';
import type { ResolvedModel } from '../../../src/control/models/resolver.ts';
import { delta, errorOf, FakeSessions, KEY, startTestServer, type TestServer } from './fakes.ts';
import { Asking, OTHER_KEY, PATH, twoEntities, type Answer } from './responses-asking.ts';

let server: TestServer;
const asking = new Asking(() => server);
beforeAll(async () => {
  server = await startTestServer({ maxBodyBytes: 100_000 }, { keys: twoEntities });
});
afterAll(() => server.close());
beforeEach(() => {
  server.sessions.script = new FakeSessions().script;
  server.sessions.refuse = null;
  server.responses.failure = null;
  server.responses.keeps = true;
});

const tools = [{ type: 'function', name: 'f', description: 'F', parameters: { type: 'object' }, strict: true }];
describe('answers', () => {
  test('has every field, and repeats what was asked', async () => {
    const asked = { instructions: 'I', metadata: { a: 'b' }, user: 'u', max_output_tokens: 5, tools, temperature: 0.5 };
    const answer = await asking.answer({ ...asked, request_id: 'mine' });
    expect(answer).toMatchObject({
      id: 'resp_mine',
      object: 'response',
      status: 'completed',
      error: null,
      incomplete_details: null,
      model: 'first',
      ...asked,
      top_p: null,
      store: true,
      parallel_tool_calls: true,
      previous_response_id: null,
      text: { format: { type: 'text' } },
      tool_choice: 'auto',
      truncation: 'disabled',
      reasoning: { effort: null, summary: null },
      usage: {
        input_tokens: 3,
        input_tokens_details: { cached_tokens: 0 },
        output_tokens: 3,
        output_tokens_details: { reasoning_tokens: 0 },
        total_tokens: 6,
      },
    });
    expect(answer.output).toEqual([
      {
        id: 'msg_mine_0',
        type: 'message',
        status: 'completed',
        role: 'assistant',
        content: [{ type: 'output_text', text: 'Hello there', annotations: [], logprobs: [] }],
      },
    ]);
  });

  test.each([
    ['length', 'incomplete', { reason: 'max_output_tokens' }],
    ['repetition', 'incomplete', { reason: 'repetition' }],
    ['tool_calls', 'completed', null],
  ] as const)('a reply that ended by %s is %s', async (finish, status, incomplete_details) => {
    server.sessions.script = () => [delta({ text: 'So', tokenIds: [1], finish })];
    const answer = await asking.answer({});
    expect(answer).toMatchObject({ status, incomplete_details, output: [{ status }] });
    const { events } = await asking.events({});
    expect(events.at(-1)).toMatchObject({ type: `response.${status}`, response: { status, incomplete_details } });
  });

  test('log-probabilities where they are included, very many of them in pieces', async () => {
    const include = ['message.output_text.logprobs'];
    const plain = await asking.answer({});
    const scored = await asking.answer({ include, top_logprobs: 1 });
    const logprobsOf = ({ output }: Answer) => (output[0]?.['content'] as { logprobs: object[] }[])[0]?.logprobs;
    expect(logprobsOf(plain)).toEqual([]);
    expect(logprobsOf(scored)).toMatchObject([
      { token: '<10>', top_logprobs: [{ token: '<10>' }] },
      { token: '<11>' },
      { token: '<2>' },
    ]);
    const entry = { token: 'a', logprob: -1, bytes: [97], tokenId: 1, top: [], chars: 1 };
    const logprobs = Array.from({ length: 12_000 }, (_, at) => ({ ...entry, at }));
    server.sessions.script = () => [delta({ text: 'a'.repeat(12_000), tokenIds: [1], logprobs, finish: 'stop' })];
    const large = await asking.answer({ include });
    expect(logprobsOf(large)).toHaveLength(12_000);
    expect(large.store).toBe(false);
    const { events } = await asking.events({ include });
    expect(events.find(({ type }) => type === 'response.output_text.delta')?.['logprobs']).toHaveLength(12_000);
    expect(logprobsOf(events.at(-1)?.['response'] as Answer)).toEqual([]);
  });
});

describe('streams', () => {
  test('events with names and numbers, the same items as the whole answer, and no [DONE]', async () => {
    server.sessions.script = () => [
      delta({ reasoning: 'hm', tokenIds: [1] }),
      delta({ text: 'Yes', tokenIds: [2] }),
      delta({ toolCalls: [{ index: 0, id: 'c1', name: 'f' }], tokenIds: [3] }),
      delta({ toolCalls: [{ index: 0, arguments: '{}' }], tokenIds: [4], finish: 'tool_calls' }),
    ];
    const { names, events, text } = await asking.events({ tools, request_id: 'one' });
    expect(names).toEqual(events.map(({ type }) => type));
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, at) => at));
    expect(text).not.toContain('[DONE]');
    expect(names).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.reasoning_text.delta',
      'response.reasoning_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.output_item.added',
      'response.function_call_arguments.delta',
      'response.function_call_arguments.done',
      'response.output_item.done',
      'response.completed',
    ]);
    expect(events[0]).toMatchObject({ response: { id: 'resp_one', status: 'in_progress', output: [], usage: null } });
    const { output } = await asking.answer({ tools, request_id: 'one' });
    expect((events.at(-1)?.['response'] as Answer).output).toEqual(output);
  });

  test('the first events come before the first token, and do not count as streamed', async () => {
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    server.sessions.script = async function* () {
      await held;
      yield delta({ text: 'Yes', tokenIds: [1], finish: 'stop' });
    };
    const response = await server.post(PATH, { input: 'Hi', stream: true });
    const reader = response.body?.getReader();
    const first = new TextDecoder().decode((await reader?.read())?.value);
    expect(first).toContain('event: response.created\n');
    expect(server.sessions.generations.at(-1)?.streamed).toBe(false);
    release();
    for (;;) if ((await reader?.read())?.done !== false) break;
    expect(server.sessions.generations.at(-1)?.streamed).toBe(true);
  });

  test('an engine that fails in the middle: an error and a failed response, nothing of the inside, nothing stored', async () => {
    server.sessions.script = async function* () {
      yield delta({ text: 'So', tokenIds: [1] });
      await Promise.resolve();
      throw new Error('secret');
    };
    const { events, text } = await asking.events({ request_id: 'broken' });
    const failure = { code: 'server_error', message: 'Internal server error' };
    expect(events.slice(-2)).toMatchObject([
      { type: 'error', ...failure, param: null, error: { message: failure.message, code: 500 } },
      {
        type: 'response.failed',
        response: { status: 'failed', error: failure, output: [{ status: 'incomplete', content: [{ text: 'So' }] }] },
      },
    ]);
    const added = events.flatMap(({ type, item }) => (type === 'response.output_item.added' ? [item] : []));
    expect(added).toMatchObject([{ status: 'in_progress' }]);
    expect(text).not.toContain('secret');
    expect((await server.call(`${PATH}/resp_broken`)).status).toBe(404);
    expect((await server.post(PATH, { input: 'Hi' })).status).toBe(500);
  });

  test('a client that leaves ends the generation, and nothing is stored', async () => {
    server.sessions.script = async function* (_, generation) {
      yield delta({ text: 'So', tokenIds: [1] });
      await generation.untilAborted();
    };
    const leaving = new AbortController();
    const response = await fetch(server.url + PATH, {
      method: 'POST',
      headers: { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify({ input: 'Hi', stream: true, request_id: 'left' }),
      signal: leaving.signal,
    });
    await response.body?.getReader().read();
    leaving.abort();
    await expect.poll(() => server.sessions.generations.at(-1)?.aborted).toBe(true);
    expect((await server.call(`${PATH}/resp_left`)).status).toBe(404);
  });
});

test('while the server drains, nothing is begun, and what is stored can be read', async () => {
  let draining = false;
  const leaving = await startTestServer({}, { draining: () => draining });
  const { id } = (await (await leaving.post(PATH, { input: 'Hi' })).json()) as Answer;
  draining = true;
  expect((await leaving.post(PATH, { input: 'Hi', stream: true })).status).toBe(503);
  expect((await leaving.call(`${PATH}/${id}`)).status).toBe(200);
  await leaving.close();
});

test('what a trained model said is remembered under the id of the response', async () => {
  const adapter = { version: 'v', path: 'p', rank: 1, alpha: 1 } as unknown as NonNullable<ResolvedModel['adapter']>;
  const model: ResolvedModel = { displayName: 'mine', adapter, trainable: true };
  const resolver = { resolve: () => Promise.resolve(model) } as unknown as ApiDeps['models'];
  const training = await startTestServer({}, { models: resolver });
  const { id, output } = (await (await training.post(PATH, { input: 'Hi', request_id: 'r' })).json()) as Answer;
  const [sample] = training.deps.samples.find(id, 'default') ?? [];
  expect(Array.from(sample?.tokenIds ?? [])).toEqual([10, 11, 2]);
  expect(training.deps.samples.find('r', 'default')).toEqual([sample]);
  // Nobody asked for log-probabilities.
  expect(output).toMatchObject([{ content: [{ logprobs: [] }] }]);
  await training.close();
});

describe('input_tokens', () => {
  const COUNT = `${PATH}/input_tokens`;

  test('are those of the prompt that the response would have, which is not made', async () => {
    const first = await asking.answer({ input: 'One' });
    const fields = {
      tools,
      instructions: 'I',
      input: 'Two',
      previous_response_id: first.id,
      reasoning: { effort: 'low' },
    };
    const sent = await asking.input(fields);
    const began = server.sessions.inputs.length;
    const counted = await server.post(COUNT, { ...fields, personality: 'friendly' });
    expect([counted.status, await counted.json()]).toEqual([200, { object: 'response.input_tokens', input_tokens: 2 }]);
    expect(counted.headers.get('x-tandem-ignored-fields')).toBe('personality');
    expect(server.sessions.tokenized.at(-1)).toEqual(sent.prompt);
    expect(server.sessions.inputs.length).toBe(began);
  });

  test.each<[string, object]>([
    ['input[0].content[0].type', { input: [{ role: 'user', content: [{ type: 'input_image' }] }] }],
    ['tools[0].type', { tools: [{ type: 'web_search' }] }],
    ['tool_choice', { tools, tool_choice: { type: 'function', name: 'g' } }],
    ['top_p', { top_p: 0 }],
  ])('%s is refused', async (param, fields) => {
    const refused = await errorOf(await server.post(COUNT, { input: 'Hi', ...fields }));
    expect(refused).toMatchObject({ code: 400, param });
  });

  test('what cannot be stored is refused as it would be when it is made', async () => {
    server.responses.keeps = false;
    const asked = { input: 'Hi', store: true };
    const refused = await errorOf(await server.post(COUNT, asked));
    expect(refused).toMatchObject({ code: 400, param: 'store' });
    expect(await errorOf(await server.post(PATH, asked))).toEqual(refused);
    expect((await server.post(COUNT, { input: 'Hi' })).status).toBe(200);
  });

  test('an unknown response that it would continue, and one of another entity', async () => {
    const first = await asking.answer({});
    const body = { input: 'Hi', previous_response_id: first.id };
    const stranger = await server.post(COUNT, body, { authorization: `Bearer ${OTHER_KEY}` });
    expect(await errorOf(stranger)).toMatchObject({ code: 404, param: 'previous_response_id' });
  });
});

describe('stored responses', () => {
  const other = { headers: { authorization: `Bearer ${OTHER_KEY}` } };

  test('are read as they were answered, by their entity alone, until they are deleted', async () => {
    const answer = await asking.answer({ instructions: 'é' });
    const path = `${PATH}/${answer.id}`;
    expect(await (await server.call(path)).json()).toEqual(answer);
    for (const method of ['GET', 'DELETE']) {
      expect((await fetch(server.url + path, { method, ...other })).status).toBe(404);
    }
    expect((await fetch(`${server.url}${path}/input_items`, other)).status).toBe(404);
    const foreign = await server.post(PATH, { input: 'x', previous_response_id: answer.id }, other.headers);
    expect(foreign.status).toBe(404);
    const deleted = await server.call(path, { method: 'DELETE' });
    expect(await deleted.json()).toEqual({ id: answer.id, object: 'response', deleted: true });
    expect(await errorOf(await server.call(path))).toMatchObject({ code: 404, param: 'response_id' });
    expect((await server.call(path, { method: 'DELETE' })).status).toBe(404);
  });

  test('are read however large an answer may be', async () => {
    const small = await startTestServer({ maxAnswerBytes: 2000 });
    const own = new Asking(() => small);
    const answer = await own.answer({ input: 'x'.repeat(100_000) });
    expect(await (await small.call(`${PATH}/${answer.id}`)).json()).toEqual(answer);
    expect((await small.call(`${PATH}/${answer.id}/input_items`)).status).toBe(200);
    await small.close();
  });

  test('are not kept where the request, the server or the disk says so', async () => {
    const gone = async ({ id }: Answer) => expect((await server.call(`${PATH}/${id}`)).status).toBe(404);
    const unwanted = await asking.answer({ store: false });
    expect(unwanted.store).toBe(false);
    await gone(unwanted);
    server.responses.failure = new Error('disk');
    const failed = await asking.answer({ store: true });
    expect(failed).toMatchObject({ store: false, status: 'completed' });
    server.responses.failure = null;
    server.responses.keeps = false;
    expect((await asking.answer({})).store).toBe(false);
    expect(await errorOf(await server.post(PATH, { input: 'x', store: true }))).toMatchObject({ param: 'store' });
  });

  test('a conversation goes on from them, without their instructions', async () => {
    const first = await asking.answer({ instructions: 'Old', input: 'One' });
    const second = await asking.answer({ input: [{ role: 'user', content: 'Two' }], previous_response_id: first.id });
    expect(second['previous_response_id']).toBe(first.id);
    expect(await asking.messages('Three', { instructions: 'New', previous_response_id: second.id })).toEqual([
      { role: 'system', content: 'New' },
      { role: 'user', content: 'One' },
      { role: 'assistant', content: 'Hello there' },
      { role: 'user', content: 'Two' },
      { role: 'assistant', content: 'Hello there' },
      { role: 'user', content: 'Three' },
    ]);
    await server.call(`${PATH}/${first.id}`, { method: 'DELETE' });
    const broken = await errorOf(await server.post(PATH, { input: 'x', previous_response_id: second.id }));
    expect(broken).toMatchObject({ code: 404, param: 'previous_response_id' });
    expect(broken.message).toContain(first.id);
  });

  test('none takes the place of a response that it continues', async () => {
    const first = await asking.answer({ input: 'One', request_id: 'mine' });
    const second = await asking.answer({ input: 'Two', previous_response_id: first.id });
    for (const previous_response_id of [first.id, second.id]) {
      const body = { input: 'Three', request_id: 'mine', previous_response_id };
      expect(await errorOf(await server.post(PATH, body))).toMatchObject({ code: 400, param: 'request_id' });
    }
    expect((await asking.messages('Three', { previous_response_id: second.id })).length).toBe(5);
    // What was asked before is asked again.
    await asking.answer({ input: 'One', request_id: 'mine' });
  });

  test('no conversation is longer than a body may be, and references count as often as they stand there', async () => {
    const large = 'x'.repeat(60_000);
    const first = await asking.answer({ input: large });
    const second = await asking.answer({ input: large, previous_response_id: first.id, store: true });
    const long = await errorOf(await server.post(PATH, { input: 'x', previous_response_id: second.id }));
    expect(long).toMatchObject({ code: 400, param: 'previous_response_id' });
    server.sessions.script = () => [delta({ text: large, tokenIds: [1], finish: 'stop' })];
    const [item] = (await asking.answer({})).output;
    const reference = { type: 'item_reference', id: item?.id };
    const twice = await errorOf(await server.post(PATH, { input: [reference, reference] }));
    expect(twice).toMatchObject({ code: 400, param: 'input' });
  });

  test('many that continue long conversations at once find no room', async () => {
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    class Waiting extends FakeSessions {
      override async start(input: GenerationInput): Promise<Generation> {
        if (input.tenant === 'default') await held;
        return super.start(input);
      }
    }
    const busy = await startTestServer({ maxBodyBytes: 2000 }, { sessions: new Waiting(), keys: twoEntities });
    const long = JSON.stringify([{ role: 'user', content: 'x'.repeat(1500) }]);
    for (const entity of ['default', 'other']) {
      await busy.responses.insert(entity, { id: 'resp_a', previousId: null, head: '{}', output: '[]', input: long });
    }
    const body = { input: 'And?', previous_response_id: 'resp_a' };
    const asked = Array.from({ length: 40 }, () => busy.post(PATH, body).then(({ status }) => status));
    // The refused ones are answered while the others wait.
    const first = await Promise.race(asked);
    expect(first).toBe(503);
    expect((await busy.post(PATH, body, { authorization: `Bearer ${OTHER_KEY}` })).status).toBe(200);
    release();
    const statuses = await Promise.all(asked);
    expect(new Set(statuses)).toEqual(new Set([200, 503]));
    expect((await busy.post(PATH, body)).status).toBe(200);
    await busy.close();
  });

  test('references stand for stored items, and are stored as these', async () => {
    const { output } = await asking.answer({});
    const reference = { type: 'item_reference', id: output[0]?.id };
    const again = await asking.answer({ input: [reference, { role: 'user', content: 'And?' }] });
    expect(server.sessions.inputs.at(-1)?.prompt).toMatchObject({
      messages: [
        { role: 'assistant', content: 'Hello there' },
        { role: 'user', content: 'And?' },
      ],
    });
    const listed = (await (await server.call(`${PATH}/${again.id}/input_items?order=asc`)).json()) as {
      data: object[];
    };
    expect(listed.data[0]).toEqual(output[0]);
    const foreign = await server.post(PATH, { input: [reference] }, other.headers);
    expect([foreign.status, (await errorOf(foreign)).param]).toEqual([404, 'input[0].id']);
  });

  test('their input is listed in pages', async () => {
    const input = Array.from({ length: 5 }, (_, at) => ({ role: 'user', content: `m${at}` }));
    const { id } = await asking.answer({
      input: [...input, { type: 'function_call_output', call_id: 'c', output: 'o' }],
    });
    type Page = { data: { id: string; content?: { text: string }[] }[]; has_more: boolean; last_id: string };
    const page = async (query: string) =>
      (await (await server.call(`${PATH}/${id}/input_items?${query}`)).json()) as Page;
    const first = await page('limit=4&order=asc');
    expect(first.data.map(({ content }) => content?.[0]?.text)).toEqual(['m0', 'm1', 'm2', 'm3']);
    expect(first).toMatchObject({
      object: 'list',
      has_more: true,
      data: [{ type: 'message', role: 'user' }, {}, {}, {}],
    });
    const second = await page(`limit=4&order=asc&after=${first.last_id}`);
    expect(second.data.map(({ content }) => content?.[0]?.text)).toEqual(['m4', undefined]);
    expect(second.has_more).toBe(false);
    expect((await page('')).data.map(({ content }) => content?.[0]?.text)).toEqual([
      undefined,
      'm4',
      'm3',
      'm2',
      'm1',
      'm0',
    ]);
    for (const [query, param] of [
      ['limit=0', 'limit'],
      ['limit=101', 'limit'],
      ['order=up', 'order'],
      ['after=nothing', 'after'],
    ]) {
      expect((await errorOf(await server.call(`${PATH}/${id}/input_items?${query}`))).param).toBe(param);
    }
    for (const [query, param] of [
      ['stream=true', 'stream'],
      ['include[]=message.output_text.logprobs', 'include'],
    ]) {
      expect((await errorOf(await server.call(`${PATH}/${id}?${query}`))).param).toBe(param);
      expect((await errorOf(await server.call(`${PATH}/${id}/input_items?${query}`))).param).toBe(param);
    }
    expect((await server.call(`${PATH}/${id}?include_obfuscation=false`)).status).toBe(200);
  });

  test('items of the same id are listed once each, page by page', async () => {
    const twice = await asking.answer({});
    const reference = { type: 'item_reference', id: twice.output[0]?.id };
    const input = [
      reference,
      ...Array.from({ length: 3 }, () => ({ role: 'user', content: 'm', id: 'same' })),
      reference,
    ];
    const { id } = await asking.answer({
      input: [...input, { role: 'user', content: 'm', id: 'msg_x_in2' }],
      request_id: 'x',
    });
    const seen: string[] = [];
    let after = '';
    for (let pages = 0; pages < 9; pages++) {
      const page = (await (await server.call(`${PATH}/${id}/input_items?limit=2&order=asc${after}`)).json()) as {
        data: { id: string }[];
        has_more: boolean;
        last_id: string;
      };
      seen.push(...page.data.map((item) => item.id));
      after = `&after=${page.last_id}`;
      if (!page.has_more) break;
    }
    expect(seen).toHaveLength(6);
    expect(new Set(seen).size).toBe(6);
    expect(seen.slice(0, 2)).toEqual([reference.id, 'same']);
  });
});
