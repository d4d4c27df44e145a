/** The real server process on a free port with a data directory of its own. Needs the built dist/ and the native addon. */
import { spawn, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));
const START_TIMEOUT_MS = 180_000;

export const API_KEY = 'tk-api-test';

export interface ServerOptions {
  /** Flags behind `serve`; the port, the data directory and (unless `withoutKey`) the key are set. */
  flags?: string[];
  env?: Record<string, string>;
  /** Kept afterwards when given. */
  dataDir?: string;
  withoutKey?: boolean;
  /** What Node runs instead of the server's dist/cli/main.js. */
  main?: string;
}

export class ApiServer {
  readonly url: string;
  readonly child: ChildProcess;
  readonly key: string;
  readonly #log: () => string;
  readonly #exited: Promise<number | null>;
  readonly #ownDir: string | null;

  private constructor(
    child: ChildProcess,
    url: string,
    key: string,
    log: () => string,
    exited: Promise<number | null>,
    ownDir: string | null,
  ) {
    this.child = child;
    this.url = url;
    this.key = key;
    this.#log = log;
    this.#exited = exited;
    this.#ownDir = ownDir;
  }

  static async start(options: ServerOptions = {}): Promise<ApiServer> {
    const ownDir = options.dataDir === undefined ? mkdtempSync(join(tmpdir(), 'tandem-api-')) : null;
    const dataDir = options.dataDir ?? ownDir ?? '';
    const key = options.withoutKey ? [] : ['--api-key', API_KEY];
    const where = ['--port', '0', '--data-dir', dataDir];
    const args = [options.main ?? MAIN, 'serve', ...where, ...key, ...(options.flags ?? [])];
    const child = spawn(process.execPath, args, {
      env: { ...process.env, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let log = '';
    child.stdout.on('data', (chunk) => (log += String(chunk)));
    child.stderr.on('data', (chunk) => (log += String(chunk)));
    const exited = new Promise<number | null>((resolve) => child.once('exit', resolve));
    try {
      await waitFor(
        () => /is ready\.[\s\S]*\n\n/.test(log) || child.exitCode !== null,
        START_TIMEOUT_MS,
        () => log,
      );
      const url = /address\s+(\S+)/.exec(log)?.[1];
      if (url === undefined) throw new Error(`The server did not start:\n${log}`);
      const shownKey = /key\s+(tk-\S+)/.exec(log)?.[1];
      return new ApiServer(child, url, shownKey ?? API_KEY, () => log, exited, ownDir);
    } catch (error) {
      child.kill('SIGKILL');
      if (ownDir !== null) rmSync(ownDir, { recursive: true, force: true });
      throw error;
    }
  }

  /** Everything the process has printed. */
  get log(): string {
    return this.#log();
  }

  /** Resolves with the exit code. */
  get exited(): Promise<number | null> {
    return this.#exited;
  }

  call(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(this.url + path, { ...init, headers: { authorization: `Bearer ${this.key}`, ...init.headers } });
  }

  post(path: string, body: unknown, init: RequestInit = {}): Promise<Response> {
    const headers = { 'content-type': 'application/json', ...init.headers };
    return this.call(path, { ...init, method: 'POST', body: JSON.stringify(body), headers });
  }

  /** A sample of /metrics by its name without labels; NaN when there is none. */
  async metric(name: string): Promise<number> {
    const text = await (await this.call('/metrics')).text();
    const line = text.split('\n').find((candidate) => new RegExp(`^${name}(\\{| )`).test(candidate));
    return Number(line?.split(' ').at(-1) ?? NaN);
  }

  /** Running, waiting and used pages. */
  async load(): Promise<{ running: number; waiting: number; kvUsage: number }> {
    const text = await (await this.call('/metrics')).text();
    const read = (name: string) => Number(new RegExp(`^tandem_${name}\\{[^}]*\\} (\\S+)$`, 'm').exec(text)?.[1] ?? NaN);
    return {
      running: read('num_requests_running'),
      waiting: read('num_requests_waiting'),
      kvUsage: read('kv_cache_usage_perc'),
    };
  }

  /** The engine process. */
  enginePid(): number {
    for (const entry of readdirSync('/proc')) {
      if (!/^\d+$/.test(entry)) continue;
      const stat = readFileIfThere(`/proc/${entry}/stat`);
      const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]);
      if (parent === this.child.pid && readFileIfThere(`/proc/${entry}/cmdline`).includes('engine-process'))
        return Number(entry);
    }
    throw new Error('There is no engine process.');
  }

  async stop(): Promise<void> {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill('SIGKILL');
    await this.#exited;
    if (this.#ownDir !== null) rmSync(this.#ownDir, { recursive: true, force: true });
  }
}

/** Polls until the condition holds. */
export async function waitFor(
  condition: () => boolean | Promise<boolean>,
  timeoutMs: number,
  describe: () => string = () => '',
): Promise<void> {
  const deadline = Date.now() + timeoutMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`Not within ${timeoutMs} ms. ${describe()}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The payloads of a stream's text, `[DONE]` as a string. */
export function readEvents(text: string): unknown[] {
  const blocks = text.split('\n\n').filter((block) => block !== '');
  return blocks.map((block) => {
    const data = block.replace(/^data: /, '');
    return data === '[DONE]' ? data : (JSON.parse(data) as unknown);
  });
}

export function readFileIfThere(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return ''; // The process has just ended.
  }
}
