/**
 * `npm test`: the checks of form, the native tests, then vitest, whose tests wait for a third of their time, and beside it the native tests
 * under sanitizers; the last line sums them all.
 * Arguments go to vitest and leave the rest out: `npm test -- test/unit/scheduler`.
 */
import { runChecks } from './lib/checks.mjs';
import { plainTests, sanitizedTests } from './lib/native-tests.mjs';
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

function addNative({ counts, report }) {
  console.log(report);
  add(counts);
}

if (args.length > 0) {
  add(await vitestTests(args));
} else {
  console.log('Checks');
  add(await runChecks());
  console.log('Native');
  addNative(await plainTests());
  const sanitized = sanitizedTests();
  add(await vitestTests(args));
  addNative(await sanitized);
}

const skipped = total.skipped > 0 ? `, ${total.skipped} skipped` : '';
console.log(`${total.passed} passed, ${total.failed} failed${skipped}`);
process.exitCode = total.failed > 0 || total.passed === 0 ? 1 : 0;
