/**
 * `npm run test:mutations [-- parts of names ...]`: applies each fault of mutations.mjs to a copy of the working tree, builds
 * what it touches and runs the tests that must turn red. Prints a table; fails where a fault went unnoticed.
 *
 * --check: only says whether every edit still matches its source, and its tests are there.
 * --committed: breaks a copy of the last commit instead.  --keep: leaves the copy for a look.
 */
import { readFlags } from '../lib/flags.mjs';
import { mutations } from './mutations.mjs';
import { Workspace } from './workspace.mjs';

const USAGE = 'npm run test:mutations -- [--check] [--committed] [--keep] [parts of names ...]';
const { flags, names } = readFlags(USAGE, ['--check', '--committed', '--keep'], true);
const chosen = mutations.filter(({ name }) => names.length === 0 || names.some((part) => name.includes(part)));

/** The same tests on the unbroken copy: a red test proves nothing if it was red before. */
async function checkBaseline(workspace) {
  const files = [...new Set(chosen.flatMap(({ tests }) => tests))];
  await workspace.build(files);
  const { failed, output } = await workspace.test(files);
  if (failed > 0) throw new Error(`${failed} tests fail without any fault.\n${output.slice(-6000)}`);
}

async function judge(workspace, { edits, tests }) {
  const undo = workspace.edit(edits);
  try {
    await workspace.build(tests);
    const { failed, passed } = await workspace.test(tests);
    if (failed + passed === 0) return 'skipped: this machine cannot run the tests';
    return failed > 0 ? `caught (${failed} of ${failed + passed} tests red)` : 'NOT NOTICED';
  } catch (error) {
    return `INVALID: ${error.message}`;
  } finally {
    undo();
  }
}

function check(workspace) {
  return chosen.map(({ name, edits, tests }) => {
    try {
      workspace.requireTests(tests);
      workspace.edit(edits)();
      return [name, 'applies'];
    } catch (error) {
      return [name, `INVALID: ${error.message}`];
    }
  });
}

async function runAll(workspace) {
  console.log(`Without any fault ...`);
  await checkBaseline(workspace);
  const rows = [];
  for (const mutation of chosen) {
    console.log(`${mutation.name} ...`);
    rows.push([mutation.name, await judge(workspace, mutation)]);
  }
  return rows;
}

if (chosen.length === 0) throw new Error(`No mutation has ${names.join(' ')} in its name.`);
const workspace = new Workspace({ committed: flags.has('--committed') });
process.once('SIGINT', () => {
  workspace.remove();
  process.exit(130);
});
try {
  const rows = flags.has('--check') ? check(workspace) : await runAll(workspace);
  const width = Math.max(...rows.map(([name]) => name.length));
  for (const [name, result] of rows) console.log(`${name.padEnd(width)}  ${result}`);
  if (rows.some(([, result]) => /^(NOT|INVALID)/.test(result))) process.exitCode = 1;
} finally {
  if (flags.has('--keep')) console.log(workspace.folder);
  else workspace.remove();
}
