/** Variables of chat templates that neither a request nor a setting may give. */
import { SPECIAL_NAMES } from '../models/tokenizer-files.ts';
import { TUPLE } from './template/tuples.ts';

const RESERVED: ReadonlySet<string> = new Set([
  // What the renderer sets itself, and arguments of its own that clients take for variables.
  'messages',
  'tools',
  'documents',
  'add_generation_prompt',
  'continue_final_message',
  'chat_template',
  'tokenize',
  ...SPECIAL_NAMES,
  // Functions and words of the template language.
  'raise_exception',
  'range',
  'dict',
  'strftime_now',
  'namespace',
  'true',
  'false',
  'none',
  'True',
  'False',
  'None',
  TUPLE,
  'loop',
  'caller',
  'varargs',
  'kwargs',
]);

/** Those of the variables that are reserved. */
export function reservedNames(variables: Record<string, unknown>): string[] {
  return Object.keys(variables).filter((name) => RESERVED.has(name));
}
