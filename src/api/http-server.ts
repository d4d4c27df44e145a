/** The listening socket: limits against slow and oversized senders, and an orderly end. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type Koa from 'koa';
import { ApiError, type ErrorCode } from './errors.ts';

const MAX_HEADER_BYTES = 32 * 1024;
const HEADERS_TIMEOUT_MS = 20_000;
/** Longer than the idle time-outs of common proxies, so that they close first. */
const KEEP_ALIVE_TIMEOUT_MS = 75_000;
const CHECK_INTERVAL_MS = 2_000;
const CLOSE_IDLE_INTERVAL_MS = 50;
const MAX_CONNECTIONS = 16_384;

export interface HttpServerOptions {
  host: string;
  port: number;
  /** A request must arrive completely within this time. */
  requestTimeoutMs: number;
}

export class HttpServer {
  readonly #server: Server;
  readonly #options: HttpServerOptions;

  constructor(app: Koa, options: HttpServerOptions) {
    this.#options = options;
    this.#server = createServer(
      {
        maxHeaderSize: MAX_HEADER_BYTES,
        headersTimeout: Math.min(HEADERS_TIMEOUT_MS, options.requestTimeoutMs),
        requestTimeout: options.requestTimeoutMs,
        keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
        connectionsCheckingInterval: CHECK_INTERVAL_MS,
        noDelay: true,
      },
      app.callback(),
    );
    // The middleware counts headers and refuses; Node would drop the ones beyond its own limit without a word.
    this.#server.maxHeadersCount = 0;
    this.#server.maxConnections = MAX_CONNECTIONS;
    this.#server.on('clientError', answerClientError);
  }

  /** Resolves with the bound port. */
  listen(): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen(this.#options.port, this.#options.host, () => {
        this.#server.off('error', reject);
        resolve((this.#server.address() as AddressInfo).port);
      });
    });
  }

  /** Takes no new connection and resolves when the last one has ended; after the time they are cut. */
  async drain(timeoutMs: number): Promise<void> {
    const idle = setInterval(() => this.#server.closeIdleConnections(), CLOSE_IDLE_INTERVAL_MS);
    const cut = setTimeout(() => this.#server.closeAllConnections(), timeoutMs);
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
    clearInterval(idle);
    clearTimeout(cut);
  }
}

interface ParserError extends Error {
  code?: string;
}

const PARSER_ERRORS: Readonly<Record<string, [ErrorCode, string]>> = {
  HPE_HEADER_OVERFLOW: ['headers_too_large', `The request's headers are larger than ${MAX_HEADER_BYTES} bytes.`],
  ERR_HTTP_REQUEST_TIMEOUT: ['request_timeout', 'The request did not arrive in time.'],
};

/** Bytes that never became a request: answered by hand, with the same error object. */
function answerClientError(error: ParserError, socket: Socket): void {
  if (error.code === 'ECONNRESET' || !socket.writable || socket.bytesWritten > 0) {
    socket.destroy();
    return;
  }
  const [code, message] = PARSER_ERRORS[error.code ?? ''] ?? ['invalid_body', 'The request is not valid HTTP.'];
  const shown = new ApiError(code, message);
  const body = JSON.stringify(shown.toBody());
  const { type } = shown.toBody().error;
  socket.end(
    `HTTP/1.1 ${shown.status} ${type}\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
}
