import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { maxOpenFiles, quotaCores, tooFewOpenFiles, usableCores } from '../../../src/cli/machine.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'tandem-machine-'));
});
afterEach(() => rmSync(root, { recursive: true, force: true }));

function write(files: Record<string, string>): void {
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, name)), { recursive: true });
    writeFileSync(join(root, name), text);
  }
}

test.each<[string, Record<string, string>, number | null]>([
  ['no cgroups at all', {}, null],
  ['no limit', { 'proc/self/cgroup': '0::/\n', 'sys/fs/cgroup/cpu.max': 'max 100000\n' }, null],
  ['docker run --cpus 1.5', { 'proc/self/cgroup': '0::/\n', 'sys/fs/cgroup/cpu.max': '150000 100000\n' }, 1.5],
  [
    'the least of the groups above',
    {
      'proc/self/cgroup': '0::/system.slice/tandem.service\n',
      'sys/fs/cgroup/system.slice/cpu.max': '200000 100000\n',
      'sys/fs/cgroup/system.slice/tandem.service/cpu.max': '400000 100000\n',
    },
    2,
  ],
  [
    'version 1, seen from within a container',
    {
      'proc/self/cgroup': '4:memory:/docker/0123\n3:cpu,cpuacct:/docker/0123\n0::/\n',
      'sys/fs/cgroup/cpu/cpu.cfs_quota_us': '300000\n',
      'sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n',
    },
    3,
  ],
  [
    'version 1 without a limit',
    {
      'proc/self/cgroup': '3:cpu:/\n',
      'sys/fs/cgroup/cpu/cpu.cfs_quota_us': '-1\n',
      'sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n',
    },
    null,
  ],
])('cores by the CPU time of a container: %s', (_, files, cores) => {
  write(files);
  expect(quotaCores(root)).toBe(cores);
});

test('a thread per core, not per hyper-thread, as far as the container goes: a whole number, one at least', () => {
  expect(usableCores(root)).toBe(availableParallelism());
  const thread = (id: number) => `processor\t: ${id}\nphysical id\t: 0\ncore id\t\t: 0`;
  write({ 'proc/cpuinfo': `${[0, 1].map(thread).join('\n\n')}\n\n` });
  expect(usableCores(root)).toBe(1);
  write({ 'proc/self/cgroup': '0::/\n', 'sys/fs/cgroup/cpu.max': '50000 100000\n' });
  expect(usableCores(root)).toBe(1);
  // Sockets number their cores from 0, each.
  write({ 'proc/cpuinfo': `${thread(0)}\n\n${thread(1).replace('id\t: 0', 'id\t: 1')}\n` });
  write({ 'sys/fs/cgroup/cpu.max': '250000 100000\n' });
  expect(usableCores(root)).toBe(Math.min(availableParallelism(), 2));
});

test.each([
  ['1024', 1024],
  ['unlimited', Infinity],
])('a limit of open files of %s', (soft, expected) => {
  const head = 'Limit                     Soft Limit           Hard Limit           Units\n';
  write({
    'proc/self/limits': `${head}Max processes  7  7  processes\nMax open files            ${soft}  4096  files\n`,
  });
  expect(maxOpenFiles(root)).toBe(expected);
});

test('a limit of open files that is not known', () => expect(maxOpenFiles(root)).toBe(Infinity));

test.runIf(existsSync('dist/cli/main.js'))(
  'a start with too few files says so, before it reads what takes them',
  () => {
    expect(tooFewOpenFiles(256)).toContain('256 files');
    expect(tooFewOpenFiles(257)).toBeNull();
    const command = 'ulimit -n 40; exec "$0" dist/cli/main.js serve';
    const { status, stderr } = spawnSync('/bin/sh', ['-c', command, process.execPath], { encoding: 'utf8' });
    expect(stderr).toBe(`tandem: ${tooFewOpenFiles(40)}\n`);
    expect(status).toBe(1);
  },
);
