/** llama.cpp behind the engine's messages: what a client of the engine process gets is what each sequence alone would have given. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { EngineHost, type EnginePort } from '../../../src/control/engine/engine-host.ts';
import { forEachOutput } from '../../../src/control/engine/outputs.ts';
import type { FromEngine, SequenceOutput, SequenceRequest, ToEngine } from '../../../src/control/engine/protocol.ts';
import type { LlamaConfig } from '../../../src/control/llama/config.ts';
import { request } from '../scheduler/drive.ts';
import { FakeContext, logitsAfter, openFakeLlama, VOCABULARY } from './fake-llama.ts';

const CONFIG: LlamaConfig = {
  engine: 'llama.cpp',
  file: 'a.gguf',
  architecture: 'gemma2',
  vocabSize: VOCABULARY,
  samplableVocab: VOCABULARY,
  threads: 1,
  maxSequences: 4,
  maxBatchTokens: 2048,
  maxModelLen: 1000,
  positionBytes: 8,
  weightBytes: 1000,
  enableChunkedPrefill: true,
  schedulingPolicy: 'fcfs',
  faults: [],
};

class Port implements EnginePort {
  readonly sent: FromEngine[] = [];
  readonly exits: [number, string | undefined][] = [];
  readonly outputs = new Map<number, SequenceOutput[]>();
  onOutput: (output: SequenceOutput) => void = () => {};

  send(message: FromEngine): undefined {
    const copy = structuredClone(message);
    this.sent.push(copy);
    if (copy.type !== 'step') return;
    forEachOutput(copy, (output) => {
      this.outputs.set(output.id, [...(this.outputs.get(output.id) ?? []), output]);
      this.onOutput(output);
    });
  }

  exit(code: number, message?: string): void {
    this.exits.push([code, message]);
  }

  of<Type extends FromEngine['type']>(type: Type): Extract<FromEngine, { type: Type }>[] {
    return this.sent.filter((message) => message.type === type) as Extract<FromEngine, { type: Type }>[];
  }

  tokens(id: number): number[] {
    return (this.outputs.get(id) ?? []).flatMap(({ tokens }) => [...tokens]);
  }

  finish(id: number): SequenceOutput['finish'] | undefined {
    return this.outputs.get(id)?.at(-1)?.finish;
  }
}

async function started(
  changes: Partial<LlamaConfig> = {},
): Promise<{ port: Port; receive: (message: ToEngine) => void }> {
  const port = new Port();
  const noAddon = () => {
    throw new Error('The native addon is not loaded for llama.cpp.');
  };
  const host = new EngineHost(port, noAddon, openFakeLlama);
  const receive = (message: ToEngine) => host.receive(message);
  receive({ type: 'start', config: { ...CONFIG, ...changes } });
  await vi.waitUntil(() => port.of('ready').length + port.of('failed').length > 0);
  return { port, receive };
}

function greedy(id: number, promptLength: number, changes: Partial<SequenceRequest['sampling']> = {}): SequenceRequest {
  const made = request(id, promptLength, { temperature: 0, ...changes });
  return { ...made, promptIds: made.promptIds.map((token) => token % VOCABULARY) };
}

/** What it alone would say. */
function expected({ promptIds, sampling }: SequenceRequest, banned: readonly number[] = []): number[] {
  const tokens = [...promptIds];
  while (tokens.length - promptIds.length < sampling.maxTokens) {
    const logits = logitsAfter(tokens).map((logit, id) => (banned.includes(id) ? -Infinity : logit));
    tokens.push(logits.indexOf(Math.max(...logits)));
    if (sampling.stopIds.includes(tokens.at(-1) as number)) break;
  }
  return tokens.slice(promptIds.length);
}

async function drained(port: Port, receive: (message: ToEngine) => void): Promise<void> {
  receive({ type: 'drain' });
  await vi.waitUntil(() => port.exits.length > 0);
  expect(port.exits).toEqual([[0, undefined]]);
}

