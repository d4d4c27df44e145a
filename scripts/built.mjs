/**
 * Goes before what runs from dist/ (benchmarks, examples): where nothing is built it says so in a sentence, where Node.js would show a stack.
 * Arguments are packages of tests that are needed too.
 */
import { existsSync } from 'node:fs';
import { addon, dist, fromRoot } from './lib/paths.mjs';
import { SetupError } from './lib/step.mjs';
import { checkNode } from './lib/tools.mjs';

try {
  checkNode();
  if (!existsSync(addon) || !existsSync(dist)) {
    throw new SetupError('Nothing is built here yet: `npm run setup` does that.');
  }
  const missing = process.argv.slice(2).find((name) => !existsSync(fromRoot('node_modules', name)));
  if (missing) throw new SetupError(`The package ${missing} is not installed: \`npm run setup -- --dev\` does that.`);
} catch (error) {
  console.error(error instanceof SetupError ? error.message : error);
  process.exitCode = 1;
}
