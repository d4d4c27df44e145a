/** Chats that the model's template refuses: said by their place before a job is accepted, where one like them has not been rendered. */
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import type { ChatMessage } from '../../../src/control/sessions/session.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { createModel, finished, startPlane, trajectory, type Plane } from './plane.ts';

const RL = '/v1/preview/training-jobs';
const SFT = '/v1/preview/sft-training-jobs';
const WORDS = 'Conversation roles must alternate user/assistant/user/assistant/...';

let plane: Plane;
let rendered: string[] = [];
/** Thrown instead of the template's words. */
let other: SessionError | null = null;

beforeAll(async () => {
  plane = await startPlane();
  const { encodeChat } = plane.chat;
  plane.chat.encodeChat = (chat) => {
    rendered.push(chat.messages.map(({ role }) => role[0]).join(''));
    const refused = chat.messages.some(({ role }, i) => role === chat.messages[i - 1]?.role);
    if (refused) return Promise.reject(other ?? new SessionError('bad_request', WORDS, 'messages'));
    return encodeChat(chat);
  };
}, 120_000);
afterAll(() => plane?.end());
beforeEach(() => {
  rendered = [];
  other = null;
});

const user = { role: 'user', content: 'yes or no?' };
const reply: ChatMessage = { role: 'assistant', content: 'yes' };

async function sft(lines: string[]): Promise<Response> {
  const artifact = await plane.ok('/v1/preview/artifacts', { entity: null, project: 'p', name: 'data' });
  const path = `/v1/preview/artifacts/${String(artifact['id'])}`;
  await plane.call(`${path}/files/train.jsonl`, { method: 'PUT', body: lines.join('\n') });
  const { url } = await plane.ok(`${path}/commit`, {});
  const { id: modelId } = await createModel(plane, 'agent');
  return plane.post(SFT, { model_id: modelId, training_data_url: url });
}

async function rl(trajectories: object[]): Promise<Response> {
  const { id: modelId } = await createModel(plane, 'agent');
  const even = [trajectory([5], 1), trajectory([6], 0)];
  return plane.post(RL, { model_id: modelId, trajectory_groups: [{ trajectories: even }, { trajectories }] });
}

/** A trajectory that begins with the messages; with its prompt nothing of it is rendered. */
function played(reward: number, messages: object[], prompt: number[] | null = null): object {
  const [choice] = (trajectory([7, 8], 1)['messages_and_choices'] as object[]).slice(-1);
  return { messages_and_choices: [...messages, { ...choice, prompt_token_ids: prompt }], reward };
}

const line = (...messages: object[]) => JSON.stringify({ messages });

test('a line of training data, numbered as in the file', async () => {
  const response = await sft([line(user, reply), '', line(user, reply), line(user, user, reply), line(user, reply)]);
  const msg = `Line 4 of the training data cannot be rendered: ${WORDS}`;
  expect([response.status, await response.json()]).toMatchObject([
    422,
    { detail: [{ loc: ['body', 'training_data_url'], msg }] },
  ]);
  // One of each shape.
  expect(rendered).toEqual(['ua', 'uua']);
});

test('a history of a trajectory', async () => {
  const additional = { ...played(1, [user]), additional_histories: [played(0, [user, user])] };
  const response = await rl([played(0, [user]), additional]);
  const loc = 'body.trajectory_groups.1.trajectories.1.additional_histories.0.messages_and_choices'.split('.');
  expect([response.status, await response.json()]).toMatchObject([422, { detail: [{ loc, msg: WORDS }] }]);
  expect(rendered).toEqual(['ua', 'uua']);
});

test('not where nothing is rendered: with prompts, or without advantage', async () => {
  const twice = [user, user];
  const response = await rl([played(1, twice, [5, 6]), played(0, twice, [5, 6]), played(0.5, twice)]);
  const { id } = (await response.json()) as { id: string };
  expect((await finished(plane, id)).at(-1)?.type).toBe('training_ended');
});

test('what is too long for the context is left to the job, and what is not the chat is no 422', async () => {
  other = new SessionError('context_length', 'too long', 'messages');
  expect((await sft([line(user, user, reply)])).status).toBe(200);
  other = new SessionError('engine_failed', 'Rendering the prompt failed.', 'messages');
  expect((await sft([line(user, user, reply)])).status).toBe(500);
});
