import { expect, test } from 'vitest';
import { adapterBytes, adapterObstacle } from '../../../src/control/engine/adapter-bytes.ts';
import { ADAPTER_MODULES } from '../../../src/control/engine/training.ts';
import { FAKE_SPEC } from '../training/fake-engine.ts';

test('a rank is refused as the engine would refuse its adapter: by its size, or by what it takes of the memory', () => {
  const spec = { ...FAKE_SPEC, layers: 3 };
  const factors = Array.from({ length: 3 }, () => ADAPTER_MODULES.map((module) => ({ module, rank: 64 }))).flat();
  const bytes = adapterBytes(factors, { spec, dtype: 'float32' });
  const limits = { spec, dtype: 'float32' as const, maxRank: 64, maxBytes: bytes };
  expect(adapterObstacle(64, limits)).toBeNull();
  expect(adapterObstacle(65, limits)).toContain('rank 65, and the server serves ranks of up to 64 (--max-lora-rank)');
  expect(adapterObstacle(64, { ...limits, maxBytes: bytes - 1 })).toMatch(/need .* each, and --max-adapter-memory is/);
  expect(adapterObstacle(64, { ...limits, dtype: 'bfloat16', maxBytes: bytes / 2 })).toBeNull();
});
