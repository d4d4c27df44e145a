/**
 * What the ART clients (openpipe-art) of 0.5.3 and 0.5.18 send, in their order, and what they read of the answers. Their HTTP layer is the
 * Python sibling of `openai`: the same pages, retries and error classes.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { CursorPage } from 'openai/pagination';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CLIENT_RL_CONFIG } from '../fixtures/client-rl-config.ts';
import { createEntityKey, UUID } from './preview.ts';
import { API_KEY, ApiServer } from './server.ts';

const BASE = 'Qwen/Qwen3-0.6B';
const TIMEOUT_MS = 120_000;

let dataDir: string;
let server: ApiServer;
let team: string;
beforeAll(async () => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-art-'));
  team = await createEntityKey(dataDir, 'team');
  server = await ApiServer.start({ dataDir, flags: ['--served-model-name', BASE] });
}, 120_000);
afterAll(async () => {
  await server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

interface Model {
  id: string;
  entity: string;
  project: string;
  name: string;
  base_model: string;
  run_id: string | null;
}

interface Checkpoint {
  id: string;
  step: number;
  metrics: Record<string, number>;
}

interface TrainingEvent {
  id: string;
  type: 'training_started' | 'gradient_step' | 'training_ended' | 'training_failed';
  data: Record<string, unknown>;
}

/** serverless/client.py and the part of serverless/backend.py that drives it. */
class ArtClient {
  readonly http: OpenAI;

  constructor(apiKey: string) {
    // Content-Type comes with every request, also without a body.
    const defaultHeaders = {
      'Content-Type': 'application/json',
      'User-Agent': 'Client/Python 2.14.0',
      'X-Stainless-Async': 'false',
    };
    this.http = new OpenAI({ apiKey, baseURL: `${server.url}/v1/`, maxRetries: 3, timeout: 600_000, defaultHeaders });
  }

  #post<T>(path: string, body: object): Promise<T> {
    return this.http.post<T>(path, { body, maxRetries: 0 });
  }

  register(name: string, entity: string | null = null): Promise<Model> {
    return this.#post('/preview/models', { entity, project: 'p', name, base_model: BASE, return_existing: true });
  }

  log(model: Model, groups: object[], split: string): Promise<unknown> {
    return this.#post(`/preview/models/${model.id}/log`, { model_id: model.id, trajectory_groups: groups, split });
  }

  async checkpoints(model: Model, query: object = {}): Promise<Checkpoint[]> {
    const path = `/preview/models/${model.id}/checkpoints`;
    return this.#all(path, query);
  }

  /** backend._get_step */
  async step(model: Model): Promise<number> {
    const path = `/preview/models/${model.id}/checkpoints`;
    const query = { limit: 1, order: 'desc' };
    for await (const { step } of this.#list<Checkpoint>(path, query)) return step;
    return 0;
  }

  deleteCheckpoints(model: Model, steps: number[]): Promise<unknown> {
    return this.http.delete(`/preview/models/${model.id}/checkpoints`, { body: { steps } });
  }

  deleteModel(model: Model): Promise<unknown> {
    return this.http.delete(`/preview/models/${model.id}`);
  }

  async train(model: Model, groups: object[], config: object | null): Promise<Record<string, number>[]> {
    const body = { model_id: model.id, trajectory_groups: groups, experimental_config: config };
    const { id } = await this.#post<{ id: string }>('/preview/training-jobs', body);
    return this.#follow(id);
  }

  async trainSft(model: Model, url: string, config: object): Promise<Record<string, number>[]> {
    const body = { model_id: model.id, training_data_url: url, config };
    const { id } = await this.#post<{ id: string }>('/preview/sft-training-jobs', body);
    return this.#follow(id);
  }

  /** Its loop: training_started does not move `after`, the end is returned at once. */
  async #follow(jobId: string): Promise<Record<string, number>[]> {
    const steps: Record<string, number>[] = [];
    let after: string | null = null;
    let sequences: number | null = null;
    for (;;) {
      for (const event of await this.#all<TrainingEvent>(
        `/preview/training-jobs/${jobId}/events`,
        after === null ? {} : { after },
      )) {
        if (event.type === 'training_started') {
          expect(event.data).toHaveProperty('num_sequences');
          sequences = Number(event.data['num_sequences']);
          continue;
        }
        after = event.id;
        if (event.type === 'training_ended') {
          expect(steps).toHaveLength(sequences ?? 0);
          return steps;
        }
        if (event.type === 'training_failed') throw new Error(String(event.data['error_message']));
        expect(sequences).not.toBeNull();
        const values = Object.entries(event.data).map(([name, value]) => [name, Number(value)] as const);
        for (const [name, value] of values) expect(Number.isFinite(value), name).toBe(true);
        steps.push(Object.fromEntries(values));
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  async #all<T extends { id: string }>(path: string, query: object): Promise<T[]> {
    const items: T[] = [];
    for await (const item of this.#list<T>(path, query)) items.push(item);
    return items;
  }

  #list<T extends { id: string }>(path: string, query: object): AsyncIterable<T> {
    return this.http.getAPIList<T, CursorPage<T>>(path, CursorPage<T>, { query });
  }
}

