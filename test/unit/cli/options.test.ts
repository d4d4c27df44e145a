import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { describe, expect, test } from 'vitest';
import { OPTIONS } from '../../../src/cli/options.ts';
import {
  addServeOptions,
  flagsKeptByNpm,
  OTHER_VARIABLES,
  resolveSettings,
  unknownVariables,
  variableName,
  WORKING_VARIABLES,
} from '../../../src/cli/resolve-settings.ts';
import { writeJson } from '../../../src/control/json-numbers.ts';
import type { Settings } from '../../../src/control/settings.ts';

function resolve(args: string[], env: Record<string, string> = {}): Settings {
  const command = new Command('serve').exitOverride().configureOutput({ writeErr: () => undefined });
  addServeOptions(command);
  command.parse(args, { from: 'user' });
  return resolveSettings(command, env);
}

test('defaults', () => {
  expect(resolve([])).toMatchObject({
    host: '127.0.0.1',
    port: 8000,
    apiKey: null,
    maxModelLen: null,
    maxNumSeqs: 64,
    maxNumBatchedTokens: 2048,
    enableChunkedPrefill: true,
    toolCallParser: 'auto',
    reasoningParser: 'auto',
    schedulingPolicy: 'fcfs',
    servedModelNames: [],
    maxLogprobs: 20,
  });
  expect(resolve([]).threads).toBeGreaterThanOrEqual(1);
});

test('flags, then variables, then defaults', () => {
  expect(resolve(['--port', '1'], { TANDEM_PORT: '2' }).port).toBe(1);
  expect(resolve([], { TANDEM_PORT: '2' }).port).toBe(2);
  expect(resolve(['--no-enable-chunked-prefill'], { TANDEM_ENABLE_CHUNKED_PREFILL: 'true' }).enableChunkedPrefill).toBe(
    false,
  );
  expect(resolve(['--enable-chunked-prefill'], { TANDEM_ENABLE_CHUNKED_PREFILL: 'false' }).enableChunkedPrefill).toBe(
    true,
  );
  expect(resolve([], { TANDEM_ENABLE_CHUNKED_PREFILL: 'off' }).enableChunkedPrefill).toBe(false);
  expect(resolve([], { TANDEM_API_KEY: 'k' }).apiKey).toBe('k');
});

test('flags that npm took for its own are found', () => {
  const env = {
    npm_lifecycle_event: 'start',
    npm_config_port: '8123',
    npm_config_host: '',
    npm_config_enable_prefix_caching: '',
    npm_config_loglevel: 'warn',
  };
  // An empty text is npm's for false.
  expect(flagsKeptByNpm(env)).toEqual(['--host', '--port', '--no-enable-prefix-caching']);
  expect(flagsKeptByNpm({ ...env, npm_config_enable_prefix_caching: 'true' })).toContain('--enable-prefix-caching');
  expect(flagsKeptByNpm({ ...env, npm_lifecycle_event: 'test' })).toEqual([]);
});

test.each([
  [['--enable-prefix-caching'], true],
  [['--enable-prefix-caching', '--port', '1'], true],
  [['--no-enable-prefix-caching'], false],
  [['--enable-prefix-caching=false'], false],
  [['--enable-prefix-caching', 'False'], false],
  [['--enable-prefix-caching=true'], true],
  [['--no-enable-prefix-caching', '--enable-prefix-caching'], true],
])('the switch %j', (args, on) => {
  expect(resolve(args).enablePrefixCaching).toBe(on);
});

test("numbers of the template's variables stay as they were written", () => {
  const written = '{"temperature":1.0,"seed":9007199254740993}';
  const { defaultChatTemplateKwargs } = resolve(['--default-chat-template-kwargs', written]);
  expect(writeJson(defaultChatTemplateKwargs)).toBe(written);
});

test('bounds are a part of what may be given', () => {
  for (const share of [0, 0.25, 0.9])
    expect(resolve(['--training-floor', String(share)])).toMatchObject({ trainingFloor: share });
  expect(resolve(['--kv-peers', 'a:1,[::1]:65535']).kvPeers).toEqual([
    { host: 'a', port: 1 },
    { host: '::1', port: 65_535 },
  ]);
});

test('lists repeat and take commas', () => {
  expect(resolve(['--served-model-name', 'a,b', '--served-model-name', 'c']).servedModelNames).toEqual(['a', 'b', 'c']);
});

test('origins and hosts are what browsers send and what URLs say', () => {
  const origins = ['*', 'null', 'https://Chat.example.org:443/', 'http://localhost:3000', 'chrome-extension://abc'];
  const sent = ['*', 'null', 'https://chat.example.org', 'http://localhost:3000', 'chrome-extension://abc'];
  expect(resolve(['--allowed-origins', origins.join()]).allowedOrigins).toEqual(sent);
  const { trainingUrlHosts } = resolve(['--training-url-hosts', '*,Data.example.org,bücher.example,[2001:DB8::1]']);
  expect(trainingUrlHosts).toEqual(['*', 'data.example.org', 'xn--bcher-kva.example', '[2001:db8::1]']);
});

