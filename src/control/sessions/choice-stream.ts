/** One choice: engine outputs in, deltas out. Text, stop strings, logprobs, finish reasons. */
import { NOTHING_ALLOWED, type FinishReason, type SequenceOutput } from '../engine/protocol.ts';
import { codePoints } from './code-points.ts';
import type { Detokenizer } from './detokenizer.ts';
import { appendDelta, type OutputParser, type ParsedDelta } from './parsers/output-parser.ts';
import { CallWatch, finishReason } from './parsers/reply-rules.ts';
import type { ReplyParsing } from './reply-parser.ts';
import { RepetitionScan, type RepetitionRule } from './repetition.ts';
import type { ChoiceDelta, ChoiceFinish, ReplyOptions, TokenLogprob } from './session.ts';
import type { StopScanner } from './stop-strings.ts';
import { tokenEntry, type TokenTable } from './token-table.ts';

export interface ChoiceRules {
  minTokens: number;
  includeStop: boolean;
  /** What the client asked for: the parser or the grammar of a reply may need its marks shown, but never the token that ends it. */
  skipSpecialTokens: boolean;
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

const REPETITION_REASON = 'repetition_detected';

function emptyDelta(index: number): ChoiceDelta {
  return {
    index,
    text: '',
    reasoning: '',
    toolCalls: [],
    tokens: 0,
    reasoningTokens: 0,
    tokenIds: [],
    logprobs: [],
    finish: null,
    stopReason: null,
  };
}

/** Appends pieces in order. Takes `pieces` over. */
export function addPieces(delta: ChoiceDelta, pieces: ParsedDelta[]): void {
  if (delta.pieces === undefined) delta.pieces = pieces;
  else for (const piece of pieces) appendDelta(delta.pieces, piece);
}

/** A text that its grammar ended has stopped by itself. */
function finishOf(finish: FinishReason): ChoiceFinish {
  if (finish === 'complete' || finish === 'none_allowed') return 'stop';
  return finish === 'error' ? 'abort' : finish;
}

export class ChoiceStream {
  readonly #index: number;
  readonly #table: TokenTable;
  readonly #detokenizer: Detokenizer;
  readonly #stops: StopScanner;
  readonly #rules: ChoiceRules;
  readonly #parser: OutputParser | null;
  readonly #ahead: OutputParser | null;
  readonly #repetition: RepetitionScan | null;
  #tokens = 0;
  #reasoningTokens = 0;
  /** Characters that tokens made, and those of them that no stop string took or holds back. */
  #made = 0;
  #shown = 0;
  readonly #calls = new CallWatch();
  #cut = false;