describe('llama.cpp as the engine', () => {
  it('loads, and tells what it is', async () => {
    const { port, receive } = await started();
    expect(port.sent).toEqual([
      { type: 'log', line: 'llama.cpp: a complaint' },
      { type: 'loading', done: 1000, total: 1000 },
      { type: 'ready', isa: 'llama.cpp b1', weightBytes: 1000, pages: 4 * 63, pageBytes: 128 },
    ]);
    // Each sequence has its own part, a multiple of 256 positions.
    expect(FakeContext.last?.options).toMatchObject({ contextSize: 4 * 1024, sequences: 4, threads: 1 });
    await drained(port, receive);
  });

  it.each<[string, Partial<LlamaConfig>, RegExp]>([
    [
      'an architecture that llama.cpp lacks too',
      { architecture: 'unheard-of' },
      /b1 does not know the architecture unheard-of either/,
    ],
    ['a file that it cannot load', { file: 'broken.gguf' }, /cannot load the file: a complaint a tensor is missing/],
    [
      'settings that no schedule can keep',
      { maxBatchTokens: 2 },
      /--max-num-batched-tokens \(2\) must be at least --max-num-seqs/,
    ],
  ])('does not start with %s', async (_, changes, message) => {
    const { port } = await started(changes);
    expect(port.of('failed')[0]?.message).toMatch(message);
    expect(port.exits).toEqual([[1, undefined]]);
  });

  it('gives each sequence what it alone would get, more of them than slots, prompts longer than a batch', async () => {
    const { port, receive } = await started({ maxBatchTokens: 1200 });
    const requests = [3, 700, 17, 1, 980, 40, 511, 512, 513, 5].map((length, id) =>
      greedy(id, length, { maxTokens: 19 }),
    );
    receive({ type: 'submit', requests });
    await drained(port, receive);
    for (const each of requests) {
      expect(port.tokens(each.id), `request ${each.id}`).toEqual(expected(each));
      expect(port.finish(each.id)).toBe('length');
    }
    const { batches } = FakeContext.last as FakeContext;
    expect(Math.max(...batches.map((batch) => batch.reduce((sum, { count }) => sum + count, 0)))).toBe(512);
    expect(Math.max(...batches.map((batch) => batch.length))).toBe(4);
    expect(port.of('step').at(-1)?.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0, generatedTokens: 190 });
  });

  it('ends at stop ids, not before min_tokens, and never says padding', async () => {
    const { port, receive } = await started({ samplableVocab: VOCABULARY - 8 });
    const padding = Array.from({ length: 8 }, (_, i) => VOCABULARY - 8 + i);
    const free = greedy(1, 6, { maxTokens: 12 });
    const said = expected(free, padding);
    const stop = said[4] as number;
    const stopping = greedy(1, 6, { maxTokens: 12, stopIds: Int32Array.of(stop) });
    const later = { ...greedy(1, 6, { maxTokens: 12, minTokens: 8, stopIds: Int32Array.of(stop) }), id: 2 };
    receive({ type: 'submit', requests: [stopping, later, { ...free, id: 3 }] });
    await drained(port, receive);
    expect(port.tokens(1)).toEqual(said.slice(0, said.indexOf(stop) + 1));
    expect(port.finish(1)).toBe('stop');
    expect(port.tokens(2).length).toBeGreaterThanOrEqual(8);
    expect(port.tokens(2).slice(0, 8)).not.toContain(stop);
    expect(port.tokens(3)).toEqual(said);
    expect(port.tokens(3).every((token) => token < VOCABULARY - 8)).toBe(true);
  });

  it('draws the same for the same seed, whatever runs beside it, and after a restart in the middle', async () => {
    const sampling = { temperature: 1.1, topP: 0.9, seed: 99n, maxTokens: 20, presencePenalty: 0.4 };
    const alone = await started();
    alone.receive({ type: 'submit', requests: [greedy(1, 9, sampling)] });
    await drained(alone.port, alone.receive);
    const said = alone.port.tokens(1);
    const { port, receive } = await started();
    const crowd = [2, 3, 4, 5].map((id) => greedy(id, 30, { ...sampling, seed: BigInt(id) }));
    const resumed = { ...greedy(1, 9, sampling), id: 6, resumeIds: Int32Array.from(said.slice(0, 11)) };
    receive({ type: 'submit', requests: [greedy(1, 9, sampling), ...crowd, resumed] });
    await drained(port, receive);
    expect(port.tokens(1)).toEqual(said);
    expect(port.tokens(6)).toEqual(said.slice(11));
    expect(port.tokens(2)).not.toEqual(port.tokens(3));
  });

  it('frees an aborted sequence for the next one', async () => {
    const { port, receive } = await started({ maxSequences: 1 });
    const long = greedy(1, 8, { maxTokens: 900 });
    const next = greedy(2, 5);
    port.onOutput = ({ id }) => {
      if (id === 1 && port.tokens(1).length === 3) receive({ type: 'abort', ids: [1] });
    };
    receive({ type: 'submit', requests: [long, next] });
    await drained(port, receive);
    expect(port.tokens(1).length).toBeLessThan(10);
    expect(port.tokens(2)).toEqual(expected(next));
  });

  it('lets an urgent sequence take a place; the other goes on as if nothing had happened', async () => {
    const { port, receive } = await started({ maxSequences: 1, schedulingPolicy: 'priority' });
    const slow = { ...greedy(1, 8, { maxTokens: 40, temperature: 1.3 }), priority: 5 };
    const urgent = { ...greedy(2, 5, { maxTokens: 6 }), priority: -5 };
    let sent = false;
    port.onOutput = ({ id }) => {
      if (sent || id !== 1 || port.tokens(1).length < 4) return;
      sent = true;
      receive({ type: 'submit', requests: [urgent] });
    };
    receive({ type: 'submit', requests: [slow] });
    await vi.waitUntil(() => port.finish(1) != null);
    await drained(port, receive);
    expect(port.of('step').at(-1)?.stats.preemptions).toBe(1);
    expect(port.tokens(2)).toEqual(expected(urgent));
    const alone = await started();
    alone.receive({ type: 'submit', requests: [slow] });
    await drained(alone.port, alone.receive);
    expect(port.tokens(1)).toEqual(alone.port.tokens(1));
  });

  it('answers what it has not with a refusal', async () => {
    const { port, receive } = await started();
    const prompt = greedy(1, 300);
    const adapter = { version: 'v', directory: '.' };
    const grammar = { source: { kind: 'regex', text: 'a+' }, options: {} } as unknown as NonNullable<
      SequenceRequest['grammar']
    >;
    receive({ type: 'compile', id: 1, tenant: 'a', grammar });
    receive({ type: 'load-adapter', id: 2, adapter, tenant: null });
    receive({ type: 'trainer-open', session: 1 });
    receive({ type: 'trainer-call', session: 1, call: 3, work: { kind: 'export' } as never });
    const refused = [
      { ...prompt, id: 11, grammar },
      { ...prompt, id: 12, adapter },
      { ...prompt, id: 13, promptLogprobs: 0 },
      { ...greedy(14, 5, { logprobs: 0 }) },
      { ...greedy(15, 1000) },
    ];
    receive({ type: 'submit', requests: refused });
    await drained(port, receive);
    expect(port.of('compiled')).toEqual([
      { type: 'compiled', id: 1, failure: { kind: 'refused', message: 'This engine compiles no grammars.' } },
    ]);
    expect(port.of('adapter')).toEqual([{ type: 'adapter', id: 2, error: 'This engine serves no adapters.' }]);
    expect(port.of('trainer')).toEqual([
      { type: 'trainer', call: 3, answer: null, error: 'This engine trains nothing.', refused: false },
    ]);
    expect(refused.map(({ id }) => port.finish(id))).toEqual(Array(5).fill('error'));
    expect(port.outputs.get(15)?.[0]?.error).toMatch(/no room for an answer in the context of 1000/);
  });
});

describe('a step that fails', () => {
  let complaints: string[] = [];
  beforeEach(() => {
    complaints = [];
    vi.spyOn(console, 'error').mockImplementation((text: string) => void complaints.push(text));
  });
  afterEach(() => vi.restoreAllMocks());

  it('ends the process, as any other engine', async () => {
    const { port, receive } = await started({ faults: ['step-error-at=2'] });
    receive({ type: 'submit', requests: [greedy(1, 5)] });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(port.exits).toEqual([[70, 'The engine stops: Injected: step 2 fails.']]);
    expect(complaints).toEqual([]);
  });
});
