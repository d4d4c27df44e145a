/** Rules of the request that need a model which says what the test wants: an extension names every token. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer, readEvents } from './server.ts';
import { STARTER } from '../fixtures/starter.ts';

const MODULE = fileURLToPath(new URL('../fixtures/extensions.mjs', import.meta.url));
const PATH = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'Hello! What can you do?' }];
const TOOL = { type: 'function', function: { name: 'f', parameters: { type: 'object' } } };
const TOOLS = [TOOL, { ...TOOL, function: { ...TOOL.function, name: 'g' } }];
const CALLS =
  '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>';

interface Call {
  index?: number;
  function: { name?: string; arguments?: string };
}
interface Answer {
  choices: {
    message: { content: string | null; tool_calls?: Call[] };
    finish_reason: string;
    token_ids: number[];
    logprobs: { content: { token: string; logprob: number; top_logprobs: { logprob: number }[] }[] } | null;
  }[];
  usage: { prompt_tokens: number; completion_tokens: number };
  prompt_token_ids: number[];
}

let directory: string;
let server: ApiServer;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-rules-'));
  cpSync(STARTER, directory, { recursive: true, filter: (path) => !path.includes('recipe') });
  writeBeginning(join(directory, 'tokenizer.json'));
  const flags = ['--model', directory, '--served-model-name', 'starter', '--max-model-len', '512'];
  server = await ApiServer.start({
    flags: [
      ...flags,
      '--engine-extension',
      MODULE,
      '--engine-extension-timeout-ms',
      '10000',
      '--trust-request-chat-template',
      '--max-logprobs',
      '-1',
    ],
  });
}, 90_000);
afterAll(async () => {
  await server?.stop();
  rmSync(directory, { recursive: true, force: true });
});

/** The tokenizer puts its end-of-text token before a text, where special tokens are wanted. */
function writeBeginning(path: string): void {
  const tokenizer = JSON.parse(readFileSync(path, 'utf8')) as { added_tokens: { id: number; content: string }[] };
  const [first] = tokenizer.added_tokens;
  if (!first) throw new Error('no added token');
  const { id, content } = first;
  const post_processor = {
    type: 'TemplateProcessing',
    single: [{ SpecialToken: { id: content, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
    pair: [],
    special_tokens: { [content]: { id: content, ids: [id], tokens: [content] } },
  };
  writeFileSync(path, JSON.stringify({ ...tokenizer, post_processor }));
}

async function ok(fields: object, path = PATH): Promise<Answer> {
  const response = await server.post(path, {
    messages,
    max_tokens: 6,
    temperature: 0,
    return_token_ids: true,
    ...fields,
  });
  expect(response.status, await response.clone().text()).toBe(200);
  return (await response.json()) as Answer;
}
async function idsOf(text: string): Promise<number[]> {
  const response = await server.post('/tokenize', { prompt: text, add_special_tokens: false });
  return ((await response.json()) as { tokens: number[] }).tokens;
}
/** A reply that is exactly this text. */
const saying = async (text: string) => ({ engine_xargs: { say: await idsOf(text) }, max_tokens: 150 });

describe('several tool calls', () => {
  const names = (calls: Call[] | undefined) => calls?.map((call) => call.function.name);
  test('all of them, or the first where parallel_tool_calls is false', async () => {
    const said = { ...(await saying(CALLS)), tools: TOOLS };
    for (const parallel of [undefined, null, true]) {
      const [choice] = (await ok({ ...said, ...(parallel === undefined ? {} : { parallel_tool_calls: parallel }) }))
        .choices;
      expect(names(choice?.message.tool_calls)).toEqual(['f', 'g']);
      expect(choice?.finish_reason).toBe('tool_calls');
    }
    const [choice] = (await ok({ ...said, parallel_tool_calls: false })).choices;
    expect(names(choice?.message.tool_calls)).toEqual(['f']);
  });
  test.each([
    [true, ['f', 'g']],
    [false, ['f']],
  ])('streamed with parallel_tool_calls %j', async (parallel, expected) => {
    const fields = { ...(await saying(CALLS)), tools: TOOLS, parallel_tool_calls: parallel, stream: true };
    const response = await server.post(PATH, { messages, ...fields });
    const calls = readEvents(await response.text()).flatMap((event) =>
      event === '[DONE]'
        ? []
        : (event as { choices: { delta: { tool_calls?: Call[] } }[] }).choices.flatMap(
            ({ delta }) => delta.tool_calls ?? [],
          ),
    );
    expect(names(calls.filter((call) => call.function.name !== undefined))).toEqual(expected);
    expected.forEach((_, index) => {
      const pieces = calls.filter((call) => call.index === index).map((call) => call.function.arguments ?? '');
      expect(JSON.parse(pieces.join(''))).toEqual(index === 0 ? { a: 1 } : {});
    });
  });
});

test('spaces_between_special_tokens and skip_special_tokens', async () => {
  const fields = { ...(await saying('a<|im_start|><|im_start|>b')), skip_special_tokens: false };
  for (const spaces of [true, false])
    expect((await ok({ ...fields, spaces_between_special_tokens: spaces })).choices[0]?.message.content).toBe(
      'a<|im_start|><|im_start|>b',
    );
  expect((await ok({ ...fields, skip_special_tokens: true })).choices[0]?.message.content).toBe('ab');
});

test('add_special_tokens puts them before what the template wrote', async () => {
  const plain = (await ok({})).prompt_token_ids;
  expect((await ok({ add_special_tokens: false })).prompt_token_ids).toEqual(plain);
  const more = (await ok({ add_special_tokens: true })).prompt_token_ids;
  expect(more).toHaveLength(plain.length + 1);
  expect(more.slice(1)).toEqual(plain);
});

test('a developer message reaches a template that knows system messages only', async () => {
  const promptOf = async (role: string) => {
    const fields = { messages: [{ role, content: 'Answer in capital letters.' }, ...messages], max_tokens: 1 };
    return (await ok({ ...fields, return_token_ids: true })).prompt_token_ids;
  };
  expect(await promptOf('developer')).toEqual(await promptOf('system'));
});

test('documents reach a template that reads them, and are ignored by one that does not', async () => {
  const documents = [{ title: 'one', text: 'first' }, { title: 'two' }];
  const plain = (await ok({})).prompt_token_ids;
  expect((await ok({ documents })).prompt_token_ids).toEqual(plain);
  const chat_template = '{% for d in documents %}[{{ d.title }}]{% endfor %}{{ messages[0].content }}';
  const read = (await ok({ documents, chat_template })).prompt_token_ids;
  expect(read).toEqual(await idsOf(`[one][two]${messages[0]?.content}`));
});

describe('logprobs_mode', () => {
  const asked = { logprobs: true, top_logprobs: 20, max_tokens: 1, seed: 3 };
  const top = async (fields: object) =>
    ((await ok({ ...asked, ...fields })).choices[0]?.logprobs?.content[0]?.top_logprobs ?? []).map(
      ({ logprob }) => logprob,
    );
  test('raw knows neither temperature nor filters; temperature knows the one, processed both', async () => {
    const raw = await top({ temperature: 0 });
    expect(await top({ temperature: 0.5, top_k: 2 })).toEqual(raw);
    expect(await top({ temperature: 0.5, top_k: 2, logprobs_mode: 'raw' })).toEqual(raw);
    const warm = await top({ temperature: 0.5, top_k: 2, logprobs_mode: 'temperature' });
    // Differences of logits double at half the temperature.
    warm
      .slice(0, 5)
      .forEach((value, at) => expect(value - (warm[0] ?? 0)).toBeCloseTo(2 * ((raw[at] ?? 0) - (raw[0] ?? 0)), 3));
    const processed = await top({ temperature: 0.5, top_k: 2, logprobs_mode: 'processed' });
    expect(processed).toHaveLength(2);
    expect(processed.reduce((sum, value) => sum + Math.exp(value), 0)).toBeCloseTo(1, 5);
  });
});

test('top_logprobs -1 is the whole vocabulary where --max-logprobs is -1; the scores of a prompt stay bounded', async () => {
  const [first] = (await ok({ logprobs: true, top_logprobs: -1, max_tokens: 1 })).choices;
  const top = (first?.logprobs?.content[0]?.top_logprobs ?? []).map(({ logprob }) => logprob);
  expect(top).toHaveLength(4096);
  expect(top).toEqual(top.toSorted((a, b) => b - a));
  expect(top.reduce((sum, logprob) => sum + Math.exp(logprob), 0)).toBeCloseTo(1, 3);
  const long = [{ role: 'user', content: 'a b '.repeat(100) }];
  const refused = await server.post(PATH, { messages: long, prompt_logprobs: -1, max_tokens: 1 });
  expect(refused.status).toBe(400);
  expect(await refused.text()).toContain('262144');
});

test('length_penalty decides between a short and a long beam', async () => {
  const end = (await idsOf('<|im_end|>'))[0] ?? -1;
  const search = { use_beam_search: true, n: 4, max_tokens: 8, stop_token_ids: [end] };
  const lengths = async (penalty: number) =>
    (await ok({ ...search, length_penalty: penalty })).choices.map(({ token_ids: ids }) => ids.length);
  const [short] = await lengths(-50);
  const [long] = await lengths(50);
  expect(short).toBeLessThanOrEqual(long ?? 0);
  expect((await lengths(1)).length).toBe(4);
});

test('a prompt of all but one position and no max_tokens gives one token', async () => {
  const long = [{ role: 'user', content: 'a b '.repeat(400) }];
  const answer = await ok({ messages: long, truncate_prompt_tokens: 511, max_tokens: null, ignore_eos: true });
  expect(answer.usage).toMatchObject({ prompt_tokens: 511, completion_tokens: 1 });
  expect(answer.choices[0]?.finish_reason).toBe('length');
});

test.each(['chat', 'completion'])(
  'truncate_prompt_tokens takes a %s of more characters than fit the context',
  async (kind) => {
    const prompt = 'a b '.repeat(50_000);
    const fields = { truncate_prompt_tokens: 100, max_tokens: 1, return_token_ids: true };
    const [path, body] =
      kind === 'chat'
        ? [PATH, { messages: [{ role: 'user', content: prompt }], ...fields }]
        : ['/v1/completions', { prompt, ...fields }];
    const response = await server.post(path, body);
    expect(response.status).toBe(200);
    expect(((await response.json()) as Answer).usage.prompt_tokens).toBe(100);
  },
);

test('finished requests are counted by reason', async () => {
  const count = async () => server.metric('tandem_request_success_total');
  const before = (await count()) || 0;
  await Promise.all(Array.from({ length: 10 }, () => ok({ max_tokens: 10, ignore_eos: true })));
  const text = await (await server.call('/metrics')).text();
  const total = text
    .split('\n')
    .filter((line) => line.startsWith('tandem_request_success_total{'))
    .reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
  expect(total).toBeGreaterThanOrEqual(before + 10);
});
