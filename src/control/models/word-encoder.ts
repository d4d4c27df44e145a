/**
 * Text between special tokens -> token ids, by the parts of @huggingface/tokenizers in the original's order. The library puts them together
 * in its own way: beside an added token that takes the white space around it others of white space are lost, every piece of a normalised text
 * counts as its first, unknown characters of several words become one token, and one that becomes none keeps those beside it apart.
 */
import { Tokenizer } from '@huggingface/tokenizers';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError } from './errors.ts';
import type { JsonObject } from './json-file.ts';
import { exactNormalizer } from './normalizer.ts';
import { exactPreTokenizer } from './pre-tokenizer.ts';
import { SpecialSplitter } from './special-splitter.ts';
import { TOKENIZER_FILE, type AddedToken, type TokenizerFiles } from './tokenizer-files.ts';

type Model = NonNullable<Tokenizer['model']>;

const utf8 = new TextEncoder();

export class WordEncoder {
  readonly #library: Tokenizer;
  readonly #model: Model;
  /** Added tokens that are found in the text as it is, and those that are found when it is normalised. */
  readonly #asWritten: SpecialSplitter;
  readonly #normalized: SpecialSplitter;
  readonly #added: ReadonlyMap<string, number>;
  /** What is unknown becomes no token. */
  readonly #drops: boolean;

  constructor(files: TokenizerFiles) {
    this.#library = createLibrary(files);
    this.#model = this.#library.model as Model;
    const ordinary = files.addedTokens.filter((token) => !token.special);
    this.#asWritten = new SpecialSplitter(ordinary.filter((token) => !token.normalized));
    this.#normalized = new SpecialSplitter(ordinary.flatMap((token) => this.#normalizedToken(token)));
    this.#added = new Map(ordinary.map(({ content, id }) => [content, id]));
    this.#drops = (this.#model.unk_token ?? null) === null;
  }

  /** `atStart`: nothing stands before. */
  encode(text: string, atStart: boolean, ids: number[]): void {
    for (const piece of this.#asWritten.split(text)) {
      if (piece.kind === 'token') {
        ids.push(piece.id);
        continue;
      }
      for (const part of this.#normalized.split(this.#normalize(piece.text))) {
        if (part.kind === 'token') ids.push(part.id);
        else this.#encodePart(part.text, atStart && piece.atStart && part.atStart, ids);
      }
    }
  }

  /** Of the text as the vocabulary writes it; special tokens are not found. */
  idOf(text: string): number | undefined {
    return this.#added.get(text) ?? this.#model.tokens_to_ids.get(text);
  }

  #normalize(text: string): string {
    return this.#library.normalizer?.normalize(text) ?? text;
  }

  #normalizedToken(token: AddedToken): AddedToken[] {
    const content = token.normalized ? this.#normalize(token.content) : '';
    return content === '' ? [] : [{ ...token, content }];
  }

  #encodePart(text: string, atStart: boolean, ids: number[]): void {
    const words = this.#library.pre_tokenizer?.pre_tokenize(text, { section_index: atStart ? 0 : 1 }) ?? [text];
    for (const word of words) {
      for (const token of this.#tokensOf(word)) {
        const id = this.#model.tokens_to_ids.get(token) ?? this.#model.unk_token_id;
        if (id !== undefined) ids.push(id);
      }
    }
  }

  #tokensOf(word: string): string[] {
    const tokens = this.#model([word]);
    if (!this.#drops || tokens.join('') === word) return tokens;
    const known = Array.from(word)
      .filter((character) => this.#isKnown(character))
      .join('');
    return known === word ? tokens : this.#model([known]);
  }

  #isKnown(character: string): boolean {
    const { tokens_to_ids: ids, config } = this.#model;
    if (ids.has(character) || !('byte_fallback' in config) || config.byte_fallback !== true) return ids.has(character);
    return [...utf8.encode(character)].every((byte) =>
      ids.has(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`),
    );
  }
}

function createLibrary(files: TokenizerFiles): Tokenizer {
  const json = {
    ...files.tokenizer,
    normalizer: exactNormalizer(files.tokenizer['normalizer']),
    pre_tokenizer: exactPreTokenizer(files.tokenizer['pre_tokenizer']),
    model: withoutSpecial(files),
    post_processor: null,
    decoder: null,
    added_tokens: [],
  };
  try {
    return new Tokenizer(json, {});
  } catch (error) {
    throw new ModelError(TOKENIZER_FILE, error instanceof Error ? error.message : 'cannot be used.');
  }
}

/** The model, which makes no special tokens of words: a client could write one letter by letter. The one of what is unknown stays. */
function withoutSpecial({ tokenizer, addedTokens }: TokenizerFiles): unknown {
  const model = tokenizer['model'];
  if (!isPlainObject(model) || !isPlainObject(model['vocab']) || !Array.isArray(model['merges'])) return model;
  const vocab: JsonObject = model['vocab'];
  const merges = model['merges'] as (string | string[])[];
  const special = new Set(addedTokens.filter((token) => token.special).map(({ content }) => content));
  special.delete(String(model['unk_token']));
  if (![...special].some((text) => Object.hasOwn(vocab, text))) return model;
  const made = (merge: string | string[]): string => (typeof merge === 'string' ? merge.split(' ') : merge).join('');
  return {
    ...model,
    vocab: Object.fromEntries(Object.entries(vocab).filter(([text]) => !special.has(text))),
    merges: merges.filter((merge) => !special.has(made(merge))),
  };
}
