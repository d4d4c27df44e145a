/** How large an answer that is not streamed becomes, roughly: what is large is written in pieces. */
import type { WholeChoice } from '../generation/collect.ts';

/** Log-probabilities and alternatives, or ids of /tokenize, from which on an answer is large. */
export const LARGE_ANSWER = 10_000;
/** Characters and ids count as parts of an entry. */
const ENTRY_CHARS = 100;
const ID_CHARS = 8;

/** What an answer tells of its prompts, counted as often as it does. */
export interface PromptSize {
  /** Scores, alternatives included. */
  entries: number;
  /** Characters that echo repeats. */
  chars: number;
  ids: number;
}

export function isLarge(choices: readonly WholeChoice[], prompt: PromptSize): boolean {
  let entries = prompt.entries + (prompt.chars + ID_CHARS * prompt.ids) / ENTRY_CHARS;
  for (const { text, reasoning, tokenIds, logprobs } of choices) {
    entries += (text.length + reasoning.length + ID_CHARS * tokenIds.length) / ENTRY_CHARS;
    for (const { top } of logprobs) entries += 1 + top.length;
  }
  return entries >= LARGE_ANSWER;
}
