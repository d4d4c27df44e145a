/**
 * Publishes adapters one after the other in the real engine process while streams decode: what `run.mjs` measures and what
 * test/boundary/publications.test.ts checks. Contents come round again under new versions, as new steps of a model have them, so every
 * request's tokens and log-probability bits are known beforehand: a stream that changes its version, or finds in the prefix cache what
 * another version computed, gives other bits.
 */
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { EngineSupervisor } from '../../dist/control/engine/supervisor.js';
import { loadModel } from '../../dist/control/models/load.js';
import { identityAdapter } from '../../dist/control/training/adapter-init.js';
import { writeCheckpoint } from '../../dist/control/training/checkpoint-files.js';
import { ModelRegistry } from '../../dist/control/training/models/registry.js';
import { TrainedModelResolver } from '../../dist/control/training/models/model-resolver.js';
import { engineConfig } from '../lib/engine-config.mjs';
import { randomFrom } from '../lib/stats.mjs';

const STARTER = fileURLToPath(new URL('../../models/starter', import.meta.url));
const NAME = 'bench/p/agent';
const MODEL = {
  id: 'agent',
  entity: 'bench',
  project: 'p',
  name: 'agent',
  baseModel: 'starter',
  runId: 'run',
  usable: true,
  obstacle: null,
  created: 0,
};
/** Adapters with different numbers; more than are kept, so that none is met while it is still in memory. */
const CONTENTS = 12;
const PROMPTS = 3;
/** Three full pages and a piece. */
const PROMPT_TOKENS = 56;
/** Streams end after different numbers of tokens: ones that all began together would meet no other's prompt between two tokens. */
const OUTPUT_TOKENS = { least: 24, most: 40 };
/** Steps that stay servable behind the newest. */
const KEPT = 4;
/** Room for the kept ones, those that running streams still use, and the next. */
const MAX_ADAPTERS = 24;

/** From the starter model; `adapterBytes` bounds what stays in memory. */
async function starterConfig(streams, adapterBytes) {
  const sizes = { maxSequences: streams, maxBatchTokens: 512, maxModelLen: 256 };
  const config = engineConfig(await loadModel(STARTER), 2, sizes);
  return { ...config, kvCacheBytes: 32 * 2 ** 20, maxAdapterBytes: adapterBytes };
}

async function writeContents(folder, spec) {
  const contents = [];
  for (let index = 0; index < CONTENTS; index++) {
    const random = randomFrom(index + 1);
    const weights = await identityAdapter(spec, `content ${index}`);
    for (const { b } of weights.factors) b.forEach((_, at) => (b[at] = 0.2 * (random() - 0.5)));
    const directory = path.join(folder, String(index));
    mkdirSync(directory);
    const digest = await writeCheckpoint(directory, {
      state: { weights, optimizer: null },
      baseModel: 'starter',
      kind: null,
    });
    contents.push({ directory, digest });
  }
  return contents;
}

function promptsOf({ samplableVocab }) {
  const random = randomFrom(4711);
  const prompt = () => Int32Array.from({ length: PROMPT_TOKENS }, () => Math.floor(random() * samplableVocab));
  return Array.from({ length: PROMPTS }, prompt);
}

/**
 * One stream of `maxTokens` tokens, or fewer where it ends by itself; resolves with the digests of its tokens and log-probability bits:
 * after each output. `gap` takes the milliseconds between two outputs.
 */
function stream(engine, { promptIds, seed, adapter, cacheSalt = null, maxTokens, gap = () => undefined }) {
  const sampling = {
    temperature: 1,
    topP: 1,
    topK: 0,
    minP: 0,
    seed: BigInt(seed),
    choice: 0,
    minTokens: 0,
    maxTokens,
    stopIds: new Int32Array(),
    logprobs: 0,
  };
  const hash = createHash('sha256');
  const digests = [];
  let last = null;
  return new Promise((resolve, reject) => {
    engine.submit([{ promptIds, sampling, priority: 0, tenant: 'bench', adapter, cacheSalt }], (_, output) => {
      const now = performance.now();
      if (output.tokens.length > 0 && last !== null) gap(now - last);
      if (output.tokens.length > 0) last = now;
      if (output.finish === 'error') reject(new Error(output.error));
      hash.update(Int32Array.from(output.tokens)).update(Float32Array.from(output.logprobs));
      if (output.tokens.length > 0) digests.push(hash.copy().digest('hex'));
      if (output.finish !== null) resolve({ digests, cachedTokens: output.cachedTokens });
    });
  });
}

/** VmRSS of a process in bytes. */
function residentBytes(pid) {
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? NaN) * 1024;
}

export class Soak {
  #engine;
  #contents;
  #prompts;
  #expected;
  #folder;
  #registry = new ModelRegistry();
  #names = new TrainedModelResolver(this.#registry);
  #published = 0;
  #streams;

