/** From what an extension answers to the controls of one step. */
import type { StepDirective } from './extension.ts';

/** Biased tokens of one step. */
const MAX_BIASED = 65_536;
const MAX_REASON_LENGTH = 256;
const LARGEST_BIAS = 100;
const FIELDS: ReadonlySet<string> = new Set(['bias', 'allowed', 'stop']);

/** The wishes of all extensions of one choice for one step. */
export interface StepWishes {
  bias: Map<number, number>;
  /** null = all. Empty where the extensions have none in common. */
  allowed: Set<number> | null;
  /** Absent: the choice goes on. */
  stop?: { reason: string | null };
}

/** Adds one extension's answer: biases add up, allow-sets meet, any stop stops. Throws a sentence about what is wrong with it. */
export function addDirective(
  wishes: StepWishes,
  answer: StepDirective | null | undefined,
  name: string,
  vocabSize: number,
): void {
  if (answer === undefined || answer === null) return;
  if (typeof answer !== 'object') throw new Error(`it answered with ${typeof answer}.`);
  refusePromise(answer);
  const unknown = Object.keys(answer).find((field) => !FIELDS.has(field));
  if (unknown !== undefined) throw new Error(`its answer has the unknown field '${unknown.slice(0, 40)}'.`);
  if (answer.bias !== undefined) addBias(wishes.bias, answer.bias, vocabSize);
  if (answer.allowed !== undefined) addAllowed(wishes, answer.allowed, vocabSize);
  if (answer.stop !== undefined && answer.stop !== false) wishes.stop = { reason: reasonOf(answer.stop, name) };
}

/** Throws for a promise, and takes its rejection, which would end the process where nobody does. */
export function refusePromise(answer: unknown): void {
  if (typeof answer !== 'object' || answer === null || !('then' in answer)) return;
  if (answer instanceof Promise) answer.catch(() => {});
  throw new Error('it answered with a promise; extensions are synchronous.');
}

/** Of a key of an object. To Number() nothing and blanks are 0. */
function idOf(key: string): number | string {
  return /^\d+$/.test(key) ? Number(key) : key;
}

function addBias(sums: Map<number, number>, bias: NonNullable<StepDirective['bias']>, vocabSize: number): void {
  const entries = bias instanceof Map ? [...bias] : Object.entries(bias).map(([id, value]) => [idOf(id), value]);
  for (const [id, value] of entries as [number, number][]) {
    checkId(id, vocabSize, 'bias');
    if (typeof value !== 'number' || Number.isNaN(value)) throw new Error(`its bias of token ${id} is no number.`);
    sums.set(id, Math.min(LARGEST_BIAS, Math.max(-LARGEST_BIAS, (sums.get(id) ?? 0) + value)));
  }
  if (sums.size > MAX_BIASED) throw new Error(`it biases more than ${MAX_BIASED} tokens.`);
}

function addAllowed(wishes: StepWishes, allowed: Iterable<number>, vocabSize: number): void {
  const own = new Set<number>();
  for (const id of allowed) {
    checkId(id, vocabSize, 'allowed');
    own.add(id);
  }
  if (own.size === 0) throw new Error('it allows no token.');
  const { allowed: others } = wishes;
  wishes.allowed = others === null ? own : new Set([...own].filter((id) => others.has(id)));
}

function reasonOf(stop: true | string, name: string): string | null {
  if (stop === true) return name;
  if (typeof stop === 'string' && stop.length <= MAX_REASON_LENGTH) return stop === '' ? null : stop;
  throw new Error(`its stop is neither true nor a text of at most ${MAX_REASON_LENGTH} characters.`);
}

function checkId(id: unknown, vocabSize: number, field: string): void {
  if (Number.isInteger(id) && (id as number) >= 0 && (id as number) < vocabSize) return;
  throw new Error(`its ${field} names ${String(id).slice(0, 40)}, which is no token id below ${vocabSize}.`);
}
