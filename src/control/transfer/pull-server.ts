import { once } from 'node:events';
import { createServer, type Server, type TLSSocket } from 'node:tls';
import {
  digestOf,
  difference,
  readPullRequest,
  type ChunkHeader,
  type PullAnswer,
  type PullRequest,
} from './pull-protocol.ts';
import type { EngineIdentity, PeerAddress } from './transfer.ts';
import { FrameSocket, serverTls } from './wire.ts';

/** Bytes of one chunk, unless a single page is larger: what a pull holds in memory. */
const CHUNK_BYTES = 8 * 2 ** 20;
const MAX_CONNECTIONS = 32;

export interface BlockSource {
  readonly identity: EngineIdentity;
  readonly engineId: string;
  /** The pages that the request may have; or the sentence that says why not. */
  lend(request: PullRequest): Loan | string;
  read(pages: Int32Array): Promise<Uint8Array>;
}

export interface Loan {
  /** Kept until `giveBack`. */
  pages: Int32Array;
  /** Digest of the tokens of all blocks that the request names. */
  tokens: string;
  /** `pulled`: the peer has them, nobody else will ask. */
  giveBack: (pulled: boolean) => void;
}

export interface PullServerOptions {
  secret: string;
  /** For one whole pull. */
  timeoutMs: number;
  log: (line: string) => void;
}

/** Gives peers the blocks that are held for them. */
export class PullServer {
  readonly #source: BlockSource;
  readonly #options: PullServerOptions;
  readonly #server: Server;
  readonly #sockets = new Set<TLSSocket>();
  #strangerNoted = -Infinity;

  constructor(source: BlockSource, options: PullServerOptions) {
    this.#source = source;
    this.#options = options;
    const tls = { ...serverTls(options.secret), handshakeTimeout: Math.min(10_000, options.timeoutMs) };
    this.#server = createServer(tls, (socket) => void this.#serve(socket));
    this.#server.maxConnections = MAX_CONNECTIONS;
    this.#server.on('tlsClientError', (error: NodeJS.ErrnoException) => this.#noteStranger(error));
  }

  /** The port, which the system chooses where it was 0. Rejects when the address cannot be had. */
  async listen({ host, port }: PeerAddress): Promise<number> {
    this.#server.listen(port, host);
    await once(this.#server, 'listening');
    const address = this.#server.address();
    return typeof address === 'object' && address !== null ? address.port : port;
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** At most one line in ten seconds, whoever knocks. Who hung up has tried nothing: a peer does where its own client leaves. */
  #noteStranger({ code }: NodeJS.ErrnoException): void {
    if (code === 'ECONNRESET') return;
    const now = performance.now();
    if (now - this.#strangerNoted < 10_000) return;
    this.#strangerNoted = now;
    this.#options.log('A peer could not prove that it knows the KV secret.');
  }

  async #serve(socket: TLSSocket): Promise<void> {
    this.#sockets.add(socket);
    // What goes wrong with it ends the conversation below.
    socket.on('error', () => {});
    const timer = setTimeout(() => socket.destroy(), this.#options.timeoutMs);
    try {
      await this.#converse(new FrameSocket(socket));
    } catch (error) {
      this.#options.log(`A pull of KV blocks ended early: ${error instanceof Error ? error.message : String(error)}`);
    } finally {
      clearTimeout(timer);
      this.#sockets.delete(socket);
      socket.destroy();
    }
  }

  async #converse(frames: FrameSocket): Promise<void> {
    const request = readPullRequest(await frames.receiveJson());
    const refusal = request ? this.#refusal(request) : 'the request is malformed';
    const loan = request && refusal === null ? this.#source.lend(request) : (refusal as string);
    if (!request || typeof loan === 'string') {
      await frames.sendJson({ error: loan as string } satisfies PullAnswer);
      return;
    }
    let pulled = false;
    try {
      await this.#send(frames, loan);
      pulled = (await frames.receiveJson())['received'] === true;
    } finally {
      loan.giveBack(pulled);
    }
  }

  #refusal({ identity, engineId }: PullRequest): string | null {
    const differs = difference(this.#source.identity, identity);
    if (differs !== null) return `the engines differ in ${differs}`;
    return engineId === this.#source.engineId ? null : 'the engine has been restarted';
  }

  async #send(frames: FrameSocket, { pages, tokens }: Loan): Promise<void> {
    const { identity } = this.#source;
    await frames.sendJson({ identity, tokens, blocks: pages.length } satisfies PullAnswer);
    const perChunk = Math.max(1, Math.floor(CHUNK_BYTES / identity.pageBytes));
    for (let first = 0; first < pages.length; first += perChunk) {
      const chunk = pages.subarray(first, first + perChunk);
      const bytes = await this.#source.read(chunk.slice());
      await frames.sendJson({ blocks: chunk.length, digest: digestOf(bytes) } satisfies ChunkHeader);
      await frames.send(bytes);
    }
  }
}
