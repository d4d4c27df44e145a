/** Compilation of grammars off the JS thread, with one error type for everything that is wrong with a source. */
import type {
  NativeGrammar,
  NativeGrammarAddon,
  NativeGrammarOptions,
  NativeGrammarSource,
} from '../engine/native-grammar.ts';

export type GrammarErrorKind = 'refused' | 'malformed' | 'bound' | 'cancelled';

export class GrammarError extends Error {
  readonly kind: GrammarErrorKind;
  /** What is refused, as the source names it; null for other kinds. */
  readonly keyword: string | null;

  constructor(kind: GrammarErrorKind, message: string, keyword: string | null = null) {
    super(message);
    this.name = 'GrammarError';
    this.kind = kind;
    this.keyword = keyword;
  }
}

const DEFAULT_SECONDS = 5;
/** While others wait. */
const SERVING_SECONDS = 2;

export const GENERATE: NativeGrammarOptions = {
  mode: 'generate',
  assertFormats: true,
  draft7: false,
  anySpace: true,
  space: '',
  onlyDeclared: false,
  seconds: DEFAULT_SECONDS,
};

/** What replies are held to. */
export const SERVE: NativeGrammarOptions = { ...GENERATE, seconds: SERVING_SECONDS };

export const ACCEPT: NativeGrammarOptions = { ...GENERATE, mode: 'accept', assertFormats: false };

/** Throws GrammarError. An abort of the signal stops the compilation. */
export async function compileGrammar(
  addon: NativeGrammarAddon,
  source: NativeGrammarSource,
  options: NativeGrammarOptions,
  signal?: AbortSignal,
): Promise<NativeGrammar> {
  if (signal?.aborted) throw new GrammarError('cancelled', 'the compilation was cancelled');
  const { result, cancel } = addon.compileGrammar(source, options);
  signal?.addEventListener('abort', cancel, { once: true });
  try {
    const compiled = await result;
    if ('keyword' in compiled) throw new GrammarError('refused', compiled.message, compiled.keyword);
    return compiled;
  } catch (error) {
    throw asGrammarError(error, signal);
  } finally {
    signal?.removeEventListener('abort', cancel);
  }
}

function asGrammarError(error: unknown, signal: AbortSignal | undefined): unknown {
  if (error instanceof GrammarError || !(error instanceof Error)) return error;
  if (signal?.aborted) return new GrammarError('cancelled', error.message);
  if (error instanceof TypeError) return new GrammarError('malformed', error.message);
  if (error instanceof RangeError) return new GrammarError('bound', error.message);
  return error;
}
