/** An example as a command: the server's address and key come from the command line, or from the environment. */
import { parseArgs } from 'node:util';
import { TrainingClient } from './client.ts';

export interface ExampleOptions {
  client: TrainingClient;
  project: string;
  /** 0: the example has no such option. */
  steps: number;
}

const USAGE = `  --url URL        of the server (default TANDEM_URL, else http://127.0.0.1:8000)
  --key KEY        that the server showed (default TANDEM_API_KEY)
  --project NAME   of the models (default examples)`;
const STEPS_USAGE = '\n  --steps N        at most, for each task';

/**
 * `steps`: the default; 0 where the example takes none. Returns the exit status: what is wrong with the command line is told with the usage,
 * what goes wrong later in one line.
 */
export async function runExample(
  name: string,
  steps: number,
  main: (options: ExampleOptions) => Promise<void>,
  args: string[] = process.argv.slice(2),
): Promise<number> {
  const usage = `npm run ${name} -- [options]\n${USAGE}${steps === 0 ? '' : `${STEPS_USAGE} (default ${steps})`}`;
  let options: ExampleOptions | null;
  try {
    options = readArguments(args, steps);
  } catch (error) {
    console.error(`${(error as Error).message}\n\n${usage}`);
    return 2;
  }
  if (options === null) {
    console.log(usage);
    return 0;
  }
  try {
    await main(options);
    return 0;
  } catch (error) {
    console.error((error as Error).message);
    return 1;
  }
}

/** null: asked for help. */
function readArguments(args: string[], steps: number): ExampleOptions | null {
  const text = (value: string) => ({ type: 'string', default: value }) as const;
  const { values } = parseArgs({
    args,
    options: {
      url: text(process.env['TANDEM_URL'] ?? 'http://127.0.0.1:8000'),
      key: text(process.env['TANDEM_API_KEY'] ?? ''),
      project: text('examples'),
      help: { type: 'boolean' },
      ...(steps === 0 ? {} : { steps: text(String(steps)) }),
    },
  });
  if (values.help === true) return null;
  const given = values as { url: string; key: string; project: string; steps?: string };
  const count = Number(given.steps ?? 0);
  if (!/^https?:/.test(given.url) || !URL.canParse(given.url)) {
    throw new Error('--url must be an address of http or https.');
  }
  if (given.key === '') throw new Error('Give the key that the server showed: --key tk-...');
  if (!Number.isInteger(count) || count < Math.min(steps, 1)) {
    throw new Error('--steps must be a whole number of at least 1.');
  }
  return { client: new TrainingClient(given.url, given.key), project: given.project, steps: count };
}
