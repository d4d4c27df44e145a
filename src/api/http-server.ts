/** The listening socket: limits against slow and oversized senders, and an orderly end. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import type Koa from 'koa';
import { ApiError, type ErrorCode } from './errors.ts';
import { IdleConnections } from './idle-connections.ts';
import { isOfMessages } from './messages-clients.ts';
import { messagesError } from './responses/messages-error.ts';

const MAX_HEADER_BYTES = 32 * 1024;
const HEADERS_TIMEOUT_MS = 20_000;
/** Longer than the idle time-outs of common proxies (nginx 60 s, Traefik 90 s, Caddy 120 s), so that they close first. */
const KEEP_ALIVE_TIMEOUT_MS = 130_000;
const CHECK_INTERVAL_MS = 2_000;
const CLOSE_IDLE_INTERVAL_MS = 50;
/** For a sender to read the refusal and close its end; Node waits for that for ever. */
const REFUSED_GRACE_MS = 2_000;
const MAX_CONNECTIONS = 16_384;
/** Of the files that the process may open: for its own, such as those of a thread or an engine that is started again. */
const OWN_FILES = 256;
const FULL_INTERVAL_MS = 60_000;
/** For who has just connected, or been answered, to send a request. */
const LEAST_IDLE_MS = 1000;
/** Turns of the event loop without a new connection after which none waits to be accepted. */
const QUIET_TURNS = 3;
/** What holds something of an answer listens for its end, and Koa for that of an answer in pieces several times. They do not grow with it. */
const MAX_RESPONSE_LISTENERS = 20;
/** What a timer can hold; it would fire at once for more. */
const MAX_TIMER_MS = 2 ** 31 - 1;
/** An upload may take as long as it goes on; its handler cuts a sender that falls silent. */
const UPLOAD_TIMEOUT_MS = 24 * 3600 * 1000;

export interface HttpServerOptions {
  host: string;
  port: number;
  /** A request must arrive completely within this time, uploads excepted. */
  requestTimeoutMs: number;
  /** Files that the process may have open, connections among them. */
  maxOpenFiles?: number;
  /** Told once in a minute at most that so many connections are open, and a new one found no idle one to take its place. */
  onFull?: (connections: number) => void;
  /** A connection that has been idle for so long may be ended for a new one. */
  leastIdleMs?: number;
}

/** All files could be taken by connections, for which nobody needs a key: then no engine could be started again. */
function mostConnections(maxOpenFiles: number): number {
  return Math.min(MAX_CONNECTIONS, Math.floor(Math.max(maxOpenFiles - OWN_FILES, maxOpenFiles / 2)));
}

/** Whether a request's body may take long, by method and path. */
export type IsUpload = (method: string, path: string) => boolean;

export class HttpServer {
  readonly #server: Server;
  readonly #options: HttpServerOptions;
  /** Whose answers have not been taken to their end. */
  readonly #open = new Set<ServerResponse>();
  readonly #sockets = new Set<Socket>();
  readonly #idle = new IdleConnections();
  #accepted = 0;

