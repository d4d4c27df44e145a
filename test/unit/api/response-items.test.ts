/** Replies as items of a response: however a reply is cut, its items are the same, and its events add up to them. */
import { accumulateResponse } from 'openai/lib/responses/ResponseAccumulator';
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest';
import { OutputItems } from '../../../src/api/responses/output-items.ts';
import { TextLogprobs } from '../../../src/api/responses/text-logprobs.ts';
import type { ChoiceDelta } from '../../../src/control/sessions/session.ts';
import type { OutputItem, ResponseEvent } from '../../../src/schemas/response-object.ts';
import { call, CutReplies } from './cut-replies.ts';
import { delta } from './fakes.ts';

const OPTIONS = { logprobs: true, encryptedContent: false, names: new Map(), maxLogprobs: Infinity };
let replies: CutReplies;
beforeAll(async () => {
  replies = await CutReplies.start();
});
afterAll(() => replies.close());

function itemsOf(deltas: ChoiceDelta[], options = OPTIONS): { items: OutputItem[]; events: ResponseEvent[] } {
  const output = new OutputItems('t', options);
  const events = deltas.flatMap((each) => structuredClone(output.push(each)));
  events.push(...structuredClone(output.end('completed')));
  return { items: output.items, events };
}

/** What the client's own library makes of the events. */
function folded(events: ResponseEvent[]): unknown[] {
  type Event = Parameters<typeof accumulateResponse>[0];
  const created = { type: 'response.created', response: { output: [], output_text: '' }, sequence_number: 0 };
  let snapshot = accumulateResponse(created as unknown as Event, undefined);
  for (const event of events) snapshot = accumulateResponse(event as unknown as Event, snapshot);
  return snapshot.output;
}

/** Calls have random ids. */
function withoutCallIds(items: unknown[]): unknown[] {
  return items.map((item) => ({ ...(item as object), call_id: '' }));
}

const kinds = (items: OutputItem[]) => items.map(({ type }) => type);

describe.each<[string, string, string[]]>([
  ['text', 'Hello.', ['message']],
  ['nothing', '', ['message']],
  ['thoughts and text', '<think>hm é</think>Yes', ['reasoning', 'message']],
  ['thoughts alone', '<think>hm', ['reasoning']],
  ['text and a call', `So: ${call(1)}`, ['message', 'function_call']],
  ['calls', call(1) + call(2), ['function_call', 'function_call']],
  ['a call and text', `${call(1)}Done`, ['function_call', 'message']],
  [
    'all of them in turn',
    `<think>a</think>b${call(1)}c${call(2)}d`,
    ['reasoning', 'message', 'function_call', 'message', 'function_call', 'message'],
  ],
  ['a broken call', 'x<tool_call>{"name": ', ['message']],
])('%s', (_, text, expected) => {
  it('is the same items however it was cut, and its events add up to them', async () => {
    const whole = itemsOf(await replies.deltasOf(text, 1000));
    expect(kinds(whole.items)).toEqual(expected);
    for (const [step, late] of [1, 2, 3, 7, 1000].flatMap((size) => [[size, false] as const, [size, true] as const])) {
      const { items, events } = itemsOf(await replies.deltasOf(text, step, late));
      expect(withoutCallIds(items)).toEqual(withoutCallIds(whole.items));
      expect(folded(events)).toEqual(items);
      checkLogprobs(items, events);
    }
  });
});

it('a call that broke off is incomplete, whatever follows it and however the reply ends', () => {
  const call = (args: string) => delta({ toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: args }] });
  for (const [args, status] of [
    ['{"x": 1}', 'completed'],
    ['{"x": ', 'incomplete'],
  ] as const) {
    for (const rest of [[], [delta({ text: 'y}' })]]) {
      const { items, events } = itemsOf([call(args), ...rest]);
      expect(items[0]).toMatchObject({ type: 'function_call', arguments: args, status });
      expect(folded(events)).toEqual(items);
    }
  }
});

const textParts = (items: OutputItem[]) => items.flatMap((item) => (item.type === 'message' ? item.content : []));
const END = '</s>';

/** What the tokens spell is the text, and the token that ended the reply behind it; a stream tells them with the text. */
function checkLogprobs(items: OutputItem[], events: ResponseEvent[]): void {
  for (const { text, logprobs } of textParts(items)) {
    const spelled = Buffer.from(logprobs.flatMap(({ bytes }) => bytes)).toString();
    expect([text, text + END]).toContain(spelled);
  }
  const streamed = events.filter(({ type }) => type === 'response.output_text.delta');
  const told = streamed.flatMap((event) => event['logprobs']);
  const all = textParts(items).flatMap(({ logprobs }) => logprobs);
  expect(all.slice(0, told.length)).toEqual(told);
  expect(all.length - told.length).toBeLessThanOrEqual(1);
  // None of them twice: a part begins without any.
  const begun = events.flatMap(({ type, part }) => (type === 'response.content_part.added' ? [part] : []));
  for (const part of begun) expect(part).toMatchObject({ text: '' });
  expect(begun.flatMap((part) => (part as { logprobs?: unknown[] }).logprobs ?? [])).toEqual([]);
}

