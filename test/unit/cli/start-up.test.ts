import { resolve } from 'node:path';
import { expect, test, vi } from 'vitest';
import { banner, keysCommand, type BannerFacts } from '../../../src/cli/banner.ts';
import { engineConfig, parameterCount, refuseSettings, servedNames } from '../../../src/cli/engine-config.ts';
import { LoadingBar } from '../../../src/cli/progress.ts';
import type { LoadedModel } from '../../../src/control/models/model.ts';
import { testSettings } from '../api/fakes.ts';

const facts: BannerFacts = {
  version: '1.2.3',
  host: '0.0.0.0',
  port: 8123,
  model: 'starter',
  parameters: 3_123_456,
  dtype: 'bfloat16',
  isa: 'avx2',
  threads: 2,
  weightBytes: 6_400_000,
  kvBytes: 512_000_000,
  key: { kind: 'new', secret: 'tk-secret' },
  keysCommand: 'tandem keys create',
};

test('the banner has address, model, key and a line to paste', () => {
  const text = banner(facts);
  expect(text).toContain('http://127.0.0.1:8123/v1/chat/completions');
  expect(text).toContain('starter (3.1M parameters, bfloat16, avx2, 2 threads)');
  expect(text).toContain('6.4 MB of weights, 512 MB for the KV cache');
  expect(text.split('tk-secret')).toHaveLength(3);
});

test.each([
  [{ kind: 'flag' }, 'set by --api-key'],
  [{ kind: 'stored', count: 2 }, '2 stored'],
  [{ kind: 'stored', count: 1 }, '1 stored (`tandem keys create` makes another)'],
  [{ kind: 'stored', count: 0 }, 'none is valid: make one with `tandem keys create`'],
] as const)('key note %j', (key, shown) => {
  const text = banner({ ...facts, key });
  expect(text).toContain(shown);
  expect(text).toContain('$TANDEM_API_KEY');
});

test('the command for another key is one that can be typed, for the same data', () => {
  const installed = keysCommand('/usr/bin/tandem', '/srv/keys', false);
  expect(installed).toBe('tandem keys create --data-dir /srv/keys');
  expect(keysCommand(resolve('dist/cli/main.js'), 'data', true)).toBe('node dist/cli/main.js keys create');
  expect(banner({ ...facts, key: { kind: 'stored', count: 1 }, keysCommand: installed })).toContain(installed);
});

test('it is one for everywhere where a service runs in no folder of a person', () => {
  const script = '/opt/tandem/dist/cli/main.js';
  const everywhere = `node ${script} keys create --data-dir /var/lib/tandem`;
  expect(keysCommand(script, '/var/lib/tandem', false, '/')).toBe(everywhere);
  expect(keysCommand(script, '/var/lib/tandem', false, '/srv')).toBe(everywhere);
  expect(keysCommand(script, 'data', true, '/')).toBe(`node ${script} keys create --data-dir /data`);
  expect(keysCommand(script, 'data', true, '/opt')).toBe('node tandem/dist/cli/main.js keys create');
});

test('IPv6 addresses are bracketed', () => {
  expect(banner({ ...facts, host: '::1' })).toContain('http://[::1]:8123');
});

test('progress: a bar on a terminal, a line per quarter elsewhere', () => {
  const write = (isTTY: boolean) => {
    let text = '';
    const bar = new LoadingBar({ isTTY, write: (piece) => (text += piece) }, 'weights');
    for (let done = 0; done <= 100; done++) bar.update(done * 1e6, 100e6);
    for (let ends = 0; ends < 2; ends++) bar.end();
    bar.update(3e6, 2e6);
    return text;
  };
  expect(write(false).split('\n')).toHaveLength(6);
  const full = `\r[${'#'.repeat(30)}] weights`;
  // A file may be larger than was said.
  expect(write(true)).toContain(`${full} 100.0 MB of 100.0 MB\n${full} 3.0 MB of 2.0 MB`);
});

const model = {
  path: '/models/tiny',
  name: 'tiny',
  spec: { vocabSize: 100, layers: 2, kvHeads: 2, headDim: 16 },
  files: [],
  tensors: [{ name: 'a', dtype: 'F32', shape: [10, 20], file: 0, offset: 0 }],
  checkpointDType: 'bfloat16',
  generation: { eosTokenIds: [] },
  tokenizerSize: 90,
  maxPosition: 512,
  digest: 'd',
} as unknown as LoadedModel;