  /** `index`: of the choice; `parsing`: makes parsers of the choice's text; null: all of it is content. */
  constructor(
    index: number,
    table: TokenTable,
    detokenizer: Detokenizer,
    stops: StopScanner,
    rules: ChoiceRules,
    parsing: Pick<ReplyParsing, 'create' | 'countsReasoning'> | null,
  ) {
    this.#index = index;
    this.#table = table;
    this.#parser = parsing?.create() ?? null;
    // Sees the text at once: what a stop string holds back from the other may end the thoughts.
    this.#ahead = parsing?.countsReasoning === true && stops.holdsBack ? parsing.create() : null;
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

  /** The choice has ended and the engine does not know: its sequence must be aborted. */
  get cut(): boolean {
    return this.#cut;
  }

  /** What the output adds to the choice. `output.finish` is not 'error': the caller has dealt with that. */
  push(output: SequenceOutput): ChoiceDelta {
    const piece = emptyDelta(this.#index);
    if (this.#rules.promptOnly) return this.#promptEnd(piece, output);
    this.#read(piece, output);
    if (this.#parser && piece.finish !== null) {
      this.#take(piece, this.#parser.finish());
      piece.finish = finishReason(piece.finish, this.#rules.reply?.tools ?? 'none', this.#calls.hasWhole);
      piece.textEnd = this.#shown;
    }
    return piece;
  }

  #promptEnd(piece: ChoiceDelta, output: SequenceOutput): ChoiceDelta {
    if (output.tokens.length === 0 && output.finish === null) return piece;
    piece.finish = output.finish === 'abort' ? 'abort' : 'length';
    this.#cut = output.finish === null;
    return piece;
  }

  #read(piece: ChoiceDelta, output: SequenceOutput): void {
    const last = output.tokens.length - 1;
    for (const [i, id] of output.tokens.entries()) {
      const silent = i === last && output.finish === 'stop' && !this.#showsEnd(id);
      const text = silent ? '' : this.#detokenizer.push(id);
      const thought = this.#count(piece);
      this.#ahead?.push(text);
      const stopped = this.#feed(piece, text);
      // The tag that begins the thoughts goes with them.
      const hidden = this.#hidesThoughts && (thought || this.#inReasoning);
      if (!hidden) this.#tell(piece, output, i, text);
      this.#made += text.length;
      if (stopped) return this.#stoppedByText(piece, output, i === last);
      // Last of all checks: what ends at this token for another reason keeps that reason.
      if (this.#repeats(id) && !(i === last && output.finish !== null)) return this.#stoppedByRepetition(piece);
    }
    if (output.finish === null) return;
    if (this.#feed(piece, this.#detokenizer.flush())) return this.#stoppedByText(piece, output, true);
    this.#show(piece, this.#stops.flush());
    piece.finish = finishOf(output.finish);
    if (output.finish === 'none_allowed') piece.stopReason = NOTHING_ALLOWED;
    const stopId = output.tokens[last];
    if (output.finish === 'stop' && stopId !== undefined && !this.#rules.silentStopIds.has(stopId))
      piece.stopReason = stopId;
    if (output.stopReason !== undefined) piece.stopReason = output.stopReason;
  }

  #showsEnd(id: number): boolean {
    return this.#rules.includeStop && !(this.#rules.skipSpecialTokens && this.#table.isSpecial(id));
  }

  get #hidesThoughts(): boolean {
    return this.#rules.reply?.includeReasoning === false;
  }

  get #inReasoning(): boolean {
    return (this.#ahead ?? this.#parser)?.inReasoning === true;
  }

  /** True for a token of the reasoning: what stands before it decides, so the end tag is one too. */
  #count(piece: ChoiceDelta): boolean {
    this.#tokens++;
    piece.tokens++;
    const thought = this.#inReasoning;
    if (thought) {
      this.#reasoningTokens++;
      piece.reasoningTokens++;
    }
    return thought;
  }

  #tell(piece: ChoiceDelta, output: SequenceOutput, i: number, text: string): void {
    piece.tokenIds.push(output.tokens[i] ?? 0);
    if (this.#rules.withLogprobs) piece.logprobs.push(this.#logprob(output, i, codePoints(text)));
  }

  /** Text that no stop string holds back any more. */
  #show(piece: ChoiceDelta, text: string): void {
    this.#shown += text.length;
    if (this.#parser) this.#take(piece, this.#parser.push(text));
    else piece.text += text;
  }

  #take(piece: ChoiceDelta, deltas: ParsedDelta[]): void {
    for (const delta of deltas) {
      if ('content' in delta) piece.text += delta.content;
      else if ('reasoning' in delta) piece.reasoning += delta.reasoning;
      else {
        piece.toolCalls.push(delta.toolCall);
        this.#calls.take(delta.toolCall);
      }
    }
    if (deltas.length > 0) addPieces(piece, deltas);
  }

  /** True when a stop string was completed. */
  #feed(piece: ChoiceDelta, text: string): boolean {
    if (text === '') return false;
    const scan = this.#stops.feed(text, this.#tokens <= this.#rules.minTokens);
    this.#show(piece, scan.text);
    piece.stopReason = scan.stop;
    return scan.stop !== null;
  }

  #stoppedByText(piece: ChoiceDelta, output: SequenceOutput, atLast: boolean): void {
    piece.finish = 'stop';
    this.#cut = !(atLast && output.finish !== null);
  }

  /** Counts from the first token on; does not end the choice before min_tokens. */
  #repeats(id: number): boolean {
    return this.#repetition?.push(id) === true && this.#tokens >= this.#rules.minTokens;
  }

  #stoppedByRepetition(piece: ChoiceDelta): void {
    this.#cut = true;
    if (this.#feed(piece, this.#detokenizer.flush())) {
      piece.finish = 'stop';
      return;
    }
    this.#show(piece, this.#stops.flush());
    piece.finish = 'repetition';
    piece.stopReason = REPETITION_REASON;
  }

  #logprob(output: SequenceOutput, i: number, chars: number): TokenLogprob {
    const id = output.tokens[i] ?? 0;
    const top = output.top[i];
    const alternatives = top ? [...top.ids].map((topId, k) => tokenEntry(this.#table, topId, top.logprobs[k])) : [];
    return { ...tokenEntry(this.#table, id, output.logprobs[i]), top: alternatives, chars, at: this.#made };
  }
}
