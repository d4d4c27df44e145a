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

export type TextPart = { type: 'text'; text: string; [key: string]: unknown };

/** What a template sees of a part whose text is `text`. What else a text part says is the template's, as keys of a message are. */
export function textPart(part: { type: string; [key: string]: unknown }, text: string): TextPart {
  return { ...(part.type === 'text' ? part : {}), type: 'text', text };
}
