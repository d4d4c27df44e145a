/** Replies as items of a response: however a reply is cut, its items are the same, and its events add up to them. */
import { accumulateResponse } from 'openai/lib/responses/ResponseAccumulator';
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest';
import { OutputItems } from '../../../src/api/responses/output-items.ts';
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
      const streamed = events.filter(({ type }) => type === 'response.output_text.delta');
      const [first] = items.flatMap((item) => (item.type === 'message' ? item.content : []));
      const told = streamed.flatMap((event) => event['logprobs']);
      expect(first?.logprobs.slice(0, told.length) ?? []).toEqual(told);
    }
  });
});

test('log-probabilities of a message are those of its own tokens, its end included', async () => {
  const textOf = (items: OutputItem[]) =>
    items.flatMap((item) => (item.type === 'message' ? item.content[0]?.logprobs.map(({ token }) => token) : []));
  expect(textOf(itemsOf(await replies.deltasOf('<think>hm</think>Yes', 1)).items)).toHaveLength('Yes'.length + 1);
  expect(textOf(itemsOf(await replies.deltasOf(`So ${call(1)}`, 1)).items)?.join('')).toBe('So ');
  expect(textOf(itemsOf(await replies.deltasOf('Yes', 1), { ...OPTIONS, logprobs: false }).items)).toEqual([]);
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
