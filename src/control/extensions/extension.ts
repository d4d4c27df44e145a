/**
 * What an extension module provides: `export const extensions = { name: {...}, ... }`. A request asks for one by its name in
 * `engine_xargs`. docs/extensions.md describes it to those who write one.
 *
 * Extensions see tokens and never logits. Everything is called synchronously and within a time bound.
 */

/** A value of `engine_xargs`; lists are frozen. */
export type ExtensionValue = string | number | (string | number)[];

export type ExtensionArguments = Readonly<Record<string, ExtensionValue>>;

export interface ExtensionContext {
  /** The prompt's token ids; a copy. */
  readonly promptTokens: Int32Array;
  /** Ids below this may be generated. */
  readonly vocabSize: number;
  /** Index of the choice within its request. */
  readonly choice: number;
}

/** What holds for the next token alone. Nothing = no wishes. */
export interface StepDirective {
  /** Token id -> what is added to its logit, clamped to [-100, 100]. */
  bias?: ReadonlyMap<number, number> | Readonly<Record<number, number>>;
  /** Only these ids may come. */
  allowed?: Iterable<number>;
  /** Ends the choice before the next token; its stop_reason is this text, or with true the extension's name. */
  stop?: boolean | string;
}

/** One choice under the extension. */
export interface SequenceExtension {
  /**
   * Called before every token of the choice with the output tokens so far (a copy). After a restart of the engine a new
   * instance goes on with the tokens that there are: what it answers may depend on them and on the argument alone.
   */
  step(outputTokens: Int32Array): StepDirective | undefined | null;
}

export interface EngineExtension {
  /** Throws an Error whose message tells the client what is wrong with its value. Called in the server's process. */
  check?(value: ExtensionValue): void;
  /** Called once per choice in the engine's process, before its first token. */
  create(value: ExtensionValue, context: ExtensionContext): SequenceExtension;
}
