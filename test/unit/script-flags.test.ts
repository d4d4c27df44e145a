/** What people run asks before it installs, builds or formats. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';

/** Neither npm nor a compiler is found: what does not look at its flags breaks off. */
const NOTHING = { PATH: '/nonexistent' };

const SCRIPTS: [string, RegExp][] = [
  ['setup', /^npm run setup -- /],
  ['setup-llama-cpp', /^npm run setup:llama-cpp\n/],
  ['build', /^npm run build -- /],
  ['build-native', /^node scripts\/build-native\.mjs\n/],
  ['format', /^npm run format -- /],
  ['lint', /^npm run lint\n/],
  ['mutations/run', /^npm run test:mutations -- /],
  ['test', /^npm test /],
];

function run(command: string, args: string[], env: Record<string, string>) {
  const { status, stdout, stderr } = spawnSync(command, args, { env, encoding: 'utf8' });
  return { status, stdout, stderr };
}

test.each(SCRIPTS)('scripts/%s.mjs prints its usage', (name, usage) => {
  for (const flag of ['--help', '-h']) {
    const { status, stdout, stderr } = run(process.execPath, [`scripts/${name}.mjs`, flag], NOTHING);
    expect([status, stderr]).toEqual([0, '']);
    expect(stdout).toMatch(usage);
  }
});

// What `npm test` does not know is vitest's.
test.each(SCRIPTS.filter(([name]) => name !== 'test'))('scripts/%s.mjs refuses unknown flags', (name, usage) => {
  const { status, stdout, stderr } = run(process.execPath, [`scripts/${name}.mjs`, '--wrong'], NOTHING);
  expect([status, stdout]).toEqual([2, '']);
  expect(stderr).toMatch(/^Unknown option '--wrong'\n\n/);
  expect(stderr.replace(/^.*\n\n/, '')).toMatch(usage);
});

test.each([
  ['gpu-check', '--help', 0],
  ['gpu-check', '--wrong', 2],
  ['gpu-serve-check', '--help', 0],
])('scripts/%s %s ends with its usage', (name, flag, code) => {
  const env = { PATH: '/usr/bin:/bin', TANDEM_GPU_PROGRAMS: '/nonexistent' };
  const { status, stdout } = run('/bin/bash', [`scripts/${name}`, flag], env);
  expect(status).toBe(code);
  expect(stdout).toContain(`scripts/${name} `);
  expect(stdout).not.toMatch(/^#|^set /m);
});

test.each([
  [true, 'ci --ignore-scripts --no-audit --no-fund --include=dev'],
  [false, 'ci --ignore-scripts --no-audit --no-fund'],
])('packages of tests are asked for where they are wanted, whatever NODE_ENV says (%j)', (withDev, wanted) => {
  const folder = mkdtempSync(join(tmpdir(), 'tandem-npm-'));
  try {
    writeFileSync(join(folder, 'npm'), `#!/bin/sh\necho "$*" > "${folder}/asked"\n`, { mode: 0o755 });
    const lib = pathToFileURL(resolve('scripts/lib/packages.mjs')).href;
    const code = `import { installPackages } from '${lib}'; await installPackages(${withDev});`;
    const env = { PATH: folder, NODE_ENV: 'production' };
    expect(run(process.execPath, ['--input-type=module', '-e', code], env)).toMatchObject({ status: 0, stderr: '' });
    expect(readFileSync(join(folder, 'asked'), 'utf8')).toBe(`${wanted}\n`);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
