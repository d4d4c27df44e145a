#!/usr/bin/env node
/** `tandem serve`, `tandem keys`, `tandem grammar`. */
import { Command } from 'commander';
import { addGrammarCommand } from './grammar.ts';
import { addKeysCommand } from './keys.ts';
import { addServeOptions, resolveSettings, unknownVariables } from './resolve-settings.ts';
import type { RunningServer } from './serve.ts';
import { readVersion } from './version.ts';

async function main(): Promise<void> {
  const program = new Command('tandem')
    .description('Serve chat completions and train LoRA adapters on the same weights')
    .version(readVersion());
  const command = program.command('serve').description('load a model and answer on HTTP');
  addServeOptions(command);
  command.action(async () => {
    for (const name of unknownVariables(process.env))
      process.stderr.write(`tandem: ${name} is no setting; it is ignored.\n`);
    const settings = resolveSettings(command, process.env);
    // The server's modules take most of a start: other commands, and settings that cannot be, do without them.
    const { serve } = await import('./serve.ts');
    const server = await serve(settings);
    stopOnSignals(server);
  });
  addKeysCommand(program, (line) => process.stdout.write(`${line}\n`));
  addGrammarCommand(program, (line) => process.stdout.write(`${line}\n`));
  await program.parseAsync();
}

/** The first signal drains; a second one ends at once. */
function stopOnSignals(server: RunningServer): void {
  let stopping = false;
  const stop = () => {
    if (stopping) process.exit(1);
    stopping = true;
    process.stdout.write('Stopping: running requests are finished first.\n');
    server.stop().then(() => process.exit(0), fail);
  };
  process.on('SIGTERM', stop);
  process.on('SIGINT', stop);
}

function fail(error: unknown): void {
  process.stderr.write(`tandem: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}

main().catch(fail);
