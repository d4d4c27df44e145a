import { once } from 'node:events';
import { connect } from 'node:tls';
import { difference, digestOf, type PullEnd, type PullRequest } from './pull-protocol.ts';
import { addressText, type PeerAddress } from './transfer.ts';
import { clientTls, FrameSocket } from './wire.ts';

export interface PullOptions {
  secret: string;
  timeoutMs: number;
  signal: AbortSignal;
  /** Takes the next blocks, whose bytes have been checked. */
  take: (blocks: number, bytes: Uint8Array) => Promise<void>;
}

/** Pulls `request.count` blocks from the peer. Throws a sentence; what `take` got before may not be used then. */
export async function pullBlocks(peer: PeerAddress, request: PullRequest, options: PullOptions): Promise<void> {
  const { secret, timeoutMs } = options;
  const socket = connect({ ...clientTls(secret), host: peer.host, port: peer.port });
  // What is written from then on fails by something else.
  let stopped = null as Error | null;
  const end = (why: string) => socket.destroy((stopped ??= new Error(why)));
  const stop = () => end('The request was aborted.');
  const timer = setTimeout(() => end('It took longer than --kv-transfer-timeout-ms.'), timeoutMs);
  options.signal.addEventListener('abort', stop, { once: true });
  if (options.signal.aborted) stop();
  try {
    await once(socket, 'secureConnect');
    // Errors reach the reader through the frames.
    socket.on('error', () => {});
    await converse(new FrameSocket(socket), request, options);
  } catch (failure) {
    const error = stopped ?? failure;
    throw new Error(`${addressText(peer)}: ${error instanceof Error ? error.message.trim() : String(error)}`);
  } finally {
    clearTimeout(timer);
    options.signal.removeEventListener('abort', stop);
    socket.on('error', () => {});
    socket.destroy();
  }
}

async function converse(frames: FrameSocket, request: PullRequest, options: PullOptions): Promise<void> {
  await frames.sendJson(request);
  const answer = await frames.receiveJson();
  if (typeof answer['error'] === 'string') throw new Error(`it refuses: ${answer['error'].slice(0, 200)}`);
  const differs = difference(request.identity, answer['identity']);
  if (differs !== null) throw new Error(`its engine differs in ${differs}.`);
  if (answer['tokens'] !== request.tokens) throw new Error('its blocks are of other tokens.');
  if (answer['blocks'] !== request.count)
    throw new Error(`it has ${String(answer['blocks'])} blocks for ${request.count}.`);
  for (let received = 0; received < request.count;) {
    const { blocks, digest } = await frames.receiveJson();
    const most = request.count - received;
    if (!Number.isInteger(blocks) || (blocks as number) < 1 || (blocks as number) > most)
      throw new Error('it sends more blocks than it was asked for.');
    const expected = (blocks as number) * request.identity.pageBytes;
    const bytes = await frames.receive(expected);
    if (bytes.length !== expected) throw new Error(`it sent ${bytes.length} bytes for ${expected}.`);
    if (digestOf(bytes) !== digest) throw new Error('the digest of its blocks is wrong.');
    await options.take(blocks as number, bytes);
    received += blocks as number;
  }
  await frames.sendJson({ received: true } satisfies PullEnd);
}
