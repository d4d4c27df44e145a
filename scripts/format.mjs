/** `npm run format`: prettier on everything it knows, clang-format on the native sources where it is installed. */
import { spawnSync } from 'node:child_process';
import { bin, hasClangFormat, nativeSources } from './lib/checks.mjs';
import { readFlags } from './lib/flags.mjs';
import { root } from './lib/paths.mjs';

const { names: paths } = readFlags('npm run format -- [PATH...]', [], true);
const options = { cwd: root, stdio: 'inherit' };
let status = spawnSync(
  bin('prettier'),
  ['--write', '--log-level', 'warn', ...(paths.length ? paths : ['.'])],
  options,
).status;
if (!hasClangFormat()) console.log('clang-format 14 is not installed: native sources were left as they are.');
else status ||= spawnSync('clang-format', ['-i', ...nativeSources()], options).status;
process.exitCode = status ?? 1;
