/** Compiled grammars of the engine process: a fair queue in front of the compiler, a cache behind it. */
import { createHash } from 'node:crypto';
import type { GrammarSpec, NativeGrammarAddon, NativeProgram, NativeVocabulary } from './native-grammar.ts';
import { ProgramCache } from './program-cache.ts';
import type { GrammarFailure, GrammarVocabulary } from './protocol.ts';

/** The compiler has two threads: one tenant's slow grammars leave one of them to the others. */
const MAX_RUNNING_PER_TENANT = 1;
const MAX_WAITING_PER_TENANT = 1024;

export type Compiled = { program: NativeProgram } | { failure: GrammarFailure };

interface Job {
  spec: GrammarSpec;
  key: string;
  /** Callers that still want it: the last one that goes cancels the compilation. */
  waiting: number;
  cancel: (() => void) | null;
  settle: (compiled: Compiled) => void;
  done: Promise<Compiled>;
}

interface Tenant {
  running: number;
  queue: Job[];
  jobs: Map<string, Job>;
}

const CANCELLED: Compiled = { failure: { kind: 'cancelled', message: 'the compilation was cancelled' } };
const NO_VOCABULARY: Compiled = {
  failure: { kind: 'failed', message: 'This engine was started without a vocabulary.' },
};
const BUSY: Compiled = { failure: { kind: 'busy', message: 'Too many grammars wait to be compiled.' } };

/** Tenants share neither results nor queues, so that none can tell from the time what another one has compiled. */
export class Grammars {
  readonly #addon: NativeGrammarAddon;
  readonly #vocabulary: Promise<NativeVocabulary> | null;
  readonly #cache: ProgramCache;
  readonly #tenants = new Map<string, Tenant>();

  constructor(addon: NativeGrammarAddon, vocabulary: GrammarVocabulary | undefined, cache = new ProgramCache()) {
    this.#addon = addon;
    this.#cache = cache;
    this.#vocabulary = vocabulary
      ? addon.createVocabulary(vocabulary.bytes, vocabulary.offsets, new Int32Array(0))
      : null;
    // Told to whoever compiles.
    this.#vocabulary?.catch(() => {});
  }

  /** A grammar that was compiled before and is still kept. */
  find(tenant: string, spec: GrammarSpec): NativeProgram | null {
    return this.#cache.find(tenant, keyOf(spec));
  }

  /** Never rejects. Equal grammars of a tenant are compiled once; an abort of all their signals stops the compilation. */
  async compile(tenant: string, spec: GrammarSpec, signal?: AbortSignal): Promise<Compiled> {
    if (!this.#vocabulary) return NO_VOCABULARY;
    const key = keyOf(spec);
    const known = this.#cache.find(tenant, key);
    if (known) return { program: known };
    if (signal?.aborted) return CANCELLED;
    const job = this.#tenants.get(tenant)?.jobs.get(key) ?? this.#enqueue(tenant, spec, key);
    return job ? this.#wait(tenant, job, signal) : BUSY;
  }

  async #wait(name: string, job: Job, signal: AbortSignal | undefined): Promise<Compiled> {
    job.waiting++;
    let leave = (): void => {};
    const left = new Promise<Compiled>((resolve) => (leave = () => resolve(CANCELLED)));
    const onAbort = () => {
      leave();
      if (--job.waiting === 0) this.#cancel(name, job);
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    const compiled = await Promise.race([job.done, left]);
    signal?.removeEventListener('abort', onAbort);
    return compiled;
  }

  #cancel(name: string, job: Job): void {
    const tenant = this.#tenants.get(name);
    // Whoever asks for the same from now on starts afresh.
    tenant?.jobs.delete(job.key);
    if (job.cancel) return job.cancel();
    if (tenant) tenant.queue = tenant.queue.filter((other) => other !== job);
    job.settle(CANCELLED);
    this.#forgetIdle(name);
  }

  #enqueue(name: string, spec: GrammarSpec, key: string): Job | null {
    const tenant = this.#tenants.get(name) ?? { running: 0, queue: [], jobs: new Map<string, Job>() };
    if (tenant.queue.length >= MAX_WAITING_PER_TENANT) return null;
    this.#tenants.set(name, tenant);
    let settle: Job['settle'] = () => {};
    const done = new Promise<Compiled>((resolve) => (settle = resolve));
    const job: Job = { spec, key, waiting: 0, cancel: null, settle, done };
    tenant.jobs.set(key, job);
    tenant.queue.push(job);
    this.#runNext(name, tenant);
    return job;
  }

  #runNext(name: string, tenant: Tenant): void {
    while (tenant.running < MAX_RUNNING_PER_TENANT) {
      const job = tenant.queue.shift();
      if (!job) break;
      tenant.running++;
      void this.#run(name, tenant, job);
    }
    this.#forgetIdle(name);
  }

  async #run(name: string, tenant: Tenant, job: Job): Promise<void> {
    const compiled = await this.#compile(job);
    tenant.running--;
    if (tenant.jobs.get(job.key) === job) tenant.jobs.delete(job.key);
    if ('program' in compiled) this.#cache.add(name, job.key, compiled.program);
    job.settle(compiled);
    this.#runNext(name, tenant);
  }

  async #compile(job: Job): Promise<Compiled> {
    let cancelled = false;
    job.cancel = () => (cancelled = true);
    try {
      const vocabulary = await this.#vocabulary;
      if (!vocabulary || cancelled) return CANCELLED;
      const { result, cancel } = this.#addon.compileProgram(job.spec.source, job.spec.options, vocabulary);
      job.cancel = cancel;
      const compiled = await result;
      if ('keyword' in compiled) return { failure: { kind: 'refused', message: compiled.message } };
      return { program: compiled };
    } catch (error) {
      return { failure: failureOf(error) };
    }
  }

  #forgetIdle(name: string): void {
    const tenant = this.#tenants.get(name);
    if (tenant && tenant.running === 0 && tenant.queue.length === 0) this.#tenants.delete(name);
  }
}

function keyOf(spec: GrammarSpec): string {
  return createHash('sha256')
    .update(JSON.stringify([spec.source, spec.options]))
    .digest('base64');
}

function failureOf(error: unknown): GrammarFailure {
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof TypeError) return { kind: 'malformed', message };
  if (error instanceof RangeError) return { kind: 'bound', message };
  return { kind: /cancelled/.test(message) ? 'cancelled' : 'failed', message };
}
