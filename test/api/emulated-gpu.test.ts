/**
 * The server with `--device cuda` on an emulated GPU (native/test/emulation): from HTTP through the addon to the kernels, and back. The addon
 * over it is built with the native tests; a copy of the server loads it in the place of its own.
 */
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { goldenRequest, STARTER, starterGoldens } from '../fixtures/starter.ts';
import { writeRandomModel } from '../fixtures/tiny-model.ts';
import { json } from './preview.ts';
import { ApiServer, readEvents } from './server.ts';
import { createModel, ended, expectWhole, job, sample } from './training-jobs.ts';

const ROOT = fileURLToPath(new URL('../../', import.meta.url));
const ADDON = join(ROOT, 'native-test', 'tandem_emulated.node');
const CHAT = '/v1/chat/completions';
const TIMEOUT_MS = 300_000;

interface Answer {
  choices: {
    message: { content: string };
    finish_reason: string;
    token_ids: number[];
    logprobs: { content: { logprob: number }[] };
  }[];
  usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } };
  kv_transfer_params: { remote_host: string; remote_port: number } | null;
}

/** The server as it is, but for the addon. */
function copyOfServer(folder: string): string {
  cpSync(join(ROOT, 'dist'), join(folder, 'dist'), { recursive: true });
  cpSync(join(ROOT, 'package.json'), join(folder, 'package.json'));
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  mkdirSync(join(folder, 'native-build', 'Release'), { recursive: true });
  symlinkSync(ADDON, join(folder, 'native-build', 'Release', 'tandem.node'));
  return join(folder, 'dist', 'cli', 'main.js');
}

/** A stream of which something has come; the function leaves it, and says whether it went on until then. */
async function endlessStream(server: ApiServer): Promise<() => Promise<boolean>> {
  const leave = new AbortController();
  const messages = [{ role: 'user', content: 'Tell me more.' }];
  const body = { messages, max_tokens: 1500, ignore_eos: true, stream: true };
  const response = await server.post(CHAT, body, { signal: leave.signal });
  const reader = response.body!.getReader();
  await reader.read();
  const over = (async () => {
    while (!(await reader.read()).done);
    return false;
  })().catch(() => leave.signal.aborted);
  return () => {
    leave.abort();
    return over;
  };
}

