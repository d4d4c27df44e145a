/** Text -> token ids. Special tokens are split off first, so that the caller decides what counts as one (see special-text.ts). */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from './errors.ts';
import { show } from './fields.ts';
import { TOKENIZER_FILE, type TokenizerFiles } from './tokenizer-files.ts';
import { SpecialSplitter } from './special-splitter.ts';
import { WordEncoder } from './word-encoder.ts';

/** Stand where ids of another text are put in. */
export const SLOT_OPEN = -1;
export const SLOT_CLOSE = -2;

export interface EncodeOptions {
  addSpecialTokens: boolean;
  /** A character to take out of the text between special tokens; null = none. */
  mark: string | null;
  /** Each occurrence of the character becomes SLOT_OPEN, the ids of the next text (none for null) and SLOT_CLOSE. */
  slots?: { character: string; texts: (string | null)[] };
  /** The text goes on after another one: nothing that a tokenizer puts before a first word comes. */
  goesOn?: boolean;
}

export class PromptEncoder {
  readonly #words: WordEncoder;
  readonly #splitter: SpecialSplitter;
  readonly #vocabulary: readonly string[];
  readonly #before: number[];
  readonly #after: number[];

  constructor(files: TokenizerFiles) {
    checkModel(files);
    this.#splitter = new SpecialSplitter(files.addedTokens.filter((token) => token.special));
    this.#words = new WordEncoder(files);
    this.#vocabulary = files.vocabulary;
    const around = specialTokensAround(files);
    checkIds(around, files.vocabulary.length);
    this.#before = around.before;
    this.#after = around.after;
  }

