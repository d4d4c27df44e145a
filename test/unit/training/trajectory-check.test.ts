/** What a group of trajectories may be: every field that is named is looked at, wherever it stands, and a fault is told at its own place. */
import { expect, test } from 'vitest';
import { ValidationError } from '../../../src/schemas/validation-error.ts';
import { checkGroup } from '../../../src/control/training/intake/trajectory-check.ts';

const VOCABULARY = 100;
const HISTORY = 'trajectories.0.messages_and_choices';
const ANOTHER = 'trajectories.0.additional_histories.0.messages_and_choices';
const TOOL = 'trajectories.0.tools.0.function';

const history = () => ({
  messages_and_choices: [
    { role: 'user', content: [{ type: 'text', text: 'a' }], tool_calls: [{}] },
    {
      finish_reason: 'stop',
      index: 0,
      request_id: 'r',
      message: { role: 'assistant', content: 'b', tool_calls: [{}] },
      token_ids: [1, 99],
      prompt_token_ids: [0],
      logprobs: {
        content: [
          { token: 'token_id:1', logprob: -1 },
          { token: 'text', logprob: 1e-7 },
        ],
        refusal: [{ token: 'token_id:5', logprob: -1e6 }],
      },
    },
  ] as object[],
  tools: [{ type: 'function', function: { name: 'f', description: 'd', parameters: {}, strict: true } }] as object[],
});

const valid = () => ({
  trajectories: [
    {
      ...history(),
      additional_histories: [history()],
      reward: 1e38,
      initial_policy_version: 1,
      final_policy_version: 1,
      metrics: { a: 1, b: true },
      metadata: {},
      logs: ['line'],
      start_time: '2026-01-01T00:00:00.000Z',
    },
  ],
  exceptions: [{}],
  metadata: {},
  metrics: { a: 1 },
  logs: ['line'],
});

/** With another value at a place; undefined: without one. */
function changed(place: string, value: unknown): unknown {
  const group = valid();
  const steps = place.split('.');
  const last = steps.pop() ?? '';
  const holder = steps.reduce<Record<string, unknown>>((at, step) => at[step] as Record<string, unknown>, group);
  if (value === undefined) delete holder[last];
  else holder[last] = value;
  return group;
}

function faultOf(group: unknown): string | null {
  try {
    checkGroup(group, ['group'], VOCABULARY);
    return null;
  } catch (error) {
    if (!(error instanceof ValidationError)) throw error;
    return error.details[0]?.loc.join('.') ?? '';
  }
}

test('a group with every field is taken, and one without what is not needed', () => {
  expect(faultOf(valid())).toBeNull();
  const optional = [
    ...['exceptions', 'metadata', 'metrics', 'logs'],
    ...['messages_and_choices', 'tools', 'additional_histories', 'metrics', 'metadata', 'logs', 'start_time'].map(
      (name) => `trajectories.0.${name}`,
    ),
    ...['initial_policy_version', 'final_policy_version'].map((name) => `trajectories.0.${name}`),
    ...['content', 'tool_calls'].map((name) => `${HISTORY}.0.${name}`),
    ...['finish_reason', 'index', 'request_id', 'token_ids', 'prompt_token_ids', 'logprobs'].map(
      (name) => `${HISTORY}.1.${name}`,
    ),
    ...['role', 'content', 'tool_calls'].map((name) => `${HISTORY}.1.message.${name}`),
    ...['content', 'refusal'].map((name) => `${HISTORY}.1.logprobs.${name}`),
    ...['description', 'parameters', 'strict'].map((name) => `${TOOL}.${name}`),
    'trajectories.0.tools.0.type',
  ];
  for (const place of optional) {
    // Where only the refusal has log-probabilities, they are those of the ids.
    if (place.endsWith('logprobs.content')) continue;
    expect(faultOf(changed(place, null)), place).toBeNull();
    // Without a finish_reason it is a message.
    if (!place.endsWith('finish_reason')) expect(faultOf(changed(place, undefined)), place).toBeNull();
  }
  expect(faultOf(changed('trajectories.0.reward', undefined))).toBeNull();
  expect(faultOf(changed('trajectories.0.reward', true))).toBeNull();
  expect(faultOf(changed(`${HISTORY}.1.logprobs.content`, []))).toBeNull();
  expect(faultOf(changed('metrics', { ['m'.repeat(256)]: 1 }))).toBeNull();
  // What a chat takes as content can be trained.
  for (const place of [`${HISTORY}.0.content`, `${HISTORY}.1.message.content`, `${ANOTHER}.0.content`]) {
    expect(faultOf(changed(place, ['a', { type: 'text', text: 'b' }])), place).toBeNull();
  }
});

