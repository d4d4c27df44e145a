import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { EngineUnavailableError, QueueFullError } from '../../../src/control/engine/client.ts';
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import type { ChatMessage, Sessions } from '../../../src/control/sessions/session.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { FakeEngine } from './fake-engine.ts';
import { bytes, chat, collect, input, merged } from './inputs.ts';

/** Long enough for a loaded machine; the tests that wait for it use a template that never ends. */
const RENDER_TIMEOUT_MS = 3000;

function open(
  directory: string,
  engine: FakeEngine,
  workers = 1,
  renderTimeoutMs = RENDER_TIMEOUT_MS,
): Promise<Sessions> {
  return createSessions({
    modelPath: directory,
    engine,
    maxModelLen: 64,
    workers,
    renderTimeoutMs,
  });
}

function modelWith(template: string, tokenizer = byteTokenizer().json): string {
  return writeModel({
    tensors: null,
    tokenizer,
    tokenizerConfig: { bos_token: '<s>', eos_token: '</s>', chat_template: template },
    generation: { eos_token_id: [257] },
  });
}

const TEMPLATE = '{% for m in messages %}{{ m.content }}{% endfor %}';

it('chats of training are rendered with the server’s template variables, as those of requests are', async () => {
  const sessions = await createSessions({
    modelPath: modelWith(`${TEMPLATE}{{ tone }}{{ mood }}`),
    engine: new FakeEngine(),
    maxModelLen: 64,
    workers: 1,
    renderTimeoutMs: RENDER_TIMEOUT_MS,
    templateKwargs: { tone: 'dry', mood: 'calm' },
  });
  const messages: ChatMessage[] = [{ role: 'user', content: 'Hi' }];
  const encode = (templateKwargs: Record<string, unknown>) =>
    sessions.chat.encodeChat({ messages, tools: null, templateKwargs, slots: [], continueFinalMessage: false });
  expect([...(await encode({}))]).toEqual(bytes('Hidrycalm'));
  expect([...(await encode({ mood: 'wild' }))]).toEqual(bytes('Hidrywild'));
  await sessions.close();
});

