import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Watchdog } from '../../../src/control/engine/watchdog.ts';

let owes: boolean;
let silences: number;
let watchdog: Watchdog;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  owes = true;
  silences = 0;
  const onSilence = () => void silences++;
  watchdog = new Watchdog(1000, () => owes, onSilence);
});
afterEach(() => {
  watchdog.stop();
  vi.useRealTimers();
});

it('notices silence after its time, to a quarter more, and not again before as long', () => {
  vi.advanceTimersByTime(1000);
  expect(silences).toBe(0);
  vi.advanceTimersByTime(250);
  expect(silences).toBe(1);
  vi.advanceTimersByTime(1000);
  expect(silences).toBe(1);
  vi.advanceTimersByTime(250);
  expect(silences).toBe(2);
});

it('counts from what was heard last, and nothing while nothing is owed', () => {
  vi.advanceTimersByTime(900);
  watchdog.heard();
  vi.advanceTimersByTime(1000);
  owes = false;
  vi.advanceTimersByTime(10_000);
  owes = true;
  vi.advanceTimersByTime(1000);
  expect(silences).toBe(0);
  watchdog.stop();
  vi.advanceTimersByTime(10_000);
  expect(silences).toBe(0);
});
