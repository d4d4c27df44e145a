/**
 * tokenizer.json's normalizer in the steps that @huggingface/tokenizers takes as the original does: JavaScript makes another letter of a Σ that
 * ends a word, and reads a $ in what a Replace puts in.
 */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from './errors.ts';
import type { JsonObject } from './json-file.ts';
import { TOKENIZER_FILE } from './tokenizer-files.ts';

export function exactNormalizer(value: unknown): JsonObject | null {
  if (value === null || value === undefined) return null;
  if (!isPlainObject(value)) throw new ModelError(TOKENIZER_FILE, 'normalizer must be an object.');
  const { type, normalizers, content } = value;
  if (type === 'Sequence' && Array.isArray(normalizers))
    return { ...value, normalizers: normalizers.map(exactNormalizer) };
  if (type === 'Replace' && typeof content === 'string') return { ...value, content: content.replaceAll('$', '$$$$') };
  if (type !== 'Lowercase') return value;
  return { type: 'Sequence', normalizers: [{ type: 'Replace', pattern: { String: 'Σ' }, content: 'σ' }, value] };
}
