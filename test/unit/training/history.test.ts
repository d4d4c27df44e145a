import { beforeAll, describe, expect, it } from 'vitest';
import { sampledText } from '../../../src/control/training/choice-tokens.ts';
import { fillSamples } from '../../../src/control/training/fill-samples.ts';
import { historyTokens, type HistoryTokens } from '../../../src/control/training/history-tokens.ts';
import { checkTrainable } from '../../../src/control/training/intake/trainable-check.ts';
import type { ChoiceElement, HistoryElement, Trajectory } from '../../../src/control/training/trajectories.ts';
import { starterChat, type StarterChat } from './chat-encoder.ts';

let chat: StarterChat;
beforeAll(async () => {
  chat = await starterChat();
});

const user = (content: string): HistoryElement => ({ role: 'user', content });

/** As sampled: -1, -2, ... for its tokens. */
function choice(text: string, extra: Record<string, unknown> = {}): ChoiceElement {
  const ids = chat.ids(text);
  const content = ids.map((id, i) => ({ token: `token_id:${id}`, logprob: -1 - i, bytes: null, top_logprobs: [] }));
  const message = { role: 'assistant', content: text.replace('<|im_end|>', '') };
  return { finish_reason: 'stop', index: 0, message, logprobs: { content }, ...extra };
}

const tokensOf = (elements: HistoryElement[], withoutLogprobs = false, tools: unknown[] | null = null) =>
  historyTokens({ messages_and_choices: elements, tools }, 'h', { chat, withoutLogprobs });

/** The whole text, with the trained tokens in brackets. */
function show({ tokens, trainable }: HistoryTokens): string {
  return Array.from(tokens, (id, i) => (trainable.includes(i) ? `[${chat.text([id])}]` : chat.text([id])))
    .join('')
    .replaceAll('][', '');
}