describe('sessions', () => {
  const engine = new FakeEngine();
  let sessions: Sessions;

  beforeAll(async () => {
    sessions = await open(modelWith(TEMPLATE), engine);
  });
  afterAll(() => sessions.close());
  beforeEach(() => {
    engine.requests = [];
    engine.aborted = [];
    engine.streamed = [];
    engine.refuseWith = null;
  });

  it('submit all choices of a request at once', async () => {
    const generation = await sessions.start(input({ n: 3, seed: 9n }));
    expect([...generation.promptIds]).toEqual(bytes('Hi'));
    expect(engine.requests.map(({ sampling, tenant }) => [sampling.choice, sampling.seed, tenant])).toEqual([
      [0, 9n, 'default'],
      [0, 10n, 'default'],
      [0, 11n, 'default'],
    ]);
    generation.abort();
    expect(engine.aborted).toEqual([0, 1, 2]);
  });

  it('stream text; the end token is among the ids but not in the text', async () => {
    const generation = await sessions.start(input({ n: 2 }));
    engine.emit(0, bytes('Hel'), null, { cachedTokens: 1 });
    engine.emit(1, bytes('B'));
    engine.emit(0, [...bytes('lo'), 257], 'stop');
    engine.emit(1, bytes('y'), 'length');
    const deltas = await collect(generation);
    expect(merged(deltas, 0)).toMatchObject({
      text: 'Hello',
      tokenIds: [...bytes('Hello'), 257],
      finish: 'stop',
      stopReason: null,
    });
    expect(merged(deltas, 1)).toMatchObject({ text: 'By', finish: 'length', stopReason: null });
    expect(generation.usage()).toEqual({
      reasoningTokens: null,
      promptTokens: 2,
      completionTokens: [6, 2],
      cachedTokens: 1,
    });
    expect(engine.aborted).toEqual([]);
  });

  it('report the id of a stop token of the client, and show it when asked', async () => {
    const generation = await sessions.start(input({ stopTokenIds: [33], includeStopInOutput: true }));
    engine.emit(0, bytes('a!'), 'stop');
    expect(merged(await collect(generation))).toMatchObject({ text: 'a!', finish: 'stop', stopReason: 33 });
    const hidden = await sessions.start(input({ stopTokenIds: [33] }));
    engine.emit(0, bytes('a!'), 'stop');
    expect(merged(await collect(hidden))).toMatchObject({ text: 'a', tokenIds: bytes('a!'), stopReason: 33 });
    const ignored = await sessions.start(input({ stopTokenIds: [257], ignoreEos: true }));
    engine.emit(0, [97, 257], 'stop');
    expect(merged(await collect(ignored))).toMatchObject({ stopReason: 257 });
  });

  it('report the id of an end that is not the usual one: only the tokenizer’s own goes without saying', async () => {
    const directory = writeModel({
      tensors: null,
      tokenizer: byteTokenizer().json,
      tokenizerConfig: { bos_token: '<s>', eos_token: '</s>', chat_template: TEMPLATE },
      generation: { eos_token_id: [258, 257] },
    });
    const ends = new FakeEngine();
    const own = await open(directory, ends);
    for (const [id, stopReason] of [
      [257, null],
      [258, 258],
    ] as const) {
      const generation = await own.start(input({ stopTokenIds: [id] }));
      ends.emit(0, [97, id], 'stop');
      expect(merged(await collect(generation))).toMatchObject({ text: 'a', finish: 'stop', stopReason });
    }
    await own.close();
  });

  it('end at a stop string across outputs, cut what follows, and abort the sequence', async () => {
    const generation = await sessions.start(input({ stop: ['END', 'zz'] }));
    engine.emit(0, bytes('one E'));
    engine.emit(0, bytes('NDtwo'));
    engine.emit(0, bytes('three'), 'length');
    const all = merged(await collect(generation));
    expect(all).toMatchObject({ text: 'one ', tokenIds: bytes('one END'), finish: 'stop', stopReason: 'END' });
    expect(engine.aborted).toEqual([0]);
    expect(generation.usage().completionTokens).toEqual([7]);
  });

  it('show a stop string when asked, and prefer it to the length', async () => {
    const generation = await sessions.start(input({ stop: ['END'], includeStopInOutput: true }));
    engine.emit(0, bytes('xEND'), 'length');
    expect(merged(await collect(generation))).toMatchObject({ text: 'xEND', finish: 'stop', stopReason: 'END' });
    expect(engine.aborted).toEqual([]);
  });

  it('do not match a stop string within min_tokens', async () => {
    const generation = await sessions.start(input({ stop: ['ab'], minTokens: 3 }));
    engine.emit(0, bytes('abxabab'), null);
    expect(merged(await collect(generation))).toMatchObject({
      text: 'abx',
      tokenIds: bytes('abxab'),
      stopReason: 'ab',
    });
  });

  it('match a stop string with the token after min_tokens, not with the last of these', async () => {
    for (const [minTokens, text] of [
      [2, 'abx'],
      [1, ''],
    ] as const) {
      const generation = await sessions.start(input({ stop: ['ab'], minTokens }));
      engine.emit(0, bytes('abxab'), null);
      expect(merged(await collect(generation))).toMatchObject({ text, stopReason: 'ab' });
    }
  });

  it('abort a sequence whose choice ended while it was submitted', async () => {
    const submit = engine.submit.bind(engine);
    engine.submit = (requests, sink) => {
      const handles = submit(requests, sink);
      engine.emit(1, bytes('END'));
      return handles;
    };
    const generation = await sessions.start(input({ n: 2, stop: ['END'] }));
    engine.submit = submit;
    expect(engine.aborted).toEqual([1]);
    engine.emit(0, bytes('x'), 'length');
    expect(merged(await collect(generation), 1)).toMatchObject({ text: '', finish: 'stop', stopReason: 'END' });
  });

  it('release held text when the stop string does not come', async () => {
    const generation = await sessions.start(input({ stop: ['END'] }));
    engine.emit(0, bytes('xEN'), 'length');
    expect(merged(await collect(generation))).toMatchObject({ text: 'xEN', finish: 'length', stopReason: null });
  });

  it('never split a character between deltas', async () => {
    const generation = await sessions.start(input());
    const texts: string[] = [];
    const reading = (async () => {
      for await (const delta of generation.deltas) texts.push(delta.text);
    })();
    for (const byte of bytes('a🙂b')) {
      engine.emit(0, [byte]);
      await new Promise(setImmediate);
    }
    engine.emit(0, [], 'length');
    await reading;
    expect(texts.join('')).toBe('a🙂b');
    expect(texts.join('|')).not.toContain('\ufffd');
  });

  it('show special tokens only when asked', async () => {
    const shown = await sessions.start(input({ skipSpecialTokens: false }));
    engine.emit(0, [256, 97], 'length');
    expect(merged(await collect(shown)).text).toBe('<s>a');
    const skipped = await sessions.start(input());
    engine.emit(0, [256, 97], 'length');
    expect(merged(await collect(skipped)).text).toBe('a');
  });

  it('give logprobs with exact bytes, floored', async () => {
    const generation = await sessions.start(input({ topLogprobs: 2 }));
    expect(engine.requests[0]?.sampling.logprobs).toBe(2);
    engine.emit(0, [0xf0, 259], 'length', {
      logprobs: [-0.5, Number.NEGATIVE_INFINITY],
      top: [
        { ids: Int32Array.of(0xf0, 97), logprobs: Float32Array.of(-0.5, -1) },
        { ids: Int32Array.of(257, 98), logprobs: Float32Array.of(-0.25, -2) },
      ],
    });
    const [delta] = await collect(generation);
    expect(delta?.logprobs).toEqual([
      {
        token: '\ufffd',
        logprob: -0.5,
        bytes: [0xf0],
        tokenId: 0xf0,
        chars: 0,
        at: 0,
        top: [
          { token: '\ufffd', logprob: -0.5, bytes: [0xf0], tokenId: 0xf0 },
          { token: 'a', logprob: -1, bytes: [97], tokenId: 97 },
        ],
      },
      {
        token: 'hi',
        logprob: -9999,
        bytes: [104, 105],
        tokenId: 259,
        chars: '\ufffdhi'.length,
        at: 0,
        top: [
          { token: '</s>', logprob: -0.25, bytes: bytes('</s>'), tokenId: 257 },
          { token: 'b', logprob: -2, bytes: [98], tokenId: 98 },
        ],
      },
    ]);
  });

  it('merge what a slow reader leaves', async () => {
    const generation = await sessions.start(input({ n: 2 }));
    for (let i = 0; i < 1000; i++) engine.emit(i % 2, [97]);
    engine.emit(0, [], 'length');
    engine.emit(1, [], 'length');
    const deltas = await collect(generation);
    expect(deltas.length).toBe(2);
    expect(deltas.map((delta) => delta.text.length)).toEqual([500, 500]);
  });

  it('deliver what came before a failure, then throw, and abort the other choices', async () => {
    const generation = await sessions.start(input({ n: 2 }));
    engine.emit(0, bytes('ab'));
    engine.emit(1, [], 'error', { error: 'its logits were not finite' });
    const texts: string[] = [];
    const reading = (async () => {
      for await (const delta of generation.deltas) texts.push(delta.text);
    })();
    await expect(reading).rejects.toMatchObject({ code: 'engine_failed', message: 'its logits were not finite' });
    expect(texts).toEqual(['ab']);
    expect(engine.aborted).toContain(0);
  });

  it('end quietly when aborted, by the caller, a signal, or a reader that leaves', async () => {
    const generation = await sessions.start(input());
    const reading = collect(generation);
    generation.abort();
    generation.abort();
    expect(await reading).toEqual([]);
    expect(engine.aborted).toEqual([0]);

    const controller = new AbortController();
    const signalled = await sessions.start(input(), controller.signal);
    const waiting = collect(signalled);
    controller.abort();
    expect(await waiting).toEqual([]);

    engine.aborted = [];
    const left = await sessions.start(input());
    engine.emit(0, bytes('a'));
    for await (const delta of left.deltas) {
      expect(delta.text).toBe('a');
      break;
    }
    expect(engine.aborted).toEqual([0]);
    const gone = new AbortController();
    gone.abort();
    await expect(sessions.start(input(), gone.signal)).rejects.toMatchObject({ code: 'unavailable' });
    // Nor are its words looked at.
    const long = input({ badWords: ['no '.repeat(200)] }, { kind: 'ids', ids: [97] });
    await expect(sessions.start(long, new AbortController().signal)).rejects.toMatchObject({ param: 'bad_words' });
    await expect(sessions.start(long, gone.signal)).rejects.toMatchObject({ code: 'unavailable' });
  });

  it('pass on that bytes went out', async () => {
    const generation = await sessions.start(input({ n: 2 }));
    engine.emit(0, [97], 'length');
    generation.markStreamed();
    expect(engine.streamed).toEqual([1]);
    generation.abort();
  });

  it('turn refusals of the engine into errors for the client', async () => {
    engine.refuseWith = new QueueFullError('the queue is full', 3);
    await expect(sessions.start(input())).rejects.toMatchObject({ code: 'queue_full', retryAfterSeconds: 3 });
    engine.refuseWith = new EngineUnavailableError('draining');
    await expect(sessions.start(input())).rejects.toMatchObject({ code: 'unavailable' });
  });

  it('refuse prompts that are empty, too long or out of the vocabulary, before anything is queued', async () => {
    await expect(sessions.start(input({}, chat([])))).rejects.toThrow('The decoder prompt cannot be empty');
    const long = input({}, chat([{ role: 'user', content: 'x'.repeat(64) }]));
    await expect(sessions.start(long)).rejects.toMatchObject({ code: 'context_length', param: 'input_tokens' });
    await expect(sessions.start(input({}, { kind: 'ids', ids: [1, 260] }))).rejects.toMatchObject({ param: 'prompt' });
    await expect(sessions.start(input({}, { kind: 'ids', ids: [-1] }))).rejects.toMatchObject({ param: 'prompt' });
    await expect(sessions.start(input({}, { kind: 'ids', ids: [] }))).rejects.toThrow('cannot be empty');
    expect(engine.requests).toEqual([]);
  });

  it('tokenise and detokenise', async () => {
    expect([...(await sessions.tokenize({ kind: 'text', text: '<s>hi', addSpecialTokens: true }, 'a'))]).toEqual([
      256, 259,
    ]);
    expect(sessions.detokenize([256, 259, 0xf0])).toBe('<s>hi\ufffd');
    expect(() => sessions.detokenize([260])).toThrow('out of vocabulary');
    expect(sessions.tokenString(32)).toBe('Ġ');
    expect(sessions).toMatchObject({ vocabSize: 260, maxModelLen: 64 });
  });
});

