/** Blocks that move between two engines over TLS: equal tokens when all is well, and when anything is not. */
import { createServer, type Server } from 'node:tls';
import { afterEach, describe, expect, it } from 'vitest';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import { digestOf, scopeDigest, tokensDigest } from '../../../src/control/transfer/pull-protocol.ts';
import type { BlockHandle, PeerAddress } from '../../../src/control/transfer/transfer.ts';
import { FrameSocket, serverTls } from '../../../src/control/transfer/wire.ts';
import { request, VOCABULARY } from '../scheduler/drive.ts';
import { expectedOutputs } from '../scheduler/fake-native.mjs';
import { IDENTITY, Node, PAGE_BYTES, SECRET, type NodeOptions } from './node.ts';

const nodes: Node[] = [];
const servers: Server[] = [];
afterEach(async () => {
  // Draining proves that no page is lost.
  await Promise.all(nodes.splice(0).map((node) => node.close()));
  for (const server of servers.splice(0)) server.close();
});

async function start(options: NodeOptions = {}): Promise<Node> {
  const node = await Node.start(options);
  nodes.push(node);
  return node;
}

const PROMPT = 100;
const FULL_BLOCKS = Math.floor(PROMPT / 16);
/** Sequence 1's prompt, for any id. */
const asked = (id: number, maxTokens = 12): SequenceRequest => ({
  ...request(id, PROMPT, { maxTokens }),
  promptIds: request(1, PROMPT).promptIds,
});
const expected = () => expectedOutputs(asked(1), VOCABULARY).tokens;

async function prefill(node: Node, changes: Partial<SequenceRequest> = {}): Promise<BlockHandle> {
  const [outcome] = await node.run({ ...asked(1, 1), ...changes, kvTransfer: { hold: true } });
  if (!outcome?.blocks) throw new Error('nothing is held');
  return outcome.blocks;
}

const pulling = (id: number, pull: BlockHandle, changes: Partial<SequenceRequest> = {}): SequenceRequest => ({
  ...asked(id),
  ...changes,
  kvTransfer: { pull },
});

async function decode(node: Node, handle: BlockHandle, changes: Partial<SequenceRequest> = {}) {
  const [outcome] = await node.run(pulling(2, handle, changes));
  return outcome;
}

/** Recomputed: the right tokens, without anything from the peer. */
async function expectFallback(node: Node, handle: BlockHandle, why: RegExp, changes: Partial<SequenceRequest> = {}) {
  const outcome = await decode(node, handle, changes);
  expect(outcome).toMatchObject({ tokens: expected(), finish: 'length', cachedTokens: 0 });
  expect(node.transfers.stats).toMatchObject({ pulls: 0, pullFailures: 1, pulledTokens: 0 });
  expect(node.lines.join('\n')).toMatch(why);
  expect(node.lines.join('\n')).toContain('the prompt is computed here');
}

