/** Unknown keys are accepted, as vLLM does, and named in a header so that a typo can be found; so are options that do nothing where they stand. */
import type { Context } from 'koa';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { NESTED_FIELDS } from '../../schemas/sampling-fields.ts';

/** Names that the header shows. */
const MAX_IGNORED_FIELDS = 16;

const STRUCTURED = 'structured_outputs';
const WITHOUT_JSON = ['regex', 'choice', 'grammar'];
const JSON_OPTIONS = ['disable_any_whitespace', 'disable_additional_properties', 'whitespace_pattern'];

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
  const idle = known.has(STRUCTURED) ? idleOptions(valueAt(body, STRUCTURED)) : [];
  const named = [...unknownKeys(body, known), ...nested, ...idle].slice(0, MAX_IGNORED_FIELDS);
  if (named.length > 0) ctx.set('X-Tandem-Ignored-Fields', named.join(', '));
}

/** Options about JSON beside a kind that has none. Structural tags may have it. */
function idleOptions(outputs: unknown): string[] {
  if (!isPlainObject(outputs) || !WITHOUT_JSON.some((kind) => (outputs[kind] ?? null) !== null)) return [];
  const set = JSON_OPTIONS.filter((option) => (outputs[option] ?? false) !== false);
  return set.map((option) => `${STRUCTURED}.${option}`);
}

/** Those that a header can hold. */
function unknownKeys(value: unknown, known: ReadonlySet<string>): string[] {
  if (!isPlainObject(value)) return [];
  return Object.keys(value).filter((key) => !known.has(key) && /^[\w.-]{1,64}$/.test(key));
}

function valueAt(body: unknown, path: string): unknown {
  return path.split('.').reduce((value, key) => (isPlainObject(value) ? value[key] : undefined), body);
}