  constructor(app: Koa, options: HttpServerOptions, isUpload: IsUpload = () => false) {
    this.#options = options;
    this.#server = createServer({
      maxHeaderSize: MAX_HEADER_BYTES,
      headersTimeout: Math.min(HEADERS_TIMEOUT_MS, options.requestTimeoutMs),
      requestTimeout: UPLOAD_TIMEOUT_MS,
      keepAliveTimeout: KEEP_ALIVE_TIMEOUT_MS,
      connectionsCheckingInterval: CHECK_INTERVAL_MS,
      noDelay: true,
      // Node would answer without a body; the middleware refuses.
      requireHostHeader: false,
    });
    const handle = app.callback();
    const onRequest = (req: IncomingMessage, res: ServerResponse) => {
      // Refused already: its answer could not be written any more, so it must not be run.
      if (req.socket.writableEnded) return void req.socket.destroy();
      const { socket } = req;
      lastAnswers.set(socket, res);
      this.#idle.take(socket);
      limitArrival(req, res, options.requestTimeoutMs, isUpload);
      closeWithConnection(req, res);
      res.setMaxListeners(MAX_RESPONSE_LISTENERS);
      this.#open.add(res);
      res.once('close', () => {
        this.#open.delete(res);
        if (lastAnswers.get(socket) === res) this.#idle.put(socket);
      });
      void handle(req, res);
    };
    this.#server.on('request', onRequest);
    // Expectations but 100-continue, which Node would refuse without a body: they may be ignored.
    this.#server.on('checkExpectation', onRequest);
    // The middleware counts headers and refuses; Node would drop the ones beyond its own limit without a word.
    this.#server.maxHeadersCount = 0;
    const most = mostConnections(options.maxOpenFiles ?? Infinity);
    this.#boundConnections(most);
    this.#server.on('clientError', answerClientError);
    this.#spareReaders();
    this.#server.on('connection', (socket: Socket) => {
      this.#accepted++;
      this.#sockets.add(socket);
      socket.once('close', () => {
        this.#sockets.delete(socket);
        this.#idle.take(socket);
      });
      // The next one finds room.
      if (this.#sockets.size >= most) this.#idle.endOldest(options.leastIdleMs ?? LEAST_IDLE_MS);
      this.#idle.put(socket);
      closeBehindBody(socket);
    });
  }

  #boundConnections(most: number): void {
    this.#server.maxConnections = most;
    let toldAt = -Infinity;
    this.#server.on('drop', () => {
      const now = performance.now();
      if (now - toldAt < FULL_INTERVAL_MS) return;
      toldAt = now;
      this.#options.onFull?.(most);
    });
  }

  /** Resolves with the bound port. */
  listen(): Promise<number> {
    return new Promise((resolve, reject) => {
      const refuse = (error: NodeJS.ErrnoException) => reject(listenError(error, this.#options));
      this.#server.once('error', refuse);
      this.#server.listen(this.#options.port, this.#options.host, () => {
        this.#server.off('error', refuse);
        resolve((this.#server.address() as AddressInfo).port);
      });
    });
  }

  /**
   * Reads what clients have sent by now on connections that still wait to be accepted: Node takes one of them in a turn of its loop, and a
   * socket that is closed resets the others. Whoever still comes after the time is late.
   */
  async acceptWaiting(maxMs: number): Promise<void> {
    const end = performance.now() + maxMs;
    for (let quiet = 0; quiet < QUIET_TURNS && performance.now() < end;) {
      const before = this.#accepted;
      await setImmediate();
      quiet = this.#accepted === before ? quiet + 1 : 0;
    }
  }

  /** Takes no new connection and resolves when the last one has ended; after the time they are cut. */
  async drain(timeoutMs: number): Promise<void> {
    const idle = setInterval(() => {
      this.#server.closeIdleConnections();
      // Those that have not said anything yet Node takes for busy.
      for (const socket of this.#sockets) if (socket.bytesRead === 0) socket.destroy();
    }, CLOSE_IDLE_INTERVAL_MS);
    const cut = setTimeout(() => this.#server.closeAllConnections(), Math.min(timeoutMs, MAX_TIMER_MS));
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
    clearInterval(idle);
    clearTimeout(cut);
  }

  /** A connection is idle for Node as soon as its answer has been ended, and would be cut though its reader is slow and has not got all of it. */
  #spareReaders(): void {
    const closeIdle = this.#server.closeIdleConnections.bind(this.#server);
    this.#server.closeIdleConnections = () => {
      if (![...this.#open].some((response) => response.writableEnded)) closeIdle();
    };
  }
}

/** To the newest request of each connection. */
const lastAnswers = new WeakMap<Socket, ServerResponse>();

/** Whether no other request has been sent ahead behind it, whose answer would be lost if this one's ended the connection. */
export function isLastOfConnection(request: IncomingMessage): boolean {
  return (lastAnswers.get(request.socket)?.req ?? request) === request;
}

/** Whose senders go on until they have sent all, whatever the answer; `limitArrival` bounds that. */
const readToEnd = new WeakSet<IncomingMessage>();

/**
 * For an answer that overtakes its request's body. Proxies that stop sending there and use the connection again (HAProxy 2.6 does) would have the
 * next request, which may be another client's, taken for the rest of this one.
 */
export function closeBehindAnswer(res: ServerResponse): void {
  // It does so in any case, and has its own time for that.
  if (!res.shouldKeepAlive || res.hasHeader('Connection')) return;
  res.setHeader('Connection', 'close');
  readToEnd.add(res.req);
}

/**
 * Node closes a connection at once behind an answer that ends it. What still comes of its request would meet a reset, which can take the answer
 * from its reader (a proxy makes a 502 of it): it is read and dropped for a while.
 */
function closeBehindBody(socket: Socket): void {
  const close = socket.destroySoon.bind(socket);
  socket.destroySoon = () => {
    const request = lastAnswers.get(socket)?.req;
    if (request === undefined || request.complete) return close();
    socket.end();
    request.once('end', close);
    if (readToEnd.has(request)) return;
    const timer = setTimeout(close, REFUSED_GRACE_MS);
    socket.once('close', () => clearTimeout(timer));
  };
}

/** What to change, by the flags that say where to listen. */
function listenError(error: NodeJS.ErrnoException, { host, port }: HttpServerOptions): Error {
  switch (error.code) {
    case 'EADDRINUSE':
      return new Error(`Port ${port} of ${host} is in use: stop what listens there, or give --port another one.`);
    case 'EACCES':
      return new Error(`Port ${port} is not allowed to this user: give --port one from 1024 on.`);
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    // Of a link without its interface (fe80::1), and IPv6 where the machine has none.
    case 'EINVAL':
    case 'EAFNOSUPPORT':
      return new Error(`--host ${host} is no address of this machine.`);
    default:
      return error;
  }
}

/** A body that does not arrive in time ends the connection; that of an upload only once its handler has answered. */
function limitArrival(req: IncomingMessage, res: ServerResponse, timeoutMs: number, isUpload: IsUpload): void {
  let timer: NodeJS.Timeout | null = null;
  const arm = () => {
    if (req.complete) return;
    timer = setTimeout(() => {
      if (req.complete) return;
      if (res.headersSent) req.socket.destroy();
      else answerTimeout(req, res);
    }, timeoutMs);
  };
  req.once('close', () => timer && clearTimeout(timer));
  req.once('end', () => timer && clearTimeout(timer));
  if (isUpload(req.method ?? '', pathOf(req))) res.once('finish', arm);
  else arm();
}

function pathOf({ url }: IncomingMessage): string {
  return (url ?? '').split('?', 1)[0] ?? '';
}

/**
 * Node closes an answer with its connection only while it is the one to be written. Those that wait behind it would never hear that their
 * client has left.
 */
function closeWithConnection({ socket }: IncomingMessage, res: ServerResponse): void {
  if (res.socket !== null) return;
  const close = () => {
    res.destroy();
    res.emit('close');
  };
  // One of each request that is sent ahead.
  socket.setMaxListeners(0);
  socket.once('close', close);
  res.once('socket', () => socket.off('close', close));
}

function answerTimeout(req: IncomingMessage, res: ServerResponse): void {
  const error = new ApiError('request_timeout', 'The request did not arrive in time.');
  const id = res.getHeader('request-id');
  const isMessages = isOfMessages(pathOf(req), req.headers);
  const body = JSON.stringify(isMessages ? messagesError(error, id === undefined ? null : String(id)) : error.toBody());
  res.writeHead(error.status, {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': Buffer.byteLength(body),
    Connection: 'close',
  });
  res.end(body);
}

interface ParserError extends Error {
  code?: string;
}

const PARSER_ERRORS: Readonly<Record<string, [ErrorCode, string]>> = {
  HPE_HEADER_OVERFLOW: ['headers_too_large', `The request's headers are larger than ${MAX_HEADER_BYTES} bytes.`],
  ERR_HTTP_REQUEST_TIMEOUT: ['request_timeout', 'The request did not arrive in time.'],
};

/** Whether something of an answer has been written, and not all. */
function isAnswering(socket: Socket): boolean {
  const last = lastAnswers.get(socket);
  if (socket.bytesWritten === 0 || last === undefined || last.writableFinished) return false;
  // One that waits behind others has no socket yet.
  return last.headersSent || last.socket === null;
}

/** Bytes that never became a request: answered by hand, with the same error object. */
function answerClientError(error: ParserError, socket: Socket): void {
  // Behind a request that ends its connection, which is answered (RFC 9112, 9.6).
  if (error.code === 'HPE_CLOSED_CONNECTION') return;
  if (error.code === 'ECONNRESET' || !socket.writable || isAnswering(socket)) {
    socket.destroy();
    return;
  }
  const [code, message] = PARSER_ERRORS[error.code ?? ''] ?? ['invalid_body', 'The request is not valid HTTP.'];
  const shown = new ApiError(code, message);
  const body = JSON.stringify(shown.toErrorBody());
  const { type } = shown.toErrorBody().error;
  socket.end(
    `HTTP/1.1 ${shown.status} ${type}\r\nContent-Type: application/json; charset=utf-8\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  );
  setTimeout(() => socket.destroy(), REFUSED_GRACE_MS).unref();
}
