/** The addon's structured output: vocabularies, compiled grammars and matchers. */

export type NativeGrammarSource =
  | { kind: 'json_schema' | 'regex' | 'grammar' | 'structural_tag'; text: string }
  | { kind: 'choice'; choices: string[] }
  | { kind: 'json_object' };

export interface NativeGrammarOptions {
  /** accept: every JSON spelling of every valid value. generate: one spelling at least, within bounds on space and digits. */
  mode: 'accept' | 'generate';
  assertFormats: boolean;
  /** Dialect of a schema without $schema: draft 7, else 2020-12. */
  draft7: boolean;
  /** False: compact JSON. */
  anySpace: boolean;
  /** A regular expression of JSON white space instead of the mode's own; '' for none. */
  space: string;
  /** Objects that declare properties have no others, unless additionalProperties says so. */
  onlyDeclared: boolean;
  /** Time limit of the compilation. */
  seconds: number;
}

/** What to compile, and how. */
export interface GrammarSpec {
  source: NativeGrammarSource;
  options: NativeGrammarOptions;
}

/** Characters of what it was written as: what it takes while it waits. */
export function grammarSize({ source }: GrammarSpec): number {
  if (source.kind === 'json_object') return 0;
  return source.kind === 'choice' ? source.choices.reduce((sum, text) => sum + text.length, 0) : source.text.length;
}

/** Opaque; one per tokenizer. */
export interface NativeVocabulary {
  readonly size: number;
}

export interface NativeMatcher {
  /** False, and nothing changes, where the token may not come. */
  advance(token: number): boolean;
  advanceBytes(bytes: Uint8Array): boolean;
  /** Sets one bit per token that may come next; the array has ceil(vocabulary / 32) words. */
  fillMask(mask: Int32Array): void;
  canEnd(): boolean;
  /** Only an end token may come. */
  complete(): boolean;
  /** Undoes advances; the last 256 are kept. */
  rollback(count: number): void;
  /** Bytes that come next whatever is chosen. */
  forced(): Uint8Array;
  /** Tokens of a shortest way to an end; null where none was found. Generate mode. */
  completion(): Int32Array | null;
  clone(): NativeMatcher;
  /** Frees its memory now, not when it is collected; every later call throws. */
  release(): void;
}

export interface NativeGrammar {
  /** Bytes of its tables. */
  readonly bytes: number;
  /** No text is in its language. */
  readonly empty: boolean;
  readonly micros: number;
  createMatcher(vocabulary: NativeVocabulary): NativeMatcher;
  /** Frees its memory as soon as its matchers are gone; no further matcher can be made. */
  release(): void;
}

export interface ConstraintOptions {
  /** Those among them that have no text are ends: they may come exactly where the text may end. */
  stopIds: Int32Array;
  /** Of the output, >= 1. */
  maxTokens: number;
  /** Forced text may be given by `jump` instead of being sampled. */
  jumps: boolean;
}

/** One sequence under a grammar: where its output stands, whatever slot it runs in. */
export interface NativeConstraint {
  /** The output so far; tokens that are known already are skipped. One that does not fit ends the sequence at its next sample. */
  take(tokens: Int32Array): void;
  /** UTF-8 text that must come next, up to 1 KiB of it; a character may be cut. Empty where there is none. */
  forced(): Uint8Array;
  /**
   * Takes the first of these tokens, which spell a beginning of the forced text, as the next outputs; returns how many. What follows
   * them is sampled: never the last token of a text, nor one that a longer token could replace.
   */
  jump(tokens: Int32Array): number;
}

/** A grammar that the engine can hold a sequence to. */
export interface NativeProgram {
  constrain(options: ConstraintOptions): NativeConstraint;
  readonly micros: number;
  /** Bytes of its tables and of the masks that it keeps now. */
  heldBytes(): number;
  /** It remembers so many numbers that new ones will soon be refused: further sequences should get one that is compiled anew. */
  worn(): boolean;
}

/** A construct that is not decided while writing; `keyword` names it as the source does. */
export interface NativeRefusal {
  readonly keyword: string;
  readonly message: string;
  readonly micros: number;
}

export interface NativeGrammarAddon {
  /** Memory that the handles of grammars, matchers and programs hold in this process. */
  grammarBytes(): number;
  /** `offsets` has one entry more than there are tokens; a token without bytes is never allowed, but for the end tokens at an end. */
  createVocabulary(bytes: Uint8Array, offsets: Int32Array, endTokens: Int32Array): Promise<NativeVocabulary>;
  /** Compiles off the JS thread. Rejects with TypeError (malformed source), RangeError (over a bound) or Error (cancelled). */
  compileGrammar(
    source: NativeGrammarSource,
    options: NativeGrammarOptions,
  ): { result: Promise<NativeGrammar | NativeRefusal>; cancel(): void };
  /** The same for an engine whose tokens are the vocabulary's. */
  compileProgram(
    source: NativeGrammarSource,
    options: NativeGrammarOptions,
    vocabulary: NativeVocabulary,
  ): { result: Promise<NativeProgram | NativeRefusal>; cancel(): void };
}