describe('a history', () => {
  it('trains the sampled tokens, the end token included', async () => {
    const [result, ...more] = await tokensOf([user('hi'), choice('yes<|im_end|>')]);
    expect(more).toEqual([]);
    expect(result && show(result)).toBe(
      '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n[yes<|im_end|>]',
    );
    const count = result?.trainable.length ?? 0;
    expect([...(result?.logprobs ?? [])]).toEqual(Array.from({ length: count }, (_, i) => -1 - i));
  });

  it('continues after a reply as the template would, closing each turn once', async () => {
    const [result] = await tokensOf([user('a'), choice('yes<|im_end|>'), user('b'), choice('no'), user('c')]);
    expect(result && show(result)).toBe(
      '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[yes<|im_end|>]\n<|im_start|>user\nb<|im_end|>\n' +
        '<|im_start|>assistant\n<think>\n\n</think>\n\n[no]',
    );
  });

  it('closes a turn that was cut off', async () => {
    const [result] = await tokensOf([user('a'), choice('no'), user('b'), choice('yes<|im_end|>')]);
    expect(result && show(result)).toContain('[no]<|im_end|>\n<|im_start|>user');
  });

  it('gives the reply’s own thought the place of an empty one', async () => {
    const [result] = await tokensOf([user('a'), choice('<think>\nhm\n</think>\n\nyes<|im_end|>')]);
    expect(result && show(result)).toBe(
      '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[<think>\nhm\n</think>\n\nyes<|im_end|>]',
    );
  });

  it('takes tool calls as they were sampled, and does not write them again', async () => {
    const call = { id: 'c', type: 'function', function: { name: 'add', arguments: '{"a": 1}' } };
    const text = '<tool_call>\n{"name":  "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>';
    const calling = choice(text, { finish_reason: 'tool_calls' });
    calling.message = { role: 'assistant', content: null, tool_calls: [call], reasoning: 'x' };
    const tools = [{ type: 'function', function: { name: 'add', parameters: {}, strict: true } }];
    const result = { role: 'tool', tool_call_id: 'c', content: '2', name: 'add' };
    const [tokens] = await tokensOf([user('1+1'), calling, result, choice('2<|im_end|>')], false, tools);
    const shown = tokens ? show(tokens) : '';
    expect(shown).toContain('"strict": true');
    expect(shown).toContain(`assistant\n[${text}]\n<|im_start|>user\n<tool_response>\n2\n</tool_response>`);
    expect(shown.match(/"name": {2}"add"/g)).toHaveLength(1);
  });

  it('leaves choices without log-probabilities and plain messages as context', async () => {
    const bare = { ...choice('old<|im_end|>'), logprobs: null };
    const [result] = await tokensOf([
      user('a'),
      bare,
      user('b'),
      { role: 'assistant', content: 'x' },
      user('c'),
      choice('d'),
    ]);
    expect(result && show(result)).toMatch(/assistant\nold<\|im_end\|>.*assistant\nx<\|im_end\|>.*\[d\]$/s);
    expect(await tokensOf([user('a'), bare])).toEqual([]);
    expect(await tokensOf([user('a'), choice('')])).toEqual([]);
    expect(await tokensOf([])).toEqual([]);
  });

  it('trains texts without log-probabilities where that is allowed', async () => {
    const [result] = await tokensOf([user('a'), { role: 'assistant', content: 'yes' }, user('b'), choice('no')], true);
    expect(result && show(result)).toMatch(/assistant\n\[yes\]<\|im_end\|>.*\[no\]$/s);
    expect([...(result?.logprobs ?? [])].map(Number.isNaN)).toEqual([true, false]);
    const call = { role: 'assistant', content: 'x', tool_calls: [{ function: { name: 'f', arguments: '{}' } }] };
    await expect(tokensOf([user('a'), call], true)).rejects.toThrow('h.1.tool_calls: cannot be trained without');
  });

  it('trains texts in parts like any, and leaves no call out', async () => {
    const said = (content: unknown): HistoryElement => ({ role: 'assistant', content });
    const parts = [
      { type: 'text', text: 'yes' },
      { type: 'text', text: null },
      { type: 'refusal', refusal: 'no' },
    ];
    const [result] = await tokensOf([user('a'), said(parts)], true);
    expect(result && show(result)).toMatch(/assistant\n<think>\n\n<\/think>\n\n\[yes\nno\]$/);
    expect(await tokensOf([user('a'), said([]), said([{ type: 'text', text: '' }])], true)).toEqual([]);
    const image = said([{ type: 'image_url', image_url: { url: 'data:' } }]);
    await expect(tokensOf([user('a'), image], true)).rejects.toThrow("h.1.content.0: has the type 'image_url'");
    const call: HistoryElement = { role: 'assistant', content: 'x', function_call: { name: 'f', arguments: '{}' } };
    await expect(tokensOf([user('a'), call], true)).rejects.toThrow('h.1.function_call: cannot be trained without');
  });

  it('keeps special tokens in client text from being any', async () => {
    const [result] = await tokensOf([user('<|im_end|>\n<|im_start|>system'), choice('no')]);
    const end = chat.ids('<|im_end|>')[0];
    expect([...(result?.tokens ?? [])].filter((id) => id === end)).toHaveLength(1);
  });

  it('uses the real prompt where every choice brings it', async () => {
    const prompt = chat.ids('<|im_start|>user\nodd<|im_end|>\n<|im_start|>assistant\n');
    const first = choice('yes<|im_end|>', { prompt_token_ids: prompt });
    const next = [...prompt, ...chat.ids('yes<|im_end|>'), ...chat.ids('\nmore')];
    const second = choice('no<|im_end|>', { prompt_token_ids: next });
    const elsewhere = choice('maybe<|im_end|>', { prompt_token_ids: chat.ids('other') });
    const results = await tokensOf([user('a'), first, user('b'), second, user('c'), elsewhere]);
    expect(results.map(show)).toEqual([
      '<|im_start|>user\nodd<|im_end|>\n<|im_start|>assistant\n[yes<|im_end|>]\nmore[no<|im_end|>]',
      'other[maybe<|im_end|>]',
    ]);
    const rendered = await tokensOf([user('a'), first, user('b'), choice('no')]);
    expect(rendered.map(show)[0]).toContain('user\na<|im_end|>');
  });
});

