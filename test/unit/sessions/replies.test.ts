/** Replies taken apart: reasoning, tool calls, content; through sessions with a fake engine and a byte tokenizer. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import type { NativeGrammarSource } from '../../../src/control/engine/native-grammar.ts';
import { SERVE } from '../../../src/control/grammar/compile.ts';
import type {
  ChatMessage,
  ChoiceDelta,
  GenerationInput,
  ReplyOptions,
  Sessions,
} from '../../../src/control/sessions/session.ts';
import { generationInput, RENDER, REPLY, SAMPLING } from '../../fixtures/generation-input.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { FakeEngine } from './fake-engine.ts';

const TEMPLATE =
  "{% for m in messages %}{{ m.role + ':' + m.content + '\\n' }}{% endfor %}" +
  '{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}' +
  '{% if add_generation_prompt %}a:{% if open %}<think>\n{% elif closed %}<think>\n\n</think>\n\n{% endif %}{% endif %}';

let engine: FakeEngine;
let sessions: Sessions;

function sessionsWith(template: string, tokenizer = byteTokenizer().json): Promise<Sessions> {
  return createSessions({
    modelPath: writeModel({ tokenizer, tokenizerConfig: { ...byteTokenizer().config, chat_template: template } }),
    engine,
    maxModelLen: 4096,
    workers: 1,
    renderTimeoutMs: 10_000,
  });
}

beforeAll(async () => {
  engine = new FakeEngine();
  sessions = await sessionsWith(TEMPLATE);
});
afterAll(() => sessions.close());
const TOOLS = [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }];

function input(reply: Partial<ReplyOptions>, templateKwargs: Record<string, unknown> = {}): GenerationInput {
  return generationInput({
    prompt: { kind: 'chat', messages: [{ role: 'user', content: 'Hi' }], render: { ...RENDER, templateKwargs } },
    reply: { ...REPLY, toolDefinitions: TOOLS, ...reply },
    sampling: { ...SAMPLING, temperature: 1, seed: 1n, maxTokens: 500, topLogprobs: 0 },
  });
}

/** Ids of the byte tokenizer are the bytes; the other parts of its vocabulary are not needed. */
function idOfByte(byte: number): number {
  return byte;
}

/** The whole reply to one request whose output is `text`, one token per byte, `step` of them in one output of the engine. */
async function reply(request: GenerationInput, text: string, step = 1, by = sessions) {
  const generation = await by.start(request);
  const deltas: ChoiceDelta[] = [];
  const reading = (async () => {
    for await (const delta of generation.deltas) deltas.push(delta);
  })();
  const ids = [...new TextEncoder().encode(text)].map(idOfByte);
  for (let from = 0; from < ids.length; from += step) {
    const some = ids.slice(from, from + step);
    engine.emit(0, some, null, { logprobs: some.map(() => -1), ranks: some.map(() => 1) });
    await Promise.resolve();
  }
  engine.emit(0, [257], 'stop', { logprobs: [-1], ranks: [1] });
  await reading;
  return {
    reasoning: deltas.map((delta) => delta.reasoning).join(''),
    content: deltas.map((delta) => delta.text).join(''),
    calls: deltas.flatMap((delta) => delta.toolCalls),
    ids: deltas.flatMap((delta) => delta.tokenIds).length,
    told: {
      tokens: deltas.reduce((sum, delta) => sum + delta.tokens, 0),
      reasoningTokens: deltas.reduce((sum, delta) => sum + delta.reasoningTokens, 0),
    },
    logprobs: deltas.flatMap((delta) => delta.logprobs).length,
    finish: deltas.at(-1)?.finish,
    usage: generation.usage(),
  };
}

const CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>';

it('tells reasoning from content, and counts its tokens', async () => {
  const whole = await reply(input({}), '<think>\nhm\n</think>\n\nYes');
  expect(whole.reasoning.trim()).toBe('hm');
  expect(whole.content.trim()).toBe('Yes');
  expect(whole.usage.reasoningTokens?.[0]).toBeGreaterThan(5);
  expect(whole.usage.reasoningTokens?.[0]).toBeLessThan(whole.usage.completionTokens[0] ?? 0);
});

