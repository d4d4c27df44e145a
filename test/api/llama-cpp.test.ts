/**
 * A server on llama.cpp, through the `openai` client: the starter model as a GGUF file that the native engine refuses (LongRoPE, which
 * changes nothing without its tensors), so that the model's own goldens say what is right. Skipped, and said so, where
 * `npm run setup:llama-cpp` has not been run.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { llamaIsInstalled } from '../../src/control/llama/binding.ts';
import { writeGguf } from '../fixtures/gguf-model.ts';
import { entry } from '../fixtures/gguf-writer.ts';
import { API_KEY, ApiServer, readEvents, waitFor } from './server.ts';
import { goldenRequest, STARTER, starterGoldens } from '../fixtures/starter.ts';

const PATH = '/v1/chat/completions';

interface Answer {
  prompt_token_ids: number[];
  choices: { token_ids: number[]; finish_reason: string; message: { content: string } }[];
}

interface Refusal {
  error: { message: string; param: string | null; type: string };
}

const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Hello! What can you do?' }];
const folder = mkdtempSync(join(tmpdir(), 'tandem-llama-api-'));
const file = join(folder, 'Starter-LongRoPE.gguf');

beforeAll(async () => {
  const extra = [
    entry('qwen3.rope.scaling.type', 'string', 'longrope'),
    entry('qwen3.rope.scaling.factor', 'float32', 1),
    entry('qwen3.rope.scaling.original_context_length', 'uint32', 1024),
  ];
  await writeGguf(file, STARTER, { type: 'F32', ownTokenizer: true, extra });
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test('the native engine refuses the file by its key', async () => {
  const start = ApiServer.start({ flags: ['--model', file, '--engine', 'native'] });
  await expect(start).rejects.toThrow(/Starter-LongRoPE\.gguf: qwen3\.rope\.scaling\.type "longrope" is not supported/);
});

test.skipIf(llamaIsInstalled())('without llama.cpp the start ends with the step that installs it', async () => {
  await expect(ApiServer.start({ flags: ['--model', file] })).rejects.toThrow(/longrope.*npm run setup:llama-cpp/s);
});

describe.skipIf(!llamaIsInstalled())('llama.cpp (skipped without `npm run setup:llama-cpp`)', () => {
  let server: ApiServer;
  let client: OpenAI;
  beforeAll(async () => {
    // llama.cpp's threads wait for each other by spinning, which takes for ever on a machine that is busy with other tests.
    const sizes = ['--threads', '1', '--max-num-seqs', '6', '--max-model-len', '400'];
    const flags = ['--model', file, '--served-model-name', 'starter', ...sizes];
    // Slow steps leave time to leave and to kill in the middle of an answer.
    server = await ApiServer.start({ flags, env: { TANDEM_FAULTS: 'slow-steps-ms=3' } });
    client = new OpenAI({ apiKey: API_KEY, baseURL: `${server.url}/v1`, maxRetries: 0 });
  }, 60_000);
  afterAll(() => server?.stop());

  const idle = () =>
    waitFor(async () => {
      const { running, waiting, kvUsage } = await server.load();
      return running === 0 && waiting === 0 && kvUsage === 0;
    }, 5000);

  test('says what it runs on, and why', () => {
    expect(server.log).toMatch(/starter \(\d\.\dM parameters, F32, llama\.cpp v[\d.]+, 1 thread\)/);
    expect(server.log).toContain('llama.cpp runs it');
  });

  test('answers the goldens of the model: prompts exactly, replies but for a rounding', async () => {
    let tokens = 0;
    let equal = 0;
    await Promise.all(
      starterGoldens.slice(0, 12).map(async (golden) => {
        const response = await server.post(PATH, goldenRequest(golden));
        expect(response.status).toBe(200);
        const body = (await response.json()) as Answer;
        expect(body.prompt_token_ids).toEqual(golden.prompt_ids);
        const said = body.choices[0]?.token_ids ?? [];
        const parts = golden.output_ids.findIndex((id, at) => said[at] !== id);
        tokens += golden.output_ids.length;
        equal += parts === -1 ? golden.output_ids.length : parts;
      }),
    );
    // Keys and values are F16: where two tokens are all but equal a reply may part from the golden.
    expect(equal / tokens).toBeGreaterThan(0.9);
    await idle();
  });

  test('streams what it answers, with usage', async () => {
    const asked = { model: 'starter', messages, temperature: 0, max_completion_tokens: 24 } as const;
    const whole = await client.chat.completions.create(asked);
    const stream = await client.chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks: OpenAI.ChatCompletionChunk[] = [];
    for await (const chunk of stream) chunks.push(chunk);
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');
    expect(text).toBe(whole.choices[0]?.message.content);
    expect(text.length).toBeGreaterThan(0);
    expect(chunks.at(-1)?.usage).toEqual(whole.usage);
    expect(whole.usage?.completion_tokens).toBeGreaterThan(0);
    expect(chunks.filter(({ choices }) => choices[0]?.delta.content).length).toBeGreaterThan(3);
  });

  test('n, seed, stop, max_tokens, bias and penalties mean what they mean', async () => {
    const sampled = {
      model: 'starter',
      messages,
      temperature: 2,
      top_p: 0.95,
      seed: 7,
      max_completion_tokens: 16,
    } as const;
    const three = await client.chat.completions.create({ ...sampled, n: 3 });
    const texts = three.choices.map(({ message }) => message.content ?? '');
    expect(new Set(texts).size).toBeGreaterThan(1);
    // Alone each time: what else is in a batch decides the last bits of llama.cpp's logits.
    const [one, again] = [await client.chat.completions.create(sampled), await client.chat.completions.create(sampled)];
    expect(again.choices[0]?.message.content).toBe(one.choices[0]?.message.content);
    const greedy = { model: 'starter', messages, temperature: 0, max_completion_tokens: 30 } as const;
    const free = (await client.chat.completions.create(greedy)).choices[0]?.message.content ?? '';
    const stop = free.split(' ')[2] ?? '';
    const stopped = await client.chat.completions.create({ ...greedy, stop });
    expect(stopped.choices[0]?.finish_reason).toBe('stop');
    expect(stopped.choices[0]?.message.content).toBe(free.slice(0, free.indexOf(stop)));
    const cut = await client.chat.completions.create({ ...greedy, max_completion_tokens: 2 });
    expect(cut.choices[0]?.finish_reason).toBe('length');
    expect(cut.usage?.completion_tokens).toBe(2);
    const ids = (await (await server.post(PATH, { ...greedy, return_token_ids: true })).json()) as Answer;
    const first = ids.choices[0]?.token_ids[0] as number;
    const biased = await server.post(PATH, { ...greedy, logit_bias: { [first]: -100 }, return_token_ids: true });
    expect(((await biased.json()) as Answer).choices[0]?.token_ids).not.toContain(first);
    const { text } = (await client.completions.create({ model: 'starter', prompt: 'Once', max_tokens: 5 }))
      .choices[0] as OpenAI.CompletionChoice;
    expect(text.length).toBeGreaterThan(0);
  });

  test.each<[string, object]>([
    ['logprobs', { logprobs: true }],
    ['prompt_logprobs', { prompt_logprobs: 1 }],
    ['response_format', { response_format: { type: 'json_object' } }],
    ['structured_outputs', { structured_outputs: { regex: 'a+' } }],
    ['tool_choice', { tools: [{ type: 'function', function: { name: 'f' } }], tool_choice: 'required' }],
    ['use_beam_search', { use_beam_search: true, n: 2 }],
    ['allowed_token_ids', { allowed_token_ids: [5] }],
    ['bad_words', { bad_words: ['no'] }],
    ['cache_salt', { cache_salt: 'salt' }],
    ['frequency_penalty', { frequency_penalty: 1, repetition_penalty: 1.2 }],
  ])('%s is refused by name', async (param, fields) => {
    const response = await server.post(PATH, { messages, ...fields });
    expect(response.status).toBe(400);
    const { error } = (await response.json()) as Refusal;
    expect(error).toMatchObject({ type: 'BadRequestError', param });
    expect(error.message).toContain('llama.cpp');
  });

  test('of /v1/responses too, by the names of its own fields', async () => {
    const include = ['message.output_text.logprobs'];
    for (const [param, fields] of Object.entries({
      include: { include },
      'text.format': { text: { format: { type: 'json_object' } } },
      tool_choice: { tools: [{ type: 'function', name: 'f', parameters: null }], tool_choice: 'required' },
      cache_salt: { cache_salt: 'salt' },
    })) {
      const response = await server.post('/v1/responses', { model: 'starter', input: 'Hello!', ...fields });
      expect(response.status).toBe(400);
      const { error } = (await response.json()) as Refusal;
      expect(error.param).toBe(param);
      expect(error.message).toMatch(new RegExp(`^\`${param}\` is not supported: .*llama\\.cpp`));
    }
  });

  test('what does not fit the context, and training, are refused', async () => {
    const long = await server.post(PATH, { messages: [{ role: 'user', content: 'word '.repeat(600) }] });
    expect(long.status).toBe(400);
    expect(((await long.json()) as Refusal).error.message).toContain('maximum context length is 400');
    const model = await server.post('/v1/preview/models', { project: 'p', name: 'm', base_model: 'starter' });
    expect(model.status).toBe(400);
    expect(((await model.json()) as Refusal).error.message).toContain('llama.cpp');
    expect(await (await server.call('/v1/preview/base-models')).json()).toMatchObject({ data: [] });
  });

  test('a client that leaves frees its sequences', async () => {
    const abort = new AbortController();
    const body = { messages, ignore_eos: true, max_tokens: 300, temperature: 1, n: 4, stream: true };
    const response = await server.post(PATH, body, { signal: abort.signal });
    await response.body?.getReader().read();
    expect((await server.load()).running).toBeGreaterThan(0);
    abort.abort();
    await idle();
  });

  test('kill -9 of the engine: unstreamed requests are answered to their end, streamed ones with an error', async () => {
    const body = { messages, ignore_eos: true, max_tokens: 60, temperature: 0 };
    const expected = ((await (await server.post(PATH, body)).json()) as Answer).choices[0]?.message.content ?? '';
    const pid = server.enginePid();
    const streamed = await server.post(PATH, { ...body, max_tokens: 300, stream: true });
    const unstreamed = server.post(PATH, { ...body, return_token_ids: true });
    await waitFor(async () => (await server.load()).running === 2, 5000);
    process.kill(pid, 'SIGKILL');
    const answer = await unstreamed;
    expect(answer.status).toBe(200);
    const [choice] = ((await answer.json()) as Answer).choices;
    expect(choice?.finish_reason).toBe('length');
    expect(choice?.token_ids).toHaveLength(60);
    // The part in which the model is sure of itself.
    expect(choice?.message.content.slice(0, 12)).toBe(expected.slice(0, 12));
    const events = readEvents(await streamed.text()) as Partial<Refusal>[];
    expect(events.at(-2)?.error).toMatchObject({ type: 'InternalServerError' });
    expect(server.enginePid()).not.toBe(pid);
    await idle();
  });
});
