/** The bookkeeping of a beam search, without an engine: candidates in, the best sequences out. */
import type { SamplingSpec } from '../engine/native.ts';
import type { SequenceOutput, TopLogprobs } from '../engine/protocol.ts';
import { SessionError } from './session.ts';

/** Every step runs so many sequences. */
const MAX_BEAM_WIDTH = 16;
/** Ids that end a beam, where they must not before min_tokens: their places among the alternatives come besides. */
const MAX_BARRED_ENDS = 32;
/** What a search asks the engine for at most. */
export const MAX_BEAM_ALTERNATIVES = 2 * MAX_BEAM_WIDTH + MAX_BARRED_ENDS;

type Ends = Pick<SamplingSpec, 'minTokens' | 'stopIds' | 'barredIds'>;

/** So many ids may not come yet. */
export function barredCount({ minTokens, stopIds, barredIds }: Ends, tokens: number): number {
  return tokens < minTokens ? stopIds.length + (barredIds?.length ?? 0) : 0;
}

/** Throws SessionError. */
export function checkSearch(width: number, ends: Ends): void {
  if (width > MAX_BEAM_WIDTH) {
    const message = `n, the width of a beam search, must be at most ${MAX_BEAM_WIDTH}, got ${width}.`;
    throw new SessionError('bad_request', message, 'n');
  }
  if (barredCount(ends, 0) <= MAX_BARRED_ENDS) return;
  const message = `A beam search with min_tokens takes at most ${MAX_BARRED_ENDS} stop_token_ids, EOS ids included.`;
  throw new SessionError('bad_request', message, 'stop_token_ids');
}

export interface Beam {
  tokens: number[];
  /** Parallel to tokens. */
  logprobs: number[];
  ranks: number[];
  top: TopLogprobs[];
  /** Sum of logprobs. */
  score: number;
  /** Its last token ended it. */
  ended: boolean;
}

/** A beam with one more token, which most candidates are never made into: it copies all that the beam has. */
interface Candidate {
  beam: Beam;
  id: number;
  logprob: number;
  rank: number;
  top: TopLogprobs;
  score: number;
}

export interface BeamRules {
  width: number;
  /** Ids that end a sequence. */
  endIds: ReadonlySet<number>;
  /** Neither these nor an end before so many tokens. */
  barredIds: ReadonlySet<number>;
  minTokens: number;
  /** Scores are divided by (prompt + output tokens) ** lengthPenalty; the ending token does not count. */
  lengthPenalty: number;
  promptTokens: number;
}

export class Beams {
  readonly #rules: BeamRules;
  #open: Beam[] = [{ tokens: [], logprobs: [], ranks: [], top: [], score: 0, ended: false }];
  /** The best `width` of those that ended. */
  #ended: Beam[] = [];

  constructor(rules: BeamRules) {
    this.#rules = rules;
  }

  /** Those that go on, best first. */
  get open(): readonly Beam[] {
    return this.#open;
  }

  /** `outputs`: for each open beam its next token's alternatives. */
  extend(outputs: readonly SequenceOutput[]): void {
    const { width, endIds, barredIds, minTokens } = this.#rules;
    const candidates: Candidate[] = [];
    for (const [at, beam] of this.#open.entries()) {
      const top = outputs[at]?.top[0];
      if (!top) continue;
      // The best that may come. What the client asks to be shown beyond them changes nothing.
      let left = 2 * width;
      for (const [place, id] of top.ids.entries()) {
        const logprob = top.logprobs[place] ?? -Infinity;
        if (!Number.isFinite(logprob)) continue;
        const ended = endIds.has(id);
        if ((ended || barredIds.has(id)) && beam.tokens.length < minTokens) continue;
        if (left-- === 0) break;
        const candidate = { beam, id, logprob, rank: place + 1, top, score: beam.score + logprob };
        if (ended) this.#ended.push(grow(candidate, true));
        else candidates.push(candidate);
      }
    }
    const best = candidates.sort((a, b) => b.score - a.score).slice(0, width);
    this.#open = best.map((candidate) => grow(candidate, false));
    this.#ended = this.#rank(this.#ended);
  }

  /** The best `width` of all, ended or not. */
  best(): Beam[] {
    return this.#rank([...this.#ended, ...this.#open]);
  }

  #rank(beams: Beam[]): Beam[] {
    return beams.sort((a, b) => this.#value(b) - this.#value(a)).slice(0, this.#rules.width);
  }

  #value({ tokens, score, ended }: Beam): number {
    const length = this.#rules.promptTokens + tokens.length - (ended ? 1 : 0);
    return score / length ** this.#rules.lengthPenalty;
  }
}

function grow({ beam, id, logprob, rank, top, score }: Candidate, ended: boolean): Beam {
  return {
    tokens: [...beam.tokens, id],
    logprobs: [...beam.logprobs, logprob],
    ranks: [...beam.ranks, rank],
    top: [...beam.top, top],
    score,
    ended,
  };
}