describe('a pull', () => {
  it('brings the blocks, and the holder lets them go', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    expect(handle).toMatchObject({ ...holder.address, engineId: holder.transfers.engineId });
    expect(handle.blockIds).toHaveLength(FULL_BLOCKS);
    expect(holder.transfers.stats.heldBlocks).toBe(FULL_BLOCKS);
    const peer = await start({ peers: [holder.address] });
    expect(await decode(peer, handle)).toMatchObject({ tokens: expected(), cachedTokens: FULL_BLOCKS * 16 });
    expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 0, pulledTokens: FULL_BLOCKS * 16 });
    await expect.poll(() => holder.transfers.stats).toMatchObject({ heldBlocks: 0, served: 1 });
    expect(holder.scheduler.holds.loans).toBe(0);
    // Nothing else is asked of it that would make it speak.
    await expect.poll(() => holder.reported).toMatchObject({ heldBlocks: 0, served: 1 });
  });

  it('of many blocks, of a prompt that ends with a block, and one shared by the choices of a request', async () => {
    const holder = await start({ scheduler: { maxModelLen: 4096, pages: 1024 } });
    const long = request(1, 1024, { maxTokens: 1 });
    const [prefilled] = await holder.run({ ...long, kvTransfer: { hold: true } });
    const handle = prefilled?.blocks as BlockHandle;
    expect(handle.blockIds).toHaveLength(64);
    const peer = await start({ peers: [holder.address], scheduler: { maxModelLen: 4096, pages: 1024 } });
    const choices = [0, 1, 2].map((choice) => ({
      ...request(10 + choice, 1024, { maxTokens: 5, choice }),
      promptIds: long.promptIds,
      kvTransfer: { pull: handle },
    }));
    const outcomes = await peer.run(...choices);
    outcomes.forEach((outcome, index) => {
      // Its last block is computed: something must be, for the first token.
      expect(outcome).toMatchObject({ ...expectedOutputs(choices[index]!, VOCABULARY), cachedTokens: 63 * 16 });
    });
    expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 0, pulledTokens: 63 * 16 });
  });

  it('asks only for what is missing', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    const beginning = { ...request(9, 40, { maxTokens: 1 }), promptIds: asked(1).promptIds.slice(0, 40) };
    await peer.run(beginning);
    expect(await decode(peer, handle)).toMatchObject({ tokens: expected(), cachedTokens: FULL_BLOCKS * 16 });
    expect(peer.transfers.stats.pulledTokens).toBe((FULL_BLOCKS - 2) * 16);
  });

  it('goes on with a longer prompt, and holds what a sequence that stopped has', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    const longer = { ...asked(3), promptIds: Int32Array.from([...asked(1).promptIds, 5, 6, 7]) };
    const [outcome] = await peer.run({ ...longer, kvTransfer: { pull: handle } });
    expect(outcome).toMatchObject({ ...expectedOutputs(longer, VOCABULARY), cachedTokens: FULL_BLOCKS * 16 });
  });

  it('that is aborted ends quietly and lets its pages go', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    let [come, left] = [0, 0];
    const silent = await fakePeer(async (frames) => {
      await frames.receiveJson();
      come++;
      await frames.receiveJson().catch(() => left++);
    });
    const peer = await start({ peers: [silent], timeoutMs: 600_000 });
    peer.loop.submit([pulling(2, { ...handle, ...silent }), pulling(3, { ...handle, ...silent })]);
    await expect.poll(() => come).toBe(1);
    expect(peer.transfers.size).toBe(2);
    peer.loop.abort([2]);
    expect(peer.transfers.size).toBe(1);
    peer.loop.abort([3]);
    await expect.poll(() => peer.transfers.size).toBe(0);
    // Nobody wants them: the peer is not kept waiting.
    await expect.poll(() => left).toBe(1);
    expect(peer.transfers.stats.pullFailures).toBe(0);
    expect(peer.of(2).tokens).toEqual([]);
  });

  it('that was aborted is begun anew for who asks again', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    peer.loop.submit([pulling(3, handle)]);
    peer.loop.abort([3]);
    expect(await decode(peer, handle)).toMatchObject({ tokens: expected(), cachedTokens: FULL_BLOCKS * 16 });
    expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 0 });
  });

  it('goes on for those who still want it when another leaves', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    peer.loop.submit([pulling(2, handle), pulling(3, handle)]);
    peer.loop.abort([2]);
    await expect.poll(() => peer.of(3)).toMatchObject({ tokens: expected(), finish: 'length' });
    expect(peer.transfers.stats).toMatchObject({ pulls: 1, pulledTokens: FULL_BLOCKS * 16 });
  });

  it.each<[string, Partial<SequenceRequest>]>([
    ['tenant', { tenant: 'b' }],
    ['salt', { cacheSalt: 's' }],
    ['prompt', { promptIds: Int32Array.from(asked(1).promptIds, (id, at) => (at === 3 ? id + 1 : id)) }],
  ])('is not taken from its own by another %s that names the same blocks first', async (_, changes) => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    const [other, own] = await peer.run(pulling(2, handle, changes), pulling(3, handle));
    expect(other).toMatchObject({ finish: 'length', cachedTokens: 0 });
    expect(own).toMatchObject({ tokens: expected(), cachedTokens: FULL_BLOCKS * 16 });
    expect(peer.transfers.stats).toMatchObject({ pulls: 1, pullFailures: 1 });
  });

  it('has its turn where many are asked for at once, and later', async () => {
    const scheduler = { pages: 1024 };
    const holder = await start({ scheduler });
    const peer = await start({ peers: [holder.address], scheduler });
    for (const round of [0, 1]) {
      const prompts = Array.from({ length: 12 }, (_, i) => request(1 + 12 * round + i, 40, { maxTokens: 2 }));
      const held = await holder.run(...prompts.map((each) => ({ ...each, kvTransfer: { hold: true } as const })));
      const asking = prompts.map((each, i) => ({ ...each, kvTransfer: { pull: held[i]?.blocks as BlockHandle } }));
      for (const outcome of await peer.run(...asking))
        expect(outcome).toMatchObject({ finish: 'length', cachedTokens: 32 });
      expect(peer.transfers.stats).toMatchObject({ pulls: 12 * (round + 1), pullFailures: 0 });
    }
  });
});

