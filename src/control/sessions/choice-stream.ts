/** One choice: engine outputs in, deltas out. Text, stop strings, logprobs, finish reasons. */
import type { FinishReason, SequenceOutput } from '../engine/protocol.ts';
import { codePoints } from './code-points.ts';
import type { Detokenizer } from './detokenizer.ts';
import type { OutputParser, ParsedDelta, ToolCallDelta } from './parsers/output-parser.ts';
import { finishReason } from './parsers/reply-rules.ts';
import { RepetitionScan, type RepetitionRule } from './repetition.ts';
import type { ChoiceFinish, ReplyOptions, TokenLogprob } from './session.ts';
import type { StopScanner } from './stop-strings.ts';
import { tokenEntry, type TokenTable } from './token-table.ts';

export interface ChoiceRules {
  minTokens: number;
  includeStop: boolean;
  /** EOS ids that end the choice without a reason to report. */
  silentStopIds: ReadonlySet<number>;
  withLogprobs: boolean;
  /** null = the output may repeat itself. */
  repetition: RepetitionRule | null;
  /** The engine must generate a token to score a prompt; none of it is shown. */
  promptOnly: boolean;
  /** null: all text is content. */
  reply: ReplyOptions | null;
}

/** What one engine output adds to a choice. */
export interface ChoicePiece {
  text: string;
  reasoning: string;
  toolCalls: ToolCallDelta[];
  tokenIds: number[];
  logprobs: TokenLogprob[];
  finish: ChoiceFinish | null;
  stopReason: string | number | null;
  /** The engine does not know that the choice has ended: its sequence must be aborted. */
  cut: boolean;
}

/** Grammar and controls together left nothing to go on with. */
const NOTHING_ALLOWED_REASON = 'no_token_allowed';
const REPETITION_REASON = 'repetition_detected';

function emptyPiece(): ChoicePiece {
  return {
    text: '',
    reasoning: '',
    toolCalls: [],
    tokenIds: [],
    logprobs: [],
    finish: null,
    stopReason: null,
    cut: false,
  };
}

/** A text that its grammar ended has stopped by itself. */
function finishOf(finish: FinishReason): ChoiceFinish {
  if (finish === 'complete' || finish === 'none_allowed') return 'stop';
  return finish === 'error' ? 'abort' : finish;
}

function promptEnd(piece: ChoicePiece, output: SequenceOutput): ChoicePiece {
  if (output.tokens.length === 0 && output.finish === null) return piece;
  piece.finish = output.finish === 'abort' ? 'abort' : 'length';
  piece.cut = output.finish === null;
  return piece;
}

export class ChoiceStream {
  readonly #table: TokenTable;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopScanner;
  readonly #rules: ChoiceRules;
  readonly #parser: OutputParser | null;
  readonly #repetition: RepetitionScan | null;
  #tokens = 0;
  #reasoningTokens = 0;
  #hasCalls = false;

  constructor(
    table: TokenTable,
    detokenizer: Detokenizer,
    stops: StopScanner,
    rules: ChoiceRules,
    parser: OutputParser | null,
  ) {
    this.#table = table;
    this.#parser = parser;
    this.#detokenizer = detokenizer;
    this.#stops = stops;
    this.#rules = rules;
    this.#repetition = rules.repetition ? new RepetitionScan(rules.repetition) : null;
  }

  /** Tokens generated, the stopping one included. */
  get tokens(): number {
    return this.#tokens;
  }

  get reasoningTokens(): number {
    return this.#reasoningTokens;
  }

  /** `output.finish` is not 'error': the caller has dealt with that. */
  push(output: SequenceOutput): ChoicePiece {
    const hides = this.#parser?.inReasoning === true;
    const piece = this.#read(output);
    if (this.#parser) this.#parse(this.#parser, piece);
    // A token belongs to the reasoning that stood before it: the end tag too.
    if (hides) this.#reasoningTokens += piece.tokenIds.length;
    if (hides && this.#rules.reply?.includeReasoning === false) {
      piece.tokenIds = [];
      piece.logprobs = [];
    }
    return piece;
  }

  #parse(parser: OutputParser, piece: ChoicePiece): void {
    const deltas: ParsedDelta[] = parser.push(piece.text);
    if (piece.finish !== null) deltas.push(...parser.finish());
    piece.text = '';
    for (const delta of deltas) {
      if ('content' in delta) piece.text += delta.content;
      else if ('reasoning' in delta) piece.reasoning += delta.reasoning;
      else piece.toolCalls.push(delta.toolCall);
    }
    this.#hasCalls ||= piece.toolCalls.length > 0;
    if (piece.finish !== null)
      piece.finish = finishReason(piece.finish, this.#rules.reply?.tools ?? 'none', this.#hasCalls);
  }

  #read(output: SequenceOutput): ChoicePiece {
    const piece = emptyPiece();
    if (this.#rules.promptOnly) return promptEnd(piece, output);
    const last = output.tokens.length - 1;
    for (const [i, id] of output.tokens.entries()) {
      this.#tokens++;
      piece.tokenIds.push(id);
      const silent = i === last && output.finish === 'stop' && !this.#rules.includeStop;
      const text = silent ? '' : this.#detokenizer.push(id);
      if (this.#rules.withLogprobs) piece.logprobs.push(this.#logprob(output, i, codePoints(text)));
      if (this.#feed(piece, text)) return this.#stoppedByText(piece, output, i === last);
      // Last of all checks: what ends at this token for another reason keeps that reason.
      if (this.#repeats(id) && !(i === last && output.finish !== null)) return this.#stoppedByRepetition(piece);
    }
    if (output.finish === null) return piece;
    if (this.#feed(piece, this.#detokenizer.flush())) return this.#stoppedByText(piece, output, true);
    piece.text += this.#stops.flush();
    piece.finish = finishOf(output.finish);
    if (output.finish === 'none_allowed') piece.stopReason = NOTHING_ALLOWED_REASON;
    const stopId = output.tokens[last];
    if (output.finish === 'stop' && stopId !== undefined && !this.#rules.silentStopIds.has(stopId))
      piece.stopReason = stopId;
    if (output.stopReason !== undefined) piece.stopReason = output.stopReason;
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

  /** Counts from the first token on; does not end the choice before min_tokens. */
  #repeats(id: number): boolean {
    return this.#repetition?.push(id) === true && this.#tokens >= this.#rules.minTokens;
  }

  #stoppedByRepetition(piece: ChoicePiece): ChoicePiece {
    piece.cut = true;
    if (this.#feed(piece, this.#detokenizer.flush())) {
      piece.finish = 'stop';
      return piece;
    }
    piece.text += this.#stops.flush();
    piece.finish = 'repetition';
    piece.stopReason = REPETITION_REASON;
    return piece;
  }

  #logprob(output: SequenceOutput, i: number, chars: number): TokenLogprob {
    const id = output.tokens[i] ?? 0;
    const top = output.top[i];
    const alternatives = top ? [...top.ids].map((topId, k) => tokenEntry(this.#table, topId, top.logprobs[k])) : [];
    return { ...tokenEntry(this.#table, id, output.logprobs[i]), top: alternatives, chars };
  }
}
