/** URLs that clients name: private addresses in every spelling, rebinding, redirects, sizes, slowness. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  FetchRefusedError,
  guardedFetch,
  PUBLIC_NETWORK,
  type FetchLimits,
  type FetchNetwork,
} from '../../../src/control/training/artifacts/guarded-fetch.ts';
import { isPublicAddress } from '../../../src/control/training/artifacts/public-address.ts';

const LIMITS: FetchLimits = { hosts: ['*'], maxBytes: 1000, idleTimeoutMs: 2000, totalTimeoutMs: 10_000 };

let server: Server;
let port: number;
let answer: (req: IncomingMessage, res: ServerResponse) => void;
let asked: string[];
beforeAll(async () => {
  server = createServer((req, res) => {
    asked.push(`${req.headers.host} ${req.url}`);
    answer(req, res);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  port = (server.address() as AddressInfo).port;
});
afterAll(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  asked = [];
  answer = (_req, res) => res.end('data');
});

/** The name data.test leads here; what else is public stays so. */
const network: FetchNetwork = {
  resolve: () => Promise.resolve(['127.0.0.1']),
  allowed: () => true,
};

async function read(url: string, limits: Partial<FetchLimits> = {}, through = network): Promise<string> {
  const parts: Uint8Array[] = [];
  for await (const part of guardedFetch(url, { ...LIMITS, ...limits }, through)) parts.push(part);
  return Buffer.concat(parts).toString();
}

const refusal = (url: string, limits: Partial<FetchLimits> = {}, through = network) =>
  read(url, limits, through).then(
    (text) => `read ${text}`,
    (error: unknown) => {
      if (error instanceof FetchRefusedError) return error.message;
      throw error;
    },
  );

test('what is allowed is read', async () => {
  expect(await read(`http://data.test:${port}/train.jsonl`)).toBe('data');
  expect(asked).toEqual([`data.test:${port} /train.jsonl`]);
});

describe('addresses', () => {
  test.each([
    'http://127.0.0.1/',
    'http://localhost/',
    'http://0.0.0.0/',
    'http://10.1.2.3/',
    'http://172.16.0.1/',
    'http://172.31.255.255/',
    'http://192.168.1.1/',
    'http://169.254.169.254/latest/meta-data',
    'http://100.64.0.1/',
    'http://198.18.0.1/',
    'http://224.0.0.1/',
    'http://255.255.255.255/',
    'http://2130706433/',
    'http://0x7f000001/',
    'http://0177.0.0.1/',
    'http://127.1/',
    'http://[::1]/',
    'http://[::]/',
    'http://[::ffff:127.0.0.1]/',
    'http://[::ffff:7f00:1]/',
    'http://[fe80::1]/',
    'http://[fc00::1]/',
    'http://[fd12::1]/',
    'http://[64:ff9b::7f00:1]/',
    'http://[2002:7f00:1::]/',
    'http://[2001:0:7f00:1::]/',
    'http://[ff02::1]/',
    'http://[::7f00:1]/',
    'http://127.0.0.1./',
  ])('%s is refused', async (url) => {
    expect(await refusal(url, {}, { ...PUBLIC_NETWORK, resolve: () => Promise.resolve(['127.0.0.1']) })).toMatch(
      /not in the public internet/,
    );
  });

  test.each(['8.8.8.8', '1.1.1.1', '172.15.0.1', '172.32.0.1', '100.63.255.255', '2606:4700::1111', '2a00:1450::1'])(
    '%s is public',
    (address) => expect(isPublicAddress(address)).toBe(true),
  );

  test.each(['', 'x', '1.2.3', 'fe80::1%eth0', '2606:4700::1%1', '256.1.1.1'])('%j is no public address', (address) =>
    expect(isPublicAddress(address)).toBe(false),
  );

  test('a name with one private address among public ones is refused', async () => {
    const through = { ...PUBLIC_NETWORK, resolve: () => Promise.resolve(['8.8.8.8', '127.0.0.1']) };
    expect(await refusal('http://data.test/', {}, through)).toMatch(/not in the public internet/);
  });

  test('a name that changes after the check does not lead elsewhere', async () => {
    // First a "public" address (this server's), then another: the connection must go to the one that was checked.
    let lookups = 0;
    const through: FetchNetwork = {
      resolve: () => Promise.resolve([lookups++ === 0 ? '127.0.0.1' : '127.0.0.2']),
      allowed: (address) => address === '127.0.0.1',
    };
    expect(await read(`http://data.test:${port}/`, {}, through)).toBe('data');
    expect(lookups).toBe(1);
  });

  test('a name that cannot be resolved', async () => {
    const through = { ...network, resolve: () => Promise.reject(new Error('ENOTFOUND secret.internal')) };
    expect(await refusal('http://data.test/', {}, through)).toBe('The host name cannot be resolved.');
  });
});

describe('hosts, schemes and credentials', () => {
  test('only listed hosts', async () => {
    const hosts = ['data.test'];
    expect(await read(`http://DATA.test:${port}/`, { hosts })).toBe('data');
    expect(await read(`http://data.test:${port}/`, { hosts: ['Data.Test'] })).toBe('data');
    expect(await refusal(`http://other.test:${port}/`, { hosts })).toMatch(/does not read/);
    expect(await refusal(`http://data.test.evil.test:${port}/`, { hosts })).toMatch(/does not read/);
  });
  test.each([
    'ftp://data.test/',
    'file:///etc/passwd',
    'gopher://data.test/',
    'javascript:1',
    'http://',
    'http://a b/',
    'nonsense',
  ])('%s', async (url) => expect(await refusal(url)).toMatch(/not allowed|not a valid/));
  test('a user name', async () => {
    expect(await refusal('http://user:secret@data.test/')).toMatch(/user name/);
    expect(asked).toEqual([]);
  });
});