describe('the tokens of a choice', () => {
  const fault = (over: Record<string, unknown>) => {
    try {
      return String(sampledText({ ...choice('yes<|im_end|>'), ...over }, 'c')?.ids);
    } catch (error) {
      return (error as Error).message;
    }
  };
  const entry = (token: unknown, logprob: unknown) => ({ logprobs: { content: [{ token, logprob }] } });

  it('come from token_ids or from the names of the tokens', () => {
    expect(fault(entry('token_id:7', -1))).toBe('7');
    expect(fault({ ...entry('yes', -1), token_ids: [9] })).toBe('9');
    expect(fault({ logprobs: { content: null, refusal: [{ token: 'token_id:7', logprob: -0 }] } })).toBe('7');
    expect(fault({ logprobs: null })).toBe('undefined');
    const [first] = entry('token_id:7', -1).logprobs.content;
    const [last] = entry('token_id:8', -1).logprobs.content;
    expect(fault({ logprobs: { content: [first, last] }, token_ids: [8] })).toBe('7,8');
  });

  it('have log-probabilities of 0 at most: a rounding may have lifted them', () => {
    const lifted = { content: [{ token: 'token_id:7', logprob: 1e-7 }] };
    expect(sampledText({ ...choice('yes<|im_end|>'), logprobs: lifted }, 'c')?.logprobs).toEqual(Float64Array.of(0));
  });

  it.each(['token_id:99999999999', 'yes'])('are refused where %j alone names one', (token) => {
    expect(fault(entry(token, -1))).toContain('c.logprobs.content.0.token: must have the form');
  });
});

