/**
 * `npm run bench:train-serve`: what a training job costs those who are served, and what serving leaves to training. One engine process, as
 * the server runs it; streams that think between their requests, without and with a job, in turn.
 *
 * Training without a floor gets the time in which no step can run. With L, the share of the time inside of serving steps, it should reach
 * (1 - L) of its speed alone; `kept` is what it reached of that. Its speed alone is measured before and after each measurement of both: on a
 * shared machine it changes within a minute.
 */
import { parseArgs } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import { EngineSupervisor } from '../../dist/control/engine/supervisor.js';
import { loadModel } from '../../dist/control/models/load.js';
import { runCommand } from '../lib/command.mjs';
import { engineConfig } from '../lib/engine-config.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, quantile, randomFrom, rounded, spread } from '../lib/stats.mjs';
import { measureLimits } from '../limits/limits.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { prompt } from '../engine/cases.mjs';
import { ADAMW, plainRow } from './cases.mjs';
import { weightsOf } from './factors.mjs';

const USAGE = `npm run bench:train-serve -- [options]
  --shape NAME      qwen3-0.6b (default) or small
  --streams LIST    numbers of clients (default 1,4,16)
  --think SECONDS   a client's mean pause, times the number of clients (default 2)
  --seconds N       length of one measurement (default 20)
  --rounds N        rounds of streams alone, training alone, both, training alone (default 5)
  --row N           tokens of a training row (default 64: small, so that many end within a measurement)
  --threads N       threads of the engine (default 2)
  --json FILE       write the results there`;

const PROMPT = 64;
const OUTPUT = 48;
const GREEDY = { temperature: 0, topP: 1, topK: 0, minP: 0, seed: 0n, choice: 0, minTokens: 0, logprobs: -1 };

