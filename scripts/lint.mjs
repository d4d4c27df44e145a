/** `npm run lint`: formats and types, then the rules about imports, lengths and texts. */
import { spawnSync } from 'node:child_process';
import { bin, runChecks } from './lib/checks.mjs';
import { readFlags } from './lib/flags.mjs';
import { root } from './lib/paths.mjs';

readFlags('npm run lint', []);
const { failed } = await runChecks();
const rules = spawnSync(bin('vitest'), ['run', 'test/unit/structure'], { cwd: root, stdio: 'inherit' });
process.exitCode = failed > 0 || rules.status !== 0 ? 1 : 0;
