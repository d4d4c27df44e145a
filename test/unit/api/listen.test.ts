/** What `--host` and `--port` may be is said in terms of these flags. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import Koa from 'koa';
import { expect, test, vi } from 'vitest';
import { HttpServer } from '../../../src/api/http-server.ts';

function listen(host: string, port = 0): { server: HttpServer; port: Promise<number> } {
  const server = new HttpServer(new Koa(), { host, port, requestTimeoutMs: 1000 });
  return { server, port: server.listen() };
}

test.each(['192.0.2.1', 'fe80::1'])('%s is no address of this machine', async (host) => {
  await expect(listen(host).port).rejects.toThrow(`--host ${host} is no address of this machine.`);
});

test('a port that is taken is named', async () => {
  const first = listen('127.0.0.1');
  const port = await first.port;
  await expect(listen('127.0.0.1', port).port).rejects.toThrow(
    `Port ${port} of 127.0.0.1 is in use: stop what listens there, or give --port another one.`,
  );
  await first.server.drain(0);
});

test('what was sent before the end is read, however long the machine takes for each connection', async () => {
  const app = new Koa();
  let seen = 0;
  app.use(() => {
    const end = performance.now() + 100;
    while (performance.now() < end);
    seen++;
  });
  const server = new HttpServer(app, { host: '127.0.0.1', port: 0, requestTimeoutMs: 60_000 });
  const port = await server.listen();
  // The server has no turn until all of them have sent: the kernel holds them.
  const code = `
    const { connect } = require('node:net');
    const sent = Array.from({ length: 20 }, () => new Promise((done) =>
      connect(${port}, '127.0.0.1').write('GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n', done)));
    Promise.all(sent).then(() => process.exit());`;
  expect(spawnSync(process.execPath, ['-e', code]).status).toBe(0);
  expect(seen).toBe(0);
  await server.acceptWaiting(60_000);
  expect(seen).toBe(20);
  await server.drain(0);
});

test('the connection that has been idle for longest is ended for a new one, none that waits for an answer or is sending', async () => {
  const answers: (() => void)[] = [];
  const app = new Koa();
  app.use(async (ctx) => {
    ctx.status = 204;
    if (ctx.path === '/slow') await new Promise<void>((resolve) => answers.push(resolve));
  });
  const told: number[] = [];
  const onFull = (connections: number) => void told.push(connections);
  const options = { host: '127.0.0.1', port: 0, requestTimeoutMs: 60_000, maxOpenFiles: 8, leastIdleMs: 0, onFull };
  const server = new HttpServer(app, options);
  const port = await server.listen();
  const open = async () => {
    const socket = connect(port, '127.0.0.1');
    await once(socket, 'connect');
    return { socket, closed: once(socket, 'close').then(() => 'closed'), answered: once(socket, 'data') };
  };
  const waits = await open();
  waits.socket.write('GET /slow HTTP/1.1\r\nHost: a\r\n\r\n');
  await vi.waitFor(() => expect(answers).toHaveLength(1));
  const sends = await open();
  sends.socket.write('GET / HTTP/1.1\r\nHost:');
  const answered = await open();
  answered.socket.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await answered.answered;
  // One in the last place makes room for the next.
  const silent = await open();
  expect(await answered.closed).toBe('closed');
  const next = await open();
  expect(await silent.closed).toBe('closed');
  next.socket.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
  await next.answered;
  expect(told).toEqual([]);
  sends.socket.write(' a\r\n\r\n');
  await sends.answered;
  answers[0]?.();
  await waits.answered;
  await server.drain(0);
});

test('connections leave files to the process; that more are closed is told once, and those that end make room', async () => {
  const app = new Koa();
  app.use((ctx) => void (ctx.status = 204));
  const told: number[] = [];
  const options = { host: '127.0.0.1', port: 0, requestTimeoutMs: 60_000 };
  const onFull = (connections: number) => void told.push(connections);
  const server = new HttpServer(app, { ...options, maxOpenFiles: 260, onFull, leastIdleMs: Infinity });
  const few = new HttpServer(app, { ...options, maxOpenFiles: 6, onFull, leastIdleMs: Infinity });
  const [port, fewPort] = [await server.listen(), await few.listen()];
  /** Whether it is answered. */
  const ask = async (to: number): Promise<[Socket, boolean]> => {
    const socket = connect(to, '127.0.0.1');
    socket.on('error', () => undefined);
    socket.write('GET / HTTP/1.1\r\nHost: a\r\n\r\n');
    return [
      socket,
      await Promise.race([once(socket, 'data').then(() => true), once(socket, 'close').then(() => false)]),
    ];
  };
  const fill = async (to: number, count: number) => {
    const sockets: Socket[] = [];
    for (let at = 0; at < count; at++) {
      const [socket, isAnswered] = await ask(to);
      expect(isAnswered).toBe(true);
      sockets.push(socket);
    }
    return sockets;
  };
  const sockets = await fill(port, 130);
  for (let more = 0; more < 3; more++) expect((await ask(port))[1]).toBe(false);
  expect(told).toEqual([130]);
  sockets[0]?.destroy();
  await vi.waitFor(async () => expect((await ask(port))[1]).toBe(true), { timeout: 10_000 });
  await fill(fewPort, 3);
  expect((await ask(fewPort))[1]).toBe(false);
  expect(told).toEqual([130, 3]);
  await Promise.all([server.drain(0), few.drain(0)]);
});
