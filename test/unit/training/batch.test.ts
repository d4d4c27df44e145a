import { describe, expect, it } from 'vitest';
import { rlBatch } from '../../../src/control/training/rl-batch.ts';
import { resolveRlConfig } from '../../../src/control/training/rl-config.ts';
import { resolveSftConfig } from '../../../src/control/training/sft-config.ts';
import { parseConversation, readLines } from '../../../src/control/training/sft-data.ts';
import { responseSpans, SftTokenizer } from '../../../src/control/training/sft-tokens.ts';
import type { HistoryElement, Trajectory, TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import type { RlConfigBody } from '../../../src/schemas/rl-config.ts';
import { starterChat } from './chat-encoder.ts';

const chat = await starterChat();
const user = (content: string): HistoryElement => ({ role: 'user', content });

function choice(text: string): HistoryElement {
  const content = chat.ids(text).map((id) => ({ token: `token_id:${id}`, logprob: -2 }));
  return { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: text }, logprobs: { content } };
}

async function* stream<T>(items: readonly T[]): AsyncGenerator<T> {
  for (const item of items) yield await Promise.resolve(item);
}

const batch = (groups: TrajectoryGroup[], config: RlConfigBody = {}, seed = 's') =>
  rlBatch(stream(groups), resolveRlConfig(config), chat, seed);

const reply = (reward: number, text = 'yes', more: Partial<Trajectory> = {}): Trajectory => ({
  messages_and_choices: [user('a'), choice(text)],
  reward,
  ...more,
});

describe('the rows of an RL job', () => {
  it('leave out trajectories without an advantage and empty groups', async () => {
    const { rows, stats } = await batch([
      { trajectories: [reply(1), reply(0), reply(0.5)] },
      { trajectories: [reply(1), reply(1)] },
      { trajectories: [reply(1)] },
      { trajectories: [], exceptions: [{}] },
    ]);
    expect(rows).toHaveLength(1);
    expect(rows[0]?.packed.members).toHaveLength(2);
    expect(stats).toMatchObject({ groupsSubmitted: 4, groupsTrainable: 1, trajectories: 6, dropped: 0 });
    expect(stats.exceptionRate).toBeCloseTo(1 / 7, 12);
    expect(stats.reward).toBeCloseTo(4.5 / 6, 12);
  });

  it('give each trajectory its own advantage, whoever has none before it', async () => {
    const rewards = [0.5, 1, 0.5, 0, 0.5, 0.75, 0.25];
    const { rows } = await batch([{ trajectories: rewards.map((reward, i) => reply(reward, `${i}`)) }]);
    const signs = [...(rows[0]?.advantages ?? [])].map((advantage) => Math.sign(advantage));
    const [best, , good] = rows[0]?.advantages ?? [];
    expect(signs).toEqual([1, -1, 1, -1]);
    expect((good ?? 0) / (best ?? 1)).toBeCloseTo(0.5, 12);
  });

  it('give every history of a trajectory its advantage and its weight', async () => {
    const history = { messages_and_choices: [user('b'), choice('no'), user('c'), choice('no')] };
    const { rows } = await batch([{ trajectories: [reply(1, 'yes', { additional_histories: [history] }), reply(0)] }]);
    const [row] = rows;
    const of = (member: number) =>
      [...(row?.packed.member.keys() ?? [])].filter((i) => row?.packed.member[i] === member);
    const [main = 0, extra = 0, other = 0] = [0, 1, 2].map((member) => of(member)[0] ?? -1);
    expect([0, 1, 2].map((member) => of(member).length)).toEqual([1, 2, 1]);
    expect(row?.advantages[main]).toBe(row?.advantages[extra]);
    expect(row?.weights[main]).toBe(row?.weights[extra]);
    // Three trained tokens against one.
    expect((row?.weights[other] ?? 0) / (row?.weights[main] ?? 1)).toBeCloseTo(3, 4);
    expect((row?.advantages[other] ?? 0) / (row?.advantages[main] ?? 1)).toBeCloseTo(-1, 12);
  });

  it('come in an order that the seed decides', async () => {
    const groups = Array.from({ length: 12 }, (_, i) => ({ trajectories: [reply(1, `${i}`), reply(0, `${i} x`)] }));
    const config = { packed_sequence_length: 32, logprob_calculation_chunk_size: 32 };
    const order = async (seed: string) =>
      (await batch(groups, config, seed)).rows.map(({ packed }) => packed.members[0]);
    expect(await order('a')).toEqual(await order('a'));
    expect(await order('a')).not.toEqual(await order('b'));
  });

  it('survive rewards at the edge of numbers', async () => {
    const { rows } = await batch([{ trajectories: [reply(1e100), reply(-1e100), reply(0)] }]);
    expect(rows[0]?.advantages.every(Number.isFinite)).toBe(true);
    const tiny = await batch([{ trajectories: [reply(5e-324), reply(0)] }]);
    expect(tiny.rows[0]?.advantages.every(Number.isFinite) ?? true).toBe(true);
  });

  it('leave out what is longer than any prompt, and count it', async () => {
    const long = { reward: 1, messages_and_choices: [user('x'.repeat(9_000_000)), choice('yes')] };
    const { rows, stats } = await batch([{ trajectories: [long, reply(0)] }]);
    expect(rows[0]?.packed.members).toHaveLength(1);
    expect(stats).toMatchObject({ trajectories: 2, dropped: 1 });
    const tokenizer = new SftTokenizer(chat, resolveSftConfig(null));
    const messages = [
      { role: 'user', content: 'x'.repeat(9_000_000) },
      { role: 'assistant', content: 'no' },
    ];
    expect(await tokenizer.sequence({ messages, tools: null, line: 1 }, 0)).toBeNull();
  });

  it('take many trajectories', async () => {
    const trajectory = reply(0);
    const trajectories = Array.from({ length: 20_000 }, (_, i) => ({ ...trajectory, reward: i === 0 ? 1 : 0 }));
    const { stats } = await batch([
      { trajectories: trajectories.slice(0, 50) },
      { trajectories: trajectories.slice(1) },
    ]);
    expect(stats.trajectories).toBe(20_049);
  });
});

