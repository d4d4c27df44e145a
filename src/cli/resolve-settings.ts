/** Settings from flags, then TANDEM_* variables, then defaults, by the table of options.ts. */
import { Help, InvalidArgumentError, Option, type Command } from 'commander';
import type { Settings } from '../control/settings.ts';
import { OPTIONS } from './options.ts';

/** Flags that need no value: `--name` and `--no-name`; `--name=false` is understood too. */
const SWITCHES: ReadonlySet<keyof Settings> = new Set([
  'enableChunkedPrefill',
  'enablePrefixCaching',
  'enableJumpForward',
  'trustRequestChatTemplate',
  'allowRuntimeLoraUpdating',
  'recomputeActivations',
  'forceIncludeUsage',
  'enableRequestIdHeaders',
  'vllmMetricNames',
]);

/** Never shown. */
const SECRETS: ReadonlySet<keyof Settings> = new Set(['apiKey', 'kvSecret']);
const HIDDEN = '(hidden)';

/** Read elsewhere: by the native code, and by its build. */
export const OTHER_VARIABLES = [
  'TANDEM_ISA',
  'TANDEM_CUDA',
  'TANDEM_CUDA_GRAPHS',
  'TANDEM_CUDA_MATMUL',
  'TANDEM_CUDA_ATTENTION',
  'TANDEM_CUDA_ADAPTERS',
  'TANDEM_CUDA_EXPERTS',
  'TANDEM_CUDA_FUSED',
  'TANDEM_CUDA_UNDER_WAY',
  'TANDEM_CUDA_EARLY_LAUNCH',
];

/** Of the repository's examples, tests, benchmarks and scripts, which may be run from the same shell. */
export const WORKING_VARIABLES = [
  'TANDEM_URL',
  'TANDEM_WATCH_ENGINES',
  'TANDEM_CHECK_SCHEMAS',
  'TANDEM_FUZZ_CASES',
  'TANDEM_FUZZ_SECONDS',
  'TANDEM_FUZZ_SEED',
  'TANDEM_GPU_ENGINES',
  'TANDEM_GPU_PROFILE',
  'TANDEM_GPU_PROFILED',
  'TANDEM_GPU_PROGRAMS',
  'TANDEM_GPU_SECONDS',
  'TANDEM_GPU_SWEPT',
  'TANDEM_GPU_TEST_SECONDS',
  'TANDEM_GPU_UNSEEN',
  'TANDEM_GRAMMAR_VERBOSE',
  'TANDEM_KILL_ROUNDS',
  'TANDEM_KILL_SEED',
  'TANDEM_QUALITY',
  'TANDEM_SHARED_DATA',
  'TANDEM_TEST_CLOCK_BACK_MS',
  'TANDEM_TEST_FAULTS',
  'TANDEM_TEST_SECONDS',
];

const KEYS = Object.keys(OPTIONS) as (keyof Settings)[];

export function addServeOptions(command: Command): void {
  command.configureHelp({
    optionTerm: ({ flags, optional }) => (optional ? flags.replace('--', '--[no-]').replace(' [value]', '') : flags),
    optionDescription: ({ description }) => description,
    // A switch and its opposite share a line, and both are what a misspelt one may have meant.
    formatHelp: (shown, helper) => {
      const visible = helper.visibleOptions(shown).filter(({ negate }) => !negate);
      return new Help().formatHelp.call(helper, shown, Object.assign(helper, { visibleOptions: () => visible }));
    },
  });
  command.usage('[options]').argument('[rest...]');
  for (const key of KEYS) {
    const { flag, help, parse } = OPTIONS[key];
    if (flag === '') continue;
    const choices = parse.choices ? `${parse.choices.join(', ')}; ` : '';
    const note = `${help} (${choices}default: ${defaultText(key)}; ${variableName(key)})`;
    if (SWITCHES.has(key)) {
      const on = new Option(`--${flag} [value]`, note).preset('true').argParser((value) => parse(value));
      command.addOption(on).addOption(new Option(`--no-${flag}`));
    } else {
      command.addOption(
        new Option(`--${flag} <value>`, note).argParser((value, before) => parseFlag(key, value, before)),
      );
    }
  }
}

/** Flags, then variables, then defaults. Throws a sentence that names the variable it could not read. */
export function resolveSettings(command: Command, env: NodeJS.ProcessEnv): Settings {
  const [rest] = command.args;
  if (rest !== undefined) command.error(`error: '${rest}' belongs to no flag (a model is given as --model PATH)`);
  const flags: Record<string, unknown> = command.opts();
  const entries = KEYS.map((key) => [key, resolve(key, flags, command, env)] as const);
  return Object.fromEntries(entries) as unknown as Settings;
}

function resolve(
  key: keyof Settings,
  flags: Record<string, unknown>,
  command: Command,
  env: NodeJS.ProcessEnv,
): unknown {
  const name = attributeName(OPTIONS[key].flag);
  if (command.getOptionValueSource(name) === 'cli') return flags[name];
  const variable = env[variableName(key)];
  if (variable === undefined) return OPTIONS[key].default();
  try {
    return OPTIONS[key].parse(variable);
  } catch (error) {
    if (!(error instanceof InvalidArgumentError)) throw error;
    const shown = SECRETS.has(key) ? HIDDEN : JSON.stringify(variable);
    throw new Error(`${variableName(key)}=${shown} is not valid. ${error.message}`);
  }
}

/** Variables that look like ours and mean nothing: most likely misspelt. */
export function unknownVariables(env: NodeJS.ProcessEnv): string[] {
  const known = new Set([...KEYS.map(variableName), ...OTHER_VARIABLES, ...WORKING_VARIABLES]);
  return Object.keys(env).filter((name) => name.startsWith('TANDEM_') && !known.has(name));
}

/** Flags that `npm start` took for its own, as it does with those that do not follow `--`: the server would start without them. */
export function flagsKeptByNpm(env: NodeJS.ProcessEnv): string[] {
  if (env['npm_lifecycle_event'] !== 'start') return [];
  return KEYS.flatMap((key) => {
    const { flag } = OPTIONS[key];
    const kept = env[`npm_config_${flag.replaceAll('-', '_')}`];
    if (flag === '' || kept === undefined) return [];
    // An empty text is what npm makes of false.
    return [kept === '' && SWITCHES.has(key) ? `--no-${flag}` : `--${flag}`];
  });
}

/** Lists may be given several times. */
function parseFlag(key: keyof Settings, value: string, before: unknown): unknown {
  const { flag, parse } = OPTIONS[key];
  const parsed = SECRETS.has(key) ? parseSecret(flag, parse, value) : parse(value);
  return Array.isArray(parsed) && Array.isArray(before) ? [...(before as unknown[]), ...parsed] : parsed;
}

/** What an InvalidArgumentError is told with has the value. */
function parseSecret(flag: string, parse: (text: string) => unknown, value: string): unknown {
  try {
    return parse(value);
  } catch (error) {
    throw new Error(`--${flag} ${HIDDEN} is not valid. ${(error as Error).message}`, { cause: error });
  }
}

/** `--max-num-seqs` reads TANDEM_MAX_NUM_SEQS. */
export function variableName(key: keyof Settings): string {
  return key === 'faults' ? 'TANDEM_FAULTS' : `TANDEM_${OPTIONS[key].flag.replaceAll('-', '_').toUpperCase()}`;
}

function attributeName(flag: string): string {
  return flag.replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase());
}

function defaultText(key: keyof Settings): string {
  const { defaultText: shown, default: value } = OPTIONS[key];
  return shown ?? String(value() ?? 'none');
}
