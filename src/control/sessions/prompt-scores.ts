/** The scores of a prompt's tokens, from the pieces that the engine sends while it computes the prompt. */
import type { PromptLogprobs } from '../engine/protocol.ts';
import type { PromptTokenLogprob } from './session.ts';
import { SessionError } from './session.ts';
import { tokenEntry, type TokenTable } from './token-table.ts';

/** Entries of one answer, alternatives included: each is about 70 bytes of JSON. */
export const MAX_PROMPT_LOGPROBS = 2 ** 18;

/** Throws SessionError. */
export function checkPromptScores(promptTokens: number, alternatives: number): void {
  const entries = promptTokens * (alternatives + 1);
  if (entries <= MAX_PROMPT_LOGPROBS) return;
  const message = `prompt_logprobs=${alternatives} for ${promptTokens} prompt tokens makes ${entries} entries; an answer has at most ${MAX_PROMPT_LOGPROBS}.`;
  throw new SessionError('bad_request', message, 'prompt_logprobs');
}

export class PromptScores {
  readonly #ids: Int32Array;
  readonly #table: TokenTable;
  readonly #pieces: PromptLogprobs[] = [];
  /** Position of the next token without a score. */
  #next = 1;

  constructor(ids: Int32Array, table: TokenTable) {
    this.#ids = ids;
    this.#table = table;
  }

  get complete(): boolean {
    return this.#next >= this.#ids.length;
  }

  add(piece: PromptLogprobs): void {
    this.#pieces.push(piece);
    this.#next = piece.start + piece.logprobs.length;
  }

  read(): (PromptTokenLogprob | null)[] {
    const all: (PromptTokenLogprob | null)[] = Array.from({ length: this.#ids.length }, () => null);
    for (const piece of this.#pieces) {
      for (const [at, logprob] of piece.logprobs.entries()) {
        const top = piece.top[at];
        all[piece.start + at] = {
          ...tokenEntry(this.#table, this.#ids[piece.start + at] ?? 0, logprob),
          rank: piece.ranks[at] ?? 0,
          top: top ? [...top.ids].map((id, k) => tokenEntry(this.#table, id, top.logprobs[k])) : [],
        };
      }
    }
    return all;
  }
}
