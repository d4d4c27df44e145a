/** Jobs of reinforcement learning as the tests of a server ask for them, and how they end. */
import { expect } from 'vitest';
import { json } from './preview.ts';
import { waitFor, type ApiServer } from './server.ts';

const CHAT = '/v1/chat/completions';
export const JOBS = '/v1/preview/training-jobs';
const messages = [{ role: 'user', content: 'yes, no or maybe?' }];

export interface Choice {
  finish_reason: string;
  message: { content: string };
  token_ids: number[];
  logprobs: { content: { token: string; logprob: number }[] };
}

export async function sample(server: ApiServer, model: string, seed: number): Promise<Choice> {
  const response = await server.post(CHAT, { model, messages, seed, max_completion_tokens: 8, temperature: 1 });
  if (response.status !== 200) throw new Error(await response.text());
  return ((await response.json()) as { choices: [Choice] }).choices[0];
}

export async function createModel(server: ApiServer): Promise<{ id: string; base: string }> {
  const list = (await (await server.call('/v1/models')).json()) as { data: { id: string }[] };
  const base = list.data[0]?.id ?? '';
  const body = { entity: null, project: 'p', name: 'agent', base_model: base, return_existing: true };
  const model = (await (await server.post('/v1/preview/models', body)).json()) as { id: string };
  return { id: model.id, base };
}

/** Four groups of three rollouts, longer replies rewarded; rows are short, so that there are several steps. */
export async function job(server: ApiServer, modelId: string): Promise<string> {
  const groups = [];
  for (let g = 0; g < 4; g++) {
    const trajectories = [];
    for (let i = 0; i < 3; i++) {
      const choice = await sample(server, 'default/p/agent', 10 * g + i);
      trajectories.push({ messages_and_choices: [...messages, choice], reward: i + choice.token_ids.length });
    }
    groups.push({ trajectories });
  }
  const experimental_config = { learning_rate: 1e-3, packed_sequence_length: 64, logprob_calculation_chunk_size: 64 };
  const response = await server.post(JOBS, { model_id: modelId, trajectory_groups: groups, experimental_config });
  if (response.status !== 200) throw new Error(await response.text());
  return ((await response.json()) as { id: string }).id;
}

export interface Event {
  id: string;
  type: string;
  data: Record<string, number>;
}

export async function events(server: ApiServer, jobId: string): Promise<Event[]> {
  return (await json(server, `${JOBS}/${jobId}/events?limit=100`))['data'] as Event[];
}

export async function ended(server: ApiServer, jobId: string): Promise<Event[]> {
  let found: Event[] = [];
  await waitFor(
    async () => {
      found = await events(server, jobId);
      return found.some(({ type }) => type === 'training_ended' || type === 'training_failed');
    },
    120_000,
    () => JSON.stringify(found),
  );
  return found;
}

export function expectWhole(all: Event[]): void {
  const steps = all[0]?.data['num_sequences'] ?? 0;
  expect(steps).toBeGreaterThan(1);
  expect(all.map(({ type }) => type)).toEqual([
    'training_started',
    ...Array.from({ length: steps }, () => 'gradient_step'),
    'training_ended',
  ]);
}