test('engine settings follow model and flags', () => {
  expect(engineConfig(testSettings(), model)).toMatchObject({
    dtype: 'bfloat16',
    maxModelLen: 512,
    samplableVocab: 90,
    maxLogprobs: 64,
    maxBatchTokens: 2048,
    stepTargetMs: 500,
  });
  expect(engineConfig(testSettings({ maxLogprobs: -1 }), model).maxLogprobs).toBe(100);
  const queue = { enablePrefixCaching: false, schedulingPolicy: 'priority' } as const;
  expect(engineConfig(testSettings(queue), model)).toMatchObject(queue);
  expect(engineConfig(testSettings({ dtype: 'float32', maxModelLen: 100 }), model)).toMatchObject({
    dtype: 'float32',
    maxModelLen: 100,
  });
  expect(engineConfig(testSettings(), { ...model, checkpointDType: 'float16' }).dtype).toBe('float32');
  expect(engineConfig(testSettings(), model)).not.toHaveProperty('quantize');
  expect(engineConfig(testSettings({ quantize: 'int4', dataDir: '/data' }), model)).toMatchObject({
    quantize: 'int4',
    weightCache: { directory: '/data/weights', maxBytes: 8 * 2 ** 30, modelDigest: model.digest },
  });
  const blocks = { ...model, tensors: model.tensors.map((tensor) => ({ ...tensor, dtype: 'Q4_K' as const })) };
  expect(engineConfig(testSettings(), blocks)).not.toHaveProperty('quantize');
  expect(() => engineConfig(testSettings({ quantize: 'int4' }), blocks)).toThrow(
    '--quantize: the weights are already quantised.',
  );
  expect(engineConfig(testSettings({ kvCacheMemoryBytes: 12_345 }), model).kvCacheBytes).toBe(12_345);
  expect(() => engineConfig(testSettings({ maxModelLen: 513 }), model)).toThrow(/--max-model-len 513.*512/);
});

test('settings of the engine process reach it', () => {
  const given = {
    quantize: 'int4',
    weightCacheBytes: 7,
    enableJumpForward: false,
    enableChunkedPrefill: false,
    maxLoraRank: 3,
    maxAdapterMemoryBytes: 5,
    trainingFloor: 0.4,
    maxTrainingRowTokens: 2048,
    trainingMemoryBytes: 11,
    recomputeActivations: true,
    kvPort: 0,
    kvSecret: 'x'.repeat(16),
    kvHoldSeconds: 13,
    kvHoldPercent: 17,
    kvTransferTimeoutMs: 19,
  } as const;
  const config = engineConfig(testSettings(given), model);
  expect(config).toMatchObject({
    weightCache: { maxBytes: 7 },
    enableChunkedPrefill: false,
    maxLoraRank: 3,
    maxAdapterBytes: 5,
    trainingFloor: 0.4,
    maxTrainingRowTokens: 2048,
    maxTrainingRowBytes: 11,
    recomputeActivations: true,
    kvTransfer: { listen: { port: 0 }, secret: given.kvSecret, holdMs: 13_000, holdShare: 0.17, timeoutMs: 19 },
  });
  expect(config).not.toHaveProperty('spellerModel');
  expect(engineConfig(testSettings(), model)).toHaveProperty('spellerModel', model.path);
});

test('the KV cache has the type of the arithmetic or int8; what cannot be is refused by flag name', () => {
  const page = (settings: Parameters<typeof testSettings>[0]) =>
    Number(engineConfig(testSettings({ maxNumSeqs: 4, ...settings }), model).kvCacheBytes);
  expect(engineConfig(testSettings(), model)).not.toHaveProperty('kvCacheDtype');
  expect(engineConfig(testSettings({ kvCacheDtype: 'bfloat16' }), model)).not.toHaveProperty('kvCacheDtype');
  expect(engineConfig(testSettings({ kvCacheDtype: 'int8' }), model).kvCacheDtype).toBe('int8');
  // Heads of 16: a byte each and a float for all, instead of two bytes each.
  expect(page({ kvCacheDtype: 'int8' }) / page({})).toBe(20 / 32);
  expect(page({ kvCacheDtype: 'int8', dtype: 'float32' })).toBe(page({ kvCacheDtype: 'int8' }));
  expect(() => engineConfig(testSettings({ kvCacheDtype: 'bfloat16', dtype: 'float32' }), model)).toThrow(
    '--kv-cache-dtype bfloat16 needs --dtype bfloat16, and this is float32.',
  );
});

test('the longest sequence is what the KV cache holds, unless a length was asked for', () => {
  const warnings: string[] = [];
  const page = 2 * 2 * 2 * 16 * 2 * 16;
  const small = testSettings({ kvCacheMemoryBytes: 10 * page + 1 });
  expect(engineConfig(small, model, (text) => warnings.push(text)).maxModelLen).toBe(160);
  expect(warnings).toHaveLength(1);
  expect(warnings[0]).toMatch(/512 positions.*160.*--kv-cache-memory/);
  expect(engineConfig({ ...small, maxModelLen: 300 }, model, (text) => warnings.push(text)).maxModelLen).toBe(300);
  expect(warnings).toHaveLength(1);
});

