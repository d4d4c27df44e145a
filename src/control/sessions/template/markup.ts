/** Texts that are marked as escaped: jinja2 escapes no text twice, and what is added to one. */
import type { Value } from './jinja.ts';
import { box, isString, marked, toText } from './values.ts';

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&#34;',
  "'": '&#39;',
};

export function isMarkup(value: Value): boolean {
  return marked.has(value);
}

export function boxMarkup(text: string): Value {
  const value = box(text);
  marked.add(value);
  return value;
}

/** The text of a value within a marked one. */
export function escapedText(value: Value): string {
  const text = toText(value);
  return isMarkup(value) ? text : text.replace(/[&<>"']/g, (character) => ENTITIES[character] ?? character);
}

/** What is made of the text alone is marked as it is. */
export function likeOperand(operand: Value, made: Value): Value {
  return isMarkup(operand) && isString(made) ? boxMarkup(made.value) : made;
}