describe('held blocks', () => {
  it.each<[string, Partial<SequenceRequest>]>([
    ['tenant', { tenant: 'b' }],
    ['salt', { cacheSalt: 's' }],
    ['prompt', { promptIds: Int32Array.from(asked(1).promptIds, (id, at) => (at === 3 ? id + 1 : id)) }],
  ])('are never given to another %s', async (_, changes) => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    const outcome = await decode(peer, handle, changes);
    const own = { ...asked(1), ...changes };
    expect(outcome).toMatchObject({ ...expectedOutputs(own, VOCABULARY), cachedTokens: 0 });
    expect(peer.transfers.stats).toMatchObject({ pulls: 0, pullFailures: 1 });
    expect(peer.lines.join()).toContain('these blocks are not held for it');
    expect(holder.transfers.stats).toMatchObject({ served: 0, heldBlocks: FULL_BLOCKS });
  });

  it('are named by their scope: tenant, adapter version and salt', async () => {
    const holder = await start();
    const { engineId, blockIds } = await prefill(holder);
    const tokens = tokensDigest(asked(1).promptIds.slice(0, FULL_BLOCKS * 16));
    const lend = (adapterVersion: string) => {
      const scope = scopeDigest({ tenant: 'a', adapterVersion, cacheSalt: null });
      return holder.transfers.lend({ identity: IDENTITY, engineId, blockIds, scope, tokens, skip: 0, count: 1 });
    };
    expect(lend('v2')).toBe('these blocks are not held for it');
    const loan = lend('');
    if (typeof loan === 'string') throw new Error(loan);
    expect([...loan.pages]).toEqual(blockIds.slice(0, 1));
    loan.giveBack(false);
    expect(holder.transfers.stats).toMatchObject({ served: 0, heldBlocks: FULL_BLOCKS });
  });

  it('are those that the handle names, all of them, once', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    const [first, ...rest] = handle.blockIds as [number, ...number[]];
    await expectFallback(peer, { ...handle, blockIds: [...rest, first] }, /not held/);
    const again = await start({ peers: [holder.address] });
    await decode(again, handle);
    const late = await start({ peers: [holder.address] });
    await expectFallback(late, handle, /not held/);
  });

  it('expire', async () => {
    let now = 0;
    const holder = await start({ holdMs: 1000, scheduler: { now: () => now } });
    const handle = await prefill(holder);
    now = 999;
    holder.scheduler.holds.expire();
    expect(holder.transfers.stats.heldBlocks).toBe(FULL_BLOCKS);
    now = 1000;
    await expect.poll(() => holder.transfers.stats.heldBlocks).toBe(0);
    await expect.poll(() => holder.reported?.heldBlocks).toBe(0);
    const peer = await start({ peers: [holder.address] });
    await expectFallback(peer, handle, /not held/);
  });

  it('are bounded: the oldest give way, and one too large is not held', async () => {
    const holder = await start({ holdShare: 0.1, scheduler: { pages: 130, maxModelLen: 400 } });
    for (const id of [1, 2, 3])
      await holder.run({ ...request(id, PROMPT, { maxTokens: 1 }), kvTransfer: { hold: true } });
    expect(holder.transfers.stats.heldBlocks).toBe(12);
    const [large] = await holder.run({ ...request(4, 300, { maxTokens: 1 }), kvTransfer: { hold: true } });
    expect(large).toMatchObject({ finish: 'length', blocks: null });
  });

  it('give way to a sequence that finds no other page', async () => {
    const holder = await start({ holdShare: 0.9, scheduler: { pages: 16, maxModelLen: 256 } });
    await holder.run({ ...request(1, PROMPT, { maxTokens: 1 }), kvTransfer: { hold: true } });
    await holder.run({ ...request(2, PROMPT, { maxTokens: 1 }), kvTransfer: { hold: true } });
    expect(holder.transfers.stats.heldBlocks).toBe(12);
    const large = request(3, 240, { maxTokens: 16 });
    const [outcome] = await holder.run(large);
    expect(outcome).toMatchObject(expectedOutputs(large, VOCABULARY, 256));
  });
});