test('the default KV memory holds what all slots can use, and no more; a quarter of the memory at most, as training', () => {
  const settings = testSettings({ maxNumSeqs: 4 });
  const { kvCacheBytes } = engineConfig(settings, model);
  const perToken = 2 * 2 * 2 * 16 * 2;
  expect(kvCacheBytes).toBeGreaterThanOrEqual(4 * 512 * perToken);
  expect(kvCacheBytes).toBeLessThan(4 * 600 * perToken);
  // Heads are padded to 16.
  const narrow = { ...model, spec: { ...model.spec, headDim: 9 } };
  expect(engineConfig(settings, narrow).kvCacheBytes).toBe(kvCacheBytes);
  const memory = vi.spyOn(process, 'constrainedMemory').mockReturnValue(2 ** 20);
  try {
    expect(engineConfig(settings, model)).toMatchObject({ kvCacheBytes: 2 ** 18, maxTrainingRowBytes: 2 ** 18 });
  } finally {
    memory.mockRestore();
  }
});

test('a GPU computes in bfloat16 and gives what memory it has', () => {
  expect(engineConfig(testSettings({ device: 'cuda' }), { ...model, checkpointDType: 'float16' })).toMatchObject({
    device: 'cuda',
    dtype: 'bfloat16',
    kvCacheBytes: null,
    maxModelLen: 512,
  });
  expect(engineConfig(testSettings({ device: 'cuda' }), model).maxTrainingRowBytes).toBe(4 * 2 ** 30);
  expect(engineConfig(testSettings({ device: 'cuda', kvCacheMemoryBytes: 12_345_678 }), model).kvCacheBytes).toBe(
    12_345_678,
  );
  const quantised = testSettings({ device: 'cuda', quantize: 'int4' });
  refuseSettings(quantised);
  expect(engineConfig(quantised, model)).toMatchObject({ device: 'cuda', quantize: 'int4' });
  expect(engineConfig(testSettings(), model).device).toBe('cpu');
});

test('names and sizes', () => {
  expect(servedNames(testSettings(), model)).toEqual(['tiny']);
  expect(servedNames(testSettings({ servedModelNames: ['x', 'y', 'x'] }), model)).toEqual(['x', 'y']);
  expect(parameterCount(model.tensors)).toBe(200);
});

test('what is not built is refused by flag name', () => {
  expect(() => refuseSettings(testSettings({ device: 'cuda', dtype: 'float32' }))).toThrow('--device cuda');
  expect(() => refuseSettings(testSettings({ device: 'cuda', kvCacheDtype: 'int8' }))).toThrow('--kv-cache-dtype');
  for (const device of ['auto', 'cpu'] as const)
    expect(() => refuseSettings(testSettings({ device, quantize: 'fp8' }))).toThrow(
      '--quantize fp8 needs --device cuda',
    );
  refuseSettings(testSettings({ device: 'cuda', quantize: 'fp8' }));
  expect(() => refuseSettings(testSettings({ kvCacheMemoryBytes: 100 * 2 ** 40 }))).toThrow(
    /^--kv-cache-memory is 102400\.0 GiB, and this machine has [\d.]+ GiB\.$/,
  );
  refuseSettings(testSettings({ kvCacheMemoryBytes: 2 ** 20 }));
  expect(() => refuseSettings(testSettings({ loraRank: 129 }))).toThrow('--lora-rank 129 is more than --max-lora-rank');
  refuseSettings(testSettings({ loraRank: 129, maxLoraRank: 129 }));
  refuseSettings(testSettings({ defaultChatTemplateKwargs: { enable_thinking: false } }));
  for (const name of ['messages', 'bos_token', 'range'])
    expect(() => refuseSettings(testSettings({ defaultChatTemplateKwargs: { [name]: [] } }))).toThrow(
      `--default-chat-template-kwargs must not set '${name}'`,
    );
  refuseSettings(testSettings({ trainingFileRoot: import.meta.dirname }));
  for (const trainingFileRoot of [import.meta.filename, `${import.meta.dirname}/missing`, `${import.meta.filename}/x`])
    expect(() => refuseSettings(testSettings({ trainingFileRoot }))).toThrow(
      `--training-file-root ${trainingFileRoot} is no folder.`,
    );
  for (const [settings, message] of [
    [{ kvPort: 1 }, 'need --kv-secret'],
    [{ kvPeers: [{ host: 'a', port: 1 }] }, 'need --kv-secret'],
    [{ kvSecret: 'x'.repeat(16) }, 'means nothing'],
    [{ kvPort: 1, kvSecret: 'short' }, 'at least 16'],
    [{ kvPort: 1, kvSecret: 'x'.repeat(16), kvHost: '0.0.0.0' }, '--kv-host'],
    [{ kvPeers: [{ host: 'a', port: 1 }], kvSecret: 'x'.repeat(16), enablePrefixCaching: false }, 'prefix cache'],
  ] as const)
    expect(() =>
      refuseSettings(testSettings({ ...settings, kvPeers: [...('kvPeers' in settings ? settings.kvPeers : [])] })),
    ).toThrow(message);
  refuseSettings(testSettings());
});
