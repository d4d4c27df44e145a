/** The cutter of large bodies agrees with JSON.parse wherever it is cut; names of models; the memory of samples. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { serialize } from 'node:v8';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import type { OpenChat } from '../../../src/control/sessions/open-chat.ts';
import { ChatCheck } from '../../../src/control/training/intake/chat-check.ts';
import { readContent } from '../../../src/control/training/intake/content.ts';
import { JsonSplitter, type SplitterLimits } from '../../../src/control/training/intake/json-splitter.ts';
import { readRows } from '../../../src/control/training/intake/read-rows.ts';
import { readTrajectories } from '../../../src/control/training/intake/read-trajectories.ts';
import { formatModelName, parseModelName } from '../../../src/control/training/models/names.ts';
import { parseArtifactUrl } from '../../../src/control/training/artifacts/artifact-url.ts';
import { SampleMemory } from '../../../src/control/training/samples/sample-memory.ts';
import { seededRandom } from '../../../src/control/training/random.ts';
import { ROW_LIMITS } from './intake-limits.ts';

const LIMITS: SplitterLimits = { maxFieldBytes: 10_000, maxElementBytes: 10_000, maxDepth: 128 };

async function split(bytes: Uint8Array, cuts: number[], limits = LIMITS) {
  const fields: Record<string, unknown> = {};
  const items: unknown[] = [];
  const splitter = new JsonSplitter('items', limits, {
    field: (key, value) => void Object.defineProperty(fields, key, { value, enumerable: true, configurable: true }),
    element: (index, value) => {
      expect(index).toBe(items.length);
      items.push(value);
    },
  });
  let from = 0;
  for (const cut of [...cuts, bytes.length]) {
    // The buffer is used again for the next piece.
    const piece = Uint8Array.from(bytes.subarray(from, cut));
    await splitter.push(piece);
    piece.fill(0x7b);
    from = cut;
  }
  splitter.finish();
  return { fields, items: splitter.sawArray ? items : null };
}

/** A template that takes every chat. */
const TAKEN = new ChatCheck(() => Promise.resolve(null));

test('chats are rendered until one of their kind was, and a bounded number of kinds', async () => {
  let asked = 0;
  const check = new ChatCheck(() => {
    asked++;
    return Promise.resolve(null);
  });
  const ask = async (messages: object[], more: object = {}): Promise<boolean> => {
    const before = asked;
    const chat = { messages, tools: null, templateKwargs: {}, slots: [], continueFinalMessage: false, ...more };
    await check.refusal(chat as OpenChat);
    return asked > before;
  };
  const user = { role: 'user', content: 'a' };
  const call = (id: string, args: object = {}) => ({ id, function: { name: 'f', arguments: args } });
  const calling = (...calls: object[]) => ({ role: 'assistant', content: '', tool_calls: calls });
  expect(await ask([user])).toBe(true);
  expect(await ask([{ role: 'user', content: 'another text' }])).toBe(false);
  expect(await ask([{ role: 'user', content: '' }])).toBe(true);
  expect(await ask([{ role: 'system', content: 'a' }])).toBe(true);
  expect(await ask([user, user])).toBe(true);
  expect(await ask([user], { tools: [{ name: 'f' }] })).toBe(true);
  expect(await ask([user], { tools: [{ name: 'g' }] })).toBe(true);
  expect(await ask([user], { slots: [{ message: 0, text: 'x' }] })).toBe(true);
  expect(await ask([user, calling(call('123456789'))])).toBe(true);
  expect(await ask([user, calling(call('987654321', { other: 1 }))])).toBe(false);
  expect(await ask([user, calling(call('call_1'))])).toBe(true);
  expect(await ask([user, calling(call('1'), call('2'))])).toBe(true);
  for (let i = 3; i < 400; i++) await ask(Array<object>(i).fill(user));
  expect(asked).toBe(256);
});

test('chats of one body that take long are rendered for ten seconds: others wait to be read', async () => {
  let clock = 0;
  const find = () => {
    clock += 2_500;
    return Promise.resolve(null);
  };
  const check = new ChatCheck(find, () => clock);
  const chat = { tools: null, templateKwargs: {}, slots: [], continueFinalMessage: false };
  for (let i = 1; i < 9; i++) {
    // What happens between them is not theirs.
    clock += 60_000;
    await check.refusal({ ...chat, messages: Array.from({ length: i }, () => ({ role: 'user', content: 'a' })) });
  }
  expect(clock).toBe(8 * 60_000 + 4 * 2_500);
});