type Messages = OpenAI.ChatCompletionMessageParam[];

const question = { role: 'user' as const, content: 'yes, no or maybe?' };
const TOOL = {
  type: 'function' as const,
  function: { name: 'vote', description: 'Votes.', parameters: { type: 'object', properties: {} }, strict: false },
};

/** Rollouts never ask for log-probabilities; the choices come with them. */
async function rollout(client: ArtClient, model: string): Promise<object> {
  const { choices } = await client.http.chat.completions.create({ model, messages: [question], max_tokens: 6 });
  const [choice] = choices as (OpenAI.ChatCompletion.Choice & { token_ids?: number[] })[];
  const content = choice?.logprobs?.content ?? [];
  expect(content.length).toBeGreaterThan(0);
  expect(content.map(({ token }) => token)).toEqual(choice?.token_ids?.map((id) => `token_id:${id}`));
  expect(content[0]).toMatchObject({ bytes: expect.any(Array) as number[], top_logprobs: [] });
  return choice ?? {};
}

/** Trajectory.model_dump(mode="json") */
async function trajectory(client: ArtClient, model: string, reward: number, more: object): Promise<object> {
  return {
    messages_and_choices: [{ role: 'system', content: 'Answer.' }, question, await rollout(client, model)],
    tools: null,
    additional_histories: [],
    reward,
    metrics: { correct: reward > 0.5, turns: 1 },
    metadata: { scenario_id: 's1', attempt: 1, note: null, request_id: 'of my own' },
    logs: ['played'],
    ...more,
  };
}

const GROUP_FIELDS = {
  exceptions: [{ type: 'TimeoutError', message: 'slow', traceback: '...' }],
  metadata: { scenario_id: 's1' },
  metrics: { spread: 0.5 },
  logs: [],
};

async function groups(client: ArtClient, model: string, more: object): Promise<object[]> {
  const trajectories = [];
  for (const reward of [1, 0, 0.25]) trajectories.push(await trajectory(client, model, reward, more));
  return [{ trajectories, ...GROUP_FIELDS }];
}

interface StreamedChoice {
  finish_reason: string;
  index: number;
  message: { role: 'assistant'; content: string; tool_calls: { id: string; type: 'function'; function: Call }[] };
  logprobs: { content: OpenAI.ChatCompletionTokenLogprob[] };
  token_ids: number[];
  prompt_token_ids: number[];
}

interface Call {
  name: string;
  arguments: string;
}

type StreamedChunk = OpenAI.ChatCompletionChunk & { prompt_token_ids?: number[] };

/** openai.py: what a streamed rollout is put together to. Later versions join ids and names of calls as they join arguments. */
async function streamedRollout(client: ArtClient, body: object, messages: Messages): Promise<StreamedChoice> {
  const asked = { ...body, messages, stream: true } as OpenAI.ChatCompletionCreateParamsStreaming;
  const choice: StreamedChoice = {
    finish_reason: 'stop',
    index: 0,
    message: { role: 'assistant', content: '', tool_calls: [] },
    logprobs: { content: [] },
    token_ids: [],
    prompt_token_ids: [],
  };
  const { message } = choice;
  for await (const chunk of await client.http.chat.completions.create(asked)) {
    choice.prompt_token_ids = (chunk as StreamedChunk).prompt_token_ids ?? choice.prompt_token_ids;
    const [part] = chunk.choices as (OpenAI.ChatCompletionChunk.Choice & { token_ids?: number[] })[];
    if (!part) continue;
    choice.finish_reason = part.finish_reason ?? 'stop';
    choice.token_ids.push(...(part.token_ids ?? []));
    choice.logprobs.content.push(...(part.logprobs?.content ?? []));
    message.content += part.delta.content ?? '';
    for (const { index, id, function: named } of part.delta.tool_calls ?? []) {
      const call = (message.tool_calls[index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } });
      call.id += id ?? '';
      call.function.name += named?.name ?? '';
      call.function.arguments += named?.arguments ?? '';
    }
  }
  return choice;
}

const nameOf = ({ entity, project, name }: Model, step?: number) =>
  `wandb-artifact:///${entity}/${project}/${name}${step === undefined ? '' : `:step${step}`}`;

