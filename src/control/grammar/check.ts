/** Checks instances against schemas token by token, as serving would read them. */
import type {
  NativeGrammar,
  NativeGrammarAddon,
  NativeGrammarOptions,
  NativeMatcher,
  NativeVocabulary,
} from '../engine/native-grammar.ts';
import { compileGrammar, GrammarError } from './compile.ts';

export interface CheckCase {
  /** The schema's JSON text. */
  schema: string;
  instances: { text: string; valid: boolean }[];
}

export interface CheckResult {
  compiled: boolean;
  /** Refused keyword, or the kind of failure; null when compiled. */
  refused: string | null;
  message: string | null;
  validAccepted: number;
  validRefused: number;
  invalidAccepted: number;
  invalidRefused: number;
  compileMicros: number;
  maskMicros: number[];
}

export type Encode = (text: string) => Iterable<number>;

export class Checker {
  readonly #addon: NativeGrammarAddon;
  readonly #vocabulary: NativeVocabulary;
  readonly #encode: Encode;
  readonly #options: NativeGrammarOptions;
  readonly #mask: Int32Array;

  constructor(addon: NativeGrammarAddon, vocabulary: NativeVocabulary, encode: Encode, options: NativeGrammarOptions) {
    this.#addon = addon;
    this.#vocabulary = vocabulary;
    this.#encode = encode;
    this.#options = options;
    this.#mask = new Int32Array(Math.ceil(vocabulary.size / 32));
  }

  async check(item: CheckCase): Promise<CheckResult> {
    const result: CheckResult = {
      compiled: false,
      refused: null,
      message: null,
      validAccepted: 0,
      validRefused: 0,
      invalidAccepted: 0,
      invalidRefused: 0,
      compileMicros: 0,
      maskMicros: [],
    };
    const grammar = await this.#compile(item.schema, result);
    if (!grammar) return result;
    try {
      for (const { text, valid } of item.instances) {
        const accepted = this.#accepts(grammar, text, result.maskMicros);
        if (valid) accepted ? result.validAccepted++ : result.validRefused++;
        else accepted ? result.invalidAccepted++ : result.invalidRefused++;
      }
    } finally {
      grammar.release();
    }
    return result;
  }

  async #compile(schema: string, result: CheckResult): Promise<NativeGrammar | null> {
    const source = { kind: 'json_schema' as const, text: schema };
    try {
      const grammar = await compileGrammar(this.#addon, source, this.#options);
      result.compiled = true;
      result.compileMicros = grammar.micros;
      return grammar;
    } catch (error) {
      if (!(error instanceof GrammarError)) throw error;
      result.refused = error.keyword ?? error.kind;
      result.message = error.message;
      return null;
    }
  }

  /** Every token must be in the mask before it and be taken by the matcher; both always agree, or this throws. */
  #accepts(grammar: NativeGrammar, text: string, micros: number[]): boolean {
    const matcher = grammar.createMatcher(this.#vocabulary);
    try {
      for (const token of this.#encode(text)) {
        if (!this.#takes(matcher, token, micros)) return false;
      }
      return matcher.canEnd();
    } finally {
      matcher.release();
    }
  }

  #takes(matcher: NativeMatcher, token: number, micros: number[]): boolean {
    const start = performance.now();
    matcher.fillMask(this.#mask);
    micros.push((performance.now() - start) * 1000);
    const allowed = (((this.#mask[token >> 5] ?? 0) >>> (token & 31)) & 1) === 1;
    if (matcher.advance(token) !== allowed) throw new Error(`The mask and the matcher disagree about token ${token}.`);
    return allowed;
  }
}

/** Quantile of a sorted list; 0 when it is empty. */
export function quantile(sorted: readonly number[], part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? 0;
}
