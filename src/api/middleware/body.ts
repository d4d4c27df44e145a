/** Reads a JSON body: content type, size, encoding, then exact JSON. Runs after authentication. */
import type { IncomingMessage } from 'node:http';
import type { Context } from 'koa';
import { SharedBound } from '../../control/shared-bound.ts';
import { ApiError, ClientGoneError } from '../errors.ts';
import { parseExactJson } from '../exact-json.ts';
import { entityOf } from './auth.ts';
import { isJson, refuseCompressed } from './content.ts';
import { ParseTurns } from './parse-turns.ts';

/** Bytes of all bodies being received at once, as a multiple of the largest single body; so many again may be held. */
const IN_FLIGHT_BODIES = 16;
/** Held at least, where bodies are small: a burst for which the queue has room is not refused. */
const LEAST_HELD_BYTES = 2 ** 26;
const FIRST_CAPACITY = 16 * 1024;
/** Smaller ones are parsed at once, in some milliseconds at worst; of 16 MiB it may be a second. */
const SMALL_BYTES = 64 * 1024;

/** Fields whose last digit matters beyond 2^53. */
const EXACT_FIELDS: ReadonlySet<string> = new Set(['seed']);

export class BodyReader {
  readonly #maxBytes: number;
  readonly #inFlight: SharedBound;
  readonly #turns = new ParseTurns();
  /** Of requests that have been parsed and may still need what they brought. */
  readonly #parsed: SharedBound;
  readonly #held = new WeakMap<Context, HeldBytes>();

  constructor(maxBytes: number, leastHeldBytes = LEAST_HELD_BYTES) {
    this.#maxBytes = maxBytes;
    this.#inFlight = new SharedBound(IN_FLIGHT_BODIES * maxBytes);
    this.#parsed = new SharedBound(Math.max(IN_FLIGHT_BODIES * maxBytes, leastHeldBytes));
  }

  /** The body's bytes stay booked until `leave`, or until the request is over: what was made of them is held for as long. */
  async json(ctx: Context): Promise<unknown> {
    if (!isJson(ctx)) {
      throw new ApiError('invalid_body', "Unsupported Media Type: Only 'application/json' is allowed");
    }
    refuseCompressed(ctx);
    const entity = entityOf(ctx);
    const body = await this.#read(ctx.req, entity);
    try {
      const parse = () => parseExactJson(decode(body.bytes()), EXACT_FIELDS);
      return await this.inTurn(entity, body.length, () => {
        if (ctx.res.closed || ctx.res.destroyed) throw new ClientGoneError();
        this.#keep(ctx, entity, body.length);
        return parse();
      });
    } finally {
      this.#inFlight.add(entity, -body.capacity);
    }
  }

  /** The request goes on without its body. Idempotent. */
  leave(ctx: Context): void {
    this.#held.get(ctx)?.release();
  }

  /** For what is read from elsewhere as if the request had brought it. */
  hold(entity: string): HeldBytes {
    return new HeldBytes(
      (bytes) => reserve(this.#inFlight, entity, bytes),
      (bytes) => this.#inFlight.add(entity, -bytes),
    );
  }

  /** Work on so many bytes of JSON: at once where they are few, else when it is the entity's turn. */
  async inTurn<Result>(entity: string, bytes: number, work: () => Result): Promise<Result> {
    return bytes <= SMALL_BYTES ? work() : this.#turns.run(entity, work);
  }

  /** Throws where there is no room. */
  #keep(ctx: Context, entity: string, bytes: number): void {
    const held = new HeldBytes(
      (more) => reserve(this.#parsed, entity, more),
      (fewer) => this.#parsed.add(entity, -fewer),
    );
    held.reserve(bytes);
    this.#held.set(ctx, held);
    ctx.res.once('close', () => held.release());
  }

  /**
   * Where it resolves, the body's capacity stays booked. Events, not `for await`: leaving that loop early would destroy the socket under the
   * error's answer.
   */
  #read(req: IncomingMessage, tenant: string): Promise<GrowingBuffer> {
    const declared = Number(req.headers['content-length'] ?? 0);
    if (declared > this.#maxBytes) return Promise.reject(this.#tooLarge());
    return new Promise((resolve, reject) => {
      const body = new GrowingBuffer(this.#maxBytes, (bytes) => reserve(this.#inFlight, tenant, bytes));
      const fail = (error: Error) => {
        this.#inFlight.add(tenant, -body.capacity);
        reject(error);
      };
      const settle = (finish: () => void) => {
        req.off('data', onData).off('end', onEnd).off('close', onClose).off('error', onClose);
        // What still comes of a refused body is read and dropped, within the request's time limit.
        req.on('error', () => undefined).resume();
        finish();
      };
      const onData = (chunk: Buffer) => {
        try {
          if (body.length + chunk.length > this.#maxBytes) throw this.#tooLarge();
          body.append(chunk);
        } catch (error) {
          settle(() => fail(error as Error));
        }
      };
      const onEnd = () => settle(() => (req.complete ? resolve(body) : fail(new ClientGoneError())));
      const onClose = () => settle(() => fail(new ClientGoneError()));
      req.on('data', onData).on('end', onEnd).on('close', onClose).on('error', onClose);
    });
  }

  #tooLarge(): ApiError {
    return new ApiError('body_too_large', `The body is larger than ${this.#maxBytes} bytes.`);
  }
}

function reserve(bound: SharedBound, tenant: string, bytes: number): void {
  if (!bound.fits(tenant, bytes)) {
    throw new ApiError('unavailable', 'Too many large requests at once; try again.', null, 1);
  }
  bound.add(tenant, bytes);
}

/** Bytes of one request that are booked with those of all. */
export class HeldBytes {
  readonly #take: (bytes: number) => void;
  readonly #give: (bytes: number) => void;
  #bytes = 0;

  constructor(take: (bytes: number) => void, give: (bytes: number) => void) {
    this.#take = take;
    this.#give = give;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** Throws where there is no room. */
  reserve(bytes: number): void {
    this.#take(bytes);
    this.#bytes += bytes;
  }

  /** Idempotent. */
  release(): void {
    if (this.#bytes > 0) this.#give(this.#bytes);
    this.#bytes = 0;
  }
}

/** One buffer that doubles, not a list of chunks: a body sent byte by byte must not cost an object per byte. */
class GrowingBuffer {
  readonly #most: number;
  readonly #reserve: (bytes: number) => void;
  #buffer = Buffer.allocUnsafe(0);
  length = 0;

  /** `reserve` is told of every growth before it happens, and may throw. */
  constructor(most: number, reserve: (bytes: number) => void) {
    this.#most = most;
    this.#reserve = reserve;
  }

  get capacity(): number {
    return this.#buffer.length;
  }

  append(chunk: Buffer): void {
    const needed = this.length + chunk.length;
    if (needed > this.#buffer.length) {
      const capacity = Math.max(needed, Math.min(this.#most, Math.max(2 * this.#buffer.length, FIRST_CAPACITY)));
      this.#reserve(capacity - this.#buffer.length);
      const larger = Buffer.allocUnsafe(capacity);
      this.#buffer.copy(larger, 0, 0, this.length);
      this.#buffer = larger;
    }
    this.length += chunk.copy(this.#buffer, this.length);
  }

  bytes(): Buffer {
    return this.#buffer.subarray(0, this.length);
  }
}

function decode(bytes: Buffer): string {
  try {
    // The decoder also drops a byte order mark.
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new ApiError('invalid_body', 'The body is not valid UTF-8.');
  }
}
