/** engine_xargs through HTTP: extensions steer the engine's steps, and what misbehaves fails alone. */
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ApiServer, readEvents } from './server.ts';

const MODULE = fileURLToPath(new URL('../fixtures/extensions.mjs', import.meta.url));
const EXAMPLE = fileURLToPath(new URL('../../examples/extensions/thinking-budget.mjs', import.meta.url));
const PATH = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'Hello! What can you do?' }];

interface Answer {
  choices: { message: { content: string }; finish_reason: string; stop_reason: unknown; token_ids: number[] }[];
  error?: { message: string; param: string | null; type: string };
}

let server: ApiServer;
let words: number[];
beforeAll(async () => {
  const modules = ['--engine-extension', MODULE, '--engine-extension', EXAMPLE];
  server = await ApiServer.start({ flags: [...modules, '--engine-extension-timeout-ms', '1000'] });
  const response = await server.post('/tokenize', { prompt: ' the a the' });
  words = ((await response.json()) as { tokens: number[] }).tokens;
}, 90_000);
afterAll(() => server?.stop());

const post = (fields: object) =>
  server.post(PATH, { messages, temperature: 0, max_tokens: 12, return_token_ids: true, ...fields });
async function ask(fields: object): Promise<{ status: number; body: Answer }> {
  const response = await post(fields);
  return { status: response.status, body: (await response.json()) as Answer };
}

test('an extension says what comes, and stops with its reason', async () => {
  for (const field of ['engine_xargs', 'vllm_xargs']) {
    const { status, body } = await ask({ [field]: { say: words }, ignore_eos: true });
    expect(status).toBe(200);
    expect(body.choices[0]).toMatchObject({ finish_reason: 'stop', stop_reason: 'said', token_ids: words });
    expect(body.choices[0]?.message.content).toBe(' the a the');
  }
});

test('streams and several choices follow it too', async () => {
  const response = await post({ engine_xargs: { say: words }, stream: true, n: 2, temperature: 1 });
  const texts = ['', ''];
  const reasons: unknown[] = [];
  for (const event of readEvents(await response.text())) {
    if (event === '[DONE]') continue;
    const [choice] = (event as { choices: { index: number; delta: { content?: string }; stop_reason?: unknown }[] })
      .choices;
    if (!choice) continue;
    texts[choice.index] += choice.delta.content ?? '';
    if (choice.stop_reason !== undefined) reasons.push(choice.stop_reason);
  }
  expect(texts).toEqual([' the a the', ' the a the']);
  expect(reasons).toEqual(['said', 'said']);
});

test('the examples of the documentation do what they say', async () => {
  const plain = (await ask({ ignore_eos: true })).body.choices[0]?.token_ids ?? [];
  const [end] = words as [number];
  const cut = (await ask({ ignore_eos: true, engine_xargs: { thinking_budget: [3, end] } })).body.choices[0];
  expect(cut?.token_ids.slice(0, 4)).toEqual([...plain.slice(0, 3), end]);
  const stopped = await ask({ ignore_eos: true, engine_xargs: { stop_on_tokens: plain.slice(2, 4) } });
  expect(stopped.body.choices[0]).toMatchObject({ stop_reason: 'stop_on_tokens', token_ids: plain.slice(0, 4) });
});

test('text completions take extensions, of every prompt', async () => {
  const response = await server.post('/v1/completions', {
    prompt: ['one', 'two'],
    engine_xargs: { say: words },
    max_tokens: 12,
  });
  const { choices } = (await response.json()) as { choices: { text: string }[] };
  expect(choices.map(({ text }) => text)).toEqual([' the a the', ' the a the']);
});

test.each([
  [{ engine_xargs: { other: 1 } }, 'No extension of this server takes these arguments: "other".', 'engine_xargs'],
  [{ vllm_xargs: { say: 'x' } }, 'say: give token ids.', 'vllm_xargs'],
  [
    { engine_xargs: { say: [1] }, vllm_xargs: { say: [1] } },
    "'say' is in engine_xargs and in vllm_xargs",
    'vllm_xargs',
  ],
  [{ engine_xargs: { check_hangs: 1 } }, 'check_hangs: It ran longer than 1000 ms.', 'engine_xargs'],
  [{ engine_xargs: { check_exits: 1 } }, 'check_exits: it tried to end the process.', 'engine_xargs'],
  [{ engine_xargs: { check_rejects: 1 } }, 'check_rejects: it answered with a promise', 'engine_xargs'],
  [{ engine_xargs: { say: [1] }, use_beam_search: true, n: 2 }, 'beam search', 'engine_xargs'],
  [{ engine_xargs: { say: { deep: 1 } } }, 'Input should be', 'engine_xargs.say'],
])('%j is refused', async (fields, message, param) => {
  for (const stream of [false, true]) {
    const { status, body } = await ask({ ...fields, stream });
    expect(status).toBe(400);
    expect(body.error?.message).toContain(message);
    expect(body.error?.param).toBe(param);
  }
});

test('none ends a process, and what it tried is in the log', async () => {
  const pid = server.enginePid();
  for (const name of ['exits', 'exits_by_import', 'aborts', 'kills', 'rejects', 'create_rejects']) {
    expect((await ask({ engine_xargs: { [name]: 1 } })).status, name).toBe(500);
    expect((await ask({})).status, `after ${name}`).toBe(200);
  }
  expect(server.enginePid()).toBe(pid);
  expect(server.log).toContain("The extension 'exits' failed: it tried to end the process.");
});

test('one that throws, hangs or answers nonsense fails its request alone', async () => {
  const quiet = { temperature: 0, max_tokens: 60, ignore_eos: true };
  const expected = (await ask(quiet)).body.choices[0]?.token_ids;
  const bad = ['throws', 'hangs', 'promises', 'nonsense', 'nothing', 'create_throws'];
  const running = ask(quiet);
  const failures = await Promise.all(bad.map((name) => ask({ engine_xargs: { [name]: 1 } })));
  for (const { status, body } of failures) {
    expect(status).toBe(500);
    expect(body.error).toMatchObject({ message: 'Internal server error', type: 'InternalServerError' });
  }
  expect((await running).body.choices[0]?.token_ids).toEqual(expected);
  const stream = readEvents(await (await post({ engine_xargs: { throws: 1 }, stream: true })).text());
  expect(stream.at(-1)).toBe('[DONE]');
  expect(stream.at(-2)).toMatchObject({ error: { code: 500 } });
  // The operator finds out why.
  expect(server.log).toContain("The extension 'throws' failed: as it was asked to");
  expect(await server.load()).toMatchObject({ running: 0, waiting: 0, kvUsage: 0 });
});