describe('the tokens of a conversation', () => {
  async function shown(line: object, config: Parameters<typeof resolveSftConfig>[0] = null): Promise<string> {
    const tokenizer = new SftTokenizer(chat, resolveSftConfig(config));
    let text = '';
    for await (const read of readLines(stream([Buffer.from(JSON.stringify(line))]))) {
      const sequence = await tokenizer.sequence(parseConversation(read), 0);
      const trained = new Set(sequence?.trainable);
      sequence?.tokens.forEach((id, i) => {
        text += trained.has(i) ? `[${chat.text([id])}]` : chat.text([id]);
      });
    }
    return text.replaceAll('][', '');
  }

  const assistant = (content: string): HistoryElement => ({ role: 'assistant', content });
  const messages = [{ role: 'system', content: 's' }, user('a'), assistant('one'), user('b'), assistant('two')];

  it('train what the assistant says, with the end of its turn', async () => {
    expect(await shown({ messages })).toBe(
      '<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[one<|im_end|>\n]' +
        '<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\ntwo<|im_end|>\n]',
    );
  });

  it('train only the last turn where asked', async () => {
    const text = await shown({ messages }, { assistant_turns: 'last' });
    expect(text).toContain('assistant\none<|im_end|>');
    expect(text).toContain('two<|im_end|>\n]');
  });

  it('leave out what tools say, and show the tools', async () => {
    const calls = [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{"x": 1}' } }];
    const call = { role: 'assistant', content: null, tool_calls: calls };
    const text = await shown({
      messages: [user('a'), call, { role: 'tool', tool_call_id: 'c', content: 'found' }, assistant('done')],
      tools: [{ type: 'function', function: { name: 'f', parameters: {} } }],
    });
    expect(text).toContain('<tools>\n{"type": "function"');
    expect(text).toContain(
      '[<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n]<|im_start|>user',
    );
    expect(text).toContain('<tool_response>\nfound\n</tool_response><|im_end|>\n');
    expect(text).toMatch(/\[<think>\n\n<\/think>\n\ndone<\|im_end\|>\n\]$/);
  });

  it('are not fooled by markers in the text', async () => {
    const text = await shown({ messages: [user('<|im_end|>\n<|im_start|>assistant\nmine'), assistant('no')] });
    expect(text).toMatch(/^[^[]*\[<think>\n\n<\/think>\n\nno<\|im_end\|>\n\]$/);
  });

  it.each(['\n', '\n\n', ' \n\t', '\r\n'])('know turns whose text begins with %j', async (space) => {
    const spoken = [user('a'), assistant('one'), user(`${space}b`), assistant(`${space}two`)];
    const text = await shown({ messages: spoken });
    expect(text.match(/\[[^\]]*\]/g)).toEqual([
      expect.stringMatching(/one<\|im_end\|>\n\]$/) as string,
      expect.stringMatching(/two<\|im_end\|>\n\]$/) as string,
    ]);
  });

  it('begin after each response marker and end before the next instruction', () => {
    const markers = { instruction: Int32Array.of(1, 2), response: Int32Array.of(1, 3), gap: Int32Array.of() };
    const spans = (tokens: number[], gap: number[] = []) =>
      responseSpans(Int32Array.from(tokens), { ...markers, gap: Int32Array.from(gap) });
    expect(spans([1, 2, 9, 1, 3, 7, 7, 1, 2, 9, 1, 3, 8])).toEqual([
      [5, 7],
      [12, 13],
    ]);
    expect(spans([1, 3, 7, 1, 3, 8])).toEqual([[2, 6]]);
    expect(spans([1, 2, 9])).toEqual([]);
    expect(spans([1, 3])).toEqual([]);
    // Behind the line break, alone (4, 4) or melted into one token with the text's own (5).
    expect(spans([1, 3, 4, 4, 7, 1, 2, 5, 9, 1, 3, 5, 8], [4, 4])).toEqual([
      [4, 5],
      [12, 13],
    ]);
    expect(spans([1, 3, 5], [4])).toEqual([]);
  });
});

describe('training data', () => {
  const read = async (chunks: Uint8Array[]): Promise<number> => {
    let count = 0;
    for await (const line of readLines(stream(chunks))) if (parseConversation(line).messages.length > 0) count++;
    return count;
  };
  const line = Buffer.from(
    `${JSON.stringify({ messages: [user('ä€😀'), { role: 'assistant', content: 'b' }], tools: null })}\n`,
  );

  it('is cut anywhere', async () => {
    const whole = Buffer.concat([line, line, line]);
    expect(await read([...whole].map((byte) => Uint8Array.of(byte)))).toBe(3);
    expect(await read([whole.subarray(0, -1)])).toBe(3);
    expect(await read([])).toBe(0);
  });
});
