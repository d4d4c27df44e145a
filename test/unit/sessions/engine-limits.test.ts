/** What llama.cpp lacks is refused by the request's field, before anything is queued. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import { LLAMA_LIMITS } from '../../../src/control/sessions/engine-limits.ts';
import type { GenerationInput, SamplingRequest, Sessions } from '../../../src/control/sessions/session.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { FakeEngine } from './fake-engine.ts';
import { chat, input, REPLY } from './inputs.ts';

const engine = new FakeEngine();
let sessions: Sessions;

beforeAll(async () => {
  const template = '{% for message in messages %}{{ message.content }}{% endfor %}';
  const tokenizerConfig = { bos_token: '<s>', eos_token: '</s>', chat_template: template };
  const modelPath = writeModel({ tensors: null, tokenizer: byteTokenizer().json, tokenizerConfig });
  const limits = { maxModelLen: 64, maxLogprobs: 0, workers: 1, renderTimeoutMs: 20_000 };
  sessions = await createSessions({ modelPath, engine, ...limits, limits: LLAMA_LIMITS, toolParser: 'hermes' });
});
afterAll(() => sessions.close());

function generation(changes: Partial<GenerationInput>, sampling: Partial<SamplingRequest> = {}): GenerationInput {
  return { ...input(sampling, chat([{ role: 'user', content: 'Hi' }])), ...changes };
}

const GRAMMAR = { source: { kind: 'regex' as const, text: 'a+' }, options: {} as never };
const TOOL = { type: 'function', function: { name: 'f', parameters: { type: 'object' } } };

describe('a request for llama.cpp', () => {
  it.each<[string, GenerationInput]>([
    ['logprobs', generation({}, { topLogprobs: 0 })],
    ['prompt_logprobs', generation({}, { promptLogprobs: 0 })],
    ['use_beam_search', generation({}, { beamSearch: { lengthPenalty: 1 } })],
    ['allowed_token_ids', generation({}, { allowedTokenIds: [5] })],
    ['bad_words', generation({}, { badWords: ['no'] })],
    ['model', generation({ adapter: { version: 'v', directory: 'd' } })],
    ['cache_salt', generation({ cacheSalt: 's' })],
    ['kv_transfer_params', generation({ kvTransfer: { hold: true } })],
    ['engine_xargs', generation({ extensionArguments: { x: 1 } })],
    ['response_format', generation({ constraint: { grammar: GRAMMAR, param: 'response_format' } })],
    ['tool_choice', generation({ reply: { ...REPLY, tools: 'required', toolDefinitions: [TOOL] } })],
    ['presence_penalty', generation({}, { repetitionPenalty: 1.2, presencePenalty: 0.5 })],
    ['frequency_penalty', generation({}, { repetitionPenalty: 1.2, frequencyPenalty: 0.5 })],
  ])('with %s is refused by that name', async (param, asked) => {
    const error = await sessions.start(asked).then(
      () => null,
      (reason: unknown) => reason,
    );
    expect(error).toMatchObject({ name: 'SessionError', code: 'bad_request', param });
    expect((error as Error).message).toContain('llama.cpp');
    expect(engine.requests).toEqual([]);
    expect(engine.compiled).toEqual([]);
  });

  it('may have all that it offers', async () => {
    const sampling = { topP: 0.5, topK: 4, minP: 0.1, minTokens: 2, presencePenalty: 1, frequencyPenalty: 1, n: 2 };
    const logitBias = new Map([[3, 1.5]]);
    const running = await sessions.start(generation({ priority: 3 }, { ...sampling, logitBias, stop: ['x'] }));
    expect(engine.requests).toHaveLength(2);
    expect(engine.requests[1]?.sampling).toMatchObject({ topP: 0.5, presencePenalty: 1, logprobs: -1 });
    running.abort();
    const repeating = await sessions.start(generation({}, { repetitionPenalty: 1.3 }));
    expect(engine.requests[0]?.sampling).toMatchObject({ repetitionPenalty: 1.3 });
    repeating.abort();
  });
});
