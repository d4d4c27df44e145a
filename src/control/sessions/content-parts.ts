type TextKey = 'text' | 'refusal' | 'thinking';

/** Parts of a message's content that are text: their types, and the key under which it stands. */
const TEXT_KEYS: ReadonlyMap<unknown, TextKey> = new Map([
  ['text', 'text'],
  ['input_text', 'text'],
  ['output_text', 'text'],
  ['refusal', 'refusal'],
  ['thinking', 'thinking'],
]);

/** undefined: parts of this type are something else than text. */
export function textKey(type: unknown): TextKey | undefined {
  return TEXT_KEYS.get(type);
}