describe('log-probabilities of messages', () => {
  const spelled = (items: OutputItem[]) =>
    textParts(items).map(({ logprobs }) => logprobs.map(({ token }) => token).join(''));
  const spelledIn = async (text: string) => spelled(itemsOf(await replies.deltasOf(text, 1)).items);

  test('are those of their own tokens, what ended the reply included', async () => {
    expect(await spelledIn('<think>hm</think>Yes')).toEqual([`Yes${END}`]);
    expect(await spelledIn(`So ${call(1)}`)).toEqual(['So ']);
    expect(await spelledIn(`${call(1)} \n Done${call(2)}No`)).toEqual([' \n Done', `No${END}`]);
    const { items } = itemsOf(await replies.deltasOf('Yes', 1), { ...OPTIONS, logprobs: false });
    expect(spelled(items)).toEqual(['']);
  });

  test.each([
    ['at its start', 'Stop here', ['Sto']],
    ['in its middle', 'Go on, stop', [', st']],
    ['after thoughts', '<think>hm</think>So stop', ['stop']],
    ['nowhere', 'So', ['stop']],
    ['of nothing', '', ['stop']],
  ])('are those of the chat where the text stops %s', async (_, text, stop) => {
    for (const [step, late] of [[1, false] as const, [3, false] as const, [1, true] as const]) {
      const deltas = await replies.deltasOf(text, step, late, stop);
      const chat = deltas.flatMap(({ logprobs }) => logprobs.map(({ token }) => token)).join('');
      expect(spelled(itemsOf(deltas).items)).toEqual([chat.replace('<think>hm</think>', '')]);
    }
  });

  test('of thoughts and calls do not pile up', () => {
    const logprobs = new TextLogprobs();
    const token = (at: number) => ({ token: 'a', logprob: -1, bytes: [97], tokenId: 1, top: [], chars: 1, at });
    for (let at = 0; at < 50; at++) {
      logprobs.add([token(at)]);
      logprobs.forget(3);
    }
    expect(logprobs.take('x'.repeat(50), 0)).toHaveLength(3);
  });
});

describe('harmony', () => {
  let harmony: CutReplies;
  beforeAll(async () => {
    harmony = await CutReplies.start('harmony');
  });
  afterAll(() => harmony.close());
  const on = (channel: string, text: string) => `<|channel|>${channel}<|message|>${text}`;
  const next = '<|end|><|start|>assistant';

  test.each([
    ['thoughts and text', `${on('analysis', 'hm')}${next}${on('final', 'Yes é')}`, [`Yes é${END}`]],
    ['text alone', on('final', 'final'), [`final${END}`]],
    ['two texts, which are one', `${on('commentary', 'So')}${next}${on('final', 'Yes')}`, [`SoYes${END}`]],
    [
      'texts with thoughts between',
      `${on('commentary', 'So')}${next}${on('analysis', 'So')}${next}${on('final', 'So')}`,
      ['So', `So${END}`],
    ],
    [
      'a call between',
      `${on('final', 'So')}${next}${on('commentary to=functions.f', '{"x": 1}')}<|call|><|start|>assistant${on('final', 'Yes')}`,
      ['So', `Yes${END}`],
    ],
    ['a mark at the end', `${on('final', 'Yes')}<|end|>`, ['Yes']],
    ['no harmony', 'Yes', [`Yes${END}`]],
  ])('%s: the tokens of a message spell its text', async (_, text, expected) => {
    for (const [step, late] of [1, 2, 5, 1000].flatMap((size) => [[size, false] as const, [size, true] as const])) {
      const { items, events } = itemsOf(await harmony.deltasOf(text, step, late));
      const bytes = textParts(items).map(({ logprobs }) => logprobs.flatMap((token) => token.bytes));
      expect(bytes.map((some) => Buffer.from(some).toString())).toEqual(expected);
      checkLogprobs(items, events);
    }
  });
});

test('too many log-probabilities are left to the events that they came with', async () => {
  const { items, events } = itemsOf(await replies.deltasOf('Hello', 1), { ...OPTIONS, maxLogprobs: 3 });
  expect(items).toMatchObject([{ content: [{ text: 'Hello', logprobs: [] }] }]);
  expect(events.flatMap((event) => event['logprobs'] ?? [])).toHaveLength(5);
});

test('the item that a reply ended in has the status of the end, others are completed', () => {
  const output = new OutputItems('t', OPTIONS);
  output.push(delta({ text: 'So', toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '{"x' }] }));
  output.end('incomplete');
  expect(output.items).toMatchObject([
    { id: 'msg_t_0', status: 'completed' },
    { id: 'fc_t_1', status: 'incomplete', call_id: 'c', arguments: '{"x' },
  ]);
});

test('encrypted_content is there where it was asked for', () => {
  const withThoughts = (encryptedContent: boolean) =>
    itemsOf([delta({ reasoning: 'hm', finish: 'stop' })], { ...OPTIONS, encryptedContent }).items[0];
  expect(withThoughts(true)).toHaveProperty('encrypted_content', expect.stringMatching(/./));
  expect(withThoughts(false)).not.toHaveProperty('encrypted_content');
});