test.each<[place: string, value: unknown, told?: string]>([
  ['trajectories', undefined],
  ['trajectories', {}],
  ['trajectories.0', 1],
  ['exceptions', {}],
  ['exceptions.0', 'a'],
  ['metadata', []],
  ['metrics', []],
  ['metrics.a', 'x'],
  ['metrics', { ['m'.repeat(257)]: 1 }, `metrics.${'m'.repeat(64)}…`],
  ['logs', 'a'],
  ['logs.0', 1],
  ['trajectories.0.metadata', 'a'],
  ['trajectories.0.metrics.a', null],
  ['trajectories.0.metrics', { ['m'.repeat(257)]: true }, `trajectories.0.metrics.${'m'.repeat(64)}…`],
  ['trajectories.0.metrics', Object.fromEntries(Array.from({ length: 1001 }, (_, i) => [i, 1]))],
  ['trajectories.0.logs.0', null],
  ['trajectories.0.logs', Array<string>(100_001).fill('')],
  ['trajectories.0.reward', null],
  ['trajectories.0.reward', -1.1e38],
  ['trajectories.0.initial_policy_version', -1],
  ['trajectories.0.initial_policy_version', 2, 'trajectories.0.final_policy_version'],
  ['trajectories.0.final_policy_version', 0.5],
  ['trajectories.0.start_time', 'yesterday'],
  ['trajectories.0.start_time', '2026-13-01T00:00:00Z'],
  ['trajectories.0.start_time', 5],
  ['trajectories.0.additional_histories', {}],
  ['trajectories.0.additional_histories.0', []],
  [ANOTHER, undefined],
  ...[HISTORY, ANOTHER].flatMap((list): [string, unknown, string?][] => [
    [list, 'a'],
    [`${list}.0`, 'a'],
    [`${list}.0.role`, undefined],
    [`${list}.0.role`, 1],
    [`${list}.0.role`, 'nobody'],
    [`${list}.0.content`, 1],
    [`${list}.0.content.0`, 1],
    [`${list}.0.tool_calls`, {}],
    [`${list}.0.tool_calls.0`, 1],
    [`${list}.1.finish_reason`, 1],
    [`${list}.1.index`, -1],
    [`${list}.1.index`, 'a'],
    [`${list}.1.request_id`, 1],
    [`${list}.1.message`, undefined],
    [`${list}.1.message`, 'a'],
    [`${list}.1.message.role`, 'user'],
    [`${list}.1.message.content`, 1],
    [`${list}.1.message.content`, [null], `${list}.1.message.content.0`],
    [`${list}.1.message.tool_calls.0`, 'a'],
    [`${list}.1.token_ids`, 'a'],
    [`${list}.1.token_ids`, [1], `${list}.1.logprobs.content`],
    [`${list}.1.token_ids.1`, 1.5],
    [`${list}.1.token_ids.1`, 100],
    [`${list}.1.token_ids.0`, 2, `${list}.1.logprobs.content.0.token`],
    [`${list}.1.prompt_token_ids.0`, 100],
    [`${list}.1.logprobs`, []],
    [`${list}.1.logprobs.content`, {}],
    [`${list}.1.logprobs.content`, null, `${list}.1.logprobs.refusal`],
    [`${list}.1.logprobs.content`, undefined, `${list}.1.logprobs.refusal`],
    [`${list}.1.logprobs.content.1`, 'a'],
    [`${list}.1.logprobs.content.1.token`, undefined],
    [`${list}.1.logprobs.content.1.logprob`, undefined],
    [`${list}.1.logprobs.content.1.logprob`, 1e-5],
    [`${list}.1.logprobs.refusal.0.logprob`, -1.1e6],
    [`${list}.1.logprobs.refusal.0.token`, 'token_id:100'],
  ]),
  ['trajectories.0.tools', {}],
  ['trajectories.0.additional_histories.0.tools.0', 1],
  ['trajectories.0.tools.0.type', 'code'],
  ['trajectories.0.tools.0.function', undefined],
  ['trajectories.0.tools.0.function', 'a'],
  [`${TOOL}.name`, undefined],
  [`${TOOL}.name`, 1],
  [`${TOOL}.description`, 1],
  [`${TOOL}.parameters`, []],
  [`${TOOL}.strict`, 'yes'],
])('%s: fault %# is refused at its place', (place, value, told = place) => {
  expect(faultOf(changed(place, value))).toBe(`group.${told}`);
});

test('token_ids of a last piece alone, as libraries keep of a stream, are the end of what the tokens are named', () => {
  const entries = [1, 2, 3].map((id) => ({ token: `token_id:${id}`, logprob: -1 }));
  const fault = (ids: number[], content: object[] = entries) => {
    const choice = { finish_reason: 'stop', message: { content: 'b' }, token_ids: ids, logprobs: { content } };
    return faultOf({ trajectories: [{ messages_and_choices: [choice] }] });
  };
  for (const ids of [[], [3], [2, 3], [1, 2, 3]]) expect(fault(ids), String(ids)).toBeNull();
  const logprobs = `group.${HISTORY}.0.logprobs.content`;
  expect(fault([1])).toBe(`${logprobs}.2.token`);
  expect(fault([0, 1, 2, 3])).toBe(logprobs);
  expect(fault([3], [{ token: 'text', logprob: -1 }, ...entries])).toBe(logprobs);
});
