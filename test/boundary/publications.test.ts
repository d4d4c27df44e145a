/**
 * A few hundred publications under load in the real engine process; `npm run soak:publications` runs ten thousand and measures them. Every
 * stream is compared, bit for bit, with what its version says alone: nothing stale from the prefix cache, nobody changes versions.
 */
import { expect, test } from 'vitest';
import { Soak } from '../../benchmarks/publications/soak.mjs';

const PUBLICATIONS = 300;
const STREAMS = 6;

test(`${PUBLICATIONS} publications under load`, async () => {
  const soak = await Soak.start({ streams: STREAMS });
  try {
    const first = soak.published;
    const facts = await soak.load(async () => {
      while (soak.published < first + PUBLICATIONS) await soak.publish();
    });
    expect(facts.requests).toBeGreaterThan(0);
    expect(facts.versions).toBeGreaterThan(1);
    // Refreshes the counts, and shows that versions that stay are found again.
    const after = await soak.load(() => Promise.resolve());
    expect(after.requests).toBe(STREAMS);
    const { adapters, restarts, running, waiting, pagesUsed } = soak.memory();
    expect({ restarts, running, waiting, pagesUsed }).toEqual({ restarts: 0, running: 0, waiting: 0, pagesUsed: 0 });
    expect(adapters.resident).toBeLessThanOrEqual(soak.kept);
    expect(adapters.native).toBe(adapters.resident);
  } finally {
    await soak.close();
  }
}, 180_000);
