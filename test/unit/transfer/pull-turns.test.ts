/** Whose pull has its turn when: peers that hang and tenants that ask for much hold up nobody else. */
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';
import { expect, it, onTestFinished } from 'vitest';
import type { BlockHandle } from '../../../src/control/transfer/transfer.ts';
import { PullTurns } from '../../../src/control/transfer/pull-turns.ts';
import { request } from '../scheduler/drive.ts';
import { Node, type NodeOptions } from './node.ts';

const AT_ONCE = 8;
const never = new AbortController().signal;

async function start(options: NodeOptions): Promise<Node> {
  const node = await Node.start(options);
  onTestFinished(() => node.kill());
  return node;
}

/** Takes connections and says nothing. */
async function silentPeer(): Promise<{ host: string; port: number }> {
  const server = createServer((socket) => void socket.on('error', () => {})).listen(0, '127.0.0.1');
  onTestFinished(() => void server.close());
  await once(server, 'listening');
  return { host: '127.0.0.1', port: (server.address() as AddressInfo).port };
}

it('a peer that hangs holds up no pull from another, and who waits for it computes when the time of a pull is over', async () => {
  const silent = await silentPeer();
  const holder = await start({ scheduler: { pages: 256 } });
  const [held] = await holder.run({ ...request(1, 40, { maxTokens: 1 }), kvTransfer: { hold: true } });
  const handle = held?.blocks as BlockHandle;
  const peer = await start({ peers: [holder.address, silent], timeoutMs: 3000, scheduler: { pages: 256 } });
  const hanging = Array.from({ length: 2 * AT_ONCE }, (_, index) => ({
    ...request(10 + index, 40, { maxTokens: 1 }),
    kvTransfer: { pull: { ...handle, ...silent } },
  }));
  const waiting = peer.run(...hanging);
  const [outcome] = await peer.run({ ...request(1, 40, { maxTokens: 2 }), kvTransfer: { pull: handle } });
  expect(outcome).toMatchObject({ finish: 'length', cachedTokens: 32 });
  expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 0 });
  for (const each of await waiting) expect(each).toMatchObject({ finish: 'length', cachedTokens: 0 });
  expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 2 * AT_ONCE });
});

it('pages of a pull that was aborted are told of as free', async () => {
  const silent = await silentPeer();
  const peer = await start({ peers: [silent], timeoutMs: 600_000 });
  const handle = { ...silent, engineId: 'e', blockIds: [1, 2] };
  peer.loop.submit([{ ...request(1, 40), kvTransfer: { pull: handle } }, request(2, 8, { maxTokens: 4 })]);
  await expect.poll(() => peer.of(2).finish).toBe('length');
  await expect.poll(() => peer.pagesInUse).toBeGreaterThan(0);
  peer.loop.abort([1]);
  await expect.poll(() => peer.pagesInUse).toBe(0);
});

it('at one peer tenants take turns; who leaves is passed over', async () => {
  const turns = new PullTurns();
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const ask = (tenant: string, name: string, signal = never) =>
    turns.take('peer', tenant, 600_000, signal).then(
      (end) => {
        begun.push(name);
        ends.push(end);
      },
      () => begun.push(`${name} left`),
    );
  await Promise.all(Array.from({ length: AT_ONCE }, (_, index) => ask('a', `a${index}`)));
  const leaving = new AbortController();
  const asked = [ask('a', 'a8'), ask('a', 'a9', leaving.signal), ask('a', 'a10'), ask('b', 'b0')];
  leaving.abort();
  for (let index = 0; index < ends.length; index++) {
    ends[index]?.();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(asked);
  expect(begun.slice(AT_ONCE)).toEqual(['a9 left', 'a8', 'b0', 'a10']);
  // All places are free again, and no turn is waited for longer than a pull may take.
  await Promise.all(Array.from({ length: AT_ONCE }, () => turns.take('peer', 'c', 600_000, never)));
  await expect(turns.take('peer', 'c', 20, never)).rejects.toThrow('--kv-transfer-timeout-ms');
});
