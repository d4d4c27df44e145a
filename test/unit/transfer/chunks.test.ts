/** Blocks that are too many for one chunk: as a holder cuts them, and as a peer puts them together. */
import { once } from 'node:events';
import { connect, createServer, type TLSSocket } from 'node:tls';
import { afterEach, expect, it, onTestFinished } from 'vitest';
import { pullBlocks } from '../../../src/control/transfer/pull-client.ts';
import { digestOf, type PullRequest } from '../../../src/control/transfer/pull-protocol.ts';
import { PullServer } from '../../../src/control/transfer/pull-server.ts';
import type { PeerAddress } from '../../../src/control/transfer/transfer.ts';
import { clientTls, FrameSocket, serverTls } from '../../../src/control/transfer/wire.ts';
import { request, VOCABULARY } from '../scheduler/drive.ts';
import { expectedOutputs } from '../scheduler/fake-native.mjs';
import { IDENTITY, Node, SECRET } from './node.ts';

const nodes: Node[] = [];
afterEach(async () => {
  await Promise.all(nodes.splice(0).map((node) => node.close()));
});

async function start(peers: PeerAddress[] = []): Promise<Node> {
  const node = await Node.start({ peers });
  nodes.push(node);
  return node;
}

/** Has the blocks of another, and sends one in each chunk. */
async function slicing(holder: Node): Promise<PeerAddress> {
  const server = createServer(serverTls(SECRET), (socket) => {
    socket.on('error', () => {});
    const serve = async (frames: FrameSocket) => {
      const asked = (await frames.receiveJson()) as unknown as PullRequest;
      await frames.sendJson({ identity: IDENTITY, tokens: asked.tokens, blocks: asked.count });
      for (const page of asked.blockIds.slice(asked.skip, asked.skip + asked.count)) {
        const bytes = await holder.engine.readPages(Int32Array.of(page));
        await frames.sendJson({ blocks: 1, digest: digestOf(bytes) });
        await frames.send(bytes);
      }
      await frames.receiveJson();
    };
    void serve(new FrameSocket(socket)).finally(() => socket.end());
  });
  onTestFinished(() => void server.close());
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { host: '127.0.0.1', port: (server.address() as { port: number }).port };
}

it('each chunk goes behind the one before', async () => {
  const holder = await start();
  const prompt = request(1, 100, { maxTokens: 12 });
  const [held] = await holder.run({ ...prompt, kvTransfer: { hold: true } });
  if (!held?.blocks) throw new Error('nothing is held');
  const address = await slicing(holder);
  const peer = await start([address]);
  const [outcome] = await peer.run({ ...prompt, id: 2, kvTransfer: { pull: { ...held.blocks, ...address } } });
  expect(outcome).toMatchObject({ ...expectedOutputs(prompt, VOCABULARY), cachedTokens: 96 });
  expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 0 });
});

/** Each page holds its own number. */
const pageOf = (page: number, bytes: number) => new Uint8Array(bytes).fill(page);

it.each([
  ['of three blocks', 2.5 * 2 ** 20, [3, 3, 1]],
  ['of one block that is larger than a chunk', 9 * 2 ** 20, [1, 1]],
])('a holder sends chunks %s', async (_, pageBytes, sizes) => {
  const identity = { ...IDENTITY, pageBytes };
  const count = sizes.reduce((sum, size) => sum + size, 0);
  const pages = Int32Array.from({ length: count }, (_each, i) => 7 + i);
  const given: boolean[] = [];
  const read = (some: Int32Array) => Promise.resolve(Buffer.concat([...some].map((page) => pageOf(page, pageBytes))));
  const lend = () => ({ pages, tokens: 't', giveBack: (pulled: boolean) => void given.push(pulled) });
  const server = new PullServer(
    { identity, engineId: 'e', lend, read },
    { secret: SECRET, timeoutMs: 60_000, log: () => {} },
  );
  onTestFinished(() => server.close());
  const peer = { host: '127.0.0.1', port: await server.listen({ host: '127.0.0.1', port: 0 }) };
  const taken: number[] = [];
  const take = (blocks: number, bytes: Uint8Array) => {
    const first = 7 + taken.reduce((sum, size) => sum + size, 0);
    for (let i = 0; i < blocks; i++) {
      const own = bytes.subarray(i * pageBytes, (i + 1) * pageBytes);
      expect(Buffer.compare(own, pageOf(first + i, pageBytes))).toBe(0);
    }
    taken.push(blocks);
    return Promise.resolve();
  };
  const asked = { identity, engineId: 'e', blockIds: [...pages], scope: 's', tokens: 't', skip: 0, count };
  const { signal } = new AbortController();
  await pullBlocks(peer, asked, { secret: SECRET, timeoutMs: 60_000, signal, take });
  expect(taken).toEqual(sizes);
  await expect.poll(() => given).toEqual([true]);
});