describe('0.5.18', () => {
  const VERSIONS = { initial_policy_version: 0, final_policy_version: 0 };

  test(
    'registers, samples, trains, lists and deletes',
    async () => {
      const client = new ArtClient(API_KEY);
      const model = await client.register('agent');
      expect(model).toMatchObject({ entity: 'default', project: 'p', name: 'agent', base_model: BASE });
      expect(model.id).toMatch(UUID);
      expect(await client.register('agent')).toEqual(model);
      expect(await client.step(model)).toBe(0);
      const played = await groups(client, nameOf(model, 0), VERSIONS);
      const [metrics, ...others] = await client.train(model, played, CLIENT_RL_CONFIG);
      expect(others).toEqual([]);
      // The names that its table of metrics knows.
      for (const name of ['loss', 'policy_loss', 'entropy', 'grad_norm', 'learning_rate', 'reward', 'reward_std_dev'])
        expect(metrics).toHaveProperty(name);
      expect(metrics).toMatchObject({
        exception_rate: 0.25,
        num_groups_submitted: 1,
        num_groups_trainable: 1,
        num_trajectories: 3,
      });
      expect(await client.step(model)).toBe(1);
      // Tools, more histories, and the loop's later options.
      const [first] = played as [{ trajectories: [{ messages_and_choices: object[] }] }];
      const more = { tools: [TOOL], additional_histories: [{ messages_and_choices: [question], tools: null }] };
      const trajectories = first.trajectories.map((item) => ({ ...item, ...more }));
      const config = { ...CLIENT_RL_CONFIG, kl_penalty_coef: 0.1, kl_penalty_step_lag: 1, loss_fn: 'ppo', ppo: true };
      expect(await client.train(model, [{ ...first, trajectories }], config)).toHaveLength(1);
      expect((await client.checkpoints(model)).map(({ step }) => step)).toEqual([0, 1, 2]);
      for (const step of [undefined, 0, 1, 2]) await rollout(client, nameOf(model, step));
      expect(await client.deleteCheckpoints(model, [0, 7])).toEqual({ deleted_count: 1, not_found_steps: [7] });
      expect((await client.checkpoints(model, { limit: 1 })).map(({ step }) => step)).toEqual([1, 2]);
      await expect(rollout(client, nameOf(model, 0))).rejects.toBeInstanceOf(OpenAI.NotFoundError);
      expect(await client.deleteModel(model)).toEqual({
        model_id: model.id,
        deleted_checkpoints: 2,
        deleted_run: true,
      });
      await expect(client.step(model)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    },
    TIMEOUT_MS,
  );

  test(
    'trains streamed rollouts with calls on exactly what was sampled',
    async () => {
      const client = new ArtClient(API_KEY);
      const model = await client.register('streamed');
      const name = 'lock_weather';
      const properties = { size: { type: 'string', enum: ['small', 'large'] }, repeat: { type: 'boolean' } };
      const parameters = { type: 'object', properties, required: ['size', 'repeat'] };
      const tools = [{ type: 'function', function: { name, description: 'Lock the weather.', parameters } }];
      const body = { model: nameOf(model, 0), tools, max_completion_tokens: 80, seed: 5 };
      const trajectories: object[] = [];
      for (const reward of [1, 0, 0.25]) {
        const played: (Messages[number] | StreamedChoice)[] = [];
        const history: Messages = [];
        const say = (message: Messages[number]) => void (played.push(message), history.push(message));
        say({ role: 'user', content: 'Lock the weather: repeat yes, size large.' });
        const call = await streamedRollout(client, body, history);
        const ids = call.message.tool_calls.map(({ id }) => id);
        expect(call.message.tool_calls.map((one) => one.function.name)).toEqual([name]);
        expect(ids).toEqual([expect.stringMatching(/^chatcmpl-tool-[0-9a-f]{32}$/)]);
        expect(call.finish_reason).toBe('tool_calls');
        played.push(call);
        history.push(call.message);
        say({ role: 'tool', tool_call_id: ids[0] ?? '', content: '{"status": "done"}' });
        played.push(await streamedRollout(client, body, history));
        trajectories.push({ messages_and_choices: played, tools, reward });
      }
      const [metrics] = await client.train(model, [{ trajectories }], CLIENT_RL_CONFIG);
      expect(metrics?.['probs_corr']).toBeGreaterThan(0.99);
    },
    TIMEOUT_MS,
  );

  test(
    'trains rollouts with tools on the prompt that they were sampled after',
    async () => {
      const client = new ArtClient(API_KEY);
      const model = await client.register('with-tools');
      const { name, description, parameters } = TOOL.function;
      const tools = [{ type: 'function' as const, function: { parameters, description, name } }];
      // As the fields of its types stand.
      const dumped = [{ function: { name, description, parameters }, type: 'function' }];
      const trajectories: object[] = [];
      for (const reward of [1, 0]) {
        const asked = { model: nameOf(model), messages: [question], tools, max_tokens: 8, seed: reward };
        const { choices } = await client.http.chat.completions.create(asked);
        trajectories.push({ messages_and_choices: [question, choices[0]], tools: dumped, reward });
      }
      const sampled = { kl_penalty_coef: 0.1, kl_penalty_source: 'sample', kl_penalty_step_lag: 0 };
      const [metrics] = await client.train(model, [{ trajectories }], { ...CLIENT_RL_CONFIG, ...sampled });
      expect(metrics).toMatchObject({ kl_policy_ref: 0, probs_corr: expect.closeTo(1, 9) as number });
    },
    TIMEOUT_MS,
  );

  test(
    'fine-tunes on what was uploaded before',
    async () => {
      const client = new ArtClient(API_KEY);
      const model = await client.register('tuned');
      const line = (content: string) =>
        JSON.stringify({ messages: [question, { role: 'assistant', content }], tools: [TOOL] });
      const api = '/v1/preview/artifacts';
      const opened = await server.post(api, { project: 'p', name: 'agent-sft-data-7194bdcab705', type: 'dataset' });
      const { id } = (await opened.json()) as { id: string };
      const body = ['yes', 'no', 'maybe'].map(line).join('\n');
      expect((await server.call(`${api}/${id}/files/train.jsonl`, { method: 'PUT', body })).status).toBe(200);
      expect((await server.call(`${api}/${id}/commit`, { method: 'POST' })).status).toBe(200);
      const url = 'wandb-artifact:///default/p/agent-sft-data-7194bdcab705:v0';
      expect(await client.trainSft(model, url, { learning_rate: 5e-5 })).toHaveLength(2);
      const rates = { batch_size: 1, learning_rate: [1e-4, 5e-5, 1e-5] };
      const steps = await client.trainSft(model, url, rates);
      expect(steps.map(({ learning_rate: rate }) => rate)).toEqual(rates.learning_rate);
      expect(await client.step(model)).toBe(2);
    },
    TIMEOUT_MS,
  );

  test('errors are of the classes that it knows', async () => {
    const client = new ArtClient(API_KEY);
    const model = await client.register('refused');
    const unknown = client.train(model, [], { epsilom: 1 });
    await expect(unknown).rejects.toBeInstanceOf(OpenAI.UnprocessableEntityError);
    await expect(client.register('refused', 'team')).rejects.toBeInstanceOf(OpenAI.PermissionDeniedError);
    const stranger = new ArtClient(team);
    await expect(stranger.checkpoints(model)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(new ArtClient('tk-none').register('x')).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
  });
});

describe('0.5.3', () => {
  test(
    'registers, samples, logs, trains, and keeps the best step by its val/reward',
    async () => {
      const client = new ArtClient(team);
      const model = await client.register('older', 'team');
      expect(model.entity).toBe('team');
      // Names had no scheme.
      const played = await groups(client, 'team/p/older', { auto_metrics: { duration: 1.5 } });
      const log = await client.log(model, played, 'val');
      expect(log).toBeTypeOf('object');
      // Only what was set; null is the default.
      const config = {
        advantage_balance: null,
        epsilon: null,
        epsilon_high: null,
        importance_sampling_level: null,
        kimi_k2_tau: null,
        learning_rate: 5e-6,
        mask_prob_ratio: null,
        max_negative_advantage_importance_sampling_weight: null,
        ppo: true,
        precalculate_logprobs: null,
        scale_rewards: null,
      };
      expect(await client.train(model, played, config)).toHaveLength(1);
      await client.log(model, [{ trajectories: [], ...GROUP_FIELDS }], 'val');
      expect(await client.train(model, played, null)).toHaveLength(1);
      const [zero, one, two] = await client.checkpoints(model);
      expect(zero?.metrics).toMatchObject({
        'val/reward': expect.closeTo(5 / 12, 12) as number,
        'val/correct': expect.closeTo(1 / 3, 12) as number,
        'val/turns': 1,
        'val/group_spread': 0.5,
        'val/exception_rate': 0.25,
      });
      expect(one?.metrics).toMatchObject({ 'val/exception_rate': 1, 'train/reward': expect.any(Number) as number });
      expect(one?.metrics).not.toHaveProperty('val/reward');
      expect(two?.step).toBe(2);
      await rollout(client, 'team/p/older:step2');
    },
    TIMEOUT_MS,
  );
});
