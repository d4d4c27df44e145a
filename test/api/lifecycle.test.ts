/** Start and stop: the first key, the keys command, one server per data directory, SIGTERM, bad settings. */
import { execFile, spawn, spawnSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { open } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { API_KEY, ApiServer, readEvents, waitFor } from './server.ts';

const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));
const TIMEOUT_MS = 90_000;

let dataDir: string;
let servers: ApiServer[];
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-life-'));
  servers = [];
});
afterEach(async () => {
  for (const server of servers) await server.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

async function start(options: Parameters<typeof ApiServer.start>[0] = {}): Promise<ApiServer> {
  const server = await ApiServer.start({ dataDir, ...options });
  servers.push(server);
  return server;
}

/** Runs the command line to its end. */
async function tandem(args: string[], env: Record<string, string> = {}): Promise<{ code: number; out: string }> {
  try {
    const options = { env: { ...process.env, ...env }, timeout: 60_000 };
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [MAIN, ...args], options);
    return { code: 0, out: stdout + stderr };
  } catch (error) {
    const failure = error as { code: number; stdout: string; stderr: string };
    return { code: failure.code, out: failure.stdout + failure.stderr };
  }
}

/** Until the other end closes; what it broke off by, where it does. */
async function readSocket(socket: Socket): Promise<string> {
  try {
    return (await socket.setEncoding('utf8').toArray()).join('');
  } catch (error) {
    return String(error);
  }
}

async function status(server: ApiServer, key: string): Promise<number> {
  return (await fetch(`${server.url}/v1/models`, { headers: { authorization: `Bearer ${key}` } })).status;
}

test(
  'the first start shows a key once and keeps its hash only',
  async () => {
    const first = await start({ withoutKey: true, flags: ['--log-level', 'debug'] });
    expect(first.key).toMatch(/^tk-[\w-]{43}$/);
    expect(await status(first, first.key)).toBe(200);
    expect(await status(first, `${first.key}x`)).toBe(401);
    // The line to paste, as it stands.
    const curl = /curl [\s\S]*?-d '[^']*'/.exec(first.log)?.[0] ?? '';
    const pasted = await promisify(execFile)('bash', ['-c', curl.replace('curl', 'curl -s')]);
    expect(JSON.parse(pasted.stdout)).toMatchObject({ object: 'chat.completion' });
    // Shown twice: as the key and in the line to paste; in no log line besides.
    expect(first.log.split(first.key)).toHaveLength(3);
    first.child.kill('SIGTERM');
    expect(await first.exited).toBe(0);
    const stored = readdirSync(dataDir, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
    expect(stored.length).toBeGreaterThan(0);
    for (const { parentPath, name } of stored)
      expect(readFileSync(join(parentPath, name)).includes(first.key), name).toBe(false);

    const second = await start({ withoutKey: true });
    expect(second.log).not.toContain(first.key);
    expect(second.log).toContain('1 stored');
    expect(await status(second, first.key)).toBe(200);
  },
  TIMEOUT_MS,
);

test(
  'keys made and revoked beside a running server; another server does not start there',
  async () => {
    const server = await start();
    const refused = await tandem(['keys', 'create', '--entity', 'a/b', '--data-dir', dataDir]);
    expect(refused).toMatchObject({ code: 1, out: expect.stringContaining('--entity') as string });
    const made = await tandem(['keys', 'create', '--name', 'laptop', '--entity', 'team', '--data-dir', dataDir]);
    expect(made.code).toBe(0);
    const id = /id\s+(\S+)/.exec(made.out)?.[1] ?? '';
    const key = /key\s+(\S+)/.exec(made.out)?.[1] ?? '';
    await waitFor(async () => (await status(server, key)) === 200, 10_000);
    const listed = await tandem(['keys', 'list', '--data-dir', dataDir]);
    expect(listed.out).toMatch(new RegExp(`${id}\\s+team\\s+laptop .* valid`));
    expect(listed.out).not.toContain(key);
    expect((await tandem(['keys', 'revoke', id, '--data-dir', dataDir])).code).toBe(0);
    await waitFor(async () => (await status(server, key)) === 401, 10_000);
    const elsewhere = join(dataDir, 'misspelt');
    for (const command of [['list'], ['revoke', id]]) {
      const wrong = await tandem(['keys', ...command, '--data-dir', elsewhere]);
      expect(wrong).toMatchObject({
        code: 1,
        out: expect.stringContaining(`${elsewhere} is no server's data directory`),
      });
    }
    expect(existsSync(elsewhere)).toBe(false);
    expect(made.out).not.toContain('new data directory');
    expect((await tandem(['keys', 'create', '--data-dir', elsewhere])).out).toContain('new data directory');
    const again = await tandem(['keys', 'revoke', id, '--data-dir', dataDir]);
    expect(again).toMatchObject({ code: 1, out: expect.stringContaining(id) as string });
    const second = await tandem(['serve', '--port', '0', '--data-dir', dataDir]);
    expect(second.code).toBe(1);
    expect(second.out).toContain('Another server is using the data directory');
    const { port } = new URL(server.url);
    const third = await tandem(['serve', '--port', port, '--data-dir', elsewhere]);
    expect(third).toMatchObject({ code: 1, out: expect.stringContaining(`Port ${port} of 127.0.0.1 is in use`) });
  },
  TIMEOUT_MS,
);

test.each(['keys create', 'keys create --help', 'serve --help', 'help', '--version'])(
  'tandem %s: what cannot be shown is no success',
  (command) => {
    const full = openSync('/dev/full', 'w');
    onTestFinished(() => closeSync(full));
    const { status: code, stderr } = spawnSync(process.execPath, [MAIN, ...command.split(' ')], {
      stdio: ['ignore', full, 'pipe'],
      encoding: 'utf8',
      env: { ...process.env, TANDEM_DATA_DIR: dataDir },
    });
    expect([code, stderr]).toEqual([1, expect.stringMatching(/^tandem: What this prints cannot be written: ENOSPC/)]);
  },
);

test.each([
  ['--version', 0],
  ['serve --help', 0],
  ['serve --wrong', 1],
  ['wrong', 1],
  ['keys revoke', 1],
])('tandem %s ends with %d', async (command, expected) => {
  const { code, out } = await tandem(command.split(' '));
  expect(code).toBe(expected);
  expect(out.includes('error:')).toBe(expected !== 0);
});

describe('SIGTERM', () => {
  const messages = [{ role: 'user', content: 'Tell me a story.' }];
  const PATH = '/v1/chat/completions';
  const body = { messages, ignore_eos: true, max_tokens: 60, temperature: 0 };

  test(
    'running requests finish, new ones are refused, the exit code is 0',
    async () => {
      const server = await start({ env: { TANDEM_FAULTS: 'slow-steps-ms=30' } });
      const stream = server.post(PATH, { ...body, stream: true }).then((response) => response.text());
      const whole = server.post(PATH, body).then(async (response) => [response.status, await response.json()] as const);
      await waitFor(async () => (await server.load()).running === 2, 10_000);
      server.child.kill('SIGTERM');
      await waitFor(async () => {
        try {
          await server.call('/health');
          return false;
        } catch {
          return true; // No new connection is taken.
        }
      }, 10_000);
      const events = readEvents(await stream);
      expect(events.at(-1)).toBe('[DONE]');
      expect(events.at(-2)).toMatchObject({ choices: [{ finish_reason: 'length' }] });
      const [status, answer] = await whole;
      expect(status).toBe(200);
      expect(answer).toMatchObject({ usage: { completion_tokens: 60 } });
      expect(await server.exited).toBe(0);
    },
    TIMEOUT_MS,
  );

  test(
    'a beam search, which asks the engine again for each token, and prompts that are being queued finish too',
    async () => {
      const server = await start({ env: { TANDEM_FAULTS: 'slow-steps-ms=30' }, flags: ['--tokenizer-workers', '1'] });
      const ask = async (path: string, fields: object) => {
        const response = await server.post(path, { ...body, ...fields });
        return [response.status, await response.json()] as const;
      };
      const search = ask(PATH, { use_beam_search: true, n: 2 });
      await waitFor(async () => (await server.load()).running === 2, 10_000);
      const prompt = Array.from({ length: 100 }, (_, at) => `${'Once upon a time. '.repeat(300)}${at}`);
      const many = ask('/v1/completions', { prompt, truncate_prompt_tokens: 4, max_tokens: 1 });
      await waitFor(async () => (await server.load()).running > 2, 10_000);
      server.child.kill('SIGTERM');
      expect(await search).toMatchObject([200, { usage: { completion_tokens: 120 } }]);
      expect(await many).toMatchObject([200, { usage: { completion_tokens: 100 } }]);
      expect(await server.exited).toBe(0);
    },
    TIMEOUT_MS,
  );

  test(
    'what has been sent on connections that the server had no time to accept is answered',
    async () => {
      const server = await start();
      const text = JSON.stringify({ ...body, max_tokens: 2 });
      const request =
        `POST ${PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${server.key}\r\nContent-Type: application/json\r\n` +
        `Content-Length: ${text.length}\r\nConnection: close\r\n\r\n${text}`;
      server.child.kill('SIGSTOP');
      const answers = Array.from({ length: 40 }, () => {
        const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
        const sent = new Promise((resolve) => socket.write(request, resolve));
        return { sent, answer: readSocket(socket) };
      });
      await Promise.all(answers.map(({ sent }) => sent));
      server.child.kill('SIGTERM');
      server.child.kill('SIGCONT');
      for (const { answer } of answers) expect((await answer).split('\r\n', 1)).toEqual(['HTTP/1.1 200 OK']);
      expect(await server.exited).toBe(0);
    },
    TIMEOUT_MS,
  );

  test(
    'what does not finish in time ends with an error that says so',
    async () => {
      const server = await start({
        env: { TANDEM_FAULTS: 'slow-steps-ms=100' },
        flags: ['--shutdown-timeout-ms', '300'],
      });
      const long = { ...body, max_tokens: 900 };
      const text = server.post(PATH, { ...long, stream: true }).then((response) => response.text());
      const whole = server.post(PATH, long);
      const search = server.post(PATH, { ...long, use_beam_search: true, n: 2 });
      await waitFor(async () => (await server.load()).running === 4, 10_000);
      server.child.kill('SIGTERM');
      const error = {
        message: 'The server is shutting down.',
        type: 'ServiceUnavailableError',
        param: null,
        code: 503,
      };
      expect(readEvents(await text).slice(-2)).toEqual([{ error }, '[DONE]']);
      for (const response of await Promise.all([whole, search])) {
        expect([response.status, response.headers.get('retry-after')]).toEqual([503, '1']);
        expect(await response.json()).toEqual({ error });
      }
      // No fault of the server's.
      expect(server.log).not.toContain('"level":50');
      expect(await server.exited).toBe(0);
    },
    TIMEOUT_MS,
  );
});

describe('a stop', () => {
  const body = {
    messages: [{ role: 'user', content: 'Tell me a story.' }],
    ignore_eos: true,
    max_tokens: 60,
    stream: true,
  };

  test.each(['SIGINT', 'SIGHUP'] as const)(
    '%s finishes running requests, also when the engine gets it too, it comes twice at once and nobody reads the output',
    async (signal) => {
      const server = await start({ env: { TANDEM_FAULTS: 'slow-steps-ms=30' } });
      const stream = server.post('/v1/chat/completions', body).then((response) => response.text());
      await waitFor(async () => (await server.load()).running === 1, 10_000);
      const engine = server.enginePid();
      server.child.stdout?.destroy();
      server.child.stderr?.destroy();
      server.child.kill(signal);
      // A terminal sends it to all of its processes.
      process.kill(engine, signal);
      // As npm passes on what the terminal has sent to both.
      await sleep(50);
      server.child.kill(signal);
      expect(readEvents(await stream).slice(-2)).toMatchObject([{ choices: [{ finish_reason: 'length' }] }, '[DONE]']);
      expect(await server.exited).toBe(0);
    },
    TIMEOUT_MS,
  );

  test(
    'SIGUSR1 is none, and opens no debugger',
    async () => {
      const server = await start();
      for (const pid of [server.child.pid as number, server.enginePid()]) process.kill(pid, 'SIGUSR1');
      const whole = await server.post('/v1/chat/completions', { ...body, stream: false });
      expect(whole.status).toBe(200);
      server.child.kill('SIGTERM');
      expect(await server.exited).toBe(0);
      expect(server.log).not.toContain('Debugger');
    },
    TIMEOUT_MS,
  );

  test(
    'a later second signal ends at once',
    async () => {
      const server = await start({ env: { TANDEM_FAULTS: 'slow-steps-ms=200' } });
      const cut = server.post('/v1/chat/completions', body).then((response) => response.text());
      await waitFor(async () => (await server.load()).running === 1, 10_000);
      server.child.kill('SIGTERM');
      await sleep(1000);
      server.child.kill('SIGTERM');
      await expect(cut).rejects.toThrow();
      expect(await server.exited).toBe(1);
    },
    TIMEOUT_MS,
  );

  test(
    'is heard before the server is ready',
    async () => {
      // A start that lasts: it waits for the module.
      const module = join(dataDir, 'slow.mjs');
      writeFileSync(module, "process.stdout.write('reading'); await new Promise((done) => setTimeout(done, 60_000));");
      const args = [MAIN, 'serve', '--data-dir', join(dataDir, 'data'), '--port', '0', '--engine-extension', module];
      const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'ignore'] });
      let out = '';
      child.stdout.on('data', (chunk) => (out += String(chunk)));
      const ended = new Promise((resolve) => child.once('exit', (code, signal) => resolve({ code, signal })));
      await waitFor(() => out.includes('reading'), 60_000);
      child.kill('SIGTERM');
      expect(await ended).toEqual({ code: 0, signal: null });
      expect(out).toContain('was not ready yet');
    },
    TIMEOUT_MS,
  );
});

