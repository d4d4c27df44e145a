/** What the holder of blocks says of those who knock. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, it, onTestFinished } from 'vitest';
import type { BlockHandle } from '../../../src/control/transfer/transfer.ts';
import { request } from '../scheduler/drive.ts';
import { Node, type NodeOptions } from './node.ts';

async function start(options: NodeOptions = {}): Promise<Node> {
  const node = await Node.start(options);
  onTestFinished(() => node.kill());
  return node;
}

it('who hangs up in the handshake is not said to lack the secret', async () => {
  const holder = await start();
  const [held] = await holder.run({ ...request(1, 40, { maxTokens: 1 }), kvTransfer: { hold: true } });
  const socket = connect(holder.address);
  await once(socket, 'connect');
  await once(socket.end().resume(), 'close');
  const peer = await start({ peers: [holder.address] });
  const pull = held?.blocks as BlockHandle;
  const [outcome] = await peer.run({ ...request(1, 40, { maxTokens: 2 }), kvTransfer: { pull } });
  expect(outcome).toMatchObject({ finish: 'length', cachedTokens: 32 });
  expect(holder.lines).toEqual([]);
});
