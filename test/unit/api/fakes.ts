/** In-memory sessions and engine, and a listening server over them. */
import { createHash } from 'node:crypto';
import { pino } from 'pino';
import { createApp, isUpload } from '../../../src/api/app.ts';
import type { ApiDeps, Caller } from '../../../src/api/deps.ts';
import { HttpServer } from '../../../src/api/http-server.ts';
import { Metrics } from '../../../src/api/metrics.ts';
import type { EngineClient, EngineState } from '../../../src/control/engine/client.ts';
import type { EngineStats } from '../../../src/control/engine/protocol.ts';
import { BaseModelResolver } from '../../../src/control/models/resolver.ts';
import {
  SessionError,
  type ChoiceDelta,
  type Generation,
  type GenerationInput,
  type PromptInput,
  type PromptTokenLogprob,
  type Sessions,
} from '../../../src/control/sessions/session.ts';
import { Extensions } from '../../../src/control/extensions/extensions.ts';
import type { FillTokens } from '../../../src/control/sessions/fill-in-middle.ts';
import type { BlockHandle } from '../../../src/control/transfer/transfer.ts';
import type { Settings } from '../../../src/control/settings.ts';
import type { Reserve, ResponseStore, StoredChain, StoredResponse } from '../../../src/control/stored-responses.ts';
import { SampleMemory } from '../../../src/control/training/samples/sample-memory.ts';
import type { TrainingServices } from '../../../src/control/training/services.ts';
import { OPTIONS } from '../../../src/cli/options.ts';

export const KEY = 'tk-test-key';

export function delta(part: Partial<ChoiceDelta> = {}): ChoiceDelta {
  return {
    index: 0,
    text: '',
    reasoning: '',
    toolCalls: [],
    tokens: part.tokenIds?.length ?? 0,
    reasoningTokens: 0,
    tokenIds: [],
    logprobs: [],
    finish: null,
    stopReason: null,
    ...part,
  };
}

/** Two pieces and a finish per choice. */
function defaultScript(input: GenerationInput): ChoiceDelta[] {
  const choices = Array.from({ length: input.sampling.n }, (_, index) => index);
  const logprobs = (tokenId: number, at: number, chars: number) => {
    if (input.sampling.topLogprobs === null) return [];
    const top = Array.from({ length: input.sampling.topLogprobs }, (_, rank) => token(tokenId + rank, -rank));
    return [{ ...token(tokenId, 0), top, chars, at }];
  };
  return [
    ...choices.map((index) => delta({ index, text: 'Hello', tokenIds: [10], logprobs: logprobs(10, 0, 5) })),
    ...choices.map((index) =>
      delta({
        index,
        text: ' there',
        tokenIds: [11, 2],
        logprobs: [...logprobs(11, 5, 6), ...logprobs(2, 11, 0)],
        finish: 'stop',
      }),
    ),
  ];
}

function token(tokenId: number, logprob: number) {
  return { token: `<${tokenId}>`, logprob, bytes: [60], tokenId };
}

export class FakeGeneration implements Generation {
  readonly promptIds = Int32Array.from([5, 6, 7]);
  readonly deltas: AsyncIterable<ChoiceDelta>;
  readonly #counts: number[];
  scores: (PromptTokenLogprob | null)[] | null = null;
  reasoningTokens: number[] | null = null;
  held: BlockHandle | null = null;
  aborted = false;
  streamed = false;
  #wake: (() => void) | null = null;

  constructor(n: number, script: (generation: FakeGeneration) => AsyncIterable<ChoiceDelta> | ChoiceDelta[]) {
    this.#counts = Array.from({ length: n }, () => 0);
    this.deltas = this.#run(script);
  }