test.each([
  ['1048576', 1_048_576],
  ['512K', 524_288],
  ['64M', 67_108_864],
  ['1.5G', 1_610_612_736],
  ['2GiB', 2_147_483_648],
  ['1gb', 1_073_741_824],
  ['1024', 1024],
])('--kv-cache-memory %s', (text, bytes) => {
  expect(resolve(['--kv-cache-memory', text]).kvCacheMemoryBytes).toBe(bytes);
});

test('a size may have an upper bound too, and the error tells it', () => {
  expect(resolve(['--max-body-size', '511M']).maxBodyBytes).toBe(511 * 2 ** 20);
  expect(() => resolve(['--max-body-size', '1G'])).toThrow('Give a size of at least 1024 bytes, 511M at most.');
});

test.each([
  ['auto', 'auto'],
  ['bf16', 'bfloat16'],
  ['bfloat16', 'bfloat16'],
  ['int8', 'int8'],
])('--kv-cache-dtype %s', (text, type) => {
  expect(resolve(['--kv-cache-dtype', text]).kvCacheDtype).toBe(type);
});

describe('what cannot be read is an error that names it', () => {
  const BAD: [string, string][] = [
    ['port', '-1'],
    ['port', '65536'],
    ['port', '1e3'],
    ['port', ''],
    ['host', ' '],
    ['model', 'models/starter\r'],
    ['api-key', 'two words'],
    ['api-key', ''],
    ['dtype', 'float8'],
    ['quantize', 'int3'],
    ['quantize', 'fp4'],
    ['kv-cache-dtype', 'int4'],
    ['max-num-seqs', '0'],
    ['max-num-seqs', '1.5'],
    ['kv-cache-memory', '4X'],
    ['kv-cache-memory', '0'],
    ['max-body-size', '10'],
    ['max-body-size', '512M'],
    ['served-model-name', 'a,,b'],
    ['log-level', 'loud'],
    ['scheduling-policy', 'lifo'],
    ['kv-peers', 'host'],
    ['kv-peers', 'host:0'],
    ['kv-peers', 'a:1,b:99999'],
    ['kv-port', '70000'],
    ['allowed-origins', 'chat.example.org'],
    ['allowed-origins', 'https://chat.example.org/app'],
    ['allowed-origins', 'localhost:3000'],
    ['training-url-hosts', 'https://data.example.org'],
    ['training-url-hosts', 'data.example.org:8080'],
    ['training-floor', '0.91'],
    ['training-floor', '-0.1'],
    ['training-floor', '1e-1'],
    ['default-chat-template-kwargs', '[1]'],
    ['default-chat-template-kwargs', '1.0'],
    ['default-chat-template-kwargs', '{a: 1}'],
  ];
  test.each(BAD)('--%s %j', (flag, value) => {
    expect(() => resolve([`--${flag}`, value])).toThrow(`--${flag}`);
  });
  test.each(BAD)('the variable of %s = %j', (flag, value) => {
    const name = `TANDEM_${flag.replaceAll('-', '_').toUpperCase()}`;
    expect(() => resolve([], { [name]: value })).toThrow(name);
  });
  test('what is wrong can be seen', () => {
    expect(() => resolve([], { TANDEM_LOG_LEVEL: 'info\r' })).toThrow('TANDEM_LOG_LEVEL="info\\r"');
  });
  test('an unknown flag', () => {
    expect(() => resolve(['--nonsense'])).toThrow('--nonsense');
  });
  test.each([
    ['--prot', '--port'],
    ['--enable-prefix-cashing', '--enable-prefix-caching'],
    ['--no-enable-prefix-cashing', '--no-enable-prefix-caching'],
  ])('%s, with what may be meant', (flag, meant) => {
    expect(() => resolve([flag])).toThrow(`(Did you mean ${meant}?)`);
  });
  test('a model without its flag, as vLLM takes it', () => {
    expect(() => resolve(['models/starter'])).toThrow(
      "'models/starter' belongs to no flag (a model is given as --model",
    );
  });
  test('a switch that is neither on nor off', () => {
    expect(() => resolve(['--enable-prefix-caching', 'models/starter'])).toThrow('Give true or false.');
  });
  test('a key is not repeated in the error', () => {
    expect(() => resolve([], { TANDEM_API_KEY: 'my secret' })).toThrow(/^(?!.*my secret)/);
    for (const flag of ['--api-key', '--kv-secret'])
      expect(() => resolve([flag, 'my secret'])).toThrow(new RegExp(`^(?!.*my secret)${flag} .*without spaces`));
  });
});

test('misspelt variables are found', () => {
  expect(unknownVariables({ TANDEM_PORT: '1', TANDEM_ISA: 'scalar', TANDEM_PROT: '1', PORT: '1' })).toEqual([
    'TANDEM_PROT',
  ]);
});

