/** What is wrong with the command line of a benchmark, script or example is one line and the usage; nothing is measured or trained here. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, test, vi } from 'vitest';
import { runExample } from '../../../examples/lib/arguments.ts';

const root = path.resolve(import.meta.dirname, '../../..');
const { scripts } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
  scripts: Record<string, string>;
};
/** Of `npm run bench:...` and `soak:...`. */
const measuring = Object.entries(scripts).flatMap(([name, command]) => {
  const file = /^(?:bench|soak):/.test(name)
    ? /^(?:node scripts\/built\.mjs && )?node (\S+)$/.exec(command)?.[1]
    : undefined;
  return file === undefined ? [] : [file];
});
const files = [...measuring, 'benchmarks/models/make-random-model.mjs'];

function run(file: string, ...args: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [path.join(root, file), ...args], {
    encoding: 'utf8',
  });
  return { status, stdout, stderr };
}

test.each(files)('%s', (file) => {
  expect(files.length).toBeGreaterThan(12);
  const { status, stdout } = run(file, '--help');
  expect([status, stdout.split('\n').length > 2]).toEqual([0, true]);
  const wrong = run(file, '--nonsense', '3');
  expect([wrong.status, wrong.stdout]).toEqual([2, '']);
  expect(wrong.stderr).toMatch(/^Unknown option '--nonsense'[^\n]*\n\n/);
  expect(wrong.stderr.slice(wrong.stderr.indexOf('\n\n') + 2)).toBe(stdout);
});

test.each(['scripts/setup.mjs', 'scripts/build.mjs', 'scripts/mutations/run.mjs'])('%s', (file) => {
  const { status, stderr } = run(file, '--nonsense');
  expect([status, stderr]).toEqual([
    2,
    expect.stringMatching(/^Unknown option '--nonsense'\n\nnpm run \S+ -- \[[^\n]*\n$/),
  ]);
});

test.each([
  ['benchmarks/sampling/run.mjs', '--steps', 'x', '--steps must be a whole number of at least 1.'],
  ['benchmarks/engine/gaps.mjs', '--rounds', '0', '--rounds must be a whole number of at least 1.'],
])('%s %s %s', (file, option, value, message) => {
  expect(run(file, option, value)).toMatchObject({
    status: 2,
    stderr: expect.stringMatching(new RegExp(`^${message}\n\n`)) as string,
  });
});

async function example(steps: number, args: string[], main = () => Promise.resolve()): Promise<[number, string]> {
  const said = vi.spyOn(console, 'error').mockImplementation(() => undefined);
  try {
    const status = await runExample('example:x', steps, main, args);
    return [status, said.mock.calls.flat().join('\n')];
  } finally {
    said.mockRestore();
  }
}

test.each([
  [['--nonsense'], "Unknown option '--nonsense'"],
  [['--key', 'k', '--steps', 'many'], '--steps must be a whole number of at least 1.'],
  [['--key', 'k', '--steps', '0'], '--steps must be a whole number of at least 1.'],
  [['--key', 'k', '--url', 'localhost'], '--url must be an address of http or https.'],
  [['--key', ''], 'Give the key that the server showed'],
])('an example with %j', async (args, message) => {
  const [status, said] = await example(30, args);
  expect([status, said.split('\n')[1]]).toEqual([2, '']);
  expect(said).toContain(message);
  expect(said).toContain('npm run example:x -- [options]\n  --url');
});

test('an example tells its options', async () => {
  const told = vi.spyOn(console, 'log').mockImplementation(() => undefined);
  const main = vi.fn(() => Promise.resolve());
  expect(await example(30, ['--help'], main)).toEqual([0, '']);
  expect(told.mock.calls.flat().join()).toMatch(/^npm run example:x -- \[options\]\n {2}--url[^]*--steps/);
  expect(main).not.toHaveBeenCalled();
  told.mockRestore();
});

test('an example takes steps where it has them, and tells what goes wrong in one line', async () => {
  expect(await example(30, ['--key', 'k', '--steps', '2'])).toEqual([0, '']);
  expect(await example(0, ['--key', 'k'])).toEqual([0, '']);
  expect((await example(0, ['--key', 'k', '--steps', '2']))[0]).toBe(2);
  const fails = () => Promise.reject(new Error('as it was asked to'));
  expect(await example(0, ['--key', 'k'], fails)).toEqual([1, 'as it was asked to']);
});
