/**
 * tokenizer.json's normalizer in the steps that @huggingface/tokenizers takes as the original does: JavaScript makes another letter of a Σ that
 * ends a word, reads a $ in what a Replace puts in, and has another white space. What the library only comes near to is refused.
 */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from './errors.ts';
import { Fields, show } from './fields.ts';
import type { JsonObject } from './json-file.ts';
import { TOKENIZER_FILE } from './tokenizer-files.ts';

const AS_THEY_ARE: ReadonlySet<string | undefined> = new Set(['NFC', 'NFD', 'NFKC', 'NFKD', 'StripAccents']);

export function exactNormalizer(value: unknown): JsonObject | null {
  if (value === null || value === undefined) return null;
  if (!isPlainObject(value)) throw new ModelError(TOKENIZER_FILE, 'normalizer must be an object.');
  const fields: Fields = new Fields(TOKENIZER_FILE, value, 'normalizer');
  const type = fields.string('type');
  if (AS_THEY_ARE.has(type)) return value;
  switch (type) {
    case 'Sequence': {
      const steps = fields.get('normalizers');
      if (!Array.isArray(steps)) return fields.fail('normalizers', 'must be a list.');
      return sequence(steps.map(exactNormalizer));
    }
    case 'Replace':
      if (!fields.has('pattern')) fields.fail('pattern', 'is missing.');
      return { ...value, content: textOf(fields, 'content').replaceAll('$', '$$$$') };
    case 'Prepend':
      return { ...value, prepend: textOf(fields, 'prepend') };
    case 'Lowercase':
      return sequence([replace({ String: 'Σ' }, 'σ'), value]);
    case 'Strip':
      return sequence([
        ...(fields.boolean('strip_left', false) ? [replace({ Regex: '\\A\\s+' }, '')] : []),
        // From where white space begins only: a try at each of its characters would take quadratic time.
        ...(fields.boolean('strip_right', false) ? [replace({ Regex: '(?<!\\s)\\s+\\z' }, '')] : []),
      ]);
    default:
      return fields.fail('type', `${show(type ?? null)} is not supported.`);
  }
}

function sequence(normalizers: (JsonObject | null)[]): JsonObject {
  return { type: 'Sequence', normalizers };
}

function replace(pattern: JsonObject, content: string): JsonObject {
  return { type: 'Replace', pattern, content };
}

function textOf(fields: Fields, name: string): string {
  return fields.string(name) ?? fields.fail(name, 'is missing.');
}
