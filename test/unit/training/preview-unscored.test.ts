/** Jobs that train replies without log-probabilities as well (`allow_training_without_logprobs`): what they cannot is refused at the door. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createModel, finished, startPlane, type Plane } from './plane.ts';

const JOBS = '/v1/preview/training-jobs';

let plane: Plane;
beforeAll(async () => {
  plane = await startPlane();
}, 120_000);
afterAll(() => plane?.end());

const user = { role: 'user', content: 'yes or no?' };
const image = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] };
const reply = { role: 'assistant', content: 'yes' };
const calls = [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }];
const choice = (message: object, more: object = {}) => ({ finish_reason: 'stop', index: 0, message, ...more });
const sampled = choice(reply, {
  prompt_token_ids: [5, 6],
  logprobs: { content: [{ token: 'token_id:7', logprob: -1 }] },
});

/** The job's data are read before its settings, and the other way round. */
async function send(elements: object[], unscored: boolean, settingsFirst = false): Promise<Response> {
  const { id: modelId } = await createModel(plane, 'agent');
  const history = (reward: number) => ({ messages_and_choices: [user, reply], reward });
  const faulty = { ...history(1), additional_histories: [{ messages_and_choices: elements }] };
  const config = { experimental_config: { allow_training_without_logprobs: unscored } };
  const groups = { model_id: modelId, trajectory_groups: [{ trajectories: [history(0), faulty] }] };
  return plane.post(JOBS, settingsFirst ? { ...config, ...groups } : { ...groups, ...config });
}

test.each([
  ['an image before a reply', [user, image, reply], ['1', 'content', '0'], /'image_url': this model takes text only/],
  [
    'an image before a Choice without log-probabilities',
    [image, choice(reply)],
    ['0', 'content', '0'],
    /'image_url': this model takes text only/,
  ],
  [
    'an image before a reply with its prompt and one without',
    [image, sampled, reply],
    ['0', 'content', '0'],
    /image_url/,
  ],
  ['calls of a message', [user, { ...reply, tool_calls: calls }], ['1', 'tool_calls'], /cannot be trained without/],
  [
    'calls of a Choice',
    [user, choice({ ...reply, content: null, tool_calls: calls })],
    ['1', 'message', 'tool_calls'],
    /cannot be trained without/,
  ],
])('%s: refused by its place', async (_name, elements, place, problem) => {
  const before = ['body', 'trajectory_groups', '0', 'trajectories', '1', 'additional_histories', '0'];
  for (const settingsFirst of [false, true]) {
    const response = await send(elements, true, settingsFirst);
    const loc = [...before, 'messages_and_choices', ...place];
    const msg = expect.stringMatching(problem) as string;
    expect([response.status, await response.json()]).toMatchObject([422, { detail: [{ loc, msg }] }]);
  }
  // Without the setting these replies are context.
  expect((await send(elements, false)).status).toBe(200);
});

test('an image behind the last reply is no fault, and the job ends', async () => {
  const response = await send([user, reply, image], true);
  const { id } = (await response.json()) as { id: string };
  expect((await finished(plane, id)).at(-1)?.type).toBe('training_ended');
});
