import { expect, test } from 'vitest';
import { Metrics } from '../../../src/api/metrics.ts';
import { FakeEngine } from '../sessions/fake-engine.ts';

test('tokens and the times between them, counted with every token', async () => {
  const settings = { vllmMetricNames: true, maxNumSeqs: 4 };
  const metrics = new Metrics({ modelName: 'm', settings, engine: new FakeEngine() });
  const samples = async (name: string) => {
    const text = await metrics.render();
    const lines = text.split('\n').filter((line) => line.startsWith(name));
    return lines.map((line) => line.replace('model_name="m",engine="0"', '').slice(name.length));
  };
  metrics.tokens(1);
  expect(await samples('tandem_generation_tokens_total')).toEqual(['{} 1']);
  metrics.tokens(3);
  expect(await samples('vllm:generation_tokens_total')).toEqual(['{} 4']);

  const name = 'tandem_inter_token_latency_seconds';
  // At a bound, above it, and above the last one.
  for (const seconds of [0.01, 0.0101, 100]) metrics.nextToken(seconds);
  const counts = (await samples(`${name}_bucket`)).map((sample) => sample.split(' '));
  expect(counts.slice(0, 3)).toEqual([
    ['{,le="0.01"}', '1'],
    ['{,le="0.025"}', '2'],
    ['{,le="0.05"}', '2'],
  ]);
  expect(counts.slice(-2)).toEqual([
    ['{,le="80"}', '2'],
    ['{,le="+Inf"}', '3'],
  ]);
  expect(await samples(`${name}_count`)).toEqual(['{} 3']);
  expect(await samples(`${name}_sum`)).toEqual(['{} 100.0201']);
});

test('many who ask at once share one text; whoever asks later gets a new one', async () => {
  const engine = new FakeEngine();
  let reads = 0;
  const stats = engine.stats.bind(engine);
  engine.stats = () => {
    reads++;
    return stats();
  };
  const metrics = new Metrics({ modelName: 'm', settings: { vllmMetricNames: false, maxNumSeqs: 4 }, engine });
  await metrics.render();
  const once = reads;
  const together = Promise.all([metrics.render(), metrics.render(), metrics.render()]);
  metrics.tokens(5);
  for (const text of await together) expect(text).toMatch(/^tandem_generation_tokens_total\{.*\} 5$/m);
  expect(reads).toBe(2 * once);
  metrics.tokens(1);
  expect(await metrics.render()).toMatch(/^tandem_generation_tokens_total\{.*\} 6$/m);
});