describe('redirects', () => {
  const redirectTo = (location: string) => {
    answer = (req, res) => {
      if (req.url === '/start') res.writeHead(302, { location }).end();
      else res.end('target');
    };
  };
  test('are followed by the same rules', async () => {
    redirectTo('/other');
    expect(await read(`http://data.test:${port}/start`)).toBe('target');
  });
  test.each(['http://127.0.0.1/', 'http://169.254.169.254/', '//localhost/', 'http://[::1]:1/'])(
    'not to %s',
    async (location) => {
      redirectTo(location);
      const through: FetchNetwork = {
        resolve: (host) => Promise.resolve([host === 'data.test' ? '127.0.0.1' : '10.0.0.1']),
        // Only what data.test resolved to counts as public here.
        allowed: (() => {
          let first = true;
          return () => {
            const was = first;
            first = false;
            return was;
          };
        })(),
      };
      expect(await refusal(`http://data.test:${port}/start`, {}, through)).toMatch(/not in the public internet/);
    },
  );
  test('not to another scheme, nor in circles, nor nowhere', async () => {
    redirectTo('file:///etc/passwd');
    expect(await refusal(`http://data.test:${port}/start`)).toMatch(/not allowed/);
    redirectTo('/start');
    expect(await refusal(`http://data.test:${port}/start`)).toMatch(/more than 5 times/);
    answer = (_req, res) => res.writeHead(302).end();
    expect(await refusal(`http://data.test:${port}/start`)).toMatch(/without a location/);
  });
});

describe('bodies', () => {
  test('too large by its length, and without one', async () => {
    answer = (_req, res) => res.writeHead(200, { 'content-length': '1001' }).end('x'.repeat(1001));
    expect(await refusal(`http://data.test:${port}/`)).toMatch(/more than 1000 bytes/);
    answer = (_req, res) => {
      const timer = setInterval(() => res.write('x'.repeat(400)), 5);
      res.on('close', () => clearInterval(timer));
    };
    expect(await refusal(`http://data.test:${port}/`)).toMatch(/more than 1000 bytes/);
  });
  test('compressed', async () => {
    answer = (_req, res) => res.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync('x'.repeat(100_000)));
    expect(await refusal(`http://data.test:${port}/`)).toMatch(/compressed/);
    answer = (_req, res) => res.writeHead(200, { 'content-encoding': 'Identity' }).end('data');
    expect(await read(`http://data.test:${port}/`)).toBe('data');
  });
  test('another status', async () => {
    answer = (_req, res) => res.writeHead(404).end('secret of the host');
    expect(await refusal(`http://data.test:${port}/`)).toBe('The host answered 404.');
  });
  test('silence, before and in the middle', async () => {
    answer = () => undefined;
    expect(await refusal(`http://data.test:${port}/`, { idleTimeoutMs: 100 })).toMatch(/in time|cannot be read/);
    answer = (_req, res) => res.write('x');
    expect(await refusal(`http://data.test:${port}/`, { idleTimeoutMs: 100 })).toMatch(/in time|cannot be read/);
  });
  test('without a length: whole where the host ends it, not where it breaks off, rests or takes too long', async () => {
    const send = (then: (socket: Socket) => void) => {
      answer = ({ socket }) => {
        socket.write('HTTP/1.1 200 OK\r\n\r\ndata');
        then(socket);
      };
    };
    const url = `http://data.test:${port}/`;
    send((socket) => socket.end());
    expect(await read(url)).toBe('data');
    send((socket) => setTimeout(() => socket.resetAndDestroy(), 20));
    expect(await refusal(url)).toBe('The host cannot be read.');
    send(() => undefined);
    expect(await refusal(url, { idleTimeoutMs: 100 })).toBe('The host does not answer in time.');
    send((socket) => {
      const timer = setInterval(() => socket.write('x'), 20);
      socket.on('close', () => clearInterval(timer));
    });
    expect(await refusal(url, { totalTimeoutMs: 400 })).toBe('Reading the URL took too long.');
  });
  test('of another protocol', async () => {
    answer = ({ socket }) => socket.write('HTTP/1.1 101 Next\r\nconnection: upgrade\r\nupgrade: next\r\n\r\ndata');
    expect(await refusal(`http://data.test:${port}/`)).toBe('The host cannot be read.');
  });
  test('one that trickles for too long', async () => {
    answer = (_req, res) => {
      const timer = setInterval(() => res.write('x'), 20);
      res.on('close', () => clearInterval(timer));
    };
    expect(await refusal(`http://data.test:${port}/`, { totalTimeoutMs: 400 })).toMatch(/too long|cannot be read/);
  });
  test('a name server that does not answer', async () => {
    const through = { ...network, resolve: () => new Promise<string[]>(() => undefined) };
    const took = 'Reading the URL took too long.';
    expect(await refusal(`http://data.test:${port}/`, { totalTimeoutMs: 100 }, through)).toBe(took);
  });
  test('a connection that breaks', async () => {
    answer = (_req, res) => {
      res.writeHead(200, { 'content-length': '100' });
      res.write('x');
      setTimeout(() => res.destroy(), 20);
    };
    expect(await refusal(`http://data.test:${port}/`)).toMatch(/cannot be read|too early/);
  });
});
