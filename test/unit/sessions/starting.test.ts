/** Requests on their way to the engine's queue: as many as were allowed, each tenant its share. */
import { expect, test } from 'vitest';
import { createSessions } from '../../../src/control/sessions/create-sessions.ts';
import { STARTER } from '../../fixtures/starter.ts';
import { FakeEngine } from './fake-engine.ts';
import { input } from './inputs.ts';

const MOST = 1100;

test('that wait for an adapter are bounded; what has been queued or refused waits no more', async () => {
  const loads: { resolve: () => void; reject: (error: Error) => void }[] = [];
  const sessions = await createSessions({
    modelPath: STARTER,
    engine: new FakeEngine(),
    adapters: { loadAdapter: () => new Promise((resolve, reject) => loads.push({ resolve, reject })) },
    maxModelLen: 64,
    workers: 1,
    renderTimeoutMs: 10_000,
    maxWaitingRenders: MOST,
  });
  const start = (tenant: string) => {
    const asked = input({}, { kind: 'ids', ids: [5] });
    return sessions.start({ ...asked, tenant, adapter: { version: 'v', directory: '/nowhere' } });
  };
  const waiting = async (count: number) => {
    while (loads.length < count) await new Promise((resolve) => setImmediate(resolve));
  };
  const full = { code: 'queue_full', retryAfterSeconds: 1 };
  try {
    const many = Array.from({ length: MOST }, () => start('a'));
    await waiting(MOST);
    await expect(start('a')).rejects.toMatchObject(full);
    const other = start('b');
    await waiting(MOST + 1);
    for (const { resolve } of loads.splice(0)) resolve();
    for (const generation of await Promise.all([...many, other])) generation.abort();

    const refused = Array.from({ length: MOST }, () => start('a'));
    await waiting(MOST);
    await expect(start('a')).rejects.toMatchObject(full);
    for (const { reject } of loads.splice(0)) reject(new Error('gone'));
    for (const each of await Promise.allSettled(refused))
      expect(each).toMatchObject({ reason: { code: 'adapter_failed' } });
    const last = start('a');
    await waiting(1);
    loads[0]?.resolve();
    (await last).abort();
  } finally {
    await sessions.close();
  }
});
