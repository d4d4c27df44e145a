/** Bodies, headers, keys, paths and methods: what is refused before any field is read. */
import { connect } from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROUTES } from '../../../src/api/app.ts';
import { OPEN_PATHS } from '../../../src/api/middleware/auth.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { delta, errorOf, KEY, startTestServer, type TestServer } from './fakes.ts';

const MAX_BODY = 64 * 1024;
let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ maxBodyBytes: MAX_BODY });
});
afterAll(() => server.close());

const messages = [{ role: 'user', content: 'Hi' }];
const CHAT = '/v1/chat/completions';

/** Sends bytes as they are and returns all that comes back until the server closes. */
function raw(bytes: string | Buffer, hold = false, { port } = server): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1');
    let received = '';
    socket.on('data', (chunk) => (received += chunk.toString()));
    socket.on('close', () => resolve(received));
    socket.on('error', (error: NodeJS.ErrnoException) =>
      error.code === 'ECONNRESET' ? resolve(received) : reject(error),
    );
    socket.write(bytes);
    if (!hold) socket.end();
  });
}

function expectErrorText(answer: string, status: number): void {
  expect(answer).toMatch(new RegExp(`^HTTP/1.1 ${status} `));
  const body = JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)) as { error: { code: number } };
  expect(body.error.code).toBe(status);
}

describe('bodies', () => {
  test.each([
    ['"text"', 'a string'],
    ['[1]', 'an array'],
    ['42', 'a number'],
    ['null', 'null'],
    ['{"messages":', 'not valid JSON'],
    ['', 'not valid JSON'],
    ['{"messages":[],}', 'not valid JSON'],
    ['{"a":NaN}', 'not valid JSON'],
  ])('%s is 400', async (body, message) => {
    const response = await server.post(CHAT, body);
    const error = await errorOf(response);
    expect(response.status).toBe(400);
    expect(error).toMatchObject({ type: 'Bad Request', code: 400 });
    expect(error.message).toContain(message);
  });

  test('too deep is 400, at any depth', async () => {
    const nested = (depth: number) =>
      `{"messages":[{"role":"user","content":"x"}],"x":${'['.repeat(depth)}${']'.repeat(depth)}}`;
    expect((await server.post(CHAT, nested(120))).status).toBe(200);
    for (const depth of [129, 30_000]) {
      const error = await errorOf(await server.post(CHAT, nested(depth)));
      expect(error.message).toContain('deeper than 128');
    }
    expect((await errorOf(await server.post(CHAT, '['.repeat(60_000)))).message).toContain('deeper than 128');
  });

  test('brackets and digits inside strings count for nothing', async () => {
    const content = `${'['.repeat(500)} 99999999999999999999 \\" [`;
    const response = await server.post(CHAT, { messages: [{ role: 'user', content }] });
    expect(response.status).toBe(200);
    expect(server.sessions.inputs.at(-1)?.prompt).toMatchObject({ messages: [{ content }] });
  });

  test('a byte order mark is dropped', async () => {
    const body = Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), Buffer.from(JSON.stringify({ messages }))]);
    const response = await server.call(CHAT, { method: 'POST', body, headers: { 'content-type': 'application/json' } });
    expect(response.status).toBe(200);
  });

  test('invalid UTF-8 is 400', async () => {
    const body = Buffer.concat([
      Buffer.from('{"messages":[{"role":"user","content":"'),
      Buffer.from([0xff]),
      Buffer.from('"}]}'),
    ]);
    const response = await server.call(CHAT, { method: 'POST', body, headers: { 'content-type': 'application/json' } });
    expect((await errorOf(response)).message).toContain('UTF-8');
  });

  test.each(['\\ud800', 'a\\uDC00b', '\\ud83d \\ude00'])('the lone surrogate %s is 400', async (escape) => {
    const response = await server.post(CHAT, `{"messages":[{"role":"user","content":"${escape}"}]}`);
    expect((await errorOf(response)).message).toContain('lone surrogate');
  });

  test('an escaped pair is a character', async () => {
    const response = await server.post(CHAT, '{"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}');
    expect(response.status).toBe(200);
    expect(server.sessions.inputs.at(-1)?.prompt).toMatchObject({ messages: [{ content: '😀' }] });
  });

  test('of duplicate keys the last counts', async () => {
    await server.post(CHAT, '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"max_tokens":4}');
    expect(server.sessions.inputs.at(-1)?.sampling.maxTokens).toBe(4);
  });

  test('too large by its length is 413 before it is read', async () => {
    const head = `POST ${CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\n`;
    const answer = await raw(`${head}Content-Length: 1000000000\r\nConnection: close\r\n\r\n{`);
    expectErrorText(answer, 413);
  });

  test('too large in chunks is 413 when the bound is passed', async () => {
    const stream = new ReadableStream({
      start(controller) {
        for (let i = 0; i < 20; i++) controller.enqueue(new Uint8Array(8192).fill(0x20));
        controller.close();
      },
    });
    const response = await server.call(CHAT, {
      method: 'POST',
      body: stream,
      headers: { 'content-type': 'application/json' },
      duplex: 'half',
    });
    expect(response.status).toBe(413);
    expect((await errorOf(response)).type).toBe('Payload Too Large');
  });

  test('one byte per chunk is read', async () => {
    const body = JSON.stringify({ messages });
    const chunks = [...body].map((char) => `1\r\n${char}\r\n`).join('');
    const head = `POST ${CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\n`;
    const answer = await raw(`${head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n${chunks}0\r\n\r\n`, true);
    expect(answer).toMatch(/^HTTP\/1.1 200 /);
  });

  test.each(['gzip', 'br', 'deflate, gzip'])('Content-Encoding %s is 415', async (encoding) => {
    const body = gzipSync(JSON.stringify({ messages }));
    const headers = { 'content-type': 'application/json', 'content-encoding': encoding };
    const response = await server.call(CHAT, { method: 'POST', body, headers });
    expect(response.status).toBe(415);
    expect((await errorOf(response)).message).toContain('Content-Encoding');
  });

  test.each(['application/x-www-form-urlencoded', 'text/plain', ''])('Content-Type %j is 400', async (type) => {
    const response = await server.call(CHAT, {
      method: 'POST',
      body: new TextEncoder().encode(JSON.stringify({ messages })),
      headers: type === '' ? {} : { 'content-type': type },
    });
    expect(response.status).toBe(400);
    expect((await errorOf(response)).message).toBe("Unsupported Media Type: Only 'application/json' is allowed");
  });
  test('Content-Type may have parameters and any case', async () => {
    const headers = { 'content-type': 'Application/JSON; charset=utf-8' };
    const response = await server.call(CHAT, { method: 'POST', body: JSON.stringify({ messages }), headers });
    expect(response.status).toBe(200);
  });
});

