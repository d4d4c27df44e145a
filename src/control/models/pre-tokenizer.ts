/**
 * tokenizer.json's pre_tokenizer in the steps that @huggingface/tokenizers takes as the original does. Its own digits are ASCII, its spaces
 * JavaScript's, and it knows neither Metaspace's cuts nor all behaviours of Split: other tokens would come, and nobody would be told.
 */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from './errors.ts';
import { Fields, show } from './fields.ts';
import type { JsonObject } from './json-file.ts';
import { TOKENIZER_FILE } from './tokenizer-files.ts';

const GPT2_WORDS = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/** What Whitespace calls a part of a word: a number such as ² is none, what joins characters is one. */
const WORD = '\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}';
const PUNCTUATION = '[\\p{P}\\x24\\x2b\\x3c-\\x3e\\x5e\\x60\\x7c\\x7e]';

/** null: a text is one word. */
export function exactPreTokenizer(value: unknown): JsonObject | null {
  if (value === null || value === undefined) return null;
  return { type: 'Sequence', pretokenizers: stepsOf(value) };
}

function stepsOf(value: unknown): JsonObject[] {
  if (!isPlainObject(value)) throw new ModelError(TOKENIZER_FILE, 'pre_tokenizer must be an object.');
  const fields: Fields = new Fields(TOKENIZER_FILE, value, 'pre_tokenizer');
  const type = fields.string('type');
  switch (type) {
    case 'Sequence': {
      const steps = fields.get('pretokenizers');
      return Array.isArray(steps) ? steps.flatMap(stepsOf) : fields.fail('pretokenizers', 'must be a list.');
    }
    case 'ByteLevel':
      return byteLevel(fields);
    case 'Split':
      return [splitStep(fields, value)];
    case 'Metaspace':
      return metaspace(fields);
    case 'Digits':
      return [pieces(fields.boolean('individual_digits', false) ? '\\p{N}' : '\\p{N}+')];
    case 'Punctuation':
      return [punctuation(fields)];
    case 'WhitespaceSplit':
      return [pieces('\\S+', 'Removed')];
    case 'Whitespace':
      return [pieces(`[${WORD}]+|[^${WORD}\\s]+`, 'Removed')];
    default:
      return fields.fail('type', `${show(type ?? null)} is not supported.`);
  }
}

/** Each match is a word; what lies between is one, too, or is dropped. */
function pieces(pattern: string, between: 'Isolated' | 'Removed' = 'Isolated'): JsonObject {
  return { type: 'Split', pattern: { Regex: pattern }, behavior: between, invert: between === 'Removed' };
}

function byteLevel(fields: Fields): JsonObject[] {
  const prefix = { type: 'Replace', pattern: { Regex: '\\A[^ ]' }, content: ' $&' };
  return [
    ...(fields.boolean('add_prefix_space', false) ? [prefix] : []),
    ...(fields.boolean('use_regex', true) ? [pieces(GPT2_WORDS)] : []),
    { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
  ];
}

function splitStep(fields: Fields, step: JsonObject): JsonObject {
  const behavior = fields.string('behavior');
  // Both sides are kept, whichever of them the pattern names.
  if (behavior === 'Isolated') return { ...step, invert: false };
  if (behavior === 'Removed' && fields.boolean('invert', false)) return step;
  return fields.fail(
    'behavior',
    `${show(behavior ?? null)} is not supported (Isolated is, and Removed of what does not match).`,
  );
}

function punctuation(fields: Fields): JsonObject {
  const behavior = fields.string('behavior') ?? 'Isolated';
  if (behavior === 'Isolated') return pieces(PUNCTUATION);
  if (behavior === 'Contiguous') return pieces(`${PUNCTUATION}+`);
  return fields.fail('behavior', `${show(behavior)} is not supported (Isolated, Contiguous are).`);
}

function metaspace(fields: Fields): JsonObject[] {
  const replacement = fields.string('replacement') ?? '▁';
  // Older files say so in this way.
  const scheme = fields.boolean('add_prefix_space', true) ? (fields.string('prepend_scheme') ?? 'always') : 'never';
  if (!['always', 'first', 'never'].includes(scheme))
    fields.fail('prepend_scheme', `${show(scheme)} is not supported.`);
  if (Array.from(replacement).length !== 1) fields.fail('replacement', 'must be one character.');
  const mark = `\\x{${(replacement.codePointAt(0) ?? 0).toString(16)}}`;
  return [
    { type: 'Metaspace', replacement, prepend_scheme: scheme },
    ...(fields.boolean('split', true) ? [pieces(`${mark}[^${mark}]*`)] : []),
  ];
}
