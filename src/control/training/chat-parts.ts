/** What a chat must not hold to be rendered for training, found before its job is accepted. */

/** Types of content parts, and where their text is. */
const TEXT_PARTS: ReadonlyMap<string, string> = new Map([
  ['text', 'text'],
  ['input_text', 'text'],
  ['output_text', 'text'],
  ['refusal', 'refusal'],
]);

/** Values within one chat. It goes from thread to thread to be rendered, and streams wait while it does. */
const MAX_PARTS = 500_000;

export interface PartFault {
  /** Of the list of parts. */
  index: number;
  /** null: the part as a whole. */
  field: string | null;
  /** Goes on from the part's name. */
  problem: string;
}

/** null: texts alone, which is all that the chat template would be given. */
export function findPartFault(content: unknown): PartFault | null {
  if (!Array.isArray(content)) return null;
  for (const [index, part] of (content as unknown[]).entries()) {
    if (typeof part === 'string') continue;
    if (typeof part !== 'object' || part === null || Array.isArray(part)) {
      return { index, field: null, problem: 'is neither a text nor an object.' };
    }
    const given = part as Record<string, unknown>;
    const type = typeof given['type'] === 'string' ? given['type'].slice(0, 64) : '';
    const field = TEXT_PARTS.get(type);
    if (field === undefined) {
      return { index, field: null, problem: `has the type '${type}': this model takes text only.` };
    }
    const text = given[field] ?? null;
    if (text !== null && typeof text !== 'string') return { index, field, problem: 'must be a text.' };
  }
  return null;
}

/** What is wrong with the size of a chat's messages and tools; null: nothing. */
export function findSizeFault(chat: readonly unknown[]): string | null {
  return countParts(chat, MAX_PARTS) > MAX_PARTS
    ? `has more than ${MAX_PARTS} values in its messages and tools.`
    : null;
}

/** Stops soon after `limit`. As deep as JSON was let in. */
function countParts(value: unknown, limit: number): number {
  if (typeof value !== 'object' || value === null) return 1;
  let count = 1;
  for (const item of Array.isArray(value) ? (value as unknown[]) : Object.values(value)) {
    count += countParts(item, limit - count);
    if (count > limit) break;
  }
  return count;
}