test(
  'a disk that is full under the log stops nothing',
  async () => {
    const args = [MAIN, 'serve', '--data-dir', dataDir, '--port', '0', '--log-level', 'debug'];
    const full = openSync('/dev/full', 'w');
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', full] });
    let out = '';
    child.stdout?.on('data', (chunk) => (out += String(chunk)));
    const ended = new Promise((resolve) => child.once('exit', resolve));
    await waitFor(() => out.includes('is ready') || child.exitCode !== null, 60_000);
    child.kill('SIGTERM');
    expect(await ended).toBe(0);
    closeSync(full);
  },
  TIMEOUT_MS,
);

test(
  'a log that nobody reads on holds up nothing',
  async () => {
    // A pipe with a reader that rests, for both outputs, as of `2>&1 | less`.
    const path = join(dataDir, 'pipe');
    await promisify(execFile)('mkfifo', [path]);
    const pipe = await open(path, 'r+');
    const flags = ['--data-dir', join(dataDir, 'data'), '--port', '0', '--api-key', API_KEY, '--log-level', 'info'];
    const child = spawn(process.execPath, [MAIN, 'serve', ...flags], { stdio: ['ignore', pipe.fd, pipe.fd] });
    onTestFinished(() => void child.kill('SIGKILL'));
    const ended = new Promise((resolve) => child.once('exit', resolve));
    try {
      let out = '';
      const readUntil = async (found: () => boolean) => {
        for (const bytes = Buffer.alloc(2 ** 16); !found();) {
          const { bytesRead } = await pipe.read(bytes);
          out += bytes.toString('utf8', 0, bytesRead);
        }
      };
      await readUntil(() => out.includes('-d '));
      const url = /curl (\S+)\/chat/.exec(out)?.[1] ?? '';
      const ask = async () => {
        const init = { headers: { authorization: `Bearer ${API_KEY}` }, signal: AbortSignal.timeout(20_000) };
        return (await fetch(`${url}/models`, init)).status;
      };
      // A line each, of 130 bytes and more; a pipe holds 64 KiB.
      for (let i = 0; i < 1000; i++) expect(await ask()).toBe(200);
      await readUntil(() => out.split('"path":"/v1/models"').length > 1000);
      for (let i = 0; i < 1000; i++) expect(await ask()).toBe(200);
      child.kill('SIGTERM');
      expect(await ended).toBe(0);
    } finally {
      await pipe.close();
    }
  },
  TIMEOUT_MS,
);

