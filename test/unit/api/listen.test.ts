/** What `--host` and `--port` may be is said in terms of these flags. */
import { spawnSync } from 'node:child_process';
import Koa from 'koa';
import { expect, test } from 'vitest';
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
