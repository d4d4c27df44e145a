import { readFileSync, writeFileSync } from 'node:fs';

const SCORE = '/proc/self/oom_score_adj';
const HIGHER = 200;
const HIGHEST = 1000;

/**
 * Where memory runs out Linux ends a process. It shall be this one rather than the server, which starts another: the highest score is taken,
 * and a small model's engine may be the smaller of both. Raising one's own needs no right; a system without scores stays as it is.
 */
export function raiseOomScore(): void {
  try {
    const inherited = Number(readFileSync(SCORE, 'utf8'));
    writeFileSync(SCORE, String(Math.min(inherited + HIGHER, HIGHEST)));
  } catch {
    // As it was.
  }
}