it('what went wrong is held for nobody', async () => {
  const { promptIds } = asked(1);
  const holder = await start({ nanPrompt: promptIds[0]! });
  const [outcome] = await holder.run({ ...asked(1, 1), kvTransfer: { hold: true } });
  expect(outcome).toMatchObject({ finish: 'error', blocks: null });
  expect(holder.transfers.stats.heldBlocks).toBe(0);
});

it('held blocks give way before a running sequence does', async () => {
  const holder = await start({ scheduler: { pages: 16, maxModelLen: 256 } });
  await prefill(holder);
  const growing = [3, 4].map((id) => request(id, 40, { maxTokens: 60 }));
  await holder.run(...growing);
  expect(holder.scheduler.stats().preemptions).toBe(0);
  expect(holder.transfers.stats.heldBlocks).toBe(0);
});

it('what is pulled after a reset of the prefix cache is found', async () => {
  const holder = await start();
  const handle = await prefill(holder);
  const peer = await start({ peers: [holder.address] });
  peer.loop.resetPrefixCache();
  expect(await decode(peer, handle)).toMatchObject({ tokens: expected(), cachedTokens: FULL_BLOCKS * 16 });
});

describe('a pull falls back to computing when', () => {
  it('the holder has gone', async () => {
    const holder = await Node.start();
    const handle = await prefill(holder);
    const { address } = holder;
    holder.kill();
    await expectFallback(await start({ peers: [address] }), handle, /ECONNREFUSED/);
  });

  it('the secret is another', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address], secret: 'another secret!!' });
    await expectFallback(peer, handle, /127\.0\.0\.1/);
    expect(holder.lines.join()).toContain('could not prove');
    expect(holder.transfers.stats).toMatchObject({ served: 0, heldBlocks: FULL_BLOCKS });
  });

  it('the address is no peer: nobody is contacted', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    let contacts = 0;
    const other = await fakePeer(async () => void contacts++);
    const peer = await start({ peers: [holder.address] });
    await expectFallback(peer, { ...handle, ...other }, /not among --kv-peers/);
    expect(contacts).toBe(0);
  });

  it('the engine has been restarted', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    await expectFallback(peer, { ...handle, engineId: 'of an earlier life' }, /restarted/);
  });

  it.each([
    ['modelDigest', 'other'],
    ['dtype', 'bfloat16'],
    ['isa', 'other'],
    ['pageBytes', 128],
    ['pageSize', 32],
  ] as const)('the engines differ in %s', async (field, value) => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address], identity: { [field]: value } });
    await expectFallback(peer, handle, new RegExp(`differ in ${field}`));
  });

  it('the blocks are of a longer prompt', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address] });
    const short = { ...request(2, 40, { maxTokens: 4 }), promptIds: asked(1).promptIds.slice(0, 40) };
    const [outcome] = await peer.run({ ...short, kvTransfer: { pull: handle } });
    expect(outcome).toMatchObject({ ...expectedOutputs(short, VOCABULARY), cachedTokens: 0 });
    expect(peer.lines.join()).toContain('of a longer prompt');
  });

  it('there is no room', async () => {
    const holder = await start();
    const handle = await prefill(holder);
    const peer = await start({ peers: [holder.address], scheduler: { pages: 16, maxModelLen: 250 } });
    // Two of the blocks are here already.
    await peer.run({ ...asked(9, 1), promptIds: asked(9).promptIds.slice(0, 40) });
    // Within its first output: while it runs, five pages are left.
    const begun = new Promise<void>((resolve) => {
      peer.onOutput = ({ id }) => {
        if (id === 5 && peer.of(5).tokens.length === 1) peer.loop.submit([pulling(2, handle)]);
        if (id === 5) resolve();
      };
    });
    await peer.run(request(5, 170, { maxTokens: 60 }));
    await begun;
    await expect.poll(() => peer.of(2)).toMatchObject({ tokens: expected(), finish: 'length' });
    expect(peer.transfers.stats).toMatchObject({ pulls: 0, pullFailures: 1 });
    expect(peer.lines.join()).toContain('no room');
  });
});

