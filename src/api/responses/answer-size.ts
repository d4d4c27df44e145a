/** How large an answer that is not streamed becomes, roughly: what is large is written in pieces. */
import type { WholeChoice } from '../generation/collect.ts';

/** Log-probabilities and alternatives, or ids of /tokenize, from which on an answer is large. */
export const LARGE_ANSWER = 10_000;
/** Characters and ids count as parts of an entry. */
const ENTRY_CHARS = 100;
const ID_CHARS = 8;

/** `promptEntries`: scores of the prompt, alternatives included. */
export function isLarge(choices: readonly WholeChoice[], promptEntries: number): boolean {
  let entries = promptEntries;
  for (const { text, reasoning, tokenIds, logprobs } of choices) {
    entries += (text.length + reasoning.length + ID_CHARS * tokenIds.length) / ENTRY_CHARS;
    for (const { top } of logprobs) entries += 1 + top.length;
  }
  return entries >= LARGE_ANSWER;
}
