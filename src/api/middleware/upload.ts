/** A request body as a stream, for bodies that are not held in memory. Its size is bounded by whoever stores it. */
import type { IncomingMessage } from 'node:http';
import type { Context } from 'koa';
import { ApiError, ClientGoneError } from '../errors.ts';
import { refuseCompressed } from './content.ts';

/** A sender that is silent for so long is cut. */
const IDLE_TIMEOUT_MS = 60_000;

/**
 * The raw bytes of the body. A consumer that stops early leaves the connection usable for the error's answer: what still comes
 * is read and dropped.
 */
export async function* uploadOf(ctx: Context, maxBytes: number): AsyncGenerator<Uint8Array> {
  const { req } = ctx;
  refuseCompressed(ctx);
  if (Number(req.headers['content-length'] ?? 0) > maxBytes) {
    throw new ApiError('body_too_large', `The body is larger than ${maxBytes} bytes.`);
  }
  const watch = new IdleWatch(req);
  try {
    for await (const chunk of req.iterator({ destroyOnReturn: false })) {
      watch.reset();
      yield chunk as Uint8Array;
    }
    if (!req.complete) throw new ClientGoneError();
  } catch {
    if (watch.fired) throw new ApiError('request_timeout', 'The request did not arrive in time.');
    // Only the connection fails here: also behind the last byte, while what came before it is being stored.
    throw new ClientGoneError();
  } finally {
    watch.stop();
    req.on('error', () => undefined).resume();
  }
}

class IdleWatch {
  readonly #timer: NodeJS.Timeout;
  fired = false;

  constructor(req: IncomingMessage) {
    this.#timer = setTimeout(() => {
      this.fired = true;
      req.destroy();
    }, IDLE_TIMEOUT_MS);
  }

  reset(): void {
    this.#timer.refresh();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}