it('a pull that nobody wants any more when its turn comes ends at once; one that is not believed lets the holder go', async () => {
  const given: boolean[] = [];
  const pages = Int32Array.of(1, 2);
  const lend = () => ({ pages, tokens: 'others', giveBack: (pulled: boolean) => void given.push(pulled) });
  const read = (some: Int32Array) => Promise.resolve(new Uint8Array(some.length * IDENTITY.pageBytes));
  const options = { secret: SECRET, timeoutMs: 600_000 };
  const server = new PullServer({ identity: IDENTITY, engineId: 'e', lend, read }, { ...options, log: () => {} });
  onTestFinished(() => server.close());
  const peer = { host: '127.0.0.1', port: await server.listen({ host: '127.0.0.1', port: 0 }) };
  const asked = { identity: IDENTITY, engineId: 'e', blockIds: [1, 2], scope: 's', tokens: 't', skip: 0, count: 2 };
  const take = () => Promise.reject(new Error('Nothing is to be taken.'));
  await expect(pullBlocks(peer, asked, { ...options, signal: AbortSignal.abort(), take })).rejects.toThrow('aborted');
  const { signal } = new AbortController();
  await expect(pullBlocks(peer, asked, { ...options, signal, take })).rejects.toThrow('of other tokens');
  await expect.poll(() => given).toEqual([false]);
});

it('a pull whose time is over while its blocks are written says so', async () => {
  const lend = () => ({ pages: Int32Array.of(1), tokens: 't', giveBack: () => {} });
  const read = () => Promise.resolve(new Uint8Array(IDENTITY.pageBytes));
  const server = new PullServer(
    { identity: IDENTITY, engineId: 'e', lend, read },
    { secret: SECRET, timeoutMs: 600_000, log: () => {} },
  );
  onTestFinished(() => server.close());
  const peer = { host: '127.0.0.1', port: await server.listen({ host: '127.0.0.1', port: 0 }) };
  const asked = { identity: IDENTITY, engineId: 'e', blockIds: [1], scope: 's', tokens: 't', skip: 0, count: 1 };
  const { signal } = new AbortController();
  let isTaken = false;
  const take = () => {
    isTaken = true;
    return new Promise<void>((resolve) => setTimeout(resolve, 5000));
  };
  await expect(pullBlocks(peer, asked, { secret: SECRET, timeoutMs: 3000, signal, take })).rejects.toThrow(
    'It took longer than --kv-transfer-timeout-ms.',
  );
  expect(isTaken).toBe(true);
});

it('a holder listens to a peer for so long, and to so many at once', async () => {
  const source = {
    identity: IDENTITY,
    engineId: 'e',
    lend: () => 'nothing',
    read: () => Promise.resolve(new Uint8Array()),
  };
  const listening = async (timeoutMs: number) => {
    const server = new PullServer(source, { secret: SECRET, timeoutMs, log: () => {} });
    onTestFinished(() => server.close());
    return server.listen({ host: '127.0.0.1', port: 0 });
  };
  const dial = (port: number) => {
    const socket = connect({ ...clientTls(SECRET), host: '127.0.0.1', port });
    onTestFinished(() => void socket.destroy());
    socket.on('error', () => {});
    return socket;
  };
  const closed = (socket: TLSSocket) => new Promise((resolve) => socket.once('close', resolve));
  await closed(dial(await listening(200)));
  const port = await listening(600_000);
  const many = Array.from({ length: 32 }, () => dial(port));
  await Promise.all(many.map((socket) => once(socket, 'secureConnect')));
  await closed(dial(port));
  expect(many.some(({ destroyed }) => destroyed)).toBe(false);
});

it.each([
  ['more than there are', { skip: 2, count: 2 }],
  ['a negative number', { skip: -1, count: 1 }],
  ['no text where one is due', { scope: 7 }],
])('a request for %s is refused, and nothing is lent', async (_, changes) => {
  const lend = () => 'lent';
  const source = { identity: IDENTITY, engineId: 'e', lend, read: () => Promise.resolve(new Uint8Array()) };
  const server = new PullServer(source, { secret: SECRET, timeoutMs: 60_000, log: () => {} });
  onTestFinished(() => server.close());
  const port = await server.listen({ host: '127.0.0.1', port: 0 });
  const socket = connect({ ...clientTls(SECRET), host: '127.0.0.1', port });
  onTestFinished(() => void socket.destroy());
  await once(socket, 'secureConnect');
  const frames = new FrameSocket(socket);
  const asked = { identity: IDENTITY, engineId: 'e', blockIds: [1, 2, 3], scope: 's', tokens: 't', skip: 1, count: 2 };
  await frames.sendJson({ ...asked, ...changes });
  expect(await frames.receiveJson()).toEqual({ error: 'the request is malformed' });
});