it('tells thoughts by tags that are special tokens, and shows no others', async () => {
  const { json } = byteTokenizer();
  const vocab = { ...(json['model'] as { vocab: Record<string, number> }).vocab };
  delete vocab['hi'];
  const added_tokens = ['<s>', '</s>', '<think>', '</think>'].map((content, i) => {
    return { id: 256 + i, content, special: true, normalized: false };
  });
  const special = await sessionsWith(TEMPLATE, { ...json, added_tokens, model: { type: 'BPE', vocab, merges: [] } });
  const read = async (templateKwargs: Record<string, unknown>, ids: number[]) => {
    const generation = await special.start(input({}, templateKwargs));
    engine.emit(0, [...ids, 257], 'stop', { logprobs: [...ids, 0].map(() => -1), ranks: [...ids, 0].map(() => 1) });
    let [reasoning, content] = ['', ''];
    for await (const delta of generation.deltas)
      [reasoning, content] = [reasoning + delta.reasoning, content + delta.text];
    return [reasoning, content, generation.usage().reasoningTokens?.[0]];
  };
  const [h, y, start, end, other] = [104, 121, 258, 259, 256];
  expect(await read({}, [start, h, other, h, end, y])).toEqual(['hh', 'y', 4]);
  expect(await read({ open: true }, [h, end, y])).toEqual(['h', 'y', 2]);
  expect(await read({ closed: true }, [end, y])).toEqual(['', 'y', 0]);
  await special.close();
});

it('knows from the prompt that the thoughts are open, or closed', async () => {
  const open = await reply(input({}, { open: true }), 'hm\n</think>Yes');
  expect([open.reasoning.trim(), open.content.trim()]).toEqual(['hm', 'Yes']);
  const closed = await reply(input({}, { closed: true }), '<think>Yes');
  expect([closed.reasoning, closed.content]).toEqual(['', '<think>Yes']);
});

it('knows that the thoughts before a text that is continued are closed', async () => {
  const template = TEMPLATE.replace('m.content +', "(thought if m.role == 'assistant' else '') + m.content +");
  const continuing = await sessionsWith(template);
  const source: NativeGrammarSource = { kind: 'choice', choices: ['yes', 'no'] };
  const constraint = { grammar: { source, options: SERVE }, param: 'structured_outputs' };
  const grammarOf = async (content: ChatMessage['content'], thought: string) => {
    const render = { ...RENDER, addGenerationPrompt: false, continueFinalMessage: true, templateKwargs: { thought } };
    const messages: ChatMessage[] = [
      { role: 'user', content: 'Say </think>' },
      { role: 'assistant', content },
    ];
    const generation = await continuing.start({ ...input({}), prompt: { kind: 'chat', messages, render }, constraint });
    generation.abort();
    return engine.requests[0]?.grammar?.source.kind;
  };
  const long = 'A text of more tokens than a look at the end of the prompt would find. ';
  expect(await grammarOf(long, '<think>\n\n</think>\n\n')).toBe('choice');
  expect(await grammarOf('', '<think>\n\n</think>\n\n')).toBe('choice');
  expect(await grammarOf('Well <think>', '<think>\n\n</think>\n\n')).toBe('structural_tag');
  // Without thoughts of its own the reply may have them yet, whatever users say.
  expect(await grammarOf(long, '')).toBe('structural_tag');
  await continuing.close();
});

it('drops reasoning with its ids and logprobs when it is not wanted', async () => {
  const whole = await reply(input({ includeReasoning: false }, { open: true }), 'hm</think>Yes');
  expect([whole.reasoning, whole.content]).toEqual(['', 'Yes']);
  expect(whole.ids).toBeLessThan(whole.usage.completionTokens[0] ?? 0);
  expect(whole.logprobs).toBe(whole.ids);
  expect(whole.usage.reasoningTokens?.[0]).toBeGreaterThan(0);
});

