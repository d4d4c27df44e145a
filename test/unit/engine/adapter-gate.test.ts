/** Adapters in memory: loaded once, pinned while used, off-loaded oldest first, and nobody waits for ever. */
import { beforeEach, describe, expect, it } from 'vitest';
import { AdapterGate } from '../../../src/control/engine/adapter-gate.ts';
import { AdapterStore, type PinnedAdapter } from '../../../src/control/engine/adapter-store.ts';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import type { AdapterRef } from '../../../src/control/engine/training.ts';

const open = new Set<string>();
let loads: string[] = [];
let holdLoad: Promise<void> | null = null;
let store: AdapterStore;
let gate: AdapterGate;

const ref = (version: string) => ({ version, directory: `/${version}` });

/** Adapters of 10 bytes; 'big' has 1000, 'bad' cannot be loaded. Three fit. */
beforeEach(() => {
  open.clear();
  loads = [];
  holdLoad = null;
  const opener = ({ version }: AdapterRef) => {
    if (version.startsWith('bad')) return Promise.reject(new Error('it is bad'));
    const bytes = version === 'big' ? 1000 : 10;
    const load = async () => {
      loads.push(version);
      await holdLoad;
      open.add(version);
      return { bytes, close: () => void open.delete(version) };
    };
    return Promise.resolve({ bytes, load });
  };
  store = new AdapterStore(opener, 35, () => open.size);
  gate = new AdapterGate(store);
});

class Sequence {
  pinned: PinnedAdapter | null = null;
  error: string | null = null;
  constructor(id: number, version: string, tenant = 'one') {
    const request = { id, tenant } as SequenceRequest;
    gate.add(
      request,
      ref(version),
      (pinned) => (this.pinned = pinned),
      (message) => (this.error = message),
    );
  }
}

const settle = () => new Promise((resolve) => setTimeout(resolve, 5));

