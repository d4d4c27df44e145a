/** Replies as blocks of a message: however a reply is cut, its blocks are the same, and its events add up to them. */
import { MessageStream } from '@anthropic-ai/sdk/lib/MessageStream';
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest';
import { MessageBlocks, WholeBlocks } from '../../../src/api/responses/message-blocks.ts';
import { writeJson } from '../../../src/control/json-numbers.ts';
import type { ChoiceDelta } from '../../../src/control/sessions/session.ts';
import type { BlockEvent, ContentBlock } from '../../../src/schemas/message-object.ts';
import { call, CutReplies } from './cut-replies.ts';
import { delta } from './fakes.ts';
import { withoutIds } from './messages-asking.ts';

let replies: CutReplies;
beforeAll(async () => {
  replies = await CutReplies.start();
});
afterAll(() => replies.close());

function eventsOf(deltas: ChoiceDelta[], omitsThoughts = false): BlockEvent[] {
  const blocks = new MessageBlocks(omitsThoughts);
  return [...deltas.flatMap((each) => blocks.push(each)), ...blocks.end()];
}

function wholeOf(events: BlockEvent[]): ContentBlock[] {
  const whole = new WholeBlocks();
  for (const event of events) whole.take(event);
  return whole.blocks;
}

/** What the client's own library makes of the events. */
async function folded(events: BlockEvent[]): Promise<unknown> {
  const usage = { input_tokens: 1, output_tokens: 1 };
  const message = { id: 'm', type: 'message', role: 'assistant', model: 'm', content: [], stop_reason: null, usage };
  const all = [{ type: 'message_start', message }, ...events, { type: 'message_stop' }];
  const lines = all.map((event) => `${JSON.stringify(event)}\n`).join('');
  const stream = MessageStream.fromReadableStream(new Blob([lines]).stream());
  return JSON.parse(JSON.stringify((await stream.finalMessage()).content));
}

describe.each<[string, string, string[]]>([
  ['text', 'Hello.', ['text']],
  ['nothing', '', []],
  ['thoughts and text', '<think>hm é</think>Yes', ['thinking', 'text']],
  ['thoughts alone', '<think>hm 😀', ['thinking']],
  ['text and a call', `So: ${call(1)}`, ['text', 'tool_use']],
  ['calls', call(1) + call(2), ['tool_use', 'tool_use']],
  ['a call and text', `${call(1)}Done`, ['tool_use', 'text']],
  [
    'all of them in turn',
    `<think>a</think>b${call(1)}c${call(2)}d`,
    ['thinking', 'text', 'tool_use', 'text', 'tool_use', 'text'],
  ],
  ['a broken call', 'x<tool_call>{"name": ', ['text']],
])('%s', (_, text, expected) => {
  it('is the same blocks however it was cut, and its events add up to them', async () => {
    const whole = wholeOf(eventsOf(await replies.deltasOf(text, 1000)));
    expect(whole.map(({ type }) => type)).toEqual(expected);
    for (const [step, late] of [1, 2, 3, 7, 1000].flatMap((size) => [[size, false] as const, [size, true] as const])) {
      const events = eventsOf(await replies.deltasOf(text, step, late));
      const blocks = wholeOf(events);
      expect(withoutIds(blocks)).toEqual(withoutIds(whole));
      expect(await folded(events)).toEqual(blocks);
    }
  });
});

const piece = (args: string) => delta({ toolCalls: [{ index: 0, arguments: args }] });
const begun = delta({ toolCalls: [{ index: 0, id: 'chatcmpl-tool-ab12', name: 'f' }] });

test('a block is told from its beginning to its end before the next one', () => {
  const events = eventsOf([delta({ reasoning: 'hm' }), delta({ text: 'So' }), begun, piece('{"x'), piece('": 1}')]);
  expect(events.map(({ type, index }) => [type.replace('content_block_', ''), index])).toEqual([
    ...[
      ['start', 0],
      ['delta', 0],
      ['delta', 0],
      ['stop', 0],
    ],
    ...[
      ['start', 1],
      ['delta', 1],
      ['stop', 1],
    ],
    ...[
      ['start', 2],
      ['delta', 2],
      ['delta', 2],
      ['stop', 2],
    ],
  ]);
  expect(events[2]).toMatchObject({
    delta: { type: 'signature_delta', signature: expect.stringMatching(/^.{44}$/) as string },
  });
  expect(wholeOf(events)[2]).toEqual({ type: 'tool_use', id: 'toolu_ab12', name: 'f', input: { x: 1 } });
});

test.each([
  ['{"x": 1.0, "y": 12345678901234567890}', '{"x":1.0,"y":12345678901234567890}'],
  ['{"__proto__": {"a": 1}}', '{"__proto__":{"a":1}}'],
  ['', '{}'],
  ['{"x": "cut', '{}'],
])('the arguments %j are the input %s', (args, input) => {
  const [block] = wholeOf(eventsOf([begun, piece(args)]));
  expect(writeJson(block)).toContain(`"input":${input}`);
});

test('thoughts that are omitted are in the signature alone', async () => {
  const events = eventsOf(await replies.deltasOf('<think>secret é</think>Yes', 3), true);
  const [thinking, text] = wholeOf(events);
  expect([thinking, text]).toMatchObject([{ type: 'thinking', thinking: '' }, { text: 'Yes' }]);
  expect(events.filter((event) => 'delta' in event && event.delta.type === 'thinking_delta')).toEqual([]);
  const signature = thinking?.type === 'thinking' ? thinking.signature : '';
  expect(Buffer.from(signature.split(':')[1] ?? '', 'base64').toString()).toBe('secret é');
});
