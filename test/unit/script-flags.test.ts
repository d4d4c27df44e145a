/** What people run asks before it installs, builds or formats. */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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

test.each([
  ['build', 'The package node-addon-api is not installed: `npm run setup` installs what is needed.'],
  ['build-native', 'The package node-addon-api is not installed: `npm run setup` installs what is needed.'],
  ['built', 'Nothing is built here yet: `npm run setup` does that.'],
])('scripts/%s.mjs says in a sentence that there was no set-up', (name, sentence) => {
  const folder = mkdtempSync(join(tmpdir(), 'tandem-clone-'));
  try {
    for (const part of ['scripts', 'CMakeLists.txt']) cpSync(part, join(folder, part), { recursive: true });
    const { status, stderr } = run(process.execPath, [join(folder, 'scripts', `${name}.mjs`)], {
      PATH: process.env['PATH'] ?? '',
    });
    expect([status, stderr]).toEqual([1, `${sentence}\n`]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('what asks for the version of Node.js can be loaded by one that is too old', () => {
  const files = [
    ...SCRIPTS.map(([name]) => `${name}.mjs`),
    'built.mjs',
    ...readdirSync('scripts/lib').map((file) => `lib/${file}`),
  ];
  for (const file of files)
    expect(readFileSync(`scripts/${file}`, 'utf8')).not.toMatch(/import\.meta\.(dir|file)name[^`]/);
});

test.each([
  [
    "throw new Error('it was compiled against another version.\\nPlease rebuild.')",
    /^Error: it was compiled against another version\.\nPlease rebuild\.\nbetter-sqlite3 was built, and Node\.js /,
  ],
  ['module.exports = class { close() {} }', /^$/],
])('a database that this Node.js cannot load is no set-up: %s', (module, said) => {
  const folder = mkdtempSync(join(tmpdir(), 'tandem-sqlite-'));
  try {
    for (const part of ['scripts', 'package-lock.json']) cpSync(part, join(folder, part), { recursive: true });
    const sqlite = join(folder, 'node_modules', 'better-sqlite3');
    mkdirSync(sqlite, { recursive: true });
    writeFileSync(join(sqlite, 'index.js'), module);
    writeFileSync(join(folder, 'npm'), '#!/bin/sh\n', { mode: 0o755 });
    const lib = pathToFileURL(join(folder, 'scripts/lib/packages.mjs')).href;
    const code = `import { buildSqlite } from '${lib}'; await buildSqlite().catch((error) => console.error(error.message));`;
    const { stderr } = run(process.execPath, ['--input-type=module', '-e', code], { PATH: folder });
    expect(stderr).toMatch(said);
    expect(existsSync(join(folder, 'node_modules', '.tandem-stamp'))).toBe(stderr === '');
  } finally {
    rmSync(folder, { recursive: true });
  }
});
