/** A model whose feed-forwards are mixtures of experts, from the outside: chats, adapters, and training of what lies beside the experts. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { loadModel } from '../../src/control/models/load.ts';
import { writeAdapter } from '../fixtures/adapters.ts';
import { temporaryDirectory, writeRandomModel } from '../fixtures/tiny-model.ts';
import { json } from './preview.ts';
import { ApiServer, waitFor } from './server.ts';

const JOBS = '/v1/preview/training-jobs';
const AGENT = 'default/p/agent';
const QUESTION = 'Which way?';
const messages = [{ role: 'user', content: QUESTION }];

const temporary = temporaryDirectory();
const folder = (name: string) => join(temporary.path, name);
let server: ApiServer;

beforeAll(async () => {
  const config = {
    architectures: ['Qwen3MoeForCausalLM'],
    model_type: 'qwen3_moe',
    num_experts: 8,
    num_experts_per_tok: 3,
    moe_intermediate_size: 48,
    norm_topk_prob: true,
    num_hidden_layers: 2,
  };
  writeRandomModel(folder('moe'), config);
  const { spec } = await loadModel(folder('moe'));
  writeAdapter(folder('attention'), spec, { seed: 'one', modules: ['q', 'k', 'v', 'o'] });
  writeAdapter(folder('all'), spec, { seed: 'two' });
  const flags = ['--model', folder('moe'), '--lora-modules', `attention=${folder('attention')}`];
  server = await ApiServer.start({ flags: [...flags, '--allow-runtime-lora-updating'], dataDir: folder('data') });
}, 120_000);
afterAll(async () => {
  await server?.stop();
  temporary.remove();
});

interface Reply {
  choices: { token_ids: number[]; logprobs: { content: { logprob: number }[] } }[];
}

async function ask(model: string, content: string) {
  const response = await server.post('/v1/chat/completions', {
    model,
    messages: [{ role: 'user', content }],
    temperature: 1,
    seed: 5,
    max_tokens: 16,
    ignore_eos: true,
    logprobs: true,
    return_token_ids: true,
  });
  expect(response.status, await response.clone().text()).toBe(200);
  const { choices } = (await response.json()) as Reply;
  return choices.map((choice) => ({
    ids: choice.token_ids,
    logprobs: choice.logprobs.content.map((token) => token.logprob),
  }))[0]!;
}

async function post(path: string, body: object): Promise<Record<string, unknown>> {
  const response = await server.post(path, body);
  expect(response.status, await response.clone().text()).toBe(200);
  return (await response.json()) as Record<string, unknown>;
}

test('an answer is the same alone and beside others', async () => {
  const alone = await ask('moe', QUESTION);
  expect(alone.ids).toHaveLength(16);
  const [again] = await Promise.all([
    ask('moe', QUESTION),
    ask('moe', 'Another one.'),
    ask('attention', 'And under an adapter.'),
  ]);
  expect(again).toEqual(alone);
  expect(await ask('attention', QUESTION)).not.toEqual(alone);
});

test('factors that would lie on experts are refused', async () => {
  const response = await server.post('/v1/load_lora_adapter', { lora_name: 'all', lora_path: folder('all') });
  expect(response.status).toBe(400);
  expect(await response.text()).toContain(
    'has factors of model.layers.0.mlp.gate_proj, but that layer of the model is a mixture of experts',
  );
});

test('what is sampled trains with the same log-probabilities, the new step serves, its factors are those of attention', async () => {
  const model = await post('/v1/preview/models', {
    entity: null,
    project: 'p',
    name: 'agent',
    base_model: 'moe',
    return_existing: true,
  });
  const before = await ask(AGENT, QUESTION);
  expect(before).toEqual(await ask('moe', QUESTION));
  const trajectories = [];
  for (let i = 0; i < 4; i++) {
    const body = { model: AGENT, messages, seed: i, max_tokens: 12, temperature: 1 };
    const { choices } = (await (await server.post('/v1/chat/completions', body)).json()) as { choices: [object] };
    trajectories.push({ messages_and_choices: [...messages, choices[0]], reward: i });
  }
  const job = await post(JOBS, {
    model_id: model['id'],
    trajectory_groups: [{ trajectories }],
    experimental_config: { learning_rate: 0.01 },
  });
  let events: { type: string; data: Record<string, number> }[] = [];
  await waitFor(
    async () => {
      events = (await json(server, `${JOBS}/${String(job['id'])}/events?limit=100`))['data'] as typeof events;
      return events.some(({ type }) => type === 'training_ended' || type === 'training_failed');
    },
    120_000,
    () => JSON.stringify(events),
  );
  expect(events.map(({ type }) => type)).toEqual(['training_started', 'gradient_step', 'training_ended']);
  expect(events[1]?.data['probs_corr']).toBeGreaterThan(0.999);
  expect(events[1]?.data['grad_norm']).toBeGreaterThan(0);
  expect(await ask(AGENT, QUESTION)).not.toEqual(before);
  expect(await ask('moe', QUESTION)).toEqual(before);
  const files = readdirSync(folder('data'), { recursive: true, encoding: 'utf8' });
  const config = files.find((path) => path.endsWith('adapter_config.json'));
  expect(JSON.parse(readFileSync(join(folder('data'), config ?? ''), 'utf8'))).toMatchObject({
    target_modules: ['q_proj', 'k_proj', 'v_proj', 'o_proj'],
  });
});