describe('settings that cannot be', () => {
  test.each([
    [['--no-such-flag', '1'], {}, '--no-such-flag'],
    [['--scheduling-policy', 'fastest'], {}, '--scheduling-policy'],
    [['--max-model-len', '999999'], {}, '--max-model-len'],
    [['--model', '/nowhere'], {}, '/nowhere'],
    [['--host', '192.0.2.1'], {}, '--host 192.0.2.1'],
    [['--kv-cache-memory', '1K'], {}, '--kv-cache-memory'],
    [[], { TANDEM_THREADS: 'abc' }, 'TANDEM_THREADS'],
    [[], { TANDEM_FAULTS: 'nonsense' }, 'nonsense'],
  ])(
    '%j %j',
    async (flags, env, named) => {
      const { code, out } = await tandem(['serve', '--data-dir', dataDir, '--port', '0', ...flags], env);
      expect(code).toBe(1);
      expect(out).toContain(named);
      expect(out).not.toMatch(/\n\s+at /);
    },
    TIMEOUT_MS,
  );
});

describe('an extension module that is being loaded', () => {
  const serve = (text: string) => {
    const path = join(dataDir, 'extension.mjs');
    writeFileSync(path, text);
    return ['serve', '--data-dir', dataDir, '--port', '0', '--engine-extension', path];
  };

  test.each(['process.exit(0);', "import { exit } from 'node:process'; await null; exit(0);"])(
    'and ends the process is named: %s',
    async (text) => {
      const { code, out } = await tandem(serve(text));
      expect(code).toBe(1);
      expect(out).toMatch(
        /^tandem: --engine-extension \S+extension\.mjs: it ended the process while it was being loaded\.$/m,
      );
    },
    TIMEOUT_MS,
  );

  test(
    'is not held to have ended a process that a signal ends',
    async () => {
      const args = serve("console.log('loading'); await new Promise(() => {});");
      const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
      let out = '';
      for (const stream of [child.stdout, child.stderr])
        stream.on('data', (chunk: Buffer) => {
          out += String(chunk);
          if (out.includes('loading')) child.kill('SIGTERM');
        });
      expect(await new Promise((resolve) => child.once('exit', resolve))).toBe(0);
      expect(out).not.toContain('--engine-extension');
    },
    TIMEOUT_MS,
  );
});

test(
  'flags beat variables, variables beat defaults',
  async () => {
    const server = await start({
      env: { TANDEM_SERVED_MODEL_NAME: 'from-variable', TANDEM_VLLM_METRIC_NAMES: 'true', TANDEM_MAX_MODEL_LEN: '128' },
      flags: ['--max-model-len', '256', '--served-model-name', 'a,b', '--served-model-name', 'c'],
    });
    const list = (await (await server.call('/v1/models')).json()) as { data: { id: string; max_model_len: number }[] };
    expect(list.data.map((model) => [model.id, model.max_model_len])).toEqual([
      ['a', 256],
      ['b', 256],
      ['c', 256],
    ]);
    const metrics = await (await server.call('/metrics')).text();
    expect(metrics).toContain('vllm:num_requests_running{model_name="a",engine="0"} 0');
    expect(metrics).toContain('tandem_num_requests_running{model_name="a",engine="0"} 0');
  },
  TIMEOUT_MS,
);
