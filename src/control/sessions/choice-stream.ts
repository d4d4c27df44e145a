/** One choice: engine outputs in, deltas out. Text, stop strings, logprobs, finish reasons. */
import type { SequenceOutput } from '../engine/protocol.ts';
import type { Detokenizer } from './detokenizer.ts';
import type { ChoiceFinish, TokenLogprob } from './session.ts';
import type { StopScanner } from './stop-strings.ts';
import type { TokenTable } from './token-table.ts';

export interface ChoiceRules {
  minTokens: number;
  includeStop: boolean;
  /** EOS ids that end the choice without a reason to report. */
  silentStopIds: ReadonlySet<number>;
  withLogprobs: boolean;
}

/** What one engine output adds to a choice. */
export interface ChoicePiece {
  text: string;
  tokenIds: number[];
  logprobs: TokenLogprob[];
  finish: ChoiceFinish | null;
  stopReason: string | number | null;
  /** The engine does not know that the choice has ended: its sequence must be aborted. */
  cut: boolean;
}

/** Lower values, infinity included, have no JSON form that clients accept. */
const LOGPROB_FLOOR = -9999;

export class ChoiceStream {
  readonly #table: TokenTable;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopScanner;
  readonly #rules: ChoiceRules;
  #tokens = 0;

  constructor(table: TokenTable, detokenizer: Detokenizer, stops: StopScanner, rules: ChoiceRules) {
    this.#table = table;
    this.#detokenizer = detokenizer;
    this.#stops = stops;
    this.#rules = rules;
  }

  /** Tokens generated, the stopping one included. */
  get tokens(): number {
    return this.#tokens;
  }

  /** `output.finish` is not 'error': the caller has dealt with that. */
  push(output: SequenceOutput): ChoicePiece {
    const piece: ChoicePiece = { text: '', tokenIds: [], logprobs: [], finish: null, stopReason: null, cut: false };
    const last = output.tokens.length - 1;
    for (const [i, id] of output.tokens.entries()) {
      this.#tokens++;
      piece.tokenIds.push(id);
      if (this.#rules.withLogprobs) piece.logprobs.push(this.#logprob(output, i));
      const silent = i === last && output.finish === 'stop' && !this.#rules.includeStop;
      const text = silent ? '' : this.#detokenizer.push(id);
      if (this.#feed(piece, text)) return this.#stoppedByText(piece, output, i === last);
    }
    if (output.finish === null) return piece;
    if (this.#feed(piece, this.#detokenizer.flush())) return this.#stoppedByText(piece, output, true);
    piece.text += this.#stops.flush();
    piece.finish = output.finish === 'error' ? 'abort' : output.finish;
    const stopId = output.tokens[last];
    if (output.finish === 'stop' && stopId !== undefined && !this.#rules.silentStopIds.has(stopId))
      piece.stopReason = stopId;
    return piece;
  }

  /** True when a stop string was completed. */
  #feed(piece: ChoicePiece, text: string): boolean {
    if (text === '') return false;
    const scan = this.#stops.feed(text, this.#tokens <= this.#rules.minTokens);
    piece.text += scan.text;
    piece.stopReason = scan.stop;
    return scan.stop !== null;
  }

  #stoppedByText(piece: ChoicePiece, output: SequenceOutput, atLast: boolean): ChoicePiece {
    piece.finish = 'stop';
    piece.cut = !(atLast && output.finish !== null);
    return piece;
  }

  #logprob(output: SequenceOutput, i: number): TokenLogprob {
    const id = output.tokens[i] ?? 0;
    const top = output.top[i];
    const alternatives = top ? [...top.ids].map((topId, k) => this.#entry(topId, top.logprobs[k])) : [];
    return { ...this.#entry(id, output.logprobs[i]), top: alternatives };
  }

  #entry(
    tokenId: number,
    logprob: number | undefined,
  ): { token: string; logprob: number; bytes: number[]; tokenId: number } {
    const value = logprob === undefined || Number.isNaN(logprob) ? LOGPROB_FLOOR : Math.max(logprob, LOGPROB_FLOOR);
    return { token: this.#table.text(tokenId), logprob: value, bytes: [...this.#table.bytes(tokenId)], tokenId };
  }
}