describe('lines of training data', () => {
  test('keep what a job trains on: messages with all of their keys, and tools', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'rows-'));
    try {
      const source = join(folder, 'train.jsonl');
      const target = join(folder, 'content');
      const user = { role: 'user', content: 'one?', name: 'someone', extra: [1.5, { __proto__x: null }] };
      const reply = {
        role: 'assistant',
        content: 'two',
        tool_calls: [{ id: 'c', type: 'function', function: { name: 'f' } }],
      };
      const choice = { finish_reason: 'stop', index: 0, message: reply, logprobs: { content: [{ token: 'x' }] } };
      const tools = [{ type: 'function', function: { name: 'f' } }];
      const played = { messages_and_choices: [user, choice], tools, reward: 1, metadata: { notes: [[], []] } };
      writeFileSync(source, `${JSON.stringify(played)}\n\n${JSON.stringify({ messages: [user, reply], x: [[], []] })}`);
      expect(await readRows(source, target, ROW_LIMITS, TAKEN)).toMatchObject({ rows: 2 });
      const kept = (await text(readContent(target)))
        .trimEnd()
        .split('\n')
        .map((line) => (line === '' ? null : (JSON.parse(line) as unknown)));
      expect(kept).toEqual([
        { messages: [user, reply], tools },
        // Lines keep their numbers.
        null,
        { messages: [user, reply], tools: null },
      ]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('are kept each once, as many as a file may have, blank ones too; no file stays open', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'rows-'));
    try {
      const [source, target] = [join(folder, 'train.jsonl'), join(folder, 'content')];
      // Some at once are compressed.
      const limits = { ...ROW_LIMITS, maxRowBytes: 2 ** 20 };
      const line = `{"messages":[{"role":"assistant","content":"${'b'.repeat(400_000)}"}],"tools":null}\n`;
      writeFileSync(source, `\n${line.repeat(8)}`);
      expect(await readRows(source, target, limits, TAKEN)).toMatchObject({ rows: 8 });
      expect((await text(readContent(target))) === `\n${line.repeat(8)}`).toBe(true);
      writeFileSync(source, `\n${line.repeat(9)}`);
      await expect(readRows(source, target, limits, TAKEN)).rejects.toThrow(
        'Line 10 of the training data is one too many: the file may have 9.',
      );
      expect(readdirSync('/proc/self/fd').map((fd) => readlink(`/proc/self/fd/${fd}`))).not.toContain(target);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('have tools that are objects: a number that is kept as it was written is none', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'rows-'));
    try {
      const source = join(folder, 'train.jsonl');
      writeFileSync(source, '{"messages": [{"role": "assistant", "content": "a"}], "tools": [1.0]}');
      await expect(readRows(source, join(folder, 'content'), ROW_LIMITS, TAKEN)).rejects.toMatchObject({
        details: [{ msg: expect.stringContaining('tools must be a list of objects.') as string }],
      });
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  const calling = (given: unknown) => ({ function: { name: 'f', arguments: given } });
  test.each([
    [{ content: [{ type: 'text', text: 5 }] }, 'content[0].text must be a text.'],
    [{ tool_calls: [{ name: 'f', args: {}, id: 'c' }] }, 'tool_calls[0].function must be an object with name'],
    [{ tool_calls: { 0: { function: { name: 'f' } } } }, 'tool_calls must be a list.'],
    [{ function_call: { arguments: '{}' } }, 'function_call.name must be a text.'],
    [
      { tool_calls: ['', ' ', null, undefined, {}, '{"a": 1}', '{a: 1}'].map(calling) },
      'tool_calls[6].function.arguments is not the JSON of an object.',
    ],
    [{ tool_calls: [calling('"x"')] }, 'tool_calls[0].function.arguments is not the JSON of an object.'],
    [{ function_call: { name: 'f', arguments: '[]' } }, 'function_call.arguments is not the JSON of an object.'],
    [{ content: '\ud800' }, null],
  ])('name what would not be trained as it is (%#)', async (more, problem) => {
    const folder = mkdtempSync(join(tmpdir(), 'rows-'));
    try {
      const source = join(folder, 'train.jsonl');
      const choice = { finish_reason: 'stop', message: { role: 'assistant', content: null, ...more } };
      writeFileSync(source, `\n${JSON.stringify({ messages: [{ role: 'user', content: 'one?' }, choice] })}`);
      const told = problem === null ? ' has a string with a lone surrogate.' : `: messages[1].${problem}`;
      await expect(readRows(source, join(folder, 'content'), ROW_LIMITS, TAKEN)).rejects.toMatchObject({
        details: [{ msg: expect.stringContaining(`Line 2 of the training data${told}`) as string }],
      });
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

test('what is told of logged trajectories does not grow with them', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'groups-'));
  try {
    const source = join(folder, 'body');
    const metrics = Object.fromEntries(Array.from({ length: 50 }, (_, i) => [`m${i}`, i]));
    const group = {
      trajectories: Array.from({ length: 100 }, () => ({ reward: 1, metrics, initial_policy_version: 1 })),
    };
    writeFileSync(source, JSON.stringify({ split: 'val', trajectory_groups: Array.from({ length: 20 }, () => group) }));
    const limits = { ...ROW_LIMITS, maxGroupBytes: 2 ** 20, maxFieldBytes: 100, maxTrajectories: 9999 };
    const task = { kind: 'trajectories', use: 'log', source, target: join(folder, 'content') } as const;
    const read = await readTrajectories(task, limits, () => Promise.resolve(new Map()), TAKEN);
    expect(read).toMatchObject({ fields: { split: 'val' }, groups: 20, trajectories: 2000 });
    expect([read.measures.metrics.get('m7'), read.measures.versions.count]).toEqual([7, 2000]);
    expect(serialize(read).length).toBeLessThan(2000);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('stored content that is read in part leaves no file open', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'content-'));
  const openFiles = () =>
    readdirSync('/proc/self/fd').filter((fd) => readlink(`/proc/self/fd/${fd}`).startsWith(folder)).length;
  try {
    const file = join(folder, 'content');
    // More than the streams between the file and its reader hold.
    writeFileSync(file, gzipSync(randomBytes(2 ** 20)));
    for await (const bytes of readContent(file)) {
      expect([bytes.length > 0, openFiles()]).toEqual([true, 1]);
      break;
    }
    await expect.poll(openFiles).toBe(0);
    const unread = readContent(file);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect([openFiles(), typeof unread.next]).toEqual([0, 'function']);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

/** Empty for a descriptor that is closed by now. */
function readlink(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

describe('JsonSplitter', () => {
  const texts = [
    '{}',
    ' \n{ } ',
    '{"items":[]}',
    '{"items":[1,2.5e-3,true,null,"a"],"x":-1}',
    '{"a":"\\"items\\":[","items":[ {"b":"]}\\\\\\"{["} , [[],{}] ],"c":{"items":[1]}}',
    '{"items":["\\\\"],"ü€😀":"\\ud83d\\ude00"}',
    '{"x":1,"x":2,"items":[{"x":[1,{"y":"}"}]}]}',
    '{"__proto__":{"a":1},"items":[]}',
  ];
  test.each(texts)('%s', async (text) => {
    const bytes = Buffer.from(text);
    const { items = null, ...rest } = JSON.parse(text) as Record<string, unknown>;
    for (let cut = 0; cut <= bytes.length; cut++) {
      const read = await split(bytes, [cut]);
      expect(read.items).toEqual(items);
      expect(JSON.stringify(read.fields)).toBe(JSON.stringify(rest));
    }
    const every = await split(bytes, [...bytes.keys()]);
    expect(every.items).toEqual(items);
  });

  test('random documents at random cuts', async () => {
    const random = seededRandom('splitter');
    const whole = (below: number) => Math.floor(random() * below);
    const value = (depth: number): unknown => {
      const kind = whole(depth > 3 ? 5 : 7);
      if (kind === 0) return whole(1e9) / 1000 - 1000;
      if (kind === 1) return [true, false, null][whole(3)];
      if (kind < 5)
        return Array.from({ length: whole(6) }, () => ['"', '\\', '{', '[', ']', ',', 'é', '\n', ' 1'][whole(9)]).join(
          '',
        );
      if (kind === 5) return Array.from({ length: whole(4) }, () => value(depth + 1));
      return Object.fromEntries(Array.from({ length: whole(4) }, (_, i) => [`k${i}"`, value(depth + 1)]));
    };
    for (let round = 0; round < 300; round++) {
      const items = Array.from({ length: whole(5) }, () => value(0));
      const document = { a: value(0), items, z: value(0) };
      const bytes = Buffer.from(JSON.stringify(document, null, whole(3)));
      const cuts = Array.from({ length: whole(6) }, () => whole(bytes.length)).sort((a, b) => a - b);
      expect(await split(bytes, cuts)).toEqual({ fields: { a: document.a, z: document.z }, items });
    }
  });

  test.each([
    '',
    ' ',
    '[]',
    '"x"',
    '{',
    '{"a"',
    '{"a":',
    '{"a":1',
    '{"a":1,',
    '{"a":1,}',
    '{"items":[',
    '{"items":[1',
    '{"items":[1,',
    '{"items":[1,]}',
    '{"items":[1 2]}',
    '{"items":[1]]}',
    '{"items":[1]',
    '{"items":[1]}x',
    '{"items":[NaN]}',
    '{"items":[Infinity]}',
    '{"items":[01]}',
    '{"items":[+1]}',
    '{items:[]}',
    "{'a':1}",
    '{"a":tru}',
    '{"a":"\n"}',
    '{"a":1 "b":2}',
    '{"a":,}',
    '{,}',
    '{"items":[1],"items":[2]}',
    '{"a":[1}}',
    '{"a":{"b":1]}',
    '{"a" 1}',
    '{"a":1}}',
  ])('%s is refused, as JSON.parse does', async (text) => {
    await expect(split(Buffer.from(text), [])).rejects.toMatchObject({ name: 'ValidationError' });
  });

  // They would be trained, or stored, as another character.
  test.each([
    ['{"a":["\\ud800"]}', ['body', 'a']],
    ['{"items":[1,{"\\ud83d \\ude00":1}]}', ['body', 'items', 1]],
  ])('a lone surrogate is refused: %s', async (text, loc) => {
    await expect(split(Buffer.from(text), [])).rejects.toMatchObject({ details: [{ loc }] });
  });

  test('a byte order mark before it is dropped, and stays in texts', async () => {
    const bytes = Buffer.from('\ufeff{"a":"\ufeffx","items":["\ufeff"]}');
    expect(await split(bytes, [])).toEqual({ fields: { a: '\ufeffx' }, items: ['\ufeff'] });
  });

  test('bounds', async () => {
    const limits = { maxFieldBytes: 50, maxElementBytes: 20, maxDepth: 4 };
    const refused = async (text: string) => split(Buffer.from(text), [5, 9], limits);
    await expect(refused(`{"items":["${'x'.repeat(30)}"]}`)).rejects.toThrow(/more than 20 bytes/);
    await expect(refused(`{"a":"${'x'.repeat(60)}"}`)).rejects.toThrow(/more than 50 bytes/);
    await expect(refused(`{"${'k'.repeat(60)}":1}`)).rejects.toThrow(/more than 50 bytes/);
    // All fields are held until the body ends: each may be short, and yet they are too much.
    const fields = (count: number) => Array.from({ length: count }, (_, i) => `"${i}":"1234567"`).join();
    expect(Object.keys((await refused(`{${fields(3)},"items":["${'x'.repeat(10)}"]}`)).fields)).toHaveLength(3);
    await expect(refused(`{${fields(5)}}`)).rejects.toThrow(/beside items have more than 50 bytes/);
    await expect(refused(`{${'"a":1,'.repeat(13)}"a":1}`)).rejects.toThrow(/more than 50 bytes/);
    await expect(refused('{"items":[[[[[[1]]]]]]}')).rejects.toThrow(/deeper than 4/);
    expect(await refused('{"items":[[[[[1]]]]]}')).toMatchObject({ items: [[[[[1]]]]] });
    // Of a value, in however many pieces it comes.
    const bytewise = Buffer.from(`{"items":["${'x'.repeat(30)}"]}`);
    await expect(split(bytewise, [...bytewise.keys()], limits)).rejects.toThrow(/more than 20 bytes/);
    const invalid = Buffer.concat([Buffer.from('{"items":["'), Buffer.from([0xff]), Buffer.from('"]}')]);
    await expect(split(invalid, [])).rejects.toThrow(/UTF-8/);
    // A bracket inside a string has no depth.
    expect(await refused('{"items":["[[[[[[[["]}')).toMatchObject({ items: ['[[[[[[[['] });
  });
});

describe('names of models', () => {
  const model = { entity: 'e', project: 'p r', name: 'n.1-x' };
  test.each([
    ['wandb-artifact:///e/p r/n.1-x', null],
    ['wandb-artifact://e/p r/n.1-x', null],
    ['e/p r/n.1-x', null],
    ['e/p r/n.1-x:latest', null],
    ['wandb-artifact:///e/p r/n.1-x:step0', 0],
    ['wandb-artifact://e/p r/n.1-x:step12', 12],
    ['e/p r/n.1-x:v3', 3],
  ])('%s', (text, step) => {
    expect(parseModelName(text)).toEqual({ ...model, step });
    expect(parseModelName(formatModelName({ ...model, step }))).toEqual({ ...model, step });
  });
  test.each([
    '',
    'x',
    'a/b',
    'a/b/c/d',
    '/b/c',
    'a//c',
    'a/b/',
    'a/b/:step1',
    'a/b/c:',
    'a/b/c:step',
    'a/b/c:step-1',
    'a/b/c:step1.5',
    'a/b/c:step1:2',
    'a/b/c:best',
    'wandb-artifact:////a/b/c',
    'http://a/b/c',
    `a/b/${'x'.repeat(600)}`,
  ])('%s is none', (text) => {
    expect(parseModelName(text)).toBeNull();
  });
  test.each([
    'x',
    'wandb-artifact:///a/b',
    'wandb-artifact:///a/b/c:step1',
    'a/b/c:v0',
    'wandb-artifact:///a/b/c:v-1',
    'wandb-artifact:///a/b/c/d:v0',
  ])('%s is no artifact', (text) => expect(parseArtifactUrl(text)).toBeNull());
});

describe('SampleMemory', () => {
  const prompt = Int32Array.from([1, 2]);
  const choice = { ids: [3, 4], logprobs: [-1, -0.5] };
  test('gives back what was sampled, to its entity only', () => {
    const memory = new SampleMemory(10_000);
    memory.remember('c-1', 'a', [prompt], [choice, null]);
    expect(memory.find('c-1', 'a')).toEqual([
      { promptIds: prompt, tokenIds: Int32Array.from([3, 4]), logprobs: Float32Array.from([-1, -0.5]) },
      null,
    ]);
    expect(memory.find('c-1', 'b')).toBeNull();
    expect(memory.find('c-2', 'a')).toBeNull();
  });
  test('knows a completion by the request_id that it was asked with', () => {
    const memory = new SampleMemory(10_000);
    memory.remember('chatcmpl-mine', 'a', [prompt], [choice]);
    memory.remember('cmpl-other', 'a', [prompt], [null]);
    expect(memory.find('mine', 'a')).toEqual(memory.find('chatcmpl-mine', 'a'));
    expect(memory.find('other', 'a')).toEqual([null]);
    expect(memory.find('mine', 'b')).toBeNull();
  });
  test('forgets the oldest beyond its bytes, and all after an hour', () => {
    let now = 0;
    const memory = new SampleMemory(3000, () => now);
    for (let i = 0; i < 20; i++) memory.remember(`c-${i}`, 'a', [prompt], [choice]);
    expect(memory.bytes).toBeLessThanOrEqual(3000);
    expect(memory.find('c-0', 'a')).toBeNull();
    expect(memory.find('c-19', 'a')).not.toBeNull();
    memory.remember('huge', 'a', [new Int32Array(10_000)], [choice]);
    expect(memory.find('huge', 'a')).toBeNull();
    expect(memory.find('c-19', 'a')).not.toBeNull();
    // Nor is what had its id before taken for it.
    memory.remember('c-18', 'a', [new Int32Array(10_000)], [choice]);
    expect(memory.find('c-18', 'a')).toBeNull();
    now = 3_600_001;
    expect(memory.find('c-19', 'a')).toBeNull();
    expect(memory.bytes).toBe(0);
  });
  test('many completions of one entity push out none of another that has less', () => {
    const memory = new SampleMemory(10_000);
    for (let i = 0; i < 4; i++) memory.remember(`a-${i}`, 'a', [prompt], [choice]);
    for (let i = 0; i < 100; i++) memory.remember(`b-${i}`, 'b', [prompt], [choice]);
    expect(memory.bytes).toBeLessThanOrEqual(10_000);
    for (let i = 0; i < 4; i++) expect(memory.find(`a-${i}`, 'a')).not.toBeNull();
    expect(memory.find('b-0', 'b')).toBeNull();
    expect(memory.find('b-99', 'b')).not.toBeNull();
    // Who has least may come to have as much as the other, and no more at its cost.
    for (let i = 4; i < 100; i++) memory.remember(`a-${i}`, 'a', [prompt], [choice]);
    expect(memory.find('a-0', 'a')).toBeNull();
    expect(memory.find('b-99', 'b')).not.toBeNull();
  });
  test('the same id again replaces; lists that do not fit are nothing', () => {
    const memory = new SampleMemory(10_000);
    memory.remember('c', 'a', [prompt], [choice]);
    const bytes = memory.bytes;
    memory.remember('c', 'a', [prompt], [{ ids: [1, 2], logprobs: [-1] }]);
    expect(memory.bytes).toBe(bytes);
    expect(memory.find('c', 'a')).toEqual([null]);
  });
});
