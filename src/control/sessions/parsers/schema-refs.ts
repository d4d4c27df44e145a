/** References within a tool's parameters, as pydantic writes nested models and enums: `{"$ref": "#/$defs/Place"}`. */
import { isPlainObject } from '../../../schemas/plain-object.ts';

export type Schema = Record<string, unknown>;

/** References that lead to references; also the end of those that lead in a circle. */
const HOPS_MAX = 16;
/** No schema has as many. What many references lead to is copied for each of them. */
const KEYWORDS_MAX = 256;
const keyCounts = new WeakMap<object, number>();

/** `schema`, or what its reference into `root` leads to, with the keywords beside it. A reference that leads nowhere stays. */
export function followed(schema: Schema, root: unknown): Schema {
  let at = schema;
  for (let hop = 0; hop < HOPS_MAX; hop++) {
    const { $ref, ...beside } = at;
    const target = typeof $ref === 'string' ? pointedAt($ref, root) : null;
    if (!target) return at;
    at = { ...target, ...beside };
  }
  return at;
}

function pointedAt(reference: string, root: unknown): Schema | null {
  if (!reference.startsWith('#/')) return null;
  const keys = reference.slice(2).split('/');
  let at = root;
  for (const key of keys) at = child(at, key.replaceAll('~1', '/').replaceAll('~0', '~'));
  return isPlainObject(at) && countKeys(at) <= KEYWORDS_MAX ? at : null;
}

/** Once for each object: many references may lead to a large one. */
function countKeys(value: object): number {
  const count = keyCounts.get(value) ?? Object.keys(value).length;
  keyCounts.set(value, count);
  return count;
}

export function child(value: unknown, key: string): unknown {
  return isPlainObject(value) && Object.hasOwn(value, key) ? value[key] : undefined;
}