/** A peer that knows the secret and answers as the test says. */
async function fakePeer(answer: (frames: FrameSocket) => Promise<void>): Promise<PeerAddress> {
  const server = createServer(serverTls(SECRET), (socket) => {
    socket.on('error', () => {});
    void answer(new FrameSocket(socket)).then(
      () => socket.end(),
      () => socket.destroy(),
    );
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  return { host: '127.0.0.1', port: typeof address === 'object' && address ? address.port : 0 };
}

it('a sequence that needs the pages of a pull waits for its end', async () => {
  const silent = await fakePeer(async () => new Promise(() => {}));
  const peer = await start({ peers: [silent], timeoutMs: 400, scheduler: { pages: 16, maxModelLen: 256 } });
  const handle = { ...silent, engineId: 'e', blockIds: Array.from({ length: FULL_BLOCKS }, (_, at) => at) };
  // Fifteen pages in the end, of which ten are free while the pull lasts.
  const running = request(5, 140, { maxTokens: 100 });
  const waiting = request(6, 240, { maxTokens: 10 });
  const outcomes = await peer.run(pulling(2, handle), running, waiting);
  [asked(2), running, waiting].forEach((each, index) =>
    expect(outcomes[index]).toMatchObject(expectedOutputs(each, VOCABULARY, 256)),
  );
});

it('a prompt of less than a block has a handle without blocks', async () => {
  const holder = await start();
  const [outcome] = await holder.run({ ...request(1, 10, { maxTokens: 1 }), kvTransfer: { hold: true } });
  expect(outcome?.blocks).toMatchObject({ blockIds: [] });
  expect(holder.transfers.stats.heldBlocks).toBe(0);
});

describe('a peer that lies is not believed:', () => {
  const tokens = tokensDigest(asked(1).promptIds.slice(0, FULL_BLOCKS * 16));
  const good = { identity: IDENTITY, tokens, blocks: FULL_BLOCKS };
  const bytes = (blocks: number) => Buffer.alloc(blocks * PAGE_BYTES, 1);
  const header = (blocks: number, payload: Uint8Array) => ({ blocks, digest: digestOf(payload) });

  /** Each begins by reading the request. */
  const lies: [string, RegExp, (frames: FrameSocket) => Promise<void>][] = [
    ['no answer', /closed the connection/, async () => {}],
    ['a silent one', /longer than --kv-transfer-timeout-ms/, async () => new Promise(() => {})],
    ['no JSON', /no JSON object/, async (frames) => frames.send(Buffer.from('hello'))],
    [
      'another model',
      /differs in modelDigest/,
      async (frames) => {
        await frames.sendJson({ ...good, identity: { ...IDENTITY, modelDigest: 'x' } });
      },
    ],
    ['other tokens', /of other tokens/, async (frames) => frames.sendJson({ ...good, tokens: 'x' })],
    ['fewer blocks', /2 blocks for 6/, async (frames) => frames.sendJson({ ...good, blocks: 2 })],
    [
      'truncated data',
      /closed the connection/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson(header(FULL_BLOCKS, bytes(FULL_BLOCKS)));
      },
    ],
    [
      'short data',
      /bytes for/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson(header(FULL_BLOCKS, bytes(2)));
        await frames.send(bytes(2));
      },
    ],
    [
      'long data',
      /at most/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson(header(FULL_BLOCKS, bytes(20)));
        await frames.send(bytes(20));
      },
    ],
    [
      'corrupted data',
      /digest of its blocks/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson(header(FULL_BLOCKS, bytes(FULL_BLOCKS)));
        const payload = bytes(FULL_BLOCKS);
        payload[100] = 2;
        await frames.send(payload);
      },
    ],
    [
      'a chunk without blocks',
      /more blocks than/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson({ blocks: 0, digest: digestOf(new Uint8Array()) });
        await frames.send(new Uint8Array());
      },
    ],
    [
      'too many blocks',
      /more blocks than/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson(header(FULL_BLOCKS + 1, bytes(FULL_BLOCKS + 1)));
      },
    ],
    [
      'an end in the middle',
      /closed the connection/,
      async (frames) => {
        await frames.sendJson(good);
        await frames.sendJson(header(2, bytes(2)));
        await frames.send(bytes(2));
      },
    ],
  ];
  it.each(lies)('%s', async (_, why, lie) => {
    const address = await fakePeer(async (frames) => {
      await frames.receiveJson();
      await lie(frames);
    });
    const peer = await start({ peers: [address], timeoutMs: 2000 });
    const handle = { ...address, engineId: 'e', blockIds: Array.from({ length: FULL_BLOCKS }, (_each, at) => at) };
    await expectFallback(peer, handle, why);
  });
});
