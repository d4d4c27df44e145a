/**
 * `npm test`: the checks of form, the native tests (plain and under sanitizers), then vitest; the last line sums them all.
 * Arguments go to vitest and leave the rest out: `npm test -- test/unit/scheduler`.
 */
import { checks, runCheck } from './lib/checks.mjs';
import { nativeTests } from './lib/native-tests.mjs';
import { vitestTests } from './lib/vitest.mjs';

const USAGE = `npm test                    all tests
npm test -- [ARGUMENT...]   vitest alone, with these arguments: PATH..., -t NAME and its other options`;

const args = process.argv.slice(2);
if (args.includes('--help') || args.includes('-h')) {
  console.log(USAGE);
  process.exit(0);
}
const total = { passed: 0, failed: 0, skipped: 0 };

function add(counts) {
  for (const key of Object.keys(total)) total[key] += counts[key];
}

if (args.length === 0) {
  console.log('Checks');
  for (const check of checks()) total[runCheck(check)]++;
  console.log('Native');
  for await (const counts of nativeTests()) add(counts);
}
add(await vitestTests(args));

const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : '';
console.log(`${total.passed} passed, ${total.failed} failed${skipped}`);
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0;
