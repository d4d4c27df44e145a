/**
 * New versions of an adapter are published while requests run: each request gets its own version's numbers to the bit, whatever
 * runs beside it, whatever the prefix cache holds, and whether its adapter stayed in memory or was read again.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { join } from 'node:path';
import { createLocalEngine, type LocalEngine } from '../../src/control/engine/local.ts';
import type { EngineConfig, SequenceOutput } from '../../src/control/engine/protocol.ts';
import type { AdapterRef } from '../../src/control/engine/training.ts';
import { adapterVersion } from '../../src/control/models/adapter-version.ts';
import { writeAdapter } from '../fixtures/adapters.ts';
import { hashTokens } from '../fixtures/hash-weights.ts';
import { tinyEngine } from '../fixtures/tiny-engine.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { sampling } from '../unit/scheduler/drive.ts';

const VERSIONS = 24;
/** Of different tenants, so that each has its own prefix cache; two prompts, so that every version would find the other's pages. */
const PROMPTS = 2;

const temporary = temporaryDirectory();
let config: EngineConfig;
const refs: (AdapterRef | null)[] = [null];
let prompts: Int32Array[];

beforeAll(async () => {
  // A few of the adapters.
  config = { ...(await tinyEngine(join(temporary.path, 'model'))), maxAdapterBytes: 2_000_000 };
  const { spec } = config;
  prompts = Array.from({ length: PROMPTS }, (_, index) => hashTokens(`prompt ${index}`, 70, spec.vocabSize));
  const ranks = [8, 16, 64, 3];
  for (let version = 0; version < VERSIONS; version++) {
    const rank = ranks[version % ranks.length]!;
    const folder = join(temporary.path, `v${version}`);
    writeAdapter(folder, spec, { seed: `version ${version}`, rank, alpha: rank });
    refs.push({ version: await adapterVersion(folder), directory: folder });
  }
});
afterAll(() => temporary.remove());

/** Token ids and the bits of their log-probabilities. */
async function run(engine: LocalEngine, adapter: AdapterRef | null, prompt: number): Promise<string> {
  const outputs: SequenceOutput[] = [];
  const request = {
    promptIds: prompts[prompt]!,
    sampling: sampling({ maxTokens: 12, logprobs: 0, seed: BigInt(prompt) }),
    priority: 0,
    tenant: 'a',
    adapter,
  };
  await new Promise<void>((resolve) =>
    engine.submit([request], (_, output) => {
      outputs.push(output);
      if (output.finish !== null) resolve();
    }),
  );
  const logprobs = Float32Array.from(outputs.flatMap((output) => [...output.logprobs]));
  expect(outputs.at(-1)?.error).toBeUndefined();
  return JSON.stringify([outputs.flatMap(({ tokens }) => [...tokens]), [...new Uint32Array(logprobs.buffer)]]);
}

test('every request keeps its version, and no version finds what another computed', async () => {
  const alone = await createLocalEngine({ ...config, enablePrefixCaching: false });
  const expected: string[][] = [];
  for (const ref of refs) {
    const row: string[] = [];
    for (let prompt = 0; prompt < PROMPTS; prompt++) row.push(await run(alone, ref, prompt));
    expected.push(row);
  }
  await alone.close();
  expect(new Set(expected.flat()).size).toBe((VERSIONS + 1) * PROMPTS);

  const engine = await createLocalEngine(config);
  let published = 0;
  const clients = Array.from({ length: 8 }, async (_, client) => {
    for (let turn = 0; turn < 30; turn++) {
      // Mostly the newest; the last client goes back to old ones, which are read again from disk.
      const version = client === 7 ? (turn * 5) % (published + 1) : Math.max(0, published - (turn % 2));
      const prompt = (client + turn) % PROMPTS;
      expect([version, await run(engine, refs[version]!, prompt)]).toEqual([version, expected[version]![prompt]]);
    }
  });
  const publisher = (async () => {
    for (let version = 1; version <= VERSIONS; version++) {
      await engine.loadAdapter(refs[version]!);
      published = version;
      if (version > 2) await engine.unloadAdapter(refs[version - 2]!.version);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  })();
  await Promise.all([...clients, publisher]);
  expect(published).toBe(VERSIONS);
  const { prefixCacheHits } = engine.stats();
  expect(prefixCacheHits).toBeGreaterThan(0);
  await engine.drain(10_000);
  expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0 });
}, 120_000);

test('a sequence whose adapter cannot be loaded ends alone', async () => {
  const engine = await createLocalEngine(config);
  const missing = { version: 'gone', directory: join(temporary.path, 'nowhere') };
  await expect(engine.loadAdapter(missing)).rejects.toThrow('does not exist');
  const renamed = { version: refs[1]!.version, directory: refs[2]!.directory };
  await expect(engine.loadAdapter(renamed)).rejects.toThrow('changed since it was named');
  const outputs: SequenceOutput[] = [];
  const good = run(engine, refs[3]!, 0);
  const request = {
    promptIds: prompts[0]!,
    sampling: sampling({ maxTokens: 3 }),
    priority: 0,
    tenant: 'a',
    adapter: missing,
  };
  await new Promise<void>((resolve) =>
    engine.submit([request], (_, output) => {
      outputs.push(output);
      resolve();
    }),
  );
  expect(outputs).toMatchObject([{ finish: 'error' }]);
  expect(outputs[0]?.error).toContain('cannot be loaded: adapter: the folder does not exist');
  await good;
  await engine.close();
});
