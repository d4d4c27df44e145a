/** Whether node_modules holds what package-lock.json asks for, and how to make it so. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fromRoot, root } from './paths.mjs';
import { hashInputs, readStamp, writeStamp } from './stamp.mjs';
import { runQuietly, SetupError, step } from './step.mjs';

const STAMP = fromRoot('node_modules', '.tandem-stamp');
const require = createRequire(import.meta.url);
const INPUTS = ['package-lock.json'];

/** The package.json of a package. Resolved from here, so that it works in a clone and where the package is installed beside its dependencies. */
export function packageFile(name) {
  try {
    return require.resolve(`${name}/package.json`);
  } catch (error) {
    if (error.code !== 'MODULE_NOT_FOUND') throw error;
    throw new SetupError(`The package ${name} is not installed: \`npm run setup\` installs what is needed.`);
  }
}

function wantedHash() {
  return hashInputs(INPUTS, { node: process.versions.modules });
}

/** True when every package of the lock file that this machine needs is installed in its locked version. */
function installedAsLocked(withDev) {
  const record = fromRoot('node_modules', '.package-lock.json');
  if (!existsSync(record)) return false;
  const locked = JSON.parse(readFileSync(fromRoot('package-lock.json'), 'utf8')).packages;
  const installed = JSON.parse(readFileSync(record, 'utf8')).packages;
  return Object.entries(locked).every(([key, entry]) => {
    if (key === '' || entry.optional || entry.devOptional || (entry.dev && !withDev)) return true;
    return installed[key]?.version === entry.version && existsSync(path.join(root, key, 'package.json'));
  });
}

/** better-sqlite3 is compiled on this machine, or fetched, for one Node ABI. What keeps it from being loaded, or null. */
function sqliteFault() {
  const script = "new (require('better-sqlite3'))(':memory:').close()";
  const { status, stderr } = spawnSync(process.execPath, ['-e', script], { cwd: root, encoding: 'utf8' });
  return status === 0 ? null : (/^\w*Error: .*(\n\S.*)*/m.exec(stderr)?.[0] ?? stderr);
}

/** What is to be done: 'install' (all packages), 'sqlite' (only its native part) or null. */
export function packageWork(withDev) {
  if (!installedAsLocked(withDev)) return 'install';
  if (readStamp(STAMP) === wantedHash()) return null;
  if (sqliteFault() !== null) return 'sqlite';
  writeStamp(STAMP, wantedHash());
  return null;
}

/**
 * Unpacks the packages without running their scripts, so that the slow native parts can be built side by side afterwards. Those of tests npm leaves
 * out where NODE_ENV says production, unless they are asked for.
 */
export async function installPackages(withDev) {
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund', ...(withDev ? ['--include=dev'] : [])];
  await step('packages (npm ci)', () => runQuietly('npm', args));
}

export async function buildSqlite() {
  await step('better-sqlite3 (compiled here, about a minute, unless a prebuilt one can be fetched)', () =>
    runQuietly('npm', ['rebuild', 'better-sqlite3'], { env: { JOBS: 'max' } }),
  );
  const fault = sqliteFault();
  if (fault !== null) {
    throw new SetupError(
      `${fault}\nbetter-sqlite3 was built, and Node.js ${process.version} (${process.execPath}) cannot load it. The headers of another\n` +
        'version may have been taken: `npm config get nodedir` names their folder, where one is set.',
    );
  }
  writeStamp(STAMP, wantedHash());
}
