/** The families' goldens and the measure of the comparison. */
import { readFileSync } from 'node:fs';
import { familyPlan } from '../fixtures/tiny-model.ts';

export interface FamilyGolden {
  tokens: number[];
  F32: { std: number; logits: string };
  BF16: { std: number; logits: string };
}

export const familyGoldens = JSON.parse(
  readFileSync(new URL('../goldens/family-goldens.json', import.meta.url), 'utf8'),
) as Record<string, FamilyGolden>;

/** RMS error over the standard deviation of the golden logits. */
export const TOLERANCE = { F32: 1e-5, BF16: 2e-2 } as const;

/** One row per position of the plan. */
export function goldenRows(family: string, dtype: 'F32' | 'BF16'): Float32Array[] {
  const bytes = Buffer.from(familyGoldens[family]![dtype].logits, 'base64');
  const all = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  const rows = familyPlan.positions.length;
  const vocab = all.length / rows;
  return Array.from({ length: rows }, (_, row) => all.subarray(row * vocab, (row + 1) * vocab));
}

/**
 * RMS difference of two sets of rows over the standard deviation of `golden`. Rows are centred first: the engine gives
 * log-probabilities, which are logits less a constant per row.
 */
export function logitError(rows: Float32Array[], golden: Float32Array[]): number {
  if (rows.length !== golden.length || rows.length === 0)
    throw new Error(`${rows.length} rows, ${golden.length} golden rows`);
  let squares = 0;
  let spread = 0;
  rows.forEach((row, index) => {
    const expected = centred(golden[index]!);
    const found = centred(row);
    if (found.length !== expected.length) throw new Error('rows differ in length');
    for (let id = 0; id < expected.length; id++) {
      squares += (found[id]! - expected[id]!) ** 2;
      spread += expected[id]! ** 2;
    }
  });
  return Math.sqrt(squares / spread);
}

function centred(row: Float32Array): Float64Array {
  const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
  return Float64Array.from(row, (value) => value - mean);
}
