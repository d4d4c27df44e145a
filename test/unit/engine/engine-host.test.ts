import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest';
import { EngineHost, type EnginePort } from '../../../src/control/engine/engine-host.ts';
import type { FromEngine, ToEngine } from '../../../src/control/engine/protocol.ts';
import { sampleFiles } from '../../../src/control/models/digest.ts';
import { config, submission } from '../../boundary/engine-process/harness.ts';
import { fakeAddon } from '../scheduler/fake-native.mjs';

class RecordingPort implements EnginePort {
  readonly sent: FromEngine[] = [];
  readonly exits: [number, string | undefined][] = [];

  send(message: FromEngine): undefined {
    // As the channel would: what is sent is a copy.
    this.sent.push(structuredClone(message));
  }

  exit(code: number, message?: string): void {
    this.exits.push([code, message]);
  }

  types(): string[] {
    return this.sent.map(({ type }) => type);
  }
}

function host(hooks: Parameters<typeof fakeAddon>[0] = {}) {
  const port = new RecordingPort();
  const made = new EngineHost(port, () => fakeAddon(hooks));
  return { port, receive: (message: unknown) => made.receive(message as ToEngine) };
}

const submitted = (id: number) => ({ ...submission(id, 5), id, resumeIds: new Int32Array(0) });

describe('EngineHost', () => {
  let complaints: string[] = [];
  beforeEach(() => {
    complaints = [];
    vi.spyOn(console, 'error').mockImplementation((text: string) => void complaints.push(text));
  });
  afterEach(() => vi.restoreAllMocks());

  it('loads, tells progress, serves and ends when drained', async () => {
    const { port, receive } = host();
    receive({ type: 'start', config: config() });
    await vi.waitUntil(() => port.types().includes('ready'));
    expect(port.sent.slice(0, 2)).toEqual([
      { type: 'loading', done: 1000, total: 1000 },
      { type: 'ready', isa: 'fake', weightBytes: 1000, pages: 200, pageBytes: 1024 },
    ]);
    receive({ type: 'submit', requests: [submitted(1)] });
    receive({ type: 'drain' });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(port.exits).toEqual([[0, undefined]]);
    const steps = port.sent.filter((message) => message.type === 'step');
    expect(steps.flatMap(({ started }) => started)).toEqual([1]);
    expect(steps.flatMap(({ ids }) => [...(ids ?? [])])).toEqual(Array<number>(10).fill(1));
    expect(steps.at(-1)?.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0, generatedTokens: 10 });
  });

  it('does not load files that have changed since', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tandem-changed-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'model.safetensors');
    writeFileSync(path, Buffer.alloc(100_000, 1));
    const samples = await sampleFiles([path]);
    const start = async () => {
      const { port, receive } = host();
      receive({ type: 'start', config: config([], { samples }) });
      await vi.waitUntil(() => port.types().some((type) => type === 'ready' || type === 'failed'));
      return port.sent.at(-1);
    };
    expect(await start()).toMatchObject({ type: 'ready' });
    const bytes = Buffer.alloc(100_000, 1);
    bytes[99_999] = 2;
    writeFileSync(path, bytes);
    const cure = 'Put that back, or start the server again.';
    const message = `model.safetensors: is not the file that the server began with. ${cure}`;
    expect(await start()).toEqual({ type: 'failed', message });
    rmSync(path);
    expect(await start()).toEqual({ type: 'failed', message: `model.safetensors: cannot be read (ENOENT). ${cure}` });
  });

  it('on a GPU it takes the pages that there is memory for, and tells the plan', async () => {
    for (const [most, pages] of [
      [50, 50],
      [10_000, 4 * 33],
    ] as const) {
      const asked: unknown[] = [];
      const gpu = {
        kernels: 'cuda 8.0, mma products, mma attention',
        mostPages: (options: unknown) => (asked.push(options), most),
        memoryPlan: () => [
          { name: 'weights', bytes: 3 * 2 ** 20 },
          { name: 'KV pages', bytes: 2 ** 19 },
        ],
      };
      const { port, receive } = host({ gpu });
      const bounds = { kvCacheBytes: null, maxAdapterBytes: 77, maxTrainingRowBytes: 1000 };
      receive({ type: 'start', config: config([], { device: 'cuda', ...bounds }) });
      await vi.waitUntil(() => port.types().includes('ready'));
      expect(asked).toMatchObject([{ reserveBytes: 1077, maxModelLen: 512 }]);
      expect(port.sent.slice(1)).toEqual([
        { type: 'log', line: 'GPU memory: weights 3.0 MiB, KV pages 0.5 MiB' },
        { type: 'ready', isa: gpu.kernels, weightBytes: 1000, pages, pageBytes: 1024 },
      ]);
    }
    const { port, receive } = host({ gpu: { kernels: 'cuda', mostPages: () => 31, memoryPlan: () => [] } });
    receive({ type: 'start', config: config([], { device: 'cuda', kvCacheBytes: null }) });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(port.sent.at(-1)).toMatchObject({
      type: 'failed',
      message: expect.stringMatching(
        /GPU has room for .* lower --max-model-len, --training-memory or --max-adapter-memory/,
      ),
    });
  });

  it('tells who starts before the step in which they start runs', async () => {
    const seen: number[] = [];
    const { port, receive } = host({
      onCall: () =>
        void seen.push(port.sent.flatMap((message) => (message.type === 'step' ? message.started : [])).length),
    });
    receive({ type: 'start', config: config() });
    await vi.waitUntil(() => port.types().includes('ready'));
    receive({ type: 'submit', requests: [submitted(1), submitted(2)] });
    receive({ type: 'drain' });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(seen[0]).toBe(2);
  });

  it('survives malformed and misplaced messages', async () => {
    const { port, receive } = host();
    receive({ type: 'submit', requests: [] });
    receive({ type: 'compile', id: 1, tenant: 't', grammar: null });
    receive({ type: 'start', config: config() });
    await vi.waitUntil(() => port.types().includes('ready'));
    const bad = [null, 7, 'text', {}, { type: 'nonsense' }, { type: 'submit' }, { type: 'submit', requests: [null] }];
    for (const message of [...bad, { type: 'abort' }, { type: 'start', config: config() }]) receive(message);
    receive({ type: 'submit', requests: [{ id: 5 }, { ...submitted(6), sampling: null }, submitted(1)] });
    receive({ type: 'drain' });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(port.exits[0]?.[0]).toBe(0);
    expect(complaints).toHaveLength(2 + bad.length + 2);
    const steps = port.sent.filter((message) => message.type === 'step');
    expect(steps.flatMap(({ refused }) => refused.map(({ id }) => id))).toEqual([5, 6]);
    expect(steps.flatMap(({ ids }) => [...(ids ?? [])])).toHaveLength(10);
  });

  it('says why it cannot start, and ends', async () => {
    const { port, receive } = host({ onLoad: () => Promise.reject(new Error('no such tensor')) });
    receive({ type: 'start', config: config() });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(port.sent).toEqual([{ type: 'failed', message: 'no such tensor' }]);
    expect(port.exits[0]?.[0]).toBe(1);
  });

  it('ends when a step fails: the native state is unknown then', async () => {
    const { port, receive } = host();
    receive({ type: 'start', config: config([], { faults: ['step-error-at=2'] }) });
    await vi.waitUntil(() => port.types().includes('ready'));
    receive({ type: 'submit', requests: [submitted(1)] });
    await vi.waitUntil(() => port.exits.length > 0);
    expect(port.exits[0]).toEqual([70, 'The engine stops: Injected: step 2 fails.']);
  });
});
