/** The API process's calls about adapters: shared by those who want the same, and given up with the last of them. */
import { beforeEach, expect, it } from 'vitest';
import { EngineUnavailableError } from '../../../src/control/engine/client.ts';
import { AdapterCalls } from '../../../src/control/engine/adapter-calls.ts';
import type { ToEngine } from '../../../src/control/engine/protocol.ts';

const ADAPTER = { version: 'v', directory: '/v' };

let sent: ToEngine[];
let calls: AdapterCalls;
beforeEach(() => {
  sent = [];
  calls = new AdapterCalls((message) => sent.push(message));
  calls.open();
});

const cancelled = () => sent.filter(({ type }) => type === 'cancel-load-adapter');

it('a load is given up when the last one that wants it has left, and asked for anew', async () => {
  const leave = [new AbortController(), new AbortController()];
  const loads = leave.map(({ signal }) => calls.load(ADAPTER, signal));
  leave[0]?.abort();
  await expect(loads[0]).rejects.toThrow('cancelled');
  expect(cancelled()).toEqual([]);
  leave[1]?.abort();
  await expect(loads[1]).rejects.toThrow('cancelled');
  expect(cancelled()).toEqual([{ type: 'cancel-load-adapter', id: 1 }]);
  // The engine may have answered before it heard.
  calls.receive(1, null);
  const again = calls.load(ADAPTER, new AbortController().signal, 'b');
  expect(sent.at(-1)).toEqual({ type: 'load-adapter', id: 2, adapter: ADAPTER, tenant: 'b' });
  calls.receive(1, 'cancelled');
  calls.receive(2, null);
  await again;
});

it('who never leaves keeps it', async () => {
  const leave = new AbortController();
  const leaving = calls.load(ADAPTER, leave.signal);
  const staying = calls.load(ADAPTER);
  leave.abort();
  await expect(leaving).rejects.toThrow('cancelled');
  expect(cancelled()).toEqual([]);
  calls.receive(1, null);
  await staying;
  // Known: nothing is asked, and leaving means nothing.
  await calls.load(ADAPTER, leave.signal).catch(() => undefined);
  await calls.load(ADAPTER);
  expect(sent).toHaveLength(1);
});

it('one that was given up is not asked of the next engine', async () => {
  calls.close();
  const leave = new AbortController();
  const load = calls.load(ADAPTER, leave.signal);
  leave.abort();
  await expect(load).rejects.toThrow('cancelled');
  calls.open();
  expect(sent).toEqual([]);
});

it('a load that fails is told to all, and tried anew', async () => {
  const loads = [calls.load(ADAPTER, new AbortController().signal), calls.load(ADAPTER)];
  calls.receive(1, 'it is bad');
  for (const load of loads) await expect(load).rejects.toThrow('it is bad');
  const again = calls.load(ADAPTER);
  calls.receive(2, null);
  await again;
});

it('is asked of the next engine, but not of a third: the load may be what ends them', async () => {
  const load = calls.load(ADAPTER);
  calls.close();
  calls.open();
  expect(sent.map(({ type }) => type)).toEqual(['load-adapter', 'load-adapter']);
  calls.close();
  await expect(load).rejects.toThrow('while this adapter was being loaded');
  calls.open();
  expect(sent).toHaveLength(2);
  const again = calls.load(ADAPTER);
  calls.receive(2, null);
  await again;
});

it('who has left already asks for nothing', async () => {
  await expect(calls.load(ADAPTER, AbortSignal.abort())).rejects.toThrow('cancelled');
  expect(sent).toEqual([]);
});

it('of very many versions the last are known', async () => {
  const load = async (version: string) => {
    const asked = sent.length;
    const loaded = calls.load({ version, directory: '/v' });
    if (sent.length > asked) calls.receive(sent.length, null);
    await loaded;
    return sent.length > asked;
  };
  for (let version = 0; version <= 4096; version++) await load(`v${version}`);
  expect(await load('v1')).toBe(false);
  expect(await load('v0')).toBe(true);
});

it('one that was unloaded is asked for anew: its files may be others by now', async () => {
  const first = calls.load(ADAPTER);
  calls.receive(1, null);
  await first;
  calls.unload(ADAPTER.version);
  void calls.load(ADAPTER);
  expect(sent.map(({ type }) => type)).toEqual(['load-adapter', 'unload-adapter', 'load-adapter']);
});

it('an engine that ends before it was ready has not ended over a load that it never got', async () => {
  calls.close();
  const load = calls.load(ADAPTER);
  for (let i = 0; i < 4; i++) calls.close();
  calls.open();
  calls.receive(1, null);
  await load;
});

it('where there will be no other engine, none is waited for', async () => {
  const waiting = calls.load(ADAPTER);
  calls.end('The engine is not running.');
  await expect(waiting).rejects.toThrow(EngineUnavailableError);
  await expect(calls.load({ ...ADAPTER, version: 'w' })).rejects.toThrow('The engine is not running.');
});
