/**
 * Runs jobs without a store and without an interruption: `unbroken.mjs plain|native` reads [{id, modelId, key, start}]
 * from standard input, where `start` is the number of an earlier job of the list, whose result the job began with, or
 * null, and writes the versions of their results.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { DEFAULT_ADAPTER_SHAPE } from '../../../dist/control/training/adapter-init.js';
import { rlBatch } from '../../../dist/control/training/rl-batch.js';
import { JobRunner } from '../../../dist/control/training/runner.js';
import { bodyOf } from './bodies.mjs';
import { openEngine } from './engine.mjs';

const { engine, chat, spec, close } = await openEngine(process.argv[2], 0);
const jobs = JSON.parse(await text(process.stdin));
const folder = mkdtempSync(join(tmpdir(), 'tandem-unbroken-'));
const results = [];
const folders = [];

async function* stream(groups) {
  yield* groups;
}

async function run({ id, modelId, key, start, step }, index) {
  const { trajectory_groups: groups, experimental_config: config } = bodyOf(modelId, key);
  const directory = mkdtempSync(join(folder, 'job-'));
  const begin = start === null ? null : { directory: folders[start], version: results[start] };
  let made = null;
  const runner = new JobRunner({
    engine,
    spec,
    baseModel: 'base',
    chat,
    inputs: {
      rlBatch: (wanted, encoder) => rlBatch(stream(groups), wanted.config, encoder, wanted.jobId, wanted.room),
    },
    events: { append: () => Promise.resolve() },
    snapshots: { load: () => Promise.resolve(null), save: () => Promise.resolve() },
    checkpoints: {
      latest: () => Promise.resolve(begin === null ? null : { step, adapter: begin }),
      at: () => Promise.resolve(null),
      nextStep: () => Promise.resolve(step + 1),
      stage: () => Promise.resolve(directory),
      commit: (_job, from, version) => {
        made = version;
        return Promise.resolve({ step: step + 1, adapter: { directory: from, version } });
      },
      unstage: () => Promise.resolve(),
      ofJob: () => Promise.resolve(null),
      deletedStep: () => Promise.resolve(null),
    },
    model: () => ({ obstacle: null, lora: DEFAULT_ADAPTER_SHAPE }),
    run: { record: () => Promise.resolve() },
    progress: () => undefined,
    report: (_job, error) => {
      throw error;
    },
  });
  await runner.run({ kind: 'rl', id, modelId, config }, new AbortController().signal);
  folders[index] = directory;
  results.push(made);
}

for (const [index, job] of jobs.entries()) await run(job, index);
await close();
rmSync(folder, { recursive: true, force: true });
process.stdout.write(JSON.stringify(results));