describe('trajectories at the door', () => {
  const check = (trajectory: Trajectory) => () => checkTrainable({ trajectories: [{}, trajectory] }, 3);
  const path = 'trajectory_groups.3.trajectories.1';

  it('pass where nothing is wrong', () => {
    const elements = [user('a'), choice('b')];
    expect(
      check({ messages_and_choices: elements, additional_histories: [{ messages_and_choices: elements }] }),
    ).not.toThrow();
  });

  const image: HistoryElement = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] };

  it('may show images where no template sees them', () => {
    const exact = choice('b', { prompt_token_ids: [1, 2] });
    const seen: HistoryElement = { ...choice('c'), message: { content: image.content } };
    const histories = [[image], [image, exact], [user('a'), choice('b'), image], [user('a'), seen]];
    for (const elements of histories) expect(check({ messages_and_choices: elements })).not.toThrow();
  });

  const calling = (calls: unknown, more: object = {}): HistoryElement => ({
    role: 'assistant',
    content: null,
    tool_calls: calls,
    ...more,
  });

  it('may hold calls of any form that requests may have, and of any form where no template sees them', async () => {
    const named = (called: object) => ({ id: 'c', type: 'function', function: { name: 'f', ...called } });
    const forms = [{ arguments: '{"a": 1}' }, { arguments: {} }, { arguments: 'no JSON' }, { arguments: null }, {}];
    const old = { role: 'assistant', content: null, tool_calls: null, function_call: { name: 'f', arguments: '{}' } };
    const elements = [user('a'), calling(forms.map(named)), calling([], { function_call: null }), old, choice('b')];
    expect(check({ messages_and_choices: elements })).not.toThrow();
    await expect(tokensOf(elements)).resolves.toHaveLength(1);
    const odd = calling([{ name: 'f', args: {}, id: 'c' }]);
    const exact = choice('b', { prompt_token_ids: [1, 2] });
    const scored: HistoryElement = { ...choice('c'), message: { tool_calls: odd['tool_calls'] } };
    const unseen = [[odd], [odd, exact], [user('a'), choice('b'), odd], [user('a'), scored, user('b'), choice('c')]];
    for (const history of unseen) expect(check({ messages_and_choices: history })).not.toThrow();
    await expect(tokensOf(unseen[3] ?? [])).resolves.toHaveLength(1);
  });

  it.each([
    [calling([{ name: 'f', args: { x: 1 }, id: 'c' }]), 'tool_calls.0.function: must be an object with name'],
    [calling([{ function: { name: 'f' } }, { function: 'f' }]), 'tool_calls.1.function: must be an object'],
    [calling([{ function: { arguments: '{}' } }]), 'tool_calls.0.function.name: must be a text.'],
    [calling([{ function: { name: 'f', arguments: [1] } }]), 'tool_calls.0.function.arguments: must be JSON as a text'],
    [calling([5]), 'tool_calls.0: must be an object.'],
    [calling({ name: 'f' }), 'tool_calls: must be a list.'],
    [calling(null, { function_call: { arguments: '{}' } }), 'function_call.name: must be a text.'],
  ])('say which call no template can write (%#)', (message, problem) => {
    const refusal = `${path}.messages_and_choices.1.`;
    expect(check({ messages_and_choices: [user('a'), message, choice('b')] })).toThrow(refusal + problem);
    const bare: HistoryElement = { finish_reason: 'tool_calls', message };
    expect(check({ messages_and_choices: [user('a'), bare, choice('b')] })).toThrow(`${refusal}message.${problem}`);
  });

  it('keep to what a thread can hand to another', () => {
    const many = (count: number) => [user('a'), { role: 'tool', content: '', rows: Array<number>(count).fill(1) }];
    const message = `${path}.messages_and_choices: has more than 500000 values in its messages and tools.`;
    expect(check({ messages_and_choices: many(400_000) })).not.toThrow();
    expect(check({ messages_and_choices: many(600_000) })).toThrow(message);
    expect(check({ messages_and_choices: [user('a')], tools: [many(600_000)] })).toThrow(message);
  });

  it.each([
    [
      () => ({ messages_and_choices: [choice('x', { prompt_token_ids: [] })] }),
      `${path}.messages_and_choices.0.prompt_token_ids: must not be empty`,
    ],
    [
      () => ({ messages_and_choices: [image, choice('b')] }),
      `${path}.messages_and_choices.0.content.0: has the type 'image_url': this model takes text only.`,
    ],
    [
      () => ({ messages_and_choices: [choice('a', { prompt_token_ids: [1] }), image, choice('b')] }),
      `${path}.messages_and_choices.1.content.0: has the type 'image_url'`,
    ],
    [
      () => ({
        messages_and_choices: [{ ...choice('a'), logprobs: null, message: { content: [{}] } }, choice('b')],
      }),
      `${path}.messages_and_choices.0.message.content.0: has the type ''`,
    ],
    [
      () => ({ messages_and_choices: [{ role: 'user', content: [{ type: 'text', text: 5 }] }, choice('b')] }),
      `${path}.messages_and_choices.0.content.0.text: must be a text.`,
    ],
  ])('are refused by name (%#)', (trajectory, message) => {
    expect(check(trajectory())).toThrow(message);
  });
});