  /** Starts the engine process and finds out, alone and without a prefix cache, what each content says to each prompt. */
  static async start({ streams }) {
    const soak = new Soak();
    soak.#folder = mkdtempSync(path.join(tmpdir(), 'tandem-publications-'));
    soak.#streams = streams;
    const measured = await starterConfig(streams, 2 ** 30);
    soak.#contents = await writeContents(soak.#folder, measured.spec);
    soak.#prompts = promptsOf(measured);
    const alone = await supervise({ ...measured, enablePrefixCaching: false });
    soak.#expected = [];
    for (const { directory, digest } of soak.#contents) {
      const row = [];
      const adapter = { version: digest, directory };
      for (const [seed, promptIds] of soak.#prompts.entries()) {
        row.push((await stream(alone, { promptIds, seed, adapter, maxTokens: OUTPUT_TOKENS.most })).digests);
      }
      soak.#expected.push(row);
    }
    const bytes = alone.stats().adapters.bytes / CONTENTS;
    await alone.close();
    const whole = soak.#expected.flat().map((digests) => digests.at(-1));
    if (new Set(whole).size !== CONTENTS * PROMPTS) throw new Error('The contents cannot be told apart.');
    soak.#engine = await supervise(await starterConfig(streams, Math.ceil(bytes * MAX_ADAPTERS)));
    soak.#registry.add(MODEL, []);
    await soak.publish();
    return soak;
  }

  /** Steps that are servable at most. */
  get kept() {
    return KEPT;
  }

  get published() {
    return this.#published;
  }

  /** As a job's last step does: the engine has it, then the name means it; the oldest step is deleted. */
  async publish() {
    const step = this.#published;
    const { directory, digest } = this.#contents[step % CONTENTS];
    const adapter = { version: `${digest}.${step}`, directory };
    await this.#engine.loadAdapter(adapter);
    this.#registry.addCheckpoint(MODEL.id, { id: String(step), step, adapter });
    this.#published++;
    const old = this.#registry.checkpoint(MODEL.id, step - KEPT);
    if (old === null) return;
    this.#registry.removeCheckpoint(MODEL.id, old.step);
    await this.#engine.unloadAdapter(old.adapter.version);
  }

  /**
   * Streams without a pause until `work` is done: most ask for the newest step, some for one before. Gaps in milliseconds; every stream
   * whose bits are not those of its version, or whose version was not the newest published, is an error.
   */
  async load(work) {
    const gaps = [];
    const facts = { requests: 0, cachedTokens: 0, versions: new Set() };
    let done = false;
    const client = async (index) => {
      const random = randomFrom(index + 1);
      for (let turn = 0; !done; turn++) {
        const newest = this.#published - 1;
        const back = turn % 3 === 2 ? Math.min(newest, 1 + (turn % (KEPT - 1))) : 0;
        const name = back === 0 ? NAME : `${NAME}:step${newest - back}`;
        const { adapter } = await this.#names.resolve(name, MODEL.entity);
        const step = Number(adapter.version.split('.')[1]);
        if (step !== newest - back) throw new Error(`${name} was step ${step}, not ${newest - back}.`);
        const prompt = (index + turn) % PROMPTS;
        // Mostly cold, as new prompts are, so that both sides have the same to compute; every fourth may find what is there.
        const salt = turn % 4 === 3 ? null : `${index} ${turn} ${newest}`;
        const maxTokens = OUTPUT_TOKENS.least + Math.floor(random() * (1 + OUTPUT_TOKENS.most - OUTPUT_TOKENS.least));
        const got = await stream(this.#engine, {
          promptIds: this.#prompts[prompt],
          seed: prompt,
          adapter,
          cacheSalt: salt,
          maxTokens,
          gap: (gap) => gaps.push(gap),
        });
        const expected = this.#expected[step % CONTENTS][prompt].slice(0, maxTokens);
        if (got.digests.length !== expected.length || got.digests.at(-1) !== expected.at(-1))
          throw new Error(`A stream of step ${step} has other bits.`);
        facts.requests++;
        facts.cachedTokens += got.cachedTokens;
        facts.versions.add(step);
      }
    };
    const clients = Promise.all(Array.from({ length: this.#streams }, (_, index) => client(index)));
    // What fails on either side ends both.
    await Promise.race([work(), clients]).finally(() => (done = true));
    await clients;
    return { gaps, ...facts, versions: facts.versions.size };
  }

  /** Of the engine process. */
  memory() {
    const { adapters, pagesUsed, running, waiting } = this.#engine.stats();
    return {
      rss: residentBytes(this.#engine.pid),
      restarts: this.#engine.restarts,
      adapters,
      pagesUsed,
      running,
      waiting,
    };
  }

  async close() {
    await this.#engine?.close();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function supervise(config) {
  const engine = new EngineSupervisor({ config, maxWaitingRequests: 1000, maxWaitingTokens: 1_000_000 });
  await engine.ready();
  return engine;
}
