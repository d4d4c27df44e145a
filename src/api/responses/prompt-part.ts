/** What the answer of a text completion tells of its prompt: its text with echo, and its scores. */
import { MAX_PROMPT_LOGPROBS } from '../../control/sessions/prompt-scores.ts';
import { codePoints } from '../../control/sessions/code-points.ts';
import type { GenerationInput, Sessions } from '../../control/sessions/session.ts';
import type { CompletionLogprobs } from '../../schemas/completion-response.ts';
import type { PromptLogprob } from '../../schemas/prompt-logprobs.ts';
import { ApiError } from '../errors.ts';
import type { Run } from '../generation/run.ts';
import type { TextRequest } from '../requests/completion-request.ts';
import { completionLogprobs, promptLogprob, promptLogprobs, type TextToken } from './logprobs.ts';
import { madeFrom, type MadeList } from './pieces.ts';

type PromptWishes = Pick<TextRequest, 'echo' | 'promptLogprobs' | 'output'>;

export class PromptPart {
  /** '' without echo. */
  readonly text: string;
  readonly #run: Run;
  readonly #request: PromptWishes;
  readonly #topLogprobs: number | null;
  readonly #sessions: Sessions;

  /** Keeps nothing of the input but the text. */
  constructor(run: Run, input: GenerationInput, { echo, promptLogprobs, output }: PromptWishes, sessions: Sessions) {
    this.#run = run;
    this.#request = { echo, promptLogprobs, output };
    this.#topLogprobs = input.sampling.topLogprobs;
    this.#sessions = sessions;
    this.text = echo ? this.#promptText(input) : '';
  }

  /** With echo and logprobs: the prompt's entries, which come before the output's. From the first delta on. */
  logprobs(): CompletionLogprobs | null {
    const tokens = this.tokens();
    return tokens && completionLogprobs(tokens, this.#request.output.tokensAsIds, 0);
  }

  /** What these entries are made from. */
  tokens(): TextToken[] | null {
    const count = this.#topLogprobs;
    if (!this.#request.echo || count === null) return null;
    const { promptIds } = this.#run.generation;
    const scores = this.#run.generation.promptLogprobs() ?? [];
    const lengths = shownLengths(this.#sessions.textPieces(promptIds), this.text);
    return scores.map((score, at): TextToken => {
      const chars = lengths[at] ?? 0;
      if (score !== null) return { ...score, top: count === -1 ? score.top : score.top.slice(0, count), chars };
      const tokenId = promptIds[at] ?? 0;
      return { tokenId, token: this.#sessions.detokenize([tokenId]), chars, logprob: null };
    });
  }

  /** What `prompt_logprobs` asked for. From the first delta on. */
  scores(): PromptLogprob[] | null {
    return this.#asked === null ? null : promptLogprobs(this.#run.generation.promptLogprobs(), this.#asked);
  }

  largeScores(): MadeList | null {
    const count = this.#asked;
    const scores = count === null ? null : this.#run.generation.promptLogprobs();
    return scores && madeFrom(scores, (score) => promptLogprob(score, count ?? 0));
  }

  /** Alternatives of `prompt_logprobs`. */
  get #asked(): number | null {
    return this.#request.promptLogprobs === -1 ? Infinity : this.#request.promptLogprobs;
  }

  #promptText({ prompt, truncatePromptTokens }: GenerationInput): string {
    if (prompt.kind === 'text' && truncatePromptTokens === null) return prompt.text;
    if (prompt.kind === 'ids' && truncatePromptTokens === null) return this.#sessions.detokenize(prompt.ids);
    return this.#sessions.detokenize([...this.#run.generation.promptIds]);
  }
}

/** Code points of `text` per piece. What the tokenizer put before it (a token that begins texts, a space) is not in it. */
function shownLengths(pieces: string[], text: string): number[] {
  let unseen = Math.max(pieces.join('').lastIndexOf(text), 0);
  return pieces.map((piece) => {
    const hidden = Math.min(unseen, piece.length);
    unseen -= hidden;
    return codePoints(piece.slice(hidden));
  });
}

/** Every choice repeats its prompt's scores: throws when one answer would hold too many. `count`: as for promptEntries. */
export function checkScoredPrompts(runs: Run[], count: number | null, vocabSize: number): void {
  const entries = promptEntries(runs, count, vocabSize);
  if (entries <= MAX_PROMPT_LOGPROBS) return;
  const message = `The log-probabilities of these prompts make ${entries} entries; an answer has at most ${MAX_PROMPT_LOGPROBS}.`;
  throw new ApiError('invalid_parameter', message, 'prompt_logprobs');
}

/** Scores of all prompts in an answer, alternatives included. `count`: of alternatives, -1 = the whole vocabulary; null = there are no scores. */
export function promptEntries(runs: Run[], count: number | null, vocabSize: number): number {
  if (count === null) return 0;
  const each = (count === -1 ? vocabSize : count) + 1;
  return runs.reduce((sum, run) => sum + run.n * run.generation.promptIds.length * each, 0);
}

export function joinLogprobs(prompt: CompletionLogprobs | null, output: CompletionLogprobs): CompletionLogprobs {
  if (prompt === null) return output;
  return {
    text_offset: [...prompt.text_offset, ...output.text_offset],
    token_logprobs: [...prompt.token_logprobs, ...output.token_logprobs],
    tokens: [...prompt.tokens, ...output.tokens],
    top_logprobs: [...prompt.top_logprobs, ...output.top_logprobs],
  };
}
