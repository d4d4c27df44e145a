/** What `--host` and `--port` may be is said in terms of these flags. */
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
