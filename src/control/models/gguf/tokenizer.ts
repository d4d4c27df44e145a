/**
 * The tokenizer of a GGUF file in the structure of tokenizer.json, which is what our tokenizer library reads. A file may hold the
 * model's own tokenizer.json (tokenizer.huggingface.json): then that is taken, since it says more.
 */
import { ModelError } from '../errors.ts';
import { Fields, show } from '../fields.ts';
import { parseJsonObject, type JsonObject } from '../json-file.ts';
import {
  MAX_TEMPLATE_BYTES,
  readAddedTokens,
  readVocabularyTexts,
  TOOL_TEMPLATE,
  type AddedToken,
  type TokenizerFiles,
} from '../tokenizer-files.ts';
import type { GgufHeader } from './header.ts';
import { PRE_TOKENIZERS } from './pre-tokenizers.ts';
import { mergesOf } from './spm-merges.ts';
import { readVocabulary, strings, TOKEN, type GgufVocabulary, type Role } from './vocabulary.ts';

const HF_JSON = 'tokenizer.huggingface.json';
const TEMPLATE = 'tokenizer.chat_template';
const MERGES = 'tokenizer.ggml.merges';
const PRE = 'tokenizer.ggml.pre';

/** As templates know them. */
const TEMPLATE_NAMES: Partial<Record<Role, string>> = {
  bos: 'bos_token',
  eos: 'eos_token',
  unknown: 'unk_token',
  seperator: 'sep_token',
  padding: 'pad_token',
  cls: 'cls_token',
  mask: 'mask_token',
};

export interface GgufTokenizer {
  files: TokenizerFiles;
  /** Tokens that end a turn. */
  ends: number[];
}

/** `rows`: of the embedding; a token without a row is refused. */
export function readGgufTokenizer(header: GgufHeader, rows: number): GgufTokenizer {
  const metadata: Fields = new Fields(header.file, header.metadata);
  const vocabulary = readVocabulary(header, rows);
  const own = metadata.string(HF_JSON);
  const files = own === undefined ? build(metadata, vocabulary) : parseOwn(metadata, vocabulary, own, rows);
  return { files, ends: vocabulary.ends };
}

function parseOwn(metadata: Fields, vocabulary: GgufVocabulary, text: string, rows: number): TokenizerFiles {
  return underKey(metadata, HF_JSON, () => {
    const tokenizer = parseJsonObject(HF_JSON, text);
    const addedTokens = readAddedTokens(tokenizer);
    const texts = readVocabularyTexts(tokenizer, addedTokens, rows);
    return { ...common(metadata, vocabulary), tokenizer, addedTokens, vocabulary: texts };
  });
}

/** A refusal inside names the key. */
function underKey<T>(metadata: Fields, key: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof ModelError && error.file !== metadata.file) return metadata.fail(key, `(${error.message})`);
    throw error;
  }
}

type Common = Pick<TokenizerFiles, 'config' | 'chatTemplate' | 'toolTemplate' | 'specialTokens'>;

function common(metadata: Fields, vocabulary: GgufVocabulary): Common {
  const specialTokens: Record<string, string> = {};
  for (const [role, id] of vocabulary.roles) {
    const name = TEMPLATE_NAMES[role];
    if (name !== undefined) specialTokens[name] = vocabulary.tokens[id] ?? '';
  }
  const chatTemplate = templateAt(metadata, TEMPLATE);
  return {
    config: {},
    chatTemplate,
    toolTemplate: templateAt(metadata, `${TEMPLATE}.${TOOL_TEMPLATE}`),
    specialTokens,
  };
}

function templateAt(metadata: Fields, key: string): string | null {
  const template = metadata.string(key) ?? null;
  if (template !== null && template.length > MAX_TEMPLATE_BYTES) metadata.fail(key, 'is too long.');
  return template;
}

function build(metadata: Fields, vocabulary: GgufVocabulary): TokenizerFiles {
  const { model, tokens } = vocabulary;
  const pieces = piecesOf(metadata, vocabulary);
  const parts =
    model === 'gpt2' ? bytePairs(metadata, vocabulary, pieces) : sentencePiece(metadata, vocabulary, pieces);
  const tokenizer = { version: '1.0', added_tokens: addedOf(vocabulary), ...parts };
  const addedTokens = underKey(metadata, 'tokenizer.ggml.tokens', () => readAddedTokens(tokenizer));
  return { ...common(metadata, vocabulary), tokenizer, addedTokens, vocabulary: tokens };
}

