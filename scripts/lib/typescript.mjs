/** The compiled JavaScript: src/ -> dist/, by tsc. */
import { chmodSync, existsSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { dist, fromRoot } from './paths.mjs';
import { packageFile } from './packages.mjs';
import { hashInputs, readStamp, writeStamp } from './stamp.mjs';

const STAMP = path.join(dist, '.tandem-stamp');

function wantedHash() {
  const { version } = JSON.parse(readFileSync(packageFile('typescript'), 'utf8'));
  return hashInputs(['src', 'tsconfig.json', 'package-lock.json'], { typescript: version });
}

export function typescriptIsStale() {
  return readStamp(STAMP) !== wantedHash();
}

export function tscCommand(...args) {
  return [process.execPath, [path.join(path.dirname(packageFile('typescript')), 'bin', 'tsc'), ...args]];
}

/** Removes compiled files whose source is gone, so that nothing runs what the sources no longer say. */
function prune(directory, source) {
  for (const entry of readdirSync(directory, { withFileTypes: true })) {
    const output = path.join(directory, entry.name);
    if (entry.isDirectory()) {
      if (existsSync(path.join(source, entry.name))) prune(output, path.join(source, entry.name));
      else rmSync(output, { recursive: true });
    } else if (/\.js(\.map)?$/.test(entry.name)) {
      const name = entry.name.replace(/\.js(\.map)?$/, '.ts');
      if (!existsSync(path.join(source, name))) rmSync(output);
    }
  }
}

export async function buildTypescript(run) {
  const hash = wantedHash();
  await run(...tscCommand('-p', fromRoot('tsconfig.json')));
  prune(dist, fromRoot('src'));
  // The package's command: npx runs it as a file.
  chmodSync(path.join(dist, 'cli', 'main.js'), 0o755);
  writeStamp(STAMP, hash);
}