describe.skipIf(!existsSync(ADDON))('a server on an emulated GPU', () => {
  const folder = mkdtempSync(join(tmpdir(), 'tandem-emulated-'));
  const memory = ['--kv-cache-memory', '64M', '--max-adapter-memory', '64M', '--training-memory', '256M'];
  let main: string;
  let server: ApiServer;
  beforeAll(async () => {
    main = copyOfServer(folder);
    server = await ApiServer.start({ main, flags: ['--model', STARTER, '--device', 'cuda', ...memory] });
  });
  afterAll(async () => {
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  async function ask(body: object, of = server): Promise<Answer> {
    const response = await of.post(CHAT, { return_token_ids: true, ...body });
    expect(response.status, await response.clone().text()).toBe(200);
    return (await response.json()) as Answer;
  }

  test('tells what it runs on, and its plan of memory', async () => {
    expect(server.log).toMatch(/bfloat16, cuda 9\.0, wgmma products, wgmma attention/);
    expect(server.log).toMatch(/GPU memory: weights [\d.]+ MiB, KV pages 64\.0 MiB/);
    expect(await (await server.call('/metrics')).text()).toMatch(/^tandem_num_requests_running\S* 0$/m);
  });

  test(
    'greedy tokens are those of transformers; log-probabilities the same bits alone, together and streamed',
    async () => {
      const goldens = starterGoldens.slice(0, 2);
      const bodies = goldens.map((golden) => ({ ...goldenRequest(golden), max_tokens: 8, logprobs: true }));
      const together = await Promise.all(bodies.map((body) => ask(body)));
      for (const [i, golden] of goldens.entries()) {
        const [choice] = together[i]!.choices;
        expect(choice!.token_ids).toEqual(golden.output_ids.slice(0, 8));
        for (const [k, { logprob }] of choice!.logprobs.content.entries()) {
          expect(Math.abs(logprob - golden.logprobs[k]!)).toBeLessThan(0.1);
        }
        expect((await ask(bodies[i]!)).choices).toEqual(together[i]!.choices);
      }
      const streamed = await server.post(CHAT, { ...bodies[0], stream: true });
      const chunks = readEvents(await streamed.text()).filter((event) => event !== '[DONE]') as {
        choices: { logprobs: { content: { logprob: number }[] } | null }[];
      }[];
      const pieces = chunks.flatMap(({ choices }) => choices[0]?.logprobs?.content ?? []);
      const whole = together[0]!.choices[0]!.logprobs.content;
      expect(pieces.map(({ logprob }) => logprob)).toEqual(whole.map(({ logprob }) => logprob));
    },
    TIMEOUT_MS,
  );

  test(
    'grammars with every control of sampling; the same seed gives the same',
    async () => {
      const schema = {
        type: 'object',
        properties: { name: { type: 'string', maxLength: 4 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
        required: ['name', 'age'],
        additionalProperties: false,
      };
      const body = {
        messages: [{ role: 'user', content: 'A person, please.' }],
        response_format: { type: 'json_schema', json_schema: { name: 'person', schema, strict: true } },
        ...{ n: 2, seed: 5, temperature: 0.9, top_p: 0.95, top_k: 50, min_p: 0.01, logit_bias: { 300: -5 } },
        ...{ presence_penalty: 0.2, frequency_penalty: 0.2, repetition_penalty: 1.1, bad_words: ['Clara'] },
        max_completion_tokens: 40,
      };
      const { choices } = await ask(body);
      for (const { message } of choices) {
        const person = JSON.parse(message.content) as { name: string; age: number };
        expect(Object.keys(person)).toEqual(['name', 'age']);
        expect(Number.isInteger(person.age)).toBe(true);
      }
      expect((await ask(body)).choices).toEqual(choices);
    },
    TIMEOUT_MS,
  );

  test(
    'KV blocks go to another server beside streams on both, and give the same bits',
    async () => {
      const model = join(folder, 'tiny');
      const heads = { num_attention_heads: 2, num_key_value_heads: 1, head_dim: 32 };
      writeRandomModel(model, { hidden_size: 64, intermediate_size: 128, num_hidden_layers: 1, ...heads });
      const flags = ['--model', model, '--device', 'cuda', ...memory, '--kv-secret', 'shared-by-the-peers'];
      const prefiller = await ApiServer.start({ main, flags: [...flags, '--kv-port', '0'] });
      const servers = [prefiller];
      try {
        const body = (topic: string) => ({
          messages: [{ role: 'user', content: `${topic}. `.repeat(8) }],
          ...{ temperature: 1, seed: 3, max_tokens: 4, logprobs: true },
        });
        const first = { max_tokens: 1, kv_transfer_params: { do_remote_decode: true, do_remote_prefill: false } };
        const handle = async (asked: object) => (await ask({ ...asked, ...first }, prefiller)).kv_transfer_params;
        const { remote_host: host, remote_port: port } = (await handle(body('A port')))!;
        const decoder = await ApiServer.start({ main, flags: [...flags, '--kv-peers', `${host}:${port}`] });
        servers.push(decoder);
        const streams = await Promise.all(servers.map(endlessStream));
        const bodies = ['A cold lake', 'A long walk', 'A red bird', 'A tall tree'].map(body);
        const pulled = await Promise.all(
          bodies.map(async (asked) => ask({ ...asked, kv_transfer_params: await handle(asked) }, decoder)),
        );
        for (const leave of streams) expect(await leave()).toBe(true);
        for (const [i, { choices, usage }] of pulled.entries()) {
          expect(usage.prompt_tokens_details.cached_tokens).toBe(Math.floor(usage.prompt_tokens / 16) * 16);
          expect(choices).toEqual((await ask({ ...bodies[i], cache_salt: 'alone' }, prefiller)).choices);
        }
      } finally {
        for (const started of servers) await started.stop();
      }
    },
    TIMEOUT_MS,
  );

  test(
    'a job trains on it, its step serves, and the engine that is killed afterwards comes back with it',
    async () => {
      const { id } = await createModel(server);
      const before = await sample(server, 'default/p/agent:step0', 7);
      const all = await ended(server, await job(server, id));
      expectWhole(all);
      // What sampled and what trains have the same bits.
      expect(all[1]?.data['probs_corr']).toBeCloseTo(1, 12);
      const after = await sample(server, 'default/p/agent', 7);
      expect(await sample(server, 'default/p/agent:step0', 7)).toEqual(before);
      expect(after.logprobs.content[0]?.logprob).not.toBe(before.logprobs.content[0]?.logprob);
      process.kill(server.enginePid(), 'SIGKILL');
      expect(await sample(server, 'default/p/agent:step1', 7)).toEqual(after);
      const page = await json(server, `/v1/preview/models/${id}/checkpoints?order=desc`);
      expect(page['data']).toMatchObject([{ step: 1 }, { step: 0 }]);
    },
    TIMEOUT_MS,
  );
});
