/** What a person reads when the server is up: address, model, key, and a line to paste. */
import { basename, relative, resolve } from 'node:path';

export interface BannerFacts {
  version: string;
  host: string;
  port: number;
  model: string;
  parameters: number;
  dtype: string;
  isa: string;
  threads: number;
  weightBytes: number;
  kvBytes: number;
  key: KeyNote;
  /** What makes another key for this server. */
  keysCommand: string;
}

export type KeyNote = { kind: 'new'; secret: string } | { kind: 'flag' } | { kind: 'stored'; count: number };

export function banner(facts: BannerFacts): string {
  const address = `http://${urlHost(facts.host)}:${facts.port}`;
  const rows = [
    ['address', address],
    [
      'model',
      `${facts.model} (${count(facts.parameters)} parameters, ${facts.dtype}, ${facts.isa}, ${threads(facts.threads)})`,
    ],
    ['memory', `${megabytes(facts.weightBytes)} of weights, ${megabytes(facts.kvBytes)} for the KV cache`],
    ['key', keyText(facts)],
  ];
  const lines = rows.map(([name, value]) => `  ${name?.padEnd(8)} ${value}`);
  return [`Tandem ${facts.version} is ready.`, ...lines, '', curlLine(address, facts.key), ''].join('\n');
}

/**
 * The keys command as this process was called, for its data directory. Where nobody types in the folder that it was called in (a service's is
 * the root), the command is one for everywhere.
 */
export function keysCommand(script: string, dataDir: string, isDefault: boolean, folder = process.cwd()): string {
  const isInstalled = basename(script) !== 'main.js';
  const path = relative(folder, script);
  const isHere = isInstalled || (folder !== '/' && !path.startsWith('..'));
  const program = isInstalled ? basename(script) : `node ${isHere ? path : script}`;
  if (!isHere) return `${program} keys create --data-dir ${resolve(folder, dataDir)}`;
  return `${program} keys create${isDefault ? '' : ` --data-dir ${dataDir}`}`;
}

function keyText({ key, keysCommand: command }: BannerFacts): string {
  if (key.kind === 'new') return `${key.secret} (shown this once; only its hash is kept)`;
  if (key.kind === 'flag') return 'set by --api-key or TANDEM_API_KEY';
  if (key.count === 0) return `none is valid: make one with \`${command}\``;
  return `${key.count} stored (\`${command}\` makes another)`;
}

function curlLine(address: string, key: KeyNote): string {
  const secret = key.kind === 'new' ? key.secret : '$TANDEM_API_KEY';
  const body = '{"messages": [{"role": "user", "content": "Hello! What can you do?"}]}';
  return [
    `  curl ${address}/v1/chat/completions \\`,
    `    -H "Authorization: Bearer ${secret}" \\`,
    `    -H 'Content-Type: application/json' \\`,
    `    -d '${body}'`,
  ].join('\n');
}

/** An address to connect to: a wildcard listens everywhere, so this machine's own will do. */
function urlHost(host: string): string {
  if (host === '0.0.0.0' || host === '::') return '127.0.0.1';
  return host.includes(':') ? `[${host}]` : host;
}

function count(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)}B`;
  return value >= 1e6 ? `${(value / 1e6).toFixed(1)}M` : String(value);
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}

function threads(value: number): string {
  return value === 1 ? '1 thread' : `${value} threads`;
}