describe('slow and oversized senders', () => {
  const head = `POST ${CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\n`;

  test('a header that never ends, and a body that never ends', async () => {
    const hasty = await startTestServer({ requestTimeoutMs: 500 });
    const never = ['GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ', `${head}Content-Length: 100\r\n\r\n{`];
    for (const answer of await Promise.all(never.map((text) => raw(text, true, hasty)))) expectErrorText(answer, 408);
    await hasty.close();
  });
  test('a giant header', async () => {
    expectErrorText(await raw(`GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ${'x'.repeat(100_000)}\r\n\r\n`, true), 431);
  });
  test('ten thousand headers', async () => {
    const many = Array.from({ length: 10_000 }, (_, i) => `X-${i}: 1`).join('\r\n');
    expectErrorText(await raw(`GET /health HTTP/1.1\r\nHost: x\r\n${many}\r\n\r\n`, true), 431);
  });
  test('more than 128 small headers', async () => {
    const answer = (count: number) => {
      const many = Array.from({ length: count - 2 }, (_, i) => `X-${i}: 1`).join('\r\n');
      return raw(`GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n${many}\r\n\r\n`);
    };
    expect(await answer(128)).toContain(' 200 ');
    for (const count of [129, 1000]) expectErrorText(await answer(count), 431);
  });
  test('bytes that are no HTTP', async () => {
    expectErrorText(await raw('\x00\x01\x02 nonsense\r\n\r\n', true), 400);
  });
  test('no Host', async () => {
    expectErrorText(await raw('GET /health HTTP/1.1\r\nConnection: close\r\n\r\n'), 400);
    expect(await raw('GET /health HTTP/1.0\r\n\r\n')).toContain(' 200 ');
  });
  test('an expectation that no one knows is ignored', async () => {
    const expecting = 'HTTP/1.1\r\nHost: x\r\nExpect: more\r\nConnection: close\r\n\r\n';
    expect(await raw(`GET /health ${expecting}`)).toContain(' 200 ');
    expectErrorText(await raw(`GET /v1/models ${expecting}`), 401);
  });
});

