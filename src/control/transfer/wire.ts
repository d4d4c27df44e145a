/**
 * How peers speak: TLS with the shared secret as pre-shared key, so that both sides prove that they know it and nobody else
 * reads or changes a byte; inside it frames of a length (4 bytes, big-endian) and that many bytes.
 */
import { hkdfSync } from 'node:crypto';
import type { Socket } from 'node:net';
import type { TlsOptions } from 'node:tls';
import { isPlainObject } from '../../schemas/plain-object.ts';

const LENGTH_BYTES = 4;
/** Largest frame that holds JSON. */
const MAX_JSON_BYTES = 16 * 2 ** 20;
const IDENTITY = 'tandem';
/** Pre-shared keys in TLS 1.2; the first has forward secrecy. */
const CIPHERS = 'ECDHE-PSK-CHACHA20-POLY1305:DHE-PSK-AES256-GCM-SHA384:PSK-AES256-GCM-SHA384';
const VERSION = { ciphers: CIPHERS, minVersion: 'TLSv1.2', maxVersion: 'TLSv1.2' } as const;

function keyOf(secret: string): Buffer {
  return Buffer.from(hkdfSync('sha256', secret, '', 'tandem kv transfer 1', 32));
}

export function serverTls(secret: string): TlsOptions {
  const key = keyOf(secret);
  return { ...VERSION, pskCallback: (_, identity) => (identity === IDENTITY ? key : null) };
}

export function clientTls(secret: string) {
  const key = keyOf(secret);
  // No certificates: who knows the key is a peer.
  return { ...VERSION, pskCallback: () => ({ psk: key, identity: IDENTITY }), checkServerIdentity: () => undefined };
}

/** Frames of one socket, read one after the other and written with respect for a slow reader. */
export class FrameSocket {
  readonly #socket: Socket;
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(socket: Socket) {
    this.#socket = socket;
    this.#chunks = socket[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  }

  async send(payload: Uint8Array): Promise<void> {
    const length = Buffer.alloc(LENGTH_BYTES);
    length.writeUInt32BE(payload.length);
    this.#socket.write(length);
    await new Promise<void>((resolve, reject) =>
      this.#socket.write(payload, (error) => (error ? reject(error) : resolve())),
    );
  }

  sendJson(value: object): Promise<void> {
    return this.send(Buffer.from(JSON.stringify(value)));
  }

  /** The next frame, which must not be longer than `most`. Throws when the peer has gone or says something else. */
  async receive(most: number): Promise<Buffer> {
    const length = (await this.#take(LENGTH_BYTES)).readUInt32BE();
    if (length > most) throw new Error(`The peer sent a frame of ${length} bytes; at most ${most} were due.`);
    return this.#take(length);
  }

  async receiveJson(): Promise<Record<string, unknown>> {
    const text = (await this.receive(MAX_JSON_BYTES)).toString('utf8');
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      value = null;
    }
    if (!isPlainObject(value)) throw new Error('The peer sent something that is no JSON object.');
    return value;
  }

  async #take(bytes: number): Promise<Buffer> {
    const parts = [this.#rest];
    let have = this.#rest.length;
    while (have < bytes) {
      const { done, value } = await this.#chunks.next();
      if (done === true) throw new Error('The peer closed the connection too early.');
      parts.push(value);
      have += value.length;
    }
    const all = parts.length === 1 ? this.#rest : Buffer.concat(parts);
    this.#rest = all.subarray(bytes);
    return all.subarray(0, bytes);
  }
}