test('variables of the native code are known, and are read there', () => {
  const sources = ['native/src', 'native/cuda'].flatMap((folder) =>
    readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((file) => join(folder, file)),
  );
  const text = sources.filter((file) => /\.(cc|cu|h|cuh)$/.test(file)).map((file) => readFileSync(file, 'utf8'));
  const read = new Set([...text.join('\n').matchAll(/getenv\("(\w+)"\)/g)].map(([, name = '']) => name));
  // The build reads it.
  read.add('TANDEM_CUDA');
  expect([...read].sort()).toEqual([...OTHER_VARIABLES].sort());
});

test('variables of examples, tests, benchmarks and scripts are known, and are read there', () => {
  // What benchmarks and examples leave there is no source: models of gigabytes among it.
  const made = /^(benchmarks\/(peers|results|\.models|limits\/build)|examples\/build)/;
  const files = ['examples', 'test', 'benchmarks', 'scripts', 'native/test'].flatMap((folder) =>
    readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && !made.test(entry.parentPath))
      .map((entry) => join(entry.parentPath, entry.name)),
  );
  const read = /(?:process\.env(?:\.|\[')|getenv\("|\$\{)(TANDEM_\w+)(?=\W)/g;
  const shells = /^#!.*\bbash\b/;
  const names = files.flatMap((file) => {
    const text = readFileSync(file, 'utf8');
    // In other files ${...} is CMake's, or a template's.
    const found = [...text.matchAll(read)].filter(([whole]) => !whole.startsWith('$') || shells.test(text));
    return found.map(([, name = '']) => name);
  });
  const settings = (Object.keys(OPTIONS) as (keyof Settings)[]).map(variableName);
  const own = [...new Set(names)].filter((name) => !settings.includes(name) && !OTHER_VARIABLES.includes(name));
  expect(own.sort()).toEqual([...WORKING_VARIABLES].sort());
  expect(unknownVariables(Object.fromEntries(own.map((name) => [name, '1'])))).toEqual([]);
});

test('every setting has its own flag and variable', () => {
  const keys = Object.keys(OPTIONS) as (keyof Settings)[];
  expect(new Set(keys.map((key) => OPTIONS[key].flag)).size).toBe(keys.length);
  expect(new Set(keys.map(variableName)).size).toBe(keys.length);
});

test('--speculative-config takes what vLLM takes for ngram, and nothing else', () => {
  const read = (value: string) => () => resolve(['--speculative-config', value], {}).speculativeConfig;
  expect(resolve([], {}).speculativeConfig).toBeNull();
  expect(read('{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 1}')()).toEqual({
    numSpeculativeTokens: 3,
    promptLookupMax: 1,
    promptLookupMin: 1,
    disableByBatchSize: 4097,
  });
  expect(read('{"num_speculative_tokens": 3}')).toThrow('method');
  expect(read('{"method": "eagle"}')).toThrow('method');
  expect(read('{"method": "ngram", "num_speculative_tokens": 16}')).toThrow('num_speculative_tokens');
  expect(read('{"method": "ngram", "num_speculative_tokens": "3"}')).toThrow('num_speculative_tokens');
  expect(read('{"method": "ngram", "model": "x"}')).toThrow('model is not a field');
  expect(read('ngram')).toThrow('JSON object, such as {"method": "ngram"');
});

test('the help names the values of a flag, and how a switch is turned off', () => {
  const command = new Command('serve');
  addServeOptions(command);
  const text = command.helpInformation().replaceAll(/\s+/g, ' ');
  expect(text).toContain('(none, int8, int4, fp8; default: none; TANDEM_QUANTIZE)');
  expect(text).toContain('--[no-]enable-prefix-caching keep');
  expect(text).not.toContain('preset');
  expect(text.match(/enable-prefix-caching/g)).toHaveLength(1);
  expect(text).toMatch(/^Usage: serve \[options\] Options:/);
});

test('a default that is shown reads as the default', () => {
  for (const { parse, default: value, defaultText } of Object.values(OPTIONS)) {
    if (defaultText && /^\d/.test(defaultText)) expect(parse(defaultText)).toBe(value());
  }
});

test('docs/settings.md lists every flag with its variable and default', () => {
  const text = readFileSync(new URL('../../../docs/settings.md', import.meta.url), 'utf8');
  const rows = [...text.matchAll(/^\| `--([\w-]+)` \| `(\w+)` \| (.*?) \| (.*) \|$/gm)].map((match) => match.slice(1));
  const keys = (Object.keys(OPTIONS) as (keyof Settings)[]).filter((key) => OPTIONS[key].flag !== '');
  const expected = keys.map((key) => {
    const { flag, defaultText, default: value, help, parse } = OPTIONS[key];
    const choices = parse.choices ? ` (${parse.choices.map((choice) => `\`${choice}\``).join(', ')})` : '';
    return [flag, variableName(key), defaultText ?? String(value() ?? 'none'), help + choices];
  });
  expect(rows).toEqual(expected);
});
