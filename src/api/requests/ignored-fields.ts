/** Unknown keys are accepted, as vLLM does, and named in a header so that a typo can be found. */
import type { Context } from 'koa';
import { NESTED_FIELDS } from '../../schemas/sampling-fields.ts';
import { isPlainObject } from '../../schemas/validator.ts';

/** Names that the header shows. */
const MAX_IGNORED_FIELDS = 16;

/** `known`: top-level keys that mean something; `nestedKnown`: those of objects in the body. */
export function reportIgnored(
  ctx: Context,
  body: unknown,
  known: ReadonlySet<string>,
  nestedKnown = NESTED_FIELDS,
): void {
  const nested = Object.entries(nestedKnown).flatMap(([path, fields]) =>
    known.has(path.split('.', 1)[0] ?? '')
      ? unknownKeys(valueAt(body, path), fields).map((key) => `${path}.${key}`)
      : [],
  );
  const named = [...unknownKeys(body, known), ...nested].slice(0, MAX_IGNORED_FIELDS);
  if (named.length > 0) ctx.set('X-Tandem-Ignored-Fields', named.join(', '));
}

/** Those that a header can hold. */
function unknownKeys(value: unknown, known: ReadonlySet<string>): string[] {
  if (!isPlainObject(value)) return [];
  return Object.keys(value).filter((key) => !known.has(key) && /^[\w.-]{1,64}$/.test(key));
}

function valueAt(body: unknown, path: string): unknown {
  return path.split('.').reduce((value, key) => (isPlainObject(value) ? value[key] : undefined), body);
}