it('shows no thoughts of a constrained reply when they are not wanted', async () => {
  const constrained = async (source: NativeGrammarSource, open: boolean, text: string) => {
    const constraint = { grammar: { source, options: SERVE }, param: 'structured_outputs' };
    const { content, reasoning } = await reply({ ...input({ includeReasoning: false }, { open }), constraint }, text);
    return { content, reasoning, grammar: engine.requests[0]?.grammar?.source };
  };
  const choice: NativeGrammarSource = { kind: 'choice', choices: ['Yes'] };
  const tag: NativeGrammarSource = { kind: 'structural_tag', text: '{"format":{"type":"any_text"}}' };
  const hidden = { content: 'Yes', reasoning: '' };
  // Nothing is left to think.
  expect(await constrained(choice, true, 'Yes')).toEqual({ ...hidden, grammar: choice });
  expect(await constrained(choice, false, 'Yes')).toEqual({ ...hidden, grammar: choice });
  // A language that begins with the first token may still have room for thoughts.
  const regex: NativeGrammarSource = { kind: 'regex', text: '[\\s\\S]*' };
  expect(await constrained(regex, false, '<think>hm</think>Yes')).toEqual({ ...hidden, grammar: regex });
  // Free text lets the model think.
  for (const [open, text] of [
    [true, 'hm</think>Yes'],
    [false, '<think>hm</think>Yes'],
  ] as const) {
    const told = await constrained(tag, open, text);
    expect(told).toMatchObject(hidden);
    expect((told.grammar as { text?: string } | undefined)?.text).toContain('</think>');
  }
});

it('tells hidden tokens apart within one output of the engine, and counts them in its deltas', async () => {
  for (const step of [1, 3, 1000]) {
    const hidden = await reply(input({ includeReasoning: false }, { open: true }), 'hm</think>Yes', step);
    expect([hidden.reasoning, hidden.content, hidden.ids, hidden.logprobs]).toEqual(['', 'Yes', 4, 4]);
    expect(hidden.told).toEqual({ tokens: 14, reasoningTokens: 10 });
    expect(hidden.usage).toMatchObject({ completionTokens: [14], reasoningTokens: [10] });
    // The start tag is not the thoughts' yet: nothing told that they would begin.
    const begun = await reply(input({}), '<think>hm</think>Yes', step);
    expect([begun.reasoning, begun.content, begun.ids]).toEqual(['hm', 'Yes', 21]);
    expect(begun.usage).toMatchObject({ completionTokens: [21], reasoningTokens: [10] });
    // The token that completes it is hidden with them.
    const unbegun = await reply(input({ includeReasoning: false }), '<think>hm</think>Yes', step);
    expect([unbegun.content, unbegun.ids, unbegun.logprobs]).toEqual(['Yes', 10, 10]);
  }
});

it('counts as thoughts what was generated within them, whatever a stop string holds back', async () => {
  for (const includeReasoning of [false, true]) {
    for (const stop of [['>!'], ['k>YesNo', '>!'], []]) {
      const request = input({ includeReasoning }, { open: true });
      request.sampling.stop = stop;
      const told = await reply(request, 'hm</think>Yes', stop.length + 1);
      expect([told.reasoning, told.content]).toEqual([includeReasoning ? 'hm' : '', 'Yes']);
      const shown = includeReasoning ? 14 : 4;
      expect([told.ids, told.logprobs, told.told.reasoningTokens]).toEqual([shown, shown, 10]);
    }
  }
  const request = input({ includeReasoning: false }, { open: true });
  request.sampling.stop = ['>Y'];
  const stopped = await reply(request, 'hm</think>Yes', 3);
  expect([stopped.content, stopped.finish, stopped.told]).toEqual(['', 'stop', { tokens: 11, reasoningTokens: 10 }]);
});

it('finds tool calls only where the request lets the model choose', async () => {
  const auto = await reply(input({ tools: 'auto' }), CALL);
  expect(auto.calls.map((call) => call.name ?? '').join('')).toBe('f');
  expect(JSON.parse(auto.calls.map((call) => call.arguments ?? '').join(''))).toEqual({ x: 1 });
  expect(auto.finish).toBe('tool_calls');
  const none = await reply(input({ tools: 'none' }), CALL);
  expect([none.calls, none.content, none.finish]).toEqual([[], CALL, 'stop']);
});

