/** Rules of the chat endpoint, one row each, on the starter model. Each refusal leaves the server able to answer. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer, readEvents, waitFor } from './server.ts';

const PATH = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'Hello! What can you do?' }];
const TOOL = { type: 'function', function: { name: 'f', parameters: { type: 'object' } } };
const VOCAB = 4096;

let server: ApiServer;
beforeAll(async () => {
  server = await ApiServer.start({ flags: ['--enable-request-id-headers'] });
}, 90_000);
afterAll(() => server?.stop());

interface Choice {
  index: number;
  message: { role: string; content: string; tool_calls?: unknown };
  logprobs: {
    content: { token: string; logprob: number; top_logprobs: { token: string; logprob: number }[] }[];
  } | null;
  finish_reason: string;
  stop_reason: unknown;
  token_ids: number[] | null;
}
interface Answer {
  id: string;
  model: string;
  choices: Choice[];
  usage: { prompt_tokens: number; completion_tokens: number };
  prompt_token_ids: number[] | null;
  prompt_logprobs: unknown[] | null;
}

async function ok(fields: object): Promise<Answer> {
  const response = await server.post(PATH, { messages, max_tokens: 6, ...fields });
  expect(response.status, await response.clone().text()).toBe(200);
  return (await response.json()) as Answer;
}
async function idOf(text: string): Promise<number> {
  const response = await server.post('/tokenize', { prompt: text });
  const { tokens } = (await response.json()) as { tokens: number[] };
  expect(tokens).toHaveLength(1);
  return tokens[0] ?? -1;
}

describe('refused with 400, streamed or not', () => {
  const rows: [fields: object, message: RegExp][] = [
    [{ logprobs: true, top_logprobs: 21 }, /greater than max allowed: 20/],
    [{ top_logprobs: 3 }, /`logprobs` must be set/],
    [{ logprobs: true, top_logprobs: -2 }, /positive value or -1/],
    [{ logprobs: true, top_logprobs: 'abc' }, /integer/],
    [{ prompt_logprobs: -1 }, /prompt_logprobs|greater than max allowed/],
    [{ prompt_logprobs: -2 }, /positive value or -1/],
    [{ seed: '-9223372036854775809' }, /integer/],
    [{ n: 2, temperature: 0 }, /greedy/],
    [{ n: 0 }, /at least 1/],
    [{ max_tokens: 0 }, /at least 1/],
    [{ max_tokens: 100_000 }, /max_model_len/],
    [{ truncate_prompt_tokens: 100_000 }, /truncate_prompt_tokens=100000/],
    [{ truncate_prompt_tokens: 0 }, /prompt cannot be empty/],
    [{ truncate_prompt_tokens: -1, max_tokens: 100_000 }, /^max_tokens=100000 cannot be greater/],
    [{ logit_bias: { [VOCAB + 1]: 1 } }, /4097.*Vocabulary size: 4096/],
    [{ logit_bias: { abc: 1 } }, /"abc"/],
    [{ logit_bias: { abc: 1, 'x y': 1 } }, /"abc", "x y"/],
    [{ logit_bias: { 5: 'x' } }, /number/],
    [{ allowed_token_ids: [] }, /not None and empty/],
    [{ allowed_token_ids: [VOCAB] }, /out-of-vocab/],
    [{ bad_words: [''] }, /empty string/],
    [{ stop: '' }, /empty string/],
    [{ stop: ['a', ''] }, /empty string/],
    [{ stop_token_ids: [VOCAB] }, /out-of-vocab/],
    [{ temperature: -1 }, /non-negative/],
    [{ top_p: 0 }, /top_p must be in/],
    [{ top_p: 1.5 }, /top_p must be in/],
    [{ top_k: -2 }, /top_k must be/],
    [{ min_p: 2 }, /min_p must be in/],
    [{ presence_penalty: 3 }, /presence_penalty must be in/],
    [{ frequency_penalty: -3 }, /frequency_penalty must be in/],
    [{ repetition_penalty: 0 }, /greater than zero/],
    [{ add_generation_prompt: true, continue_final_message: true }, /Cannot set both/],
    [{ chat_template_kwargs: { tokenize: true } }, /unexpected chat template kwargs/],
    [{ chat_template: 'x' }, /--trust-request-chat-template is not set/],
    [{ priority: 5 }, /Got priority 5 but Priority scheduling is not enabled/],
    [{ cache_salt: '' }, /non-empty string/],
    [{ tools: [] }, /empty array/],
    [{ tool_choice: 'auto' }, /`tools` must be set/],
    [{ tools: [TOOL], tool_choice: {} }, /must have the form/],
    [{ tools: [TOOL], tool_choice: { type: 'function', function: { name: 'g' } } }, /does not match any/],
    [{ repetition_detection: { max_pattern_size: 4, min_count: 1 } }, /min_count must be >= 2/],
    [{ use_beam_search: true, n: 100 }, /width of a beam search/],
    [{ mm_processor_kwargs: { a: 1 } }, /takes text only/],
    [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'x' } }] }] }, /takes text only/],
    [{ messages: [{ role: 'user', content: [{ type: 'blob' }] }] }, /Unsupported chat content part type: 'blob'/],
    [{ engine_xargs: { a: 1 } }, /No extension/],
  ];
  test.each(rows)('%j', async (fields, message) => {
    for (const stream of [false, true]) {
      const response = await server.post(PATH, { messages, max_tokens: 3, stream, ...fields });
      const body = (await response.json()) as {
        error: { message: string; type: string; param: string | null; code: number };
      };
      expect(response.status).toBe(400);
      expect(body.error.code).toBe(400);
      expect(body.error.message).toMatch(message);
      expect(Object.keys(body.error).sort()).toEqual(['code', 'message', 'param', 'type']);
    }
  });

  test.each(['"text"', '[1]', '42', 'null', '{"messages":', ''])('the body %s', async (body) => {
    const response = await server.call(PATH, { method: 'POST', body, headers: { 'content-type': 'application/json' } });
    expect(response.status).toBe(400);
    expect(((await response.json()) as { error: { type: string } }).error.type).toBe('Bad Request');
  });
  test('another content type', async () => {
    const headers = { 'content-type': 'application/x-www-form-urlencoded' };
    const response = await server.call(PATH, { method: 'POST', body: 'a=b', headers });
    expect(response.status).toBe(400);
    expect(await response.text()).toContain('Unsupported Media Type');
  });
  test.each([
    ['-9223372036854775809', 'greater_than_equal'],
    ['9223372036854775808', 'less_than_equal'],
  ])('seed %s', async (seed, text) => {
    const body = `{"messages":[{"role":"user","content":"Hi"}],"seed":${seed}}`;
    const response = await server.call(PATH, { method: 'POST', body, headers: { 'content-type': 'application/json' } });
    expect(response.status).toBe(400);
    expect(await response.text()).toContain(text);
  });
  test('an unknown model is 404', async () => {
    const response = await server.post(PATH, { messages, model: 'other' });
    expect(response.status).toBe(404);
    expect(await response.json()).toMatchObject({ error: { type: 'NotFoundError', param: 'model' } });
  });
});

describe('accepted', () => {
  test.each([
    { top_k: -1 },
    { top_k: 0 },
    { stream_options: {} },
    { logit_bias: { 5: 1 } },
    { surprise: 1, messages: [{ role: 'user', content: 'Hi', extra: true }] },
    { chat_template_kwargs: { never_used: 1 } },
    { truncate_prompt_tokens: -1 },
    { messages: [{ role: 'critic', content: 'x' }, ...messages] },
    { priority: 0 },
    { response_format: { type: 'text' } },
    { repetition_penalty: 1e-308 },
    { repetition_penalty: 1e308 },
  ])('%j', async (fields) => {
    expect((await ok(fields)).choices).toHaveLength(1);
  });
});

describe('log-probabilities', () => {
  test('false, true, and five alternatives', async () => {
    expect((await ok({ logprobs: false })).choices[0]?.logprobs).toBeNull();
    const alone = (await ok({ logprobs: true, top_logprobs: 0 })).choices[0]?.logprobs?.content ?? [];
    expect(alone[0]?.top_logprobs).toEqual([]);
    const five =
      (await ok({ logprobs: true, top_logprobs: 5, logit_bias: { 7: -100 } })).choices[0]?.logprobs?.content ?? [];
    for (const { logprob, top_logprobs: top } of five) {
      expect(top).toHaveLength(5);
      expect(top.map((entry) => entry.logprob)).toEqual(top.map((entry) => entry.logprob).sort((a, b) => b - a));
      expect(Math.min(logprob, ...top.map((entry) => entry.logprob))).toBeGreaterThanOrEqual(-9999);
    }
    const ids = await ok({ logprobs: true, return_tokens_as_token_ids: true, return_token_ids: true });
    expect(ids.choices[0]?.logprobs?.content.map(({ token }) => token)).toEqual(
      ids.choices[0]?.token_ids?.map((id) => `token_id:${id}`),
    );
  });
});

describe('tokens', () => {
  test('a bias of 100, or 1000, gives that token always', async () => {
    const id = await idOf(' the');
    for (const bias of [100, 1000]) {
      const answer = await ok({ logit_bias: { [id]: bias }, temperature: 0, return_token_ids: true });
      expect(answer.choices[0]?.token_ids).toEqual([id, id, id, id, id, id]);
    }
  });
  test('allowed_token_ids gives only these', async () => {
    const allowed = [await idOf(' the'), await idOf(' a')];
    const answer = await ok({ allowed_token_ids: allowed, temperature: 1, return_token_ids: true, ignore_eos: true });
    expect(answer.choices[0]?.token_ids?.filter((id) => !allowed.includes(id))).toEqual([]);
  });
  test('bad_words never come, even when they are wanted', async () => {
    const id = await idOf(' the');
    const answer = await ok({ bad_words: ['the'], logit_bias: { [id]: 100 }, temperature: 0, max_tokens: 12 });
    expect(answer.choices[0]?.message.content).not.toMatch(/\bthe\b/);
  });
  test('bad_words do not come in other tokens either', async () => {
    const question = [{ role: 'user', content: 'What is the capital of France?' }];
    const fields = { messages: question, temperature: 0, max_tokens: 20 };
    expect((await ok(fields)).choices[0]?.message.content).toContain('Paris');
    const answer = await ok({ ...fields, bad_words: ['Paris'] });
    expect(answer.choices[0]?.message.content).not.toContain('Paris');
  });
  test('stop_token_ids end it, with the text of the token only when asked', async () => {
    const id = await idOf(' the');
    const fields = { stop_token_ids: [id], logit_bias: { [id]: 100 }, temperature: 0, return_token_ids: true };
    const without = (await ok(fields)).choices[0];
    expect(without).toMatchObject({ finish_reason: 'stop', stop_reason: id, token_ids: [id] });
    expect(without?.message.content).toBe('');
    expect((await ok({ ...fields, include_stop_str_in_output: true })).choices[0]?.message.content).toBe(' the');
    const late = (await ok({ ...fields, min_tokens: 3 })).choices[0];
    expect(late?.token_ids).toHaveLength(4);
  });
  test('ignore_eos goes on although the end is wanted', async () => {
    const end = await idOf('<|im_end|>');
    const wanted = { logit_bias: { [end]: 100 }, temperature: 0 };
    expect((await ok(wanted)).choices[0]).toMatchObject({ finish_reason: 'stop', stop_reason: null });
    expect((await ok({ ...wanted, ignore_eos: true })).choices[0]?.finish_reason).toBe('length');
  });
  test('penalties count the output, and not the prompt', async () => {
    const id = await idOf(' the');
    const fields = {
      messages: [{ role: 'user', content: ' the'.repeat(60) }],
      logit_bias: { [id]: 100 },
      temperature: 0,
      max_tokens: 60,
      ignore_eos: true,
      return_token_ids: true,
    };
    const count = (answer: Answer) => answer.choices[0]?.token_ids?.filter((token) => token === id).length;
    expect(count(await ok(fields))).toBe(60);
    const fined = await ok({ ...fields, frequency_penalty: 2 });
    expect(count(fined)).toBeLessThan(60);
    // Had the prompt counted, the bias would be gone before the first token.
    expect(fined.choices[0]?.token_ids?.slice(0, 20).every((token) => token === id)).toBe(true);
  });
  test('ids of prompt and output, and their text', async () => {
    const answer = await ok({ return_token_ids: true, temperature: 0, max_tokens: 40 });
    expect(answer.prompt_token_ids).toHaveLength(answer.usage.prompt_tokens);
    const response = await server.post('/detokenize', { tokens: answer.choices[0]?.token_ids });
    const { prompt } = (await response.json()) as { prompt: string };
    const [choice] = answer.choices;
    expect(prompt).toBe(`${choice?.message.content}${choice?.finish_reason === 'stop' ? '<|im_end|>' : ''}`);
    const silent = await ok({ return_token_ids: false });
    expect([silent.prompt_token_ids, silent.choices[0]?.token_ids]).toEqual([null, null]);
  });
  test('truncate_prompt_tokens keeps the last ones', async () => {
    const whole = (await ok({ return_token_ids: true })).prompt_token_ids ?? [];
    const cut = await ok({ return_token_ids: true, truncate_prompt_tokens: 5 });
    expect(cut.usage.prompt_tokens).toBe(5);
    expect(cut.prompt_token_ids).toEqual(whole.slice(-5));
  });
});

describe('ids', () => {
  test('of the body, of the header, of duplicates', async () => {
    expect((await ok({ request_id: 'mine' })).id).toBe('chatcmpl-mine');
    const post = async (id: string) =>
      server.post(PATH, { messages, max_tokens: 2, request_id: 'mine' }, { headers: { 'x-request-id': id } });
    const answers = await Promise.all([post('theirs'), post('theirs')]);
    for (const answer of answers) {
      expect(answer.headers.get('x-request-id')).toBe('theirs');
      expect(((await answer.json()) as Answer).id).toBe('chatcmpl-theirs');
    }
    const absent = await server.post(PATH, { messages, max_tokens: 2 });
    expect(absent.headers.get('x-request-id')).toMatch(/^[0-9a-f]{32}$/);
  });
});

test('several choices, whole and streamed', async () => {
  const fields = { n: 3, temperature: 1.5, seed: 1, max_tokens: 12 };
  const { choices } = await ok(fields);
  expect(choices.map(({ index }) => index)).toEqual([0, 1, 2]);
  expect(new Set(choices.map(({ message }) => message.content)).size).toBeGreaterThan(1);
  const third = (await ok({ ...fields, n: 1, seed: 3 })).choices[0];
  expect(third?.message.content).toBe(choices[2]?.message.content);
  const response = await server.post(PATH, { messages, ...fields, stream: true });
  const finishes = readEvents(await response.text()).flatMap((event) =>
    event === '[DONE]' ? [] : (event as { choices: { index: number; finish_reason: string | null }[] }).choices,
  );
  expect(
    finishes
      .filter((choice) => choice.finish_reason !== null)
      .map(({ index }) => index)
      .sort(),
  ).toEqual([0, 1, 2]);
});

test('models and health', async () => {
  const list = (await (await server.call('/v1/models')).json()) as {
    data: { id: string; root: string; parent: null }[];
  };
  expect(list.data[0]).toMatchObject({ id: 'starter', parent: null });
  expect((await fetch(`${server.url}/health`)).status).toBe(200);
  expect((await fetch(`${server.url}/v1/models`)).status).toBe(401);
  const wrong = await fetch(`${server.url}/v1/models`, { headers: { authorization: 'Bearer nobody' } });
  expect(wrong.status).toBe(401);
});

test('with one slot, a lower priority value that comes later ends earlier', async () => {
  const single = await ApiServer.start({ flags: ['--max-num-seqs', '1', '--scheduling-policy', 'priority'] });
  try {
    const ended: string[] = [];
    const ask = async (name: string, priority: number) => {
      const body = { messages, priority, ignore_eos: true, max_tokens: 800, temperature: 0 };
      const response = await single.post(PATH, body);
      ended.push(name);
      return ((await response.json()) as Answer).choices[0]?.message.content;
    };
    const first = ask('first', 0);
    await waitFor(async () => (await single.load()).running === 1, 30_000);
    const late = ask('late', 9);
    await waitFor(async () => (await single.load()).waiting === 1, 30_000);
    const urgent = ask('urgent', -9);
    const texts = await Promise.all([first, late, urgent]);
    expect(ended.indexOf('urgent')).toBeLessThan(ended.indexOf('late'));
    expect(new Set(texts).size).toBe(1);
  } finally {
    await single.stop();
  }
}, 120_000);
