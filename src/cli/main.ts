#!/usr/bin/env node
/** The commands' modules are read by hundreds at once: whether there is room for them is asked before. */
import { maxOpenFiles, tooFewOpenFiles } from './machine.ts';

const refusal = tooFewOpenFiles(maxOpenFiles());
if (refusal === null) await import('./commands.ts');
else {
  process.stderr.write(`tandem: ${refusal}\n`);
  process.exitCode = 1;
}
