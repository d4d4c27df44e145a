/** A tool call out of a JSON object like {"name": "f", "arguments": {...}}. */
import { type JsonMember, type JsonScanner, scanJson } from './json-scanner.ts';

export interface CallText {
  name: string;
  /** JSON text of an object: the model's own, verbatim. */
  json: string;
}

/**
 * null: not a call. `scanner` has read exactly `text`. The arguments are the first object under one of `argumentKeys` behind a name, as a stream
 * tells them; without one, what the first of the keys that is there holds.
 */
export function callOf(text: string, scanner: JsonScanner, argumentKeys: readonly string[]): CallText | null {
  if (scanner.status !== 'done' || scanner.root !== '{') return null;
  const values = new Map<string, string>();
  for (const member of scanner.members) {
    const [key, json] = [keyOf(text, member), text.slice(member.start, member.end)];
    values.set(key, json);
    const named = argumentKeys.includes(key) && json.startsWith('{') ? nameOf(values.get('name')) : null;
    if (named !== null) return { name: named, json };
  }
  const name = nameOf(values.get('name'));
  const key = argumentKeys.find((candidate) => values.has(candidate));
  const json = key === undefined ? null : argumentsOf(values.get(key) ?? '');
  return name === null || json === null ? null : { name, json };
}

export function keyOf(text: string, member: JsonMember): string {
  return String(JSON.parse(text.slice(member.keyStart, member.keyEnd)));
}

/** A name out of its JSON text; null if it is no string, or empty. */
export function nameOf(json: string | undefined): string | null {
  if (json === undefined || !json.startsWith('"')) return null;
  const name = String(JSON.parse(json));
  return name === '' ? null : name;
}

/** JSON text of an object: as written, or out of a JSON string that holds it. Nothing (null, "") is {}. */
function argumentsOf(json: string): string | null {
  if (json.startsWith('{')) return json;
  if (json === 'null') return '{}';
  if (!json.startsWith('"')) return null;
  const inner = String(JSON.parse(json)).trim();
  if (inner === '') return '{}';
  return scanJson(inner)?.root === '{' ? inner : null;
}