/** Tokens that are found in a text before it is cut: control tokens, and those that the author defined. */
function addedOf({ tokens, kinds }: GgufVocabulary): (AddedToken & { single_word: boolean; normalized: boolean })[] {
  return tokens.flatMap((content, id) => {
    const kind = kinds[id];
    const special = kind === TOKEN.control || kind === TOKEN.unknown;
    if ((!special && kind !== TOKEN.userDefined) || content === '') return [];
    return [{ id, content, special, single_word: false, lstrip: false, rstrip: false, normalized: false }];
  });
}

/** Text -> id of what merges may make of a text. */
function piecesOf(metadata: Fields, { tokens, kinds }: GgufVocabulary): Map<string, number> {
  const all = new Map<string, number>();
  const pieces = new Map<string, number>();
  for (const [id, text] of tokens.entries()) {
    const other = all.get(text);
    if (other !== undefined && text !== '') {
      metadata.fail('tokenizer.ggml.tokens', `has ${show(text)} as ${other} and as ${id}.`);
    }
    all.set(text, id);
    if (text !== '' && kinds[id] !== TOKEN.control && kinds[id] !== TOKEN.unused) pieces.set(text, id);
  }
  return pieces;
}

function bytePairs(metadata: Fields, vocabulary: GgufVocabulary, pieces: Map<string, number>): JsonObject {
  const name = metadata.string(PRE);
  const pre = PRE_TOKENIZERS.get(name ?? '');
  if (!pre) {
    metadata.fail(PRE, `${show(name ?? null)} is not supported (${[...PRE_TOKENIZERS.keys()].join(', ')} are).`);
  }
  return {
    normalizer: pre.normalizer,
    pre_tokenizer: { type: 'Sequence', pretokenizers: pre.steps },
    post_processor: around(metadata, vocabulary, pre.addBos),
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      unk_token: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: pre.ignoreMerges,
      vocab: Object.fromEntries(pieces),
      merges: readMerges(metadata, pieces),
    },
  };
}

function readMerges(metadata: Fields, pieces: Map<string, number>): [string, string][] {
  return strings(metadata, MERGES).map((text, rank) => {
    const space = text.indexOf(' ', 1);
    const [left, right] = [text.slice(0, space), text.slice(space + 1)];
    if (space === -1 || right === '' || right.includes(' '))
      metadata.fail(MERGES, `has ${show(text)} at ${rank}, which are not two texts.`);
    // It would leave a text that is no token, which the library drops.
    if (!pieces.has(left + right)) metadata.fail(MERGES, `makes ${show(left + right)} at ${rank}, which is no token.`);
    return [left, right];
  });
}

function sentencePiece(metadata: Fields, vocabulary: GgufVocabulary, pieces: Map<string, number>): JsonObject {
  const prefix = metadata.boolean('tokenizer.ggml.add_space_prefix', true);
  const unknown = vocabulary.roles.get('unknown');
  const mergeable = new Map([...pieces].filter(([, id]) => vocabulary.kinds[id] === TOKEN.normal));
  return {
    normalizer: {
      type: 'Sequence',
      normalizers: [
        ...(prefix ? [{ type: 'Prepend', prepend: '▁' }] : []),
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: around(metadata, vocabulary, true),
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        ...(prefix ? [{ type: 'Strip', content: ' ', start: 1, stop: 0 }] : []),
      ],
    },
    model: {
      type: 'BPE',
      unk_token: unknown === undefined ? null : vocabulary.tokens[unknown],
      fuse_unk: true,
      byte_fallback: true,
      ignore_merges: false,
      vocab: Object.fromEntries(pieces),
      merges: mergesOf(mergeable, vocabulary.scores, metadata.file),
    },
  };
}

/** What is put around a text: the first token of the model, and the last where the file asks for it. */
function around(metadata: Fields, { roles, tokens }: GgufVocabulary, addBos: boolean): JsonObject | null {
  const token = (role: 'bos' | 'eos', added: boolean): { text: string; id: number }[] => {
    const key = `tokenizer.ggml.add_${role}_token`;
    const id = roles.get(role);
    if (!metadata.boolean(key, added)) return [];
    if (id !== undefined) return [{ text: tokens[id] ?? '', id }];
    return metadata.has(key) ? metadata.fail(key, `is true, but there is no tokenizer.ggml.${role}_token_id.`) : [];
  };
  const before = token('bos', addBos);
  const after = token('eos', false);
  if (before.length + after.length === 0) return null;
  const special = ({ text }: { text: string }): JsonObject => ({ SpecialToken: { id: text, type_id: 0 } });
  return {
    type: 'TemplateProcessing',
    single: [...before.map(special), { Sequence: { id: 'A', type_id: 0 } }, ...after.map(special)],
    pair: [],
    special_tokens: Object.fromEntries(
      [...before, ...after].map(({ text, id }) => [text, { id: text, ids: [id], tokens: [text] }]),
    ),
  };
}