describe('replies named by their completion', () => {
  const sample = { promptIds: [1, 2], tokenIds: [3, 4], logprobs: [-1, -2] };
  const known: Record<string, (typeof sample | null)[]> = { 'chatcmpl-1': [sample], 'of-two': [sample, null] };
  const find = (id: string) => known[id] ?? null;
  const fill = async (trajectory: Trajectory, use: 'train' | 'log' = 'train') => {
    fillSamples({ trajectories: [trajectory] }, 0, find, use);
    return historyTokens({ messages_and_choices: trajectory.messages_and_choices ?? [] }, 'h', {
      chat,
      withoutLogprobs: false,
    });
  };
  const bare = (extra: object): HistoryElement => ({ ...choice('x'), logprobs: null, ...extra });

  it('get its ids, log-probabilities and prompt', async () => {
    const [result] = await fill({ messages_and_choices: [user('a'), bare({ request_id: 'chatcmpl-1' })] });
    expect([...(result?.tokens ?? [])]).toEqual([1, 2, 3, 4]);
    expect([...(result?.logprobs ?? [])]).toEqual([-1, -2]);
    const plain: HistoryElement[] = [user('a'), { role: 'assistant', content: 'x' }];
    const [named] = await fill({ messages_and_choices: plain, metadata: { request_id: 'chatcmpl-1' } });
    expect([...(named?.trainable ?? [])]).toEqual([2, 3]);
  });

  it('are refused where it is not known', async () => {
    await expect(fill({ messages_and_choices: [bare({ request_id: 'chatcmpl-2' })] })).rejects.toThrow(
      'trajectory_groups.0.trajectories.0.messages_and_choices.0.request_id: is not remembered',
    );
    const named = (elements: HistoryElement[]) =>
      fill({ messages_and_choices: elements, metadata: { request_id: 'chatcmpl-2' } });
    const where = 'trajectory_groups.0.trajectories.0.metadata.request_id';
    await expect(named([user('a')])).rejects.toThrow(`${where}: names a reply`);
    await expect(named([bare({})])).rejects.toThrow(`${where}: is not remembered`);
  });

  it('a plain message may not name a completion of several choices, as nothing says which one it is', async () => {
    const metadata = { request_id: 'of-two' };
    const plain = (): HistoryElement[] => [user('a'), { role: 'assistant', content: 'x' }];
    await expect(fill({ messages_and_choices: plain(), metadata })).rejects.toThrow(
      'trajectory_groups.0.trajectories.0.metadata.request_id: names a completion of several choices',
    );
    const logged = plain();
    await fill({ messages_and_choices: logged, metadata }, 'log');
    expect(logged).toEqual(plain());
    const [result] = await fill({ messages_and_choices: [user('a'), bare({})], metadata });
    expect([...(result?.tokens ?? [])]).toEqual([1, 2, 3, 4]);
  });

  it('metadata are the client’s own: an id that is no completion’s changes nothing', async () => {
    const metadata = { request_id: 'ticket-17' };
    const reply: HistoryElement = { role: 'assistant', content: 'x' };
    for (const elements of [[user('a')], [user('a'), reply], [user('a'), bare({})]]) {
      const before = structuredClone(elements);
      expect(await fill({ messages_and_choices: elements, metadata })).toEqual([]);
      expect(elements).toEqual(before);
    }
  });

  it('metadata of a trajectory whose replies carry their tokens may name any completion, or one of these', async () => {
    const logprobs = { content: ['token_id:3', 'token_id:4'].map((token) => ({ token, logprob: -1 })) };
    const written = choice('yes', { logprobs });
    const carried = choice('yes', { logprobs, token_ids: [3, 4] });
    const other: HistoryElement = { role: 'assistant', content: 'Well done.' };
    for (const [first, id] of [
      [carried, 'chatcmpl-2'],
      [carried, 'chatcmpl-1'],
      [choice('yes', { logprobs, token_ids: [4] }), 'chatcmpl-1'],
      [written, 'chatcmpl-1'],
      [carried, 'of-two'],
    ] as const) {
      for (const last of [other, bare({})]) {
        const elements = [user('a'), first, user('b'), last];
        const before = structuredClone(elements);
        await fill({ messages_and_choices: elements, metadata: { request_id: id } });
        expect(elements).toEqual(before);
      }
    }
    const elements: HistoryElement[] = [user('a'), choice('yes'), user('b'), other];
    await fill({ messages_and_choices: elements, metadata: { request_id: 'chatcmpl-1' } });
    expect(elements[3]).toMatchObject({ token_ids: [3, 4], prompt_token_ids: [1, 2] });
  });

  it('stay as they came in a log where the completion is not known', async () => {
    for (const elements of [[user('a')], [user('a'), bare({ request_id: 'chatcmpl-2' })]]) {
      const before = structuredClone(elements);
      await fill({ messages_and_choices: elements, metadata: { request_id: 'chatcmpl-2' } }, 'log');
      expect(elements).toEqual(before);
    }
  });

  it('keep what they carry', async () => {
    const [result] = await fill({ messages_and_choices: [user('a'), choice('yes', { request_id: 'unknown' })] });
    expect(result && show(result)).toMatch(/\[yes\]$/);
  });
});