describe('keys', () => {
  const status = async (authorization: string | null, path = '/v1/models', method = 'GET') => {
    const response = await fetch(server.url + path, {
      method,
      headers: authorization === null ? {} : { authorization },
    });
    return response.status;
  };

  test('scheme and key', async () => {
    expect(await status(`Bearer ${KEY}`)).toBe(200);
    expect(await status(`bearer ${KEY}`)).toBe(200);
    expect(await status(`BEARER   ${KEY}`)).toBe(200);
    const wrong = [
      null,
      '',
      'Bearer',
      'Bearer ',
      KEY,
      `Basic ${KEY}`,
      `Bearer ${KEY}x`,
      `Bearer ${KEY.slice(1)}`,
      `Bearer x ${KEY}`,
    ];
    for (const header of wrong) expect(await status(header), String(header)).toBe(401);
    expect(await status(`Bearer ${'k'.repeat(8000)}`)).toBe(401);
  });

  test('401 has the error object and names no key', async () => {
    const response = await fetch(`${server.url}/v1/models`, { headers: { authorization: 'Bearer tk-wrong' } });
    expect(response.headers.get('www-authenticate')).toBe('Bearer');
    const error = await errorOf(response);
    expect(error).toMatchObject({ type: 'AuthenticationError', param: null, code: 401 });
    expect(error.message).not.toContain('tk-wrong');
  });

  test('pages of other origins get answers where the operator names them, never a way around keys', async () => {
    const page = 'https://chat.example.org';
    const ask = {
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization,content-type',
    };
    const call = async (own: TestServer, method: string, headers: Record<string, string>) => {
      const response = await fetch(`${own.url}/v1/models`, { method, headers });
      const of = (name: string) => response.headers.get(`access-control-${name}`);
      return [response.status, of('allow-origin'), of('allow-headers'), response.headers.get('vary')];
    };
    const named = await startTestServer({ allowedOrigins: ['https://a.example', page] });
    const all = await startTestServer({ allowedOrigins: ['*'] });
    expect(await call(server, 'OPTIONS', { origin: page, ...ask })).toEqual([401, null, null, null]);
    expect(await call(named, 'OPTIONS', { origin: page, ...ask })).toEqual([
      204,
      page,
      'authorization,content-type',
      'Origin',
    ]);
    expect(await call(named, 'OPTIONS', { origin: 'https://b.example', ...ask })).toEqual([401, null, null, 'Origin']);
    expect(await call(named, 'OPTIONS', { origin: page })).toEqual([401, page, null, 'Origin']);
    expect(await call(named, 'GET', { origin: page })).toEqual([401, page, null, 'Origin']);
    expect(await call(named, 'GET', { origin: page, authorization: `Bearer ${KEY}` })).toEqual([
      200,
      page,
      null,
      'Origin',
    ]);
    expect(await call(all, 'OPTIONS', { origin: 'null', ...ask })).toEqual([
      204,
      '*',
      'authorization,content-type',
      null,
    ]);
    const odd = { ...ask, 'access-control-request-headers': 'a b' };
    expect(await call(all, 'OPTIONS', { origin: page, ...odd })).toEqual([204, '*', null, null]);
    const long = { ...ask, 'access-control-request-headers': `${'a,'.repeat(600)}b` };
    expect(await call(all, 'OPTIONS', { origin: page, ...long })).toEqual([204, '*', null, null]);
    const body = JSON.stringify({ messages, stream: true });
    const headers = { origin: page, authorization: `Bearer ${KEY}`, 'content-type': 'application/json' };
    const stream = await fetch(named.url + CHAT, { method: 'POST', body, headers });
    expect(stream.headers.get('access-control-allow-origin')).toBe(page);
    expect(await stream.text()).toContain('[DONE]');
    await Promise.all([named.close(), all.close()]);
  });

  test('an id that answers carry is on refusals too', async () => {
    const own = await startTestServer({ enableRequestIdHeaders: true });
    const idOf = async (id: string | null, path = '/v1/models') => {
      const response = await fetch(own.url + path, { headers: id === null ? {} : { 'x-request-id': id } });
      return [response.status, response.headers.get('x-request-id')];
    };
    expect(await idOf('mine')).toEqual([401, 'mine']);
    expect(await idOf('mine', '/health')).toEqual([200, 'mine']);
    const made = expect.stringMatching(/^[0-9a-f]{32}$/) as string;
    expect(await idOf(null)).toEqual([401, made]);
    expect(await idOf('x'.repeat(300))).toEqual([401, made]);
    expect(await idOf('x'.repeat(300), '/health')).toEqual([400, made]);
    await own.close();
  });

  test.each([false, true])(
    'an id that answers carry is the one that they are named by (stream: %j)',
    async (stream) => {
      const own = await startTestServer({ enableRequestIdHeaders: true });
      const ids = async (fields: object, headers: Record<string, string> = {}) => {
        const response = await own.post(CHAT, { messages, stream, ...fields }, headers);
        return [response.headers.get('x-request-id'), /"id":"chatcmpl-([^"]*)"/.exec(await response.text())?.[1]];
      };
      const [header, id] = await ids({});
      expect(id).toMatch(/^[0-9a-f]{32}$/);
      expect(header).toBe(id);
      expect(await ids({ request_id: 'mine' })).toEqual(['mine', 'mine']);
      expect(await ids({ request_id: 'mine' }, { 'x-request-id': 'theirs' })).toEqual(['theirs', 'theirs']);
      await own.close();
    },
  );

  test('answers carry none where the setting is off', async () => {
    for (const headers of [{}, { 'x-request-id': 'theirs' }])
      for (const stream of [false, true]) {
        const response = await server.post(CHAT, { messages, stream, request_id: 'mine' }, headers);
        expect([response.status, response.headers.get('x-request-id')]).toEqual([200, null]);
        await response.text();
      }
  });

  test('every route but the health checks asks for one, however it is written', async () => {
    const methods = ['GET', 'POST', 'HEAD', 'OPTIONS', 'PUT', 'PATCH', 'DELETE'];
    const spellings = (path: string) => [
      path,
      `/${path}`,
      `${path}/`,
      `${path}//`,
      path.replaceAll('/', '%2f').replace('%2f', '/'),
      path.toUpperCase(),
      `${path}?x=/health`,
      `${path};/health`,
      `/health/..${path}`,
      `/./${path}`,
    ];
    const paths = ROUTES.map((route) => route.path).flatMap(spellings);
    const more = [
      '/',
      '/v1',
      '/nowhere',
      '/health/x',
      '/HEALTH',
      '//health',
      '/health%2f',
      '/%68ealth',
      '/v1/preview/models',
      '/admin',
    ];
    for (const path of new Set([...paths, ...more])) {
      const url = new URL(server.url).origin + path;
      const target = new URL(url).pathname;
      if (OPEN_PATHS.has(target)) continue;
      const answers = await Promise.all(methods.map((method) => status(null, path, method)));
      expect(answers, path).toEqual(methods.map(() => 401));
    }
  }, 180_000);

  test('raw targets that fetch would tidy', async () => {
    const targets = [
      '//v1/models',
      '/health/../v1/models',
      '/v1%2fmodels',
      'http://x/v1/models',
      '/v1/models#/health',
      '*',
    ];
    for (const target of targets) {
      const answer = await raw(
        `GET ${target} HTTP/1.1\r\nHost: x\r\nX-HTTP-Method-Override: GET\r\nConnection: close\r\n\r\n`,
      );
      expectErrorText(answer, 401);
    }
    const upgrade = await raw(
      'GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n',
    );
    expectErrorText(upgrade, 401);
    expect(await raw('CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n')).toBe('');
  });

  test('the health checks are open', async () => {
    for (const path of OPEN_PATHS) expect(await status(null, path), path).toBe(200);
  });
});

