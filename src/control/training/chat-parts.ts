/** What a chat must not hold to be rendered for training, found before its job is accepted. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { textKey } from '../sessions/content-parts.ts';

/** Values within one chat. It goes from thread to thread to be rendered, and streams wait while it does. */
const MAX_PARTS = 500_000;

export interface MessageFault {
  /** Keys and indices that lead to it from the message on. */
  place: (string | number)[];
  /** Goes on from the name of the place. */
  problem: string;
}

type ChatShape = Readonly<Record<string, unknown>>;

/** Told here what the chat template would fail at without a place. null: nothing. */
export function findMessageFault(message: ChatShape): MessageFault | null {
  return findPartFault(message['content']) ?? findCallFault(message);
}

/** Texts alone: they are all that the chat template would be given. */
function findPartFault(content: unknown): MessageFault | null {
  if (!Array.isArray(content)) return null;
  for (const [index, part] of (content as unknown[]).entries()) {
    if (typeof part === 'string') continue;
    const place = ['content', index];
    if (!isPlainObject(part)) return { place, problem: 'is neither a text nor an object.' };
    const key = textKey(part['type']);
    if (key === undefined) {
      const type = typeof part['type'] === 'string' ? part['type'].slice(0, 64) : '';
      return { place, problem: `has the type '${type}': this model takes text only.` };
    }
    const text = part[key] ?? null;
    if (text !== null && typeof text !== 'string') return { place: [...place, key], problem: 'must be a text.' };
  }
  return null;
}

/** Of a content without faults; what has none is empty. Parts are lines, as they are for a template that takes texts. */
export function textOf(content: unknown): string {
  if (!Array.isArray(content)) return typeof content === 'string' ? content : '';
  const texts = (content as (string | Record<string, unknown>)[]).map((part) =>
    typeof part === 'string' ? part : part[textKey(part['type']) ?? ''],
  );
  return texts.filter((text) => typeof text === 'string').join('\n');
}

/** Calls have the form that requests have: a template writes names and arguments without asking whether they are there. */
function findCallFault({ tool_calls: calls = null, function_call: call }: ChatShape): MessageFault | null {
  // What tool_calls were before; beside these it is not shown.
  if (calls === null) return isPlainObject(call) ? findFunctionFault(call, ['function_call']) : null;
  if (!Array.isArray(calls)) return { place: ['tool_calls'], problem: 'must be a list.' };
  for (const [index, item] of (calls as unknown[]).entries()) {
    const place = ['tool_calls', index];
    if (!isPlainObject(item)) return { place, problem: 'must be an object.' };
    const called = item['function'];
    if (!isPlainObject(called))
      return { place: [...place, 'function'], problem: 'must be an object with name and arguments.' };
    const wrong = findFunctionFault(called, [...place, 'function']);
    if (wrong) return wrong;
  }
  return null;
}

function findFunctionFault(called: Record<string, unknown>, place: MessageFault['place']): MessageFault | null {
  if (typeof called['name'] !== 'string') return { place: [...place, 'name'], problem: 'must be a text.' };
  const given = called['arguments'] ?? null;
  if (given === null || typeof given === 'string' || isPlainObject(given)) return null;
  return { place: [...place, 'arguments'], problem: 'must be JSON as a text, or an object.' };
}

/** A template writes arguments as an object, and where a text holds none an empty one: not what a reply that is trained by it said. */
export function findArgumentsFault({ tool_calls: calls, function_call: call }: ChatShape): MessageFault | null {
  const called = Array.isArray(calls) ? (calls as { function?: unknown }[]).map((item) => item.function) : [call];
  for (const [index, item] of called.entries()) {
    const text = isPlainObject(item) ? item['arguments'] : null;
    if (typeof text !== 'string' || text.trim() === '' || holdsObject(text)) continue;
    const way = Array.isArray(calls) ? ['tool_calls', index, 'function'] : ['function_call'];
    return { place: [...way, 'arguments'], problem: 'is not the JSON of an object.' };
  }
  return null;
}

function holdsObject(text: string): boolean {
  try {
    return isPlainObject(JSON.parse(text));
  } catch {
    return false;
  }
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