function parse() {
  const { values } = parseArgs({
    options: {
      shape: { type: 'string', default: 'qwen3-0.6b' },
      streams: { type: 'string', default: '1,4,16' },
      think: { type: 'string', default: '2' },
      seconds: { type: 'string', default: '20' },
      rounds: { type: 'string', default: '5' },
      row: { type: 'string', default: '64' },
      threads: { type: 'string', default: '2' },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const positive = (name, text) => {
    const value = Number(text);
    if (!(value > 0)) throw new Error(`--${name} must be positive.`);
    return value;
  };
  return {
    ...values,
    streams: values.streams.split(',').map((count) => positive('streams', count)),
    ...Object.fromEntries(['think', 'seconds', 'rounds', 'row', 'threads'].map((k) => [k, positive(k, values[k])])),
  };
}

async function start(model, options) {
  const loaded = await loadModel(model.directory);
  const sizes = { maxSequences: 64, maxBatchTokens: 2048, maxModelLen: 4096 };
  const more = { enablePrefixCaching: false, trainingFloor: 0, maxTrainingRowTokens: 4096 };
  const config = { ...engineConfig(loaded, options.threads, sizes), ...more };
  const engine = new EngineSupervisor({
    config,
    maxWaitingRequests: 1000,
    maxWaitingTokens: 1_000_000,
    log: console.error,
  });
  await engine.ready();
  return { engine, spec: loaded.spec };
}

/** One request; the times at which its tokens came. */
function stream(engine, ids) {
  const times = [];
  const sampling = { ...GREEDY, maxTokens: OUTPUT, stopIds: new Int32Array() };
  const request = { promptIds: Int32Array.from(ids), sampling, priority: 0, tenant: 'bench' };
  return new Promise((resolve, reject) => {
    engine.submit([request], (_, output) => {
      times.push(...output.tokens.map(() => performance.now()));
      if (output.finish === 'error') reject(new Error(output.error));
      else if (output.finish) resolve(times);
    });
  });
}

/** A client that asks, thinks, and asks again until the end; the same questions and pauses for the same seed. */
async function client(engine, shape, seed, thinkMs, until, gaps) {
  const random = randomFrom(seed);
  const pause = () => sleep(Math.min(-Math.log(1 - random()) * thinkMs, until - performance.now()));
  for (await pause(); performance.now() < until; await pause()) {
    const times = await stream(engine, prompt(shape, PROMPT, Math.floor(random() * 2 ** 31)));
    gaps.push(...times.slice(1).map((time, i) => time - times[i]));
  }
}

/** Rows that a job trains at least. */
const FEWEST_ROWS = 4;

/** Trains row after row, a step every eighth, until it is stopped. When each row ended, and the time inside of steps by then. */
class Job {
  #engine;
  #session;
  #stopped = false;
  #ended;
  marks = [];

  constructor(engine, session, shape, tokens) {
    this.#engine = engine;
    this.#session = session;
    this.tokens = tokens;
    this.#ended = this.#run(shape);
  }

  async #run(shape) {
    for (let count = 1; !this.#stopped || count <= FEWEST_ROWS; count++) {
      const { tokens, segments, targets } = plainRow(shape.vocab, this.tokens, count);
      const row = {
        tokens: Int32Array.from(tokens),
        segments: Int32Array.from(segments),
        targets: Int32Array.from(targets),
      };
      await this.#session.forward(row, 'current');
      await this.#session.backward(Float32Array.from(targets, (target) => (target < 0 ? 0 : -1 / targets.length)));
      if (count % 8 === 0) await this.#session.optimize(ADAMW);
      this.marks.push({ at: performance.now(), stepMicros: this.#engine.stats().stepMicros });
    }
  }

  stop() {
    this.#stopped = true;
    return this.#ended;
  }

  /** Tokens per second between the first and the last row that ended, and the share of that time inside of serving steps. */
  rate() {
    const [first, last] = [this.marks[0], this.marks.at(-1)];
    const ms = last.at - first.at;
    return {
      tokens: (this.tokens * (this.marks.length - 1)) / (ms / 1000),
      load: (last.stepMicros - first.stepMicros) / 1000 / ms,
    };
  }
}

/** Tokens per second of training alone. */
async function train(engine, session, options, shape) {
  const job = new Job(engine, session, shape, options.row);
  await sleep(options.seconds * 500);
  await job.stop();
  return job.rate().tokens;
}

async function serve(engine, session, options, shape, streams, seed) {
  const gaps = [];
  const until = performance.now() + options.seconds * 1000;
  const job = session && new Job(engine, session, shape, options.row);
  const think = options.think * streams * 1000;
  await Promise.all(
    Array.from({ length: streams }, (_, i) => client(engine, shape, seed * 1000 + i, think, until, gaps)),
  );
  await job?.stop();
  return { p50: quantile(gaps, 0.5), p99: quantile(gaps, 0.99), gaps: gaps.length, ...(job && job.rate()) };
}

async function measureLoad(engine, session, options, shape, streams) {
  const runs = { without: [], with: [], alone: [] };
  for (let round = 1; round <= options.rounds; round++) {
    runs.without.push(await serve(engine, null, options, shape, streams, round));
    const before = await train(engine, session, options, shape);
    runs.with.push(await serve(engine, session, options, shape, streams, round));
    runs.alone.push((before + (await train(engine, session, options, shape))) / 2);
  }
  // A round in which hardly anybody asked says nothing of latencies.
  const asked = runs.with.map(({ gaps }, i) => Math.min(gaps, runs.without[i].gaps) >= OUTPUT);
  const ratios = runs.with.map(({ p99 }, i) => p99 / runs.without[i].p99).filter((_, i) => asked[i]);
  if (ratios.length === 0)
    throw new Error(`Of ${streams} clients hardly any asked: measure for longer, or let them think less.`);
  const kept = runs.with.map(({ tokens, load }, i) => tokens / (runs.alone[i] * (1 - load)));
  return {
    name: `train-serve/bf16/streams-${streams}`,
    itl_p99_without_ms: spread(runs.without.map(({ p99 }) => p99)),
    itl_p99_with_ms: spread(runs.with.map(({ p99 }) => p99)),
    itl_p50_ms: [runs.without, runs.with].map((each) => rounded(median(each.map(({ p50 }) => p50)))),
    gaps: runs.with.reduce((sum, { gaps }) => sum + gaps, 0),
    itl_ratio: spread(ratios),
    load: spread(runs.with.map(({ load }) => load)),
    training_tok_s: spread(runs.with.map(({ tokens }) => tokens)),
    alone_tok_s: spread(runs.alone),
    kept: spread(kept),
  };
}

function report(cases) {
  const header = [
    'load',
    'ITL p99 without',
    'with',
    'ratio',
    'min',
    'max',
    'L',
    'training tok/s',
    'alone',
    'of alone x (1 - L)',
    'min',
    'max',
  ];
  const row = (one) => [
    one.name,
    one.itl_p99_without_ms.median,
    one.itl_p99_with_ms.median,
    ...[one.itl_ratio.median, one.itl_ratio.min, one.itl_ratio.max, one.load.median],
    ...[one.training_tok_s.median, one.alone_tok_s.median, one.kept.median, one.kept.min, one.kept.max],
  ];
  console.log();
  console.log(table([header, ...cases.map((one) => row(one).map(String))]));
}

async function main(options) {
  const model = ensureRandomModel(options.shape);
  const limits = await measureLimits(options.threads);
  const { engine, spec } = await start(model, options);
  try {
    const session = await engine.openTrainer({ weights: weightsOf(spec), optimizer: null });
    await train(engine, session, options, model.shape);
    const cases = [];
    for (const streams of options.streams) {
      cases.push(await measureLoad(engine, session, options, model.shape, streams));
      const { itl_ratio: ratio, load, kept } = cases.at(-1);
      const range = ({ median: middle, min, max }) => `${middle} (${min}-${max})`;
      console.log(`  ${streams} streams: ITL p99 x ${range(ratio)}, L ${range(load)}, training kept ${range(kept)}`);
    }
    report(cases);
    if (options.json) writeJson(options.json, { machine: await machine(), limits, cases });
  } finally {
    await engine.close();
  }
}

await runCommand(USAGE, parse, main);
