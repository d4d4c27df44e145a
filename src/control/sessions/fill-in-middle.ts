/** Fill in the middle: what a model was trained to write between a prefix and a suffix, where its tokenizer has the tokens for it. */
import type { TokenTable } from './token-table.ts';

export interface FillTokens {
  prefix: string;
  suffix: string;
  middle: string;
}

/** As Qwen2.5 and StarCoder name them; prefix, then suffix, then the middle follows. */
const FORMS: readonly FillTokens[] = [
  { prefix: '<|fim_prefix|>', suffix: '<|fim_suffix|>', middle: '<|fim_middle|>' },
  { prefix: '<fim_prefix>', suffix: '<fim_suffix>', middle: '<fim_middle>' },
];

/** null: the model has none. */
export function fillTokensOf(table: Pick<TokenTable, 'idOf'>): FillTokens | null {
  return FORMS.find((form) => Object.values(form).every((text) => table.idOf(text as string) !== null)) ?? null;
}

/** The prompt after which the model writes the middle. */
export function fillPrompt({ prefix, suffix, middle }: FillTokens, before: string, after: string): string {
  return `${prefix}${before}${suffix}${after}${middle}`;
}