  encode(text: string, options: EncodeOptions): Int32Array {
    const ids: number[] = options.addSpecialTokens ? [...this.#before] : [];
    const open = (options.slots?.texts ?? []).values();
    for (const piece of this.#splitter.split(wellFormed(text))) {
      if (piece.kind === 'token') {
        ids.push(piece.id);
        continue;
      }
      const unmarked = options.mark ? piece.text.replaceAll(options.mark, '') : piece.text;
      const [first = '', ...rest] = options.slots ? unmarked.split(options.slots.character) : [unmarked];
      this.#words.encode(first, piece.atStart && options.goesOn !== true, ids);
      for (const between of rest) {
        ids.push(SLOT_OPEN);
        this.#words.encode(wellFormed(open.next().value ?? ''), false, ids);
        ids.push(SLOT_CLOSE);
        this.#words.encode(between, false, ids);
      }
    }
    if (options.addSpecialTokens) ids.push(...this.#after);
    return Int32Array.from(ids);
  }

  /** As the vocabulary writes it; undefined for ids that it lacks, and for special tokens. */
  tokenText(id: number): string | undefined {
    const text = this.#vocabulary[id];
    return text !== undefined && this.#words.idOf(text) === id ? text : undefined;
  }

  /** Of the text as the vocabulary writes it. */
  tokenOf(text: string): number | undefined {
    return this.#words.idOf(text);
  }
}

/** Unpaired surrogates have no UTF-8 form. */
function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd');
}

/** BPE options that the library does not honour, and patterns that it would leave out. */
function checkModel(files: TokenizerFiles): void {
  checkPatterns(files.tokenizer['normalizer']);
  checkPatterns(files.tokenizer['pre_tokenizer']);
  const model = files.tokenizer['model'];
  if (!isPlainObject(model)) return;
  for (const name of ['dropout', 'continuing_subword_prefix', 'end_of_word_suffix']) {
    if (model[name]) throw new ModelError(TOKENIZER_FILE, `model.${name} is not supported.`);
  }
}

function checkPatterns(step: unknown): void {
  if (Array.isArray(step)) return step.forEach(checkPatterns);
  if (!isPlainObject(step)) return;
  const { pattern, normalizers, pretokenizers } = step;
  const known =
    isPlainObject(pattern) && (typeof pattern['String'] === 'string' || typeof pattern['Regex'] === 'string');
  if (pattern !== undefined && !known)
    throw new ModelError(TOKENIZER_FILE, `has the pattern ${show(pattern)}, which is neither String nor Regex.`);
  checkPatterns(normalizers);
  checkPatterns(pretokenizers);
}

interface Around {
  before: number[];
  after: number[];
}

/** What the post-processor puts around a text, as ids. */
function specialTokensAround(files: TokenizerFiles): Around {
  const around = readProcessor(files.tokenizer['post_processor'] ?? null);
  if (!/^(Code)?Llama/.test(String(files.config['tokenizer_class'] ?? ''))) return around;
  // transformers rebuilds the post-processor of its Llama tokenizers from these two flags.
  const bos = idOf(files, 'bos_token');
  const eos = idOf(files, 'eos_token');
  const { add_bos_token: addBos, add_eos_token: addEos } = files.config;
  return {
    before: typeof addBos === 'boolean' ? (addBos && bos !== null ? [bos] : []) : around.before,
    after: typeof addEos === 'boolean' ? (addEos && eos !== null ? [eos] : []) : around.after,
  };
}

function checkIds({ before, after }: Around, tokens: number): void {
  const beyond = [...before, ...after].find((id) => id >= tokens);
  if (beyond !== undefined)
    throw new ModelError(TOKENIZER_FILE, `post_processor adds the id ${beyond}, but there are ${tokens} tokens.`);
}

function idOf(files: TokenizerFiles, name: string): number | null {
  const text = files.specialTokens[name];
  const id = text === undefined ? -1 : files.vocabulary.indexOf(text);
  return id === -1 ? null : id;
}

function readProcessor(processor: unknown): Around {
  if (processor === null) return { before: [], after: [] };
  const fail = (): never => {
    const type = isPlainObject(processor) ? JSON.stringify(processor['type']) : 'that is not an object';
    throw new ModelError(TOKENIZER_FILE, `post_processor ${type} is not supported.`);
  };
  if (!isPlainObject(processor)) return fail();
  if (processor['type'] === 'ByteLevel') return { before: [], after: [] };
  if (processor['type'] === 'TemplateProcessing') return readTemplate(processor) ?? fail();
  if (processor['type'] === 'BertProcessing' || processor['type'] === 'RobertaProcessing')
    return readPair(processor) ?? fail();
  if (processor['type'] !== 'Sequence' || !Array.isArray(processor['processors'])) return fail();
  return processor['processors']
    .map(readProcessor)
    .reduce(
      (inner, outer) => ({ before: [...outer.before, ...inner.before], after: [...inner.after, ...outer.after] }),
      { before: [], after: [] },
    );
}

/** `[text, id]` of what stands before and behind. */
function readPair({ cls, sep }: Record<string, unknown>): Around | null {
  const ids = [cls, sep].map((token) => (Array.isArray(token) ? (token[1] as unknown) : null));
  const [before, after] = ids.map((id) => (typeof id === 'number' && Number.isInteger(id) && id >= 0 ? id : null));
  return typeof before === 'number' && typeof after === 'number' ? { before: [before], after: [after] } : null;
}

function readTemplate(processor: Record<string, unknown>): Around | null {
  const { single, special_tokens: tokens } = processor;
  if (!Array.isArray(single) || !isPlainObject(tokens)) return null;
  const around: Around = { before: [], after: [] };
  let side = around.before;
  for (const item of single as unknown[]) {
    if (!isPlainObject(item)) return null;
    if (isPlainObject(item['Sequence'])) side = around.after;
    const special = item['SpecialToken'];
    if (!isPlainObject(special)) continue;
    const entry = Object.hasOwn(tokens, String(special['id'])) ? tokens[String(special['id'])] : null;
    if (!isPlainObject(entry) || !Array.isArray(entry['ids'])) return null;
    for (const id of entry['ids']) {
      if (typeof id !== 'number' || !Number.isInteger(id) || id < 0) return null;
      side.push(id);
    }
  }
  return around;
}