describe('the render threads', () => {
  /** Ends only for content 'ok'. */
  const slow =
    "{% if messages[0].content == 'ok' %}ok{% else %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}{% endif %}";

  it('refuse a template that takes too many steps, and go on', async () => {
    const sessions = await open(modelWith(slow), new FakeEngine(), 1, 60_000);
    try {
      await expect(sessions.tokenize(chat([{ role: 'user', content: 'x' }]), 'a')).rejects.toMatchObject({
        code: 'bad_request',
        param: 'messages',
      });
      expect([...(await sessions.tokenize(chat([{ role: 'user', content: 'ok' }]), 'a'))]).toEqual(bytes('ok'));
    } finally {
      await sessions.close();
    }
  });

  it('kill a pre-tokenizer that does not end, answer its sender, and serve the others', async () => {
    const base = byteTokenizer().json;
    const bomb = { type: 'Split', pattern: { Regex: '(a+)+$' }, behavior: 'Isolated', invert: false };
    const tokenizer = { ...base, pre_tokenizer: { type: 'Sequence', pretokenizers: [bomb, base['pre_tokenizer']] } };
    const sessions = await open(modelWith(TEMPLATE, tokenizer), new FakeEngine(), 2, 1000);
    try {
      const hanging = sessions.tokenize(chat([{ role: 'user', content: `${'a'.repeat(60)}!` }]), 'a');
      const refused = expect(hanging).rejects.toMatchObject({
        code: 'bad_request',
        message: expect.stringContaining('longer than 1000 ms'),
      });
      const others = Array.from({ length: 20 }, () => sessions.tokenize(chat([{ role: 'user', content: 'hi' }]), 'a'));
      for (const ids of await Promise.all(others)) expect([...ids]).toEqual([259]);
      await refused;
      expect([...(await sessions.tokenize(chat([{ role: 'user', content: 'hi' }]), 'a'))]).toEqual([259]);
    } finally {
      await sessions.close();
    }
  });

  it('bound their queue and refuse after closing', async () => {
    const sessions = await open(modelWith(TEMPLATE), new FakeEngine());
    const jobs = Array.from({ length: 2000 }, () => sessions.tokenize(chat([{ role: 'user', content: 'a' }]), 'a'));
    const results = await Promise.allSettled(jobs);
    const refused = results.filter((result) => result.status === 'rejected');
    expect(refused.length).toBeGreaterThan(0);
    expect(refused.length).toBeLessThan(1000);
    for (const { reason } of refused) expect(reason).toMatchObject({ code: 'queue_full', retryAfterSeconds: 1 });
    await sessions.close();
    await expect(sessions.tokenize(chat([{ role: 'user', content: 'a' }]), 'a')).rejects.toMatchObject({
      code: 'unavailable',
    });
  });

  it.each([
    ['a template that cannot be parsed', modelWith('{% for %}'), 'chat template'],
    [
      'a tokenizer that cannot be built',
      modelWith(TEMPLATE, { ...byteTokenizer().json, normalizer: { type: 'Nonsense' } }),
      'Nonsense',
    ],
  ])('say at start what is wrong: %s', async (_, directory, named) => {
    await expect(open(directory, new FakeEngine())).rejects.toThrow(named);
  });
});

describe('the starter model', () => {
  const directory = fileURLToPath(new URL('../../../models/starter', import.meta.url));
  const path = join(directory, 'goldens.json');

  it('has the prompt ids and texts of its goldens', async () => {
    const goldens = JSON.parse(readFileSync(path, 'utf8')) as {
      messages: ChatMessage[];
      tools: unknown[] | null;
      template_kwargs: Record<string, unknown>;
      prompt_ids: number[];
      output_ids: number[];
      output_text: string;
    }[];
    const sessions = await open(directory, new FakeEngine());
    try {
      expect(goldens.length).toBeGreaterThanOrEqual(20);
      for (const { messages, tools, template_kwargs: kwargs, ...golden } of goldens) {
        const { add_generation_prompt: add, ...templateKwargs } = kwargs;
        const ids = await sessions.tokenize(
          chat(messages, { tools, templateKwargs, addGenerationPrompt: add === true }),
          'a',
        );
        expect([...ids]).toEqual(golden.prompt_ids);
        expect(sessions.detokenize(golden.output_ids)).toBe(golden.output_text);
      }
    } finally {
      await sessions.close();
    }
  });
});
