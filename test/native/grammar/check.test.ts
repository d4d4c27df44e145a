/**
 * `tandem grammar check` over many schemas: random ones with instances judged by ajv, hostile ones among them. TANDEM_CHECK_SCHEMAS sets
 * how many (default 150); from 5,000 on the memory of the process must stay flat in the second half.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeByteTokenizer } from '../../fixtures/byte-tokenizer.ts';
import { randomInstance, randomText } from './random-instance.ts';
import { Random } from './random.ts';
import { widerSchema } from './wider-schema.ts';

const COUNT = Number(process.env['TANDEM_CHECK_SCHEMAS'] ?? 150);
const MEASURED_FROM = 5000;
const MAIN = fileURLToPath(new URL('../../../dist/cli/main.js', import.meta.url));

/** Refused or over a bound, each in its own way; none may end or hold up the command. */
const HOSTILE: readonly string[] = [
  '{"$ref":"#"}',
  '{"$ref":"file:///etc/passwd"}',
  '{"$ref":"http://169.254.169.254/"}',
  `${'{"anyOf":['.repeat(2000)}true${']}'.repeat(2000)}`,
  '{"minItems":1000000000,"type":"array"}',
  '{"pattern":"(a+)+b","type":"string"}',
  '{"pattern":"(?=.*a.{18}$)(?!.*b.{17}$)(?=.*c.{16}$).*","type":"string"}',
  '{"pattern":"(a)\\\\1","type":"string"}',
  '{"pattern":"[.*","type":"string"}',
  '{"type":7}',
  '{"maximum":1e999999999}',
  '{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"$ref":"#/$defs/x"}}}',
  `{"enum":[${Array.from({ length: 5000 }, (_, i) => `"v${i}"`).join()}]}`,
  '{"contains":{"type":"integer"},"minContains":900,"minItems":9000}',
];

/** One for all: each would compile the metaschema anew. */
const ajv = new Ajv2020({ strict: false, logger: false, addUsedSchema: false });

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'tandem-check-'));
  writeByteTokenizer(folder);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function line(index: number): string {
  const hostile = HOSTILE[index];
  if (hostile !== undefined) return `{"schema":${hostile},"instances":[{"text":"@","valid":false}]}`;
  const random = new Random(index);
  const schema = widerSchema(random, 2);
  const valid = ajv.compile(schema);
  const instances = Array.from({ length: 3 }, () => {
    const value = randomInstance(random, 2);
    return { text: randomText(random, value), valid: valid(value) };
  });
  return JSON.stringify({ schema, instances });
}

/** Kilobytes, where the system says. */
function residentOf(pid: number | undefined): number | null {
  try {
    return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? NaN);
  } catch {
    return null;
  }
}

async function check(file: string): Promise<{ code: number | null; lines: string[]; memory: number[] }> {
  const args = ['grammar', 'check', file, '--tokenizer', folder, '--each'];
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const lines: string[] = [];
  const memory: number[] = [];
  let rest = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    const parts = (rest + text).split('\n');
    rest = parts.pop() ?? '';
    lines.push(...parts);
    const now = residentOf(child.pid);
    if (now !== null && !Number.isNaN(now)) memory.push(now);
  });
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, lines, memory };
}

describe('tandem grammar check', () => {
  it(
    `reads ${COUNT} schemas`,
    async () => {
      const file = join(folder, 'schemas.jsonl');
      writeFileSync(file, Array.from({ length: COUNT }, (_, index) => `${line(index)}\n`).join(''));
      const { code, lines, memory } = await check(file);
      expect(code).toBe(0);
      expect(lines).toHaveLength(COUNT + 1);
      const summary = JSON.parse(lines.at(-1) ?? '') as Record<string, unknown>;
      expect(Object.keys(summary)).toEqual([
        'schemas',
        'compiled',
        'refused',
        'valid_accepted',
        'valid_refused',
        'invalid_accepted',
        'invalid_refused',
        'compile_us',
        'mask_us',
      ]);
      expect(summary).toMatchObject({ schemas: COUNT, valid_refused: 0, invalid_accepted: 0 });
      expect(summary['valid_accepted']).toBeGreaterThan(0);
      const refused = Object.values(summary['refused'] as Record<string, number>).reduce((a, b) => a + b, 0);
      expect(Number(summary['compiled']) + refused).toBe(COUNT);
      if (COUNT < MEASURED_FROM) return;
      const middle = Math.floor(memory.length / 2);
      const [early, late] = [Math.max(...memory.slice(0, middle)), Math.max(...memory.slice(middle))];
      console.log(`memory: at most ${early} KB in the first half, ${late} KB in the second; ${lines.at(-1)}`);
      expect(late).toBeLessThan(early * 1.2 + 32_000);
    },
    COUNT < MEASURED_FROM ? 300_000 : 3_600_000,
  );
});
