/** `tandem serve`, `tandem keys`, `tandem grammar`. */
import { Command, CommanderError } from 'commander';
import { addGrammarCommand } from './grammar.ts';
import { addKeysCommand } from './keys.ts';
import { lossyOutput } from './output.ts';
import { addServeOptions, flagsKeptByNpm, resolveSettings, unknownVariables } from './resolve-settings.ts';
import type { RunningServer } from './serve.ts';
import { readVersion } from './version.ts';

/** A terminal signals npm and the server, and npm passes on what it gets: one stop that arrives twice. */
const SAME_STOP_MS = 500;

let serves = false;

async function main(): Promise<void> {
  const [kept] = flagsKeptByNpm(process.env);
  if (kept !== undefined)
    throw new Error(`npm kept ${kept} for itself: flags follow \`--\`, as in \`npm start -- ${kept}\`.`);
  const program = new Command('tandem')
    .description('Serve chat completions and train LoRA adapters on the same weights')
    .version(readVersion())
    .exitOverride();
  const command = program.command('serve').description('load a model and answer on HTTP');
  addServeOptions(command);
  command.action(async () => {
    for (const name of unknownVariables(process.env))
      process.stderr.write(`tandem: ${name} is no setting; it is ignored.\n`);
    const settings = resolveSettings(command, process.env);
    serves = true;
    const stopWhenAsked = listenForStops();
    // The server's modules take most of a start: other commands, and settings that cannot be, do without them.
    const { serve } = await import('./serve.ts');
    stopWhenAsked(await serve(settings));
  });
  addKeysCommand(program, (line) => process.stdout.write(`${line}\n`));
  addGrammarCommand(program, (line) => process.stdout.write(`${line}\n`));
  await program.parseAsync().catch(endOfParsing);
}

/** Of --help, --version and mistakes, which are told by now. The process ends by itself: what was printed is written before that, or fails. */
function endOfParsing(error: unknown): void {
  if (!(error instanceof CommanderError)) throw error;
  process.exitCode = error.exitCode;
}

/**
 * The first signal drains; a later one ends at once. Until the server is handed over there is nothing to drain: its start just ends. As the
 * first process of a container it would otherwise not hear of signals, which have no default there.
 */
function listenForStops(): (server: RunningServer) => void {
  let running: RunningServer | null = null;
  let first: number | null = null;
  const output = lossyOutput();
  const stop = () => {
    if (first !== null) {
      if (performance.now() - first > SAME_STOP_MS) process.exit(1);
      return;
    }
    first = performance.now();
    if (running === null) {
      output.write('Stopping: the server was not ready yet.\n');
      process.exit(0);
    }
    output.write('Stopping: running requests are finished first.\n');
    running.stop().then(() => process.exit(0), fail);
  };
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, stop);
  // Node would open a debugger on port 9229, for whoever is on this machine.
  process.on('SIGUSR1', () => {});
  return (server) => (running = server);
}

function fail(error: unknown): void {
  process.stderr.write(`tandem: ${error instanceof Error ? error.message : String(error)}\n`);
  process.exit(1);
}

/**
 * Who read the output may be gone (`npm start | tee log`, a closed terminal), and a disk full: no reason to cut off requests. Other commands are
 * there for what they print, a key that is shown once among it.
 */
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (!serves && error.code !== 'EPIPE') fail(new Error(`What this prints cannot be written: ${error.message}`));
});
process.stderr.on('error', () => {});
main().catch(fail);