describe('paths and methods', () => {
  test('unknown path is 404, unknown method 405, both as errors', async () => {
    const nowhere = { message: 'This server has no path /v1/embeddings.', type: 'Not Found', code: 404 };
    expect(await errorOf(await server.call('/v1/embeddings?a=b'))).toMatchObject(nowhere);
    const long = (await errorOf(await server.call(`/${'a'.repeat(4000)}`))) as { message: string };
    expect(long.message.length).toBeLessThan(300);
    const response = await server.call(CHAT);
    expect(response.status).toBe(405);
    expect(response.headers.get('allow')).toBe('POST');
    expect(await errorOf(response)).toMatchObject({ type: 'Method Not Allowed', code: 405 });
    expect((await server.call('/v1/models/')).status).toBe(404);
    expect((await server.call('/V1/models')).status).toBe(404);
  });

  test.each([
    ['/chat/completions', 'This server has no path /chat/completions; it has /v1/chat/completions.'],
    ['/v1/v1/chat/completions', 'This server has no path /v1/v1/chat/completions; it has /v1/chat/completions.'],
    ['/v1/tokenize', 'This server has no path /v1/tokenize; it has /tokenize.'],
    ['/v1/embeddings', 'This server has no path /v1/embeddings.'],
    ['/v1', 'This server has no path /v1.'],
  ])('%s: a base URL with too much or too little is told', async (path, message) => {
    expect(await errorOf(await server.call(path))).toMatchObject({ message, code: 404 });
  });

  test('both chat paths answer', async () => {
    for (const path of [CHAT, `${CHAT}/`]) expect((await server.post(path, { messages })).status).toBe(200);
  });
});

