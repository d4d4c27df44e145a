import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { StorageQuota } from '../../../src/control/training/storage-quota.ts';

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['performance'] });
});
afterEach(() => {
  vi.useRealTimers();
});

test('who waits for what was deleted is told when enough of it is to be gone', async () => {
  const quota = new StorageQuota(() => Promise.resolve(0), 100);
  const refusal = (seconds: number, header: number) => ({
    code: 'queue_full',
    message: expect.stringMatching(new RegExp(`: try again in ${seconds} s\\.$`)) as string,
    retryAfterSeconds: header,
  });
  const first = quota.leave('team', 60, 120_000);
  vi.advanceTimersByTime(30_500);
  const second = quota.leave('team', 40, 120_000);
  await quota.check('team');
  vi.advanceTimersByTime(20_000);
  const third = quota.leave('team', 70, 120_000);
  // The first alone is not enough: 110 bytes stay.
  await expect(quota.check('team')).rejects.toMatchObject(refusal(100, 59));
  await quota.check('rivals');
  vi.advanceTimersByTime(69_500);
  first.gone();
  await expect(quota.check('team')).rejects.toMatchObject(refusal(31, 31));
  // The disk is slow.
  vi.advanceTimersByTime(60_000);
  await expect(quota.check('team')).rejects.toMatchObject(refusal(1, 1));
  second.gone();
  await quota.check('team');
  third.gone();
});