  async *#run(script: (generation: FakeGeneration) => AsyncIterable<ChoiceDelta> | ChoiceDelta[]) {
    for await (const item of script(this)) {
      if (this.aborted) return;
      this.#counts[item.index] = (this.#counts[item.index] ?? 0) + item.tokens;
      yield item;
    }
  }

  usage() {
    return { promptTokens: 3, completionTokens: this.#counts, reasoningTokens: this.reasoningTokens, cachedTokens: 0 };
  }
  promptLogprobs() {
    return this.scores;
  }
  heldBlocks(): BlockHandle | null {
    return this.held;
  }
  startedAt(): number | null {
    return performance.now();
  }
  markStreamed() {
    this.streamed = true;
  }
  abort() {
    this.aborted = true;
    this.#wake?.();
  }
  /** Resolves on abort. */
  untilAborted(): Promise<void> {
    return this.aborted ? Promise.resolve() : new Promise((resolve) => (this.#wake = resolve));
  }
}

export class FakeSessions implements Sessions {
  readonly maxModelLen = 128;
  readonly vocabSize = 100;
  fillTokens: FillTokens | null = null;
  readonly inputs: GenerationInput[] = [];
  readonly tokenized: PromptInput[] = [];
  readonly generations: FakeGeneration[] = [];
  script: (input: GenerationInput, generation: FakeGeneration) => AsyncIterable<ChoiceDelta> | ChoiceDelta[] =
    defaultScript;
  refuse: SessionError | null = null;

  start(input: GenerationInput): Promise<Generation> {
    if (this.refuse) return Promise.reject(this.refuse);
    this.inputs.push(input);
    const generation = new FakeGeneration(input.sampling.n, (self) => this.script(input, self));
    this.generations.push(generation);
    return Promise.resolve(generation);
  }
  tokenize(prompt: PromptInput, _tenant: string, _signal?: AbortSignal): Promise<Int32Array> {
    this.tokenized.push(prompt);
    return Promise.resolve(prompt.kind === 'text' ? Int32Array.from([...prompt.text].keys()) : Int32Array.from([1, 2]));
  }
  detokenize(ids: number[]): string {
    return ids.map((id) => `<${id}>`).join('');
  }
  detokenizeLong(ids: number[], maxChars: number): Promise<string | null> {
    const text = this.detokenize(ids);
    return Promise.resolve(text.length > maxChars ? null : text);
  }
  pieces: string[] = [];
  textPieces(): string[] {
    return this.pieces;
  }
  tokenString(id: number): string {
    return `<${id}>`;
  }
  close(): Promise<void> {
    return Promise.resolve();
  }
}

class FakeEngine implements EngineClient {
  state: EngineState = 'ready';
  counters: EngineStats = {
    running: 0,
    waiting: 0,
    pagesTotal: 10,
    pagesUsed: 0,
    preemptions: 0,
    steps: 0,
    promptTokens: 0,
    generatedTokens: 0,
    stepMicros: 0,
    stepTokens: { counts: [2, 1], sum: 9 },
    prefixCacheQueries: 0,
    prefixCacheHits: 0,
  };
  ready = () => Promise.resolve();
  submit = () => [];
  reserve = () => ({ release: () => undefined });
  compileGrammar = () => Promise.resolve(null);
  stats = () => this.counters;
  drain = () => Promise.resolve();
  close = () => Promise.resolve();
}

/** Defaults of the command line, with a few changed. */
export function testSettings(changes: Partial<Settings> = {}): Settings {
  const defaults = Object.entries(OPTIONS).map(([key, option]) => [key, option.default()] as const);
  return { ...(Object.fromEntries(defaults) as unknown as Settings), port: 0, ...changes };
}

/** What is stored of responses, in memory. */
class FakeResponses implements ResponseStore {
  keeps = true;
  readonly kept = new Map<string, StoredResponse>();
  failure: Error | null = null;

  insert(entity: string, response: StoredResponse): Promise<boolean> {
    if (this.failure) return Promise.reject(this.failure);
    this.kept.set(`${entity} ${response.id}`, response);
    return Promise.resolve(true);
  }
  find(entity: string, id: string, reserve: Reserve): Promise<StoredResponse | null> {
    const found = this.kept.get(`${entity} ${id}`) ?? null;
    if (found) reserve(found.head.length + found.output.length + found.input.length);
    return Promise.resolve(found);
  }
  delete(entity: string, id: string): Promise<boolean> {
    return Promise.resolve(this.kept.delete(`${entity} ${id}`));
  }
  chain(entity: string, id: string, reserve: Reserve): Promise<StoredChain | null> {
    const links: StoredResponse[] = [];
    for (let next: string | null = id; next !== null; next = links[0]?.previousId ?? null) {
      const found = this.kept.get(`${entity} ${next}`);
      if (!found) return Promise.resolve(links.length === 0 ? null : { links, missing: next, isCut: false });
      reserve(found.input.length + found.output.length);
      links.unshift(found);
    }
    return Promise.resolve({ links, missing: null, isCut: false });
  }
  outputs(entity: string, ids: readonly string[]): Promise<ReadonlyMap<string, string>> {
    const found = ids.flatMap((id) => this.kept.get(`${entity} ${id}`) ?? []);
    return Promise.resolve(new Map(found.map(({ id, output }) => [id, output])));
  }
}

/** No models; calling a service is a mistake of the test. */
function noTraining(): TrainingServices {
  const services = { check: () => Promise.resolve([]) };
  return services as Partial<TrainingServices> as TrainingServices;
}

export interface TestServer {
  url: string;
  port: number;
  sessions: FakeSessions;
  engine: FakeEngine;
  responses: FakeResponses;
  deps: ApiDeps;
  /** Fetch with the key. */
  call(path: string, init?: RequestInit): Promise<Response>;
  /** POST of a JSON body with the key. */
  post(path: string, body: unknown, headers?: Record<string, string>): Promise<Response>;
  close(timeoutMs?: number): Promise<void>;
}

export async function startTestServer(
  changes: Partial<Settings> = {},
  more: Partial<ApiDeps> = {},
  readerIdleMs?: number,
): Promise<TestServer> {
  const sessions = new FakeSessions();
  const engine = new FakeEngine();
  const responses = new FakeResponses();
  const settings = testSettings(changes);
  const hash = (text: string) => createHash('sha256').update(text).digest('hex');
  const deps: ApiDeps = {
    sessions,
    engine,
    settings,
    keys: { find: (key): Caller | null => (hash(key) === hash(KEY) ? { keyId: '1', entity: 'default' } : null) },
    models: new BaseModelResolver(['first', 'second']),
    adapters: { add: () => Promise.resolve(), remove: () => Promise.resolve() },
    model: { names: ['first', 'second'], root: 'model', created: 1, systemFingerprint: 'fp_test' },
    training: noTraining(),
    trains: true,
    responses,
    samples: new SampleMemory(2 ** 20),
    metrics: new Metrics({ modelName: 'first', settings, engine }),
    extensions: new Extensions(new Map(), 100, 320),
    log: pino({ level: 'silent' }),
    version: '0.0.0',
    draining: () => false,
    ...more,
  };
  const http = new HttpServer(createApp(deps, readerIdleMs), settings, isUpload);
  const port = await http.listen();
  const url = `http://127.0.0.1:${port}`;
  const call = (path: string, init: RequestInit = {}) =>
    fetch(url + path, { ...init, headers: { authorization: `Bearer ${KEY}`, ...init.headers } });
  const post = (path: string, body: unknown, headers: Record<string, string> = {}) =>
    call(path, {
      method: 'POST',
      body: typeof body === 'string' ? body : JSON.stringify(body),
      headers: { 'content-type': 'application/json', ...headers },
    });
  return { url, port, sessions, engine, responses, deps, call, post, close: (timeoutMs = 0) => http.drain(timeoutMs) };
}

/** The payloads of a stream, `[DONE]` as a string. */
export function events(text: string): unknown[] {
  return text
    .split('\n\n')
    .filter((event) => event !== '')
    .map((event) => {
      const data = event.replace(/^data: /, '');
      return data === '[DONE]' ? data : (JSON.parse(data) as unknown);
    });
}

export async function errorOf(
  response: Response,
): Promise<{ message: string; type: string; param: string | null; code: number }> {
  const body = (await response.json()) as {
    error: { message: string; type: string; param: string | null; code: number };
  };
  return body.error;
}