test('an answer under way when the server begins to drain closes its connection', async () => {
  let draining = false;
  const own = await startTestServer({}, { draining: () => draining });
  own.sessions.script = () => {
    draining = true;
    return [delta({ text: 'last', tokenIds: [1], finish: 'stop' })];
  };
  const response = await own.post(CHAT, { messages });
  expect([response.status, response.headers.get('connection')]).toEqual([200, 'close']);
  expect((await own.post(CHAT, { messages })).status).toBe(503);
  await own.close();
});

describe('faults inside', () => {
  test('a session error has its status; nothing of the inside is told', async () => {
    const cases: [SessionError | Error, number, string, string | null][] = [
      [new SessionError('bad_request', 'why', 'messages'), 400, 'why', 'messages'],
      [
        new SessionError('context_length', "This model's maximum context length is 4 tokens.", 'input_tokens'),
        400,
        'maximum context length',
        'input_tokens',
      ],
      [new SessionError('queue_full', 'full'), 429, 'full', null],
      [new SessionError('unavailable', 'restarting'), 503, 'restarting', null],
      [new SessionError('engine_failed', 'segfault at 0x7f in x.so'), 500, 'Internal server error', null],
      [new Error('ENOENT /etc/secret\n at file.ts:1'), 500, 'Internal server error', null],
    ];
    for (const [error, status, message, param] of cases) {
      server.sessions.refuse = error as SessionError;
      const response = await server.post(CHAT, { messages, stream: status % 2 === 1 });
      server.sessions.refuse = null;
      expect(response.status).toBe(status);
      const shown = await errorOf(response);
      expect(shown.message).toContain(message);
      expect(shown.param).toBe(param);
      expect(JSON.stringify(shown)).not.toMatch(/0x7f|\/etc|\.ts:|\.so/);
      expect(response.headers.has('retry-after')).toBe(status === 429 || status === 503);
    }
  });

  test('Retry-After is what the queue says', async () => {
    server.sessions.refuse = new SessionError('queue_full', 'full', null, 6.2);
    const response = await server.post(CHAT, { messages });
    server.sessions.refuse = null;
    expect(response.headers.get('retry-after')).toBe('7');
  });
});