it('answers in content where nothing says how the model writes calls and the request does not ask for them', async () => {
  const template = TEMPLATE.replace('<tool_call>', '');
  const plain = await sessionsWith(template);
  const strict = [{ type: 'function', function: { name: 'f', strict: true } }];
  for (const toolDefinitions of [TOOLS, strict]) {
    const asked = { tools: 'auto', toolDefinitions } as const;
    await expect(plain.start(input({ ...asked, needsToolFormat: true }))).rejects.toThrow(
      '"auto" tool choice requires',
    );
    // Told before what is wrong with the prompt.
    const messages: ChatMessage[] = [{ role: 'user', content: 'x'.repeat(1_000_000) }];
    const long = { kind: 'chat', messages, render: RENDER } as const;
    await expect(plain.start({ ...input({ ...asked, needsToolFormat: true }), prompt: long })).rejects.toThrow(
      '"auto" tool choice requires',
    );
    const free = await reply(input({ ...asked, needsToolFormat: false }), CALL, 1, plain);
    expect([free.calls, free.content, free.finish]).toEqual([[], CALL, 'stop']);
  }
  // Where the format is known, it is read.
  expect((await reply(input({ tools: 'auto', needsToolFormat: false }), CALL)).finish).toBe('tool_calls');
  await plain.close();
});

it('keeps one call when parallel calls are off', async () => {
  const whole = await reply(input({ tools: 'auto', parallelToolCalls: false }), `${CALL}\n${CALL}`);
  expect(new Set(whole.calls.map((call) => call.index))).toEqual(new Set([0]));
});

it.each([true, false])('keeps one call when a second one breaks off: streamed %s', async (streamsCalls) => {
  const request = input({ tools: 'auto', parallelToolCalls: false, streamsCalls });
  for (const second of ['<tool_call>{"name": "f", "arguments": {"x": y}}</tool_call>', CALL.slice(0, -16)]) {
    const whole = await reply(request, `So: ${CALL}\n${second}`);
    expect(whole).toMatchObject({ content: 'So: ', finish: 'tool_calls' });
    expect(new Set(whole.calls.map((call) => call.index))).toEqual(new Set([0]));
  }
});

it('shows the end token with the stop string only where special tokens are shown: an open call is still read', async () => {
  const request = input({ tools: 'auto' });
  const open = CALL.replace('\n</tool_call>', '');
  const shown = (skipSpecialTokens: boolean) =>
    reply({ ...request, sampling: { ...request.sampling, includeStopInOutput: true, skipSpecialTokens } }, open);
  expect((await shown(true)).calls.map((call) => call.name ?? '').join('')).toBe('f');
  expect((await shown(false)).content).toBe(`${open}</s>`);
});

it('leaves text completions alone', async () => {
  const whole = await reply({ ...input({}), reply: null }, `<think>a</think>${CALL}`);
  expect([whole.content, whole.reasoning, whole.calls]).toEqual([`<think>a</think>${CALL}`, '', []]);
  expect(whole.usage.reasoningTokens).toBeNull();
});

it('ends a stream for its calls only where one of them is whole, as an answer that is not streamed', async () => {
  const cut = '<tool_call>{"name": "f", "arguments": {"x": "a';
  const ends = async (text: string, stop: string[] = []) => {
    const request = input({ tools: 'auto', streamsCalls: true });
    const whole = await reply({ ...request, sampling: { ...request.sampling, stop } }, text);
    return [whole.calls.filter(({ id }) => id !== undefined).length, whole.finish];
  };
  expect(await ends(CALL)).toEqual([1, 'tool_calls']);
  expect(await ends(cut)).toEqual([1, 'stop']);
  expect(await ends(`${cut} END`, ['END'])).toEqual([1, 'stop']);
  expect(await ends('<tool_call>{"name": "f", "arguments": {"x": y}}</tool_call>')).toEqual([1, 'stop']);
  expect(await ends(CALL + cut)).toEqual([2, 'tool_calls']);
});