describe('the gate', () => {
  it('loads once for all that wait, and at once for those after', async () => {
    const all = [1, 2, 3].map((id) => new Sequence(id, 'a'));
    expect(gate.size).toBe(3);
    await settle();
    expect(all.every(({ pinned }) => pinned !== null)).toBe(true);
    expect(new Sequence(4, 'a').pinned).not.toBeNull();
    expect(loads).toEqual(['a']);
    expect(gate.size).toBe(0);
  });

  it('off-loads the least recently used that nobody uses', async () => {
    for (const version of ['a', 'b', 'c']) await gate.load(ref(version));
    await gate.load(ref('a'));
    const user = new Sequence(1, 'b');
    await gate.load(ref('d'));
    // c was used before a, and b is in use.
    expect([...open].sort()).toEqual(['a', 'b', 'd']);
    user.pinned?.release();
    await gate.load(ref('c'));
    expect(loads).toEqual(['a', 'b', 'c', 'd', 'c']);
    expect(store.stats.bytes).toBe(30);
  });

  it('waits for room while everything is in use, and holds back what came later', async () => {
    const users = ['a', 'b', 'c'].map((version, id) => new Sequence(id, version));
    await settle();
    const waiting = new Sequence(10, 'd');
    await settle();
    const later = new Sequence(11, 'a');
    await settle();
    expect([waiting.pinned, later.pinned]).toEqual([null, null]);
    users[1]?.pinned?.release();
    await settle();
    expect(waiting.pinned).not.toBeNull();
    expect(later.pinned).not.toBeNull();
    expect([...open].sort()).toEqual(['a', 'c', 'd']);
  });

  it('goes on without one that was aborted while it waited', async () => {
    const users = ['a', 'b', 'c'].map((version, id) => new Sequence(id, version));
    await settle();
    new Sequence(10, 'd');
    await settle();
    const later = new Sequence(11, 'a');
    await settle();
    expect(later.pinned).toBeNull();
    gate.remove(10);
    expect(later.pinned).not.toBeNull();
    expect(users.every(({ pinned }) => pinned)).toBe(true);
  });

  it('goes on without a load that nobody wants any more', async () => {
    const users = ['a', 'b', 'c'].map((version, id) => new Sequence(id, version));
    await settle();
    const leave = new AbortController();
    const load = gate.load(ref('d'), leave.signal);
    await settle();
    const later = new Sequence(11, 'a');
    expect(later.pinned).toBeNull();
    leave.abort();
    await expect(load).rejects.toThrow('cancelled');
    expect(later.pinned).not.toBeNull();
    await expect(gate.load(ref('e'), leave.signal)).rejects.toThrow('cancelled');
    expect(users.every(({ pinned }) => pinned)).toBe(true);
  });

  it('keeps nothing of a version that was unloaded while it was read and that nobody came for', async () => {
    let read = () => {};
    holdLoad = new Promise((resolve) => (read = resolve));
    const leave = new AbortController();
    const load = gate.load(ref('a'), leave.signal);
    new Sequence(1, 'a');
    await settle();
    gate.unload('a');
    leave.abort();
    await expect(load).rejects.toThrow('cancelled');
    gate.remove(1);
    read();
    await settle();
    expect(store.stats).toEqual({ resident: 0, bytes: 0, native: 0 });
    // Others go on.
    const next = new Sequence(2, 'b');
    await settle();
    expect(next.pinned).not.toBeNull();
  });

  it('tells when what it holds has changed', async () => {
    let changes = 0;
    gate.onChange = () => changes++;
    await gate.load(ref('a'));
    expect(changes).toBe(1);
    gate.unload('a');
    expect(changes).toBe(2);
    gate.unload('a');
    expect(changes).toBe(2);
  });

  it('lets those pass whose adapter is there while another is read', async () => {
    await gate.load(ref('a'));
    let read = () => {};
    holdLoad = new Promise((resolve) => (read = resolve));
    const slow = new Sequence(1, 'b');
    await settle();
    expect(new Sequence(2, 'a').pinned).not.toBeNull();
    expect(slow.pinned).toBeNull();
    read();
    await settle();
    expect(slow.pinned).not.toBeNull();
  });

  it('loads for tenants in turn, an adapter of each, whoever came first', async () => {
    const store_ = new AdapterStore(
      ({ version }) => {
        const load = () => {
          loads.push(version);
          return Promise.resolve({ bytes: 1, close: () => undefined });
        };
        return Promise.resolve({ bytes: 1, load });
      },
      1000,
      () => 0,
    );
    gate = new AdapterGate(store_);
    const many = [0, 1, 2, 3].map((i) => new Sequence(i, `m${i}`, 'many'));
    const again = new Sequence(4, 'm3', 'many');
    const published = gate.load(ref('p0'));
    const few = [new Sequence(5, 'f0', 'few'), new Sequence(6, 'f1', 'few'), new Sequence(7, 'm3', 'few')];
    await published;
    await settle();
    expect(loads).toEqual(['m0', 'p0', 'f0', 'm1', 'f1', 'm2', 'm3']);
    expect([...many, again, ...few].every(({ pinned }) => pinned !== null)).toBe(true);
    // So do those that want one before they have a sequence.
    const wanted = [
      ['w0', 'many'],
      ['w1', 'many'],
      ['w2', 'new'],
    ] as const;
    await Promise.all(wanted.map(([version, tenant]) => gate.load(ref(version), undefined, tenant)));
    expect(loads.splice(7)).toEqual(['w0', 'w2', 'w1']);
    // Who has waited for nothing begins with the present round.
    const next = [new Sequence(8, 'n0', 'many'), new Sequence(9, 'n1', 'many'), new Sequence(10, 'n2', 'new')];
    await settle();
    expect(loads.slice(7)).toEqual(['n0', 'n2', 'n1']);
    expect(next.every(({ pinned }) => pinned !== null)).toBe(true);
  });

  it('lets nobody who comes new go before those whose round it is', async () => {
    const reading: [string, () => void][] = [];
    const slow = new AdapterStore(
      ({ version }) => {
        const native = { bytes: 1, close: () => undefined };
        const load = () => new Promise<typeof native>((read) => reading.push([version, () => read(native)]));
        return Promise.resolve({ bytes: 1, load });
      },
      1000,
      () => 0,
    );
    gate = new AdapterGate(slow);
    const order: string[] = [];
    const readOne = async () => {
      await settle();
      const [version, read] = reading.shift() ?? ['nothing', () => {}];
      order.push(version);
      read();
    };
    for (const [id, version] of ['a0', 'a1', 'b0', 'b1'].entries()) new Sequence(id, version, version[0]);
    for (let loads = 0; loads < 2; loads++) await readOne();
    await settle();
    // In the second round, of which a1 is being read.
    new Sequence(10, 'c0', 'c');
    for (let loads = 0; loads < 3; loads++) await readOne();
    expect(order).toEqual(['a0', 'b0', 'a1', 'b1', 'c0']);
  });

  it('keeps what one uses although another has let go of it twice', async () => {
    const [one, other] = [new Sequence(1, 'a'), new Sequence(2, 'a')];
    await settle();
    gate.unload('a');
    one.pinned?.release();
    one.pinned?.release();
    expect(open.has('a')).toBe(true);
    other.pinned?.release();
    expect(open.has('a')).toBe(false);
  });

  it('closes what was still read when all was closed', async () => {
    let read = () => {};
    holdLoad = new Promise((resolve) => (read = resolve));
    const load = gate.load(ref('a'));
    await settle();
    store.close();
    read();
    await expect(load).rejects.toThrow('The engine is closed.');
    expect([open.size, store.stats.bytes]).toEqual([0, 0]);
  });

  it('holds back a tenant that comes behind one who waits for room', async () => {
    const users = ['a', 'b', 'c'].map((version, id) => new Sequence(id, version, `${id}`));
    await settle();
    const waiting = [new Sequence(10, 'd', 'many'), new Sequence(11, 'e', 'many')];
    await settle();
    const others = [new Sequence(12, 'a', 'new'), new Sequence(13, 'f', 'other')];
    await settle();
    expect([...waiting, ...others].map(({ pinned }) => pinned)).toEqual([null, null, null, null]);
    users[1]?.pinned?.release();
    await settle();
    // d has b's room; a is there, and f, whose round it is, waits before e.
    expect([...waiting, ...others].map(({ pinned }) => pinned !== null)).toEqual([true, false, true, false]);
    users[2]?.pinned?.release();
    await settle();
    expect([...waiting, ...others].map(({ pinned }) => pinned !== null)).toEqual([true, false, true, true]);
  });

  it('fails what cannot be loaded, and only that', async () => {
    const bad = [new Sequence(1, 'bad'), new Sequence(2, 'bad')];
    const good = new Sequence(3, 'a');
    await settle();
    expect(bad.map(({ error }) => error)).toEqual(['it is bad', 'it is bad']);
    expect(good.pinned).not.toBeNull();
    await expect(gate.load(ref('big'))).rejects.toThrow('--max-adapter-memory');
    // Tried anew: the files may have been mended.
    await expect(gate.load(ref('bad'))).rejects.toThrow('it is bad');
  });

  it('unloads at once or when the last user ends; late users bring it back for themselves only', async () => {
    await gate.load(ref('a'));
    gate.unload('a');
    expect(store.stats.resident).toBe(0);
    const user = new Sequence(1, 'b');
    await settle();
    gate.unload('b');
    gate.unload('b');
    gate.unload('nothing');
    expect(open.has('b')).toBe(true);
    user.pinned?.release();
    user.pinned?.release();
    expect(open.has('b')).toBe(false);
    const first = new Sequence(2, 'c');
    await settle();
    gate.unload('c');
    const second = new Sequence(3, 'c');
    first.pinned?.release();
    expect(open.has('c')).toBe(true);
    second.pinned?.release();
    expect(open.has('c')).toBe(false);
    const late = new Sequence(4, 'c');
    await settle();
    expect(open.has('c')).toBe(true);
    late.pinned?.release();
    expect(open.has('c')).toBe(false);
    // Published again, it stays.
    await gate.load(ref('c'));
    new Sequence(5, 'c').pinned?.release();
    expect(open.has('c')).toBe(true);
  });

  it('is empty after 2000 random events, within its bound all the time', async () => {
    let seed = 1;
    const random = (below: number) => (seed = (seed * 48271) % 2147483647) % below;
    const running: { sequence: Sequence; id: number }[] = [];
    for (let id = 0; id < 2000; id++) {
      const kind = random(10);
      if (kind < 5) running.push({ sequence: new Sequence(id, 'abcdefgh'[random(8)] as string, 'xyz'[random(3)]), id });
      else if (kind < 9) {
        const [one] = running.splice(random(Math.max(1, running.length)), 1);
        if (one?.sequence.pinned) one.sequence.pinned.release();
        else if (one) gate.remove(one.id);
      } else if (random(2) === 0) gate.unload('abcdefgh'[random(8)] as string);
      expect(store.stats.bytes).toBeLessThanOrEqual(35);
      if (id % 7 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    for (let round = 0; running.length > 0 && round < 3000; round++) {
      const waiting = running.findIndex(({ sequence }) => sequence.pinned !== null);
      if (waiting < 0) await settle();
      else running.splice(waiting, 1)[0]?.sequence.pinned?.release();
    }
    expect([gate.size, running.length]).toEqual([0, 0]);
    store.close();
    expect([store.stats.bytes, open.size]).toEqual([0, 0]);
  });
});
