/** A copy of the working tree to break: tracked and new files, the installed packages linked, builds of its own. */
import { spawn, spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const TEST_LIMIT_MS = 15 * 60_000;
/** All native tests from nothing, on one busy core. */
const BUILD_LIMIT_MS = 60 * 60_000;

/** What stands for a native program in a list of tests: the CPU's engine, CUDA kernels under emulation, AMX kernels with emulated tiles. */
const PROGRAMS = { 'native/test': 'native_tests', 'native/test/cuda': 'kernel_tests', 'native/test/amx': 'amx_tests' };
/** The exit status of one that this machine cannot run. */
const SKIPPED = 77;

function git(args) {
  const result = spawnSync('git', args, { cwd: ROOT, maxBuffer: 64 << 20 });
  if (result.status !== 0) throw new Error('The sources come from git: run this in a clone.');
  return result.stdout.toString();
}

export class Workspace {
  /** The process group of the command that runs. */
  #group;

  /** Of the working tree as it stands, or of the last commit. */
  constructor({ committed = false } = {}) {
    this.folder = mkdtempSync(path.join(tmpdir(), 'tandem-mutations-'));
    if (committed) this.#copyCommit();
    else this.#copyTree();
    symlinkSync(path.join(ROOT, 'node_modules'), path.join(this.folder, 'node_modules'));
  }

  #copyCommit() {
    const archive = path.join(this.folder, 'commit.tar');
    git(['archive', '--output', archive, 'HEAD']);
    const unpacked = spawnSync('tar', ['-xmf', archive, '-C', this.folder]);
    if (unpacked.status !== 0) throw new Error(`tar: ${unpacked.stderr}`);
    rmSync(archive);
  }

  #copyTree() {
    const listed = git(['ls-files', '-z', '--cached', '--others', '--exclude-standard']);
    for (const file of listed.split('\0').filter(Boolean)) {
      // Deleted but still in the index.
      if (!existsSync(path.join(ROOT, file))) continue;
      mkdirSync(path.dirname(path.join(this.folder, file)), { recursive: true });
      copyFileSync(path.join(ROOT, file), path.join(this.folder, file));
    }
  }

  remove() {
    this.#kill();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Throws where a list of tests names what runs nothing. */
  requireTests(files) {
    for (const file of files) {
      if (file in PROGRAMS) continue;
      const place = path.join(this.folder, file);
      const inFolder = () => readdirSync(place, { recursive: true }).some((name) => name.endsWith('.test.ts'));
      if (!existsSync(place) || (!file.endsWith('.test.ts') && !inFolder()))
        throw new Error(`no tests are called ${file}`);
    }
  }

  /** Applies the edits and returns the function that takes them back. Throws where a search does not match exactly once. */
  edit(edits) {
    const before = new Map();
    const undo = () => {
      for (const [file, text] of before) writeFileSync(path.join(this.folder, file), text);
    };
    try {
      for (const { file, search, replace } of edits) {
        const text = readFileSync(path.join(this.folder, file), 'utf8');
        const count = text.split(search).length - 1;
        if (count !== 1) throw new Error(`${file}: found ${count} times: ${search.trim()}`);
        if (!before.has(file)) before.set(file, text);
        writeFileSync(
          path.join(this.folder, file),
          text.replace(search, () => replace),
        );
      }
    } catch (error) {
      undo();
      throw error;
    }
    return undo;
  }

  /** The builds that are stale; unit tests need no addon. Throws with the log where one fails. */
  async build(tests) {
    const programs = tests.filter((file) => file in PROGRAMS);
    if (programs.length > 0) await this.#buildPrograms(programs);
    if (programs.length === tests.length) return;
    const script =
      "import('./scripts/lib/typescript.mjs').then((m) => import('./scripts/lib/step.mjs').then((s) => m.buildTypescript(s.runQuietly)))";
    const unitOnly = tests.every((file) => file.startsWith('test/unit/') || file in PROGRAMS);
    const { code, output } = await this.#run(
      process.execPath,
      unitOnly ? ['-e', script] : ['scripts/build.mjs'],
      BUILD_LIMIT_MS,
    );
    if (code !== 0) throw new Error(`The build failed.\n${output.slice(-4000)}`);
  }

  /** { failed, passed }: tests by their result; a file that cannot be loaded fails the whole. */
  async test(files) {
    const total = { failed: 0, passed: 0, output: '' };
    const add = ({ failed, passed, output }) => {
      total.failed += failed;
      total.passed += passed;
      total.output += output;
    };
    for (const file of files.filter((name) => name in PROGRAMS)) add(await this.#testProgram(file));
    const others = files.filter((file) => !(file in PROGRAMS));
    if (others.length > 0) add(await this.#testFiles(others));
    return total;
  }

  async #buildPrograms(files) {
    const steps = [
      ['-S', '.', '-B', 'native-test', '-DTANDEM_TESTS=ON'],
      ['--build', 'native-test', '--target', ...files.map((file) => PROGRAMS[file])],
    ];
    for (const args of steps) {
      const { code, output } = await this.#run('cmake', args, BUILD_LIMIT_MS);
      if (code !== 0) throw new Error(`The native tests do not build.\n${output.slice(-4000)}`);
    }
  }

  /** A program that hangs or crashes counts as one failed test: that is how a fault may show. */
  async #testProgram(file) {
    const { code, output } = await this.#run(`native-test/${PROGRAMS[file]}`, []);
    const counts = /(\d+) passed, (\d+) failed/.exec(output);
    if (counts) return { failed: Number(counts[2]), passed: Number(counts[1]), output };
    return { failed: code === SKIPPED ? 0 : 1, passed: 0, output };
  }

  async #testFiles(files) {
    const report = path.join(this.folder, 'mutation-report.json');
    rmSync(report, { force: true });
    const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
    const { output } = await this.#run('node_modules/.bin/vitest', ['run', ...reporters, ...files]);
    if (!existsSync(report)) throw new Error(`The tests left no report.\n${output.slice(-4000)}`);
    const { numFailedTests, numPassedTests, testResults } = JSON.parse(readFileSync(report, 'utf8'));
    const broken = testResults.filter((file) => file.status === 'failed' && file.assertionResults.length === 0);
    if (broken.length > 0) throw new Error(`A test file does not load.\n${broken[0].message.slice(0, 2000)}`);
    if (numFailedTests + numPassedTests === 0) throw new Error(`No tests ran in ${files.join(', ')}.`);
    return { failed: numFailedTests, passed: numPassedTests, output };
  }

  #run(command, args, limitMs = TEST_LIMIT_MS) {
    return new Promise((resolve, reject) => {
      const child = spawn(command, args, {
        cwd: this.folder,
        env: { ...process.env, NO_COLOR: '1' },
        stdio: ['ignore', 'pipe', 'pipe'],
        detached: true,
      });
      this.#group = child.pid;
      const limit = setTimeout(() => this.#kill(), limitMs);
      let output = '';
      const keep = (chunk) => {
        output = (output + chunk).slice(-100_000);
      };
      child.stdout.setEncoding('utf8').on('data', keep);
      child.stderr.setEncoding('utf8').on('data', keep);
      child.on('error', (error) => {
        clearTimeout(limit);
        reject(error);
      });
      child.on('close', (code) => {
        clearTimeout(limit);
        this.#kill();
        resolve({ code, output });
      });
    });
  }

  /** Tests that hang leave servers and engines: the whole group ends with the command. */
  #kill() {
    const group = this.#group;
    this.#group = undefined;
    if (group === undefined) return;
    try {
      process.kill(-group, 'SIGKILL');
    } catch (error) {
      if (error.code !== 'ESRCH') throw error;
    }
  }
}
