/** Large answers, written in pieces: neither their text nor all that it is made from lies in memory at once, and others are served between pieces. */
import { Readable } from 'node:stream';
import type { ChatCompletionResponse } from '../../schemas/chat-completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Envelope } from './envelope.ts';
import { chatChoice, type ReplyShape } from './chat.ts';
import { chatLogprobs } from './logprobs.ts';

/** Log-probabilities, alternatives included, from which on an answer goes out in pieces. */
export const LARGE_ANSWER = 10_000;
/** Tokens of one piece. */
const PIECE_TOKENS = 128;
/** Where the parts go. Inside a text its quotes would be escaped, so it stands where it was written. */
const CHOICES = '"choices":[]';
const CONTENT = '"logprobs":{"content":[]}';

export function isLarge(choices: WholeChoice[]): boolean {
  let entries = 0;
  for (const { logprobs } of choices) for (const { top } of logprobs) entries += 1 + top.length;
  return entries >= LARGE_ANSWER;
}

/** The JSON of `answer`, whose choices are these; they are emptied on the way. */
export function chatAnswerPieces(
  answer: ChatCompletionResponse,
  envelope: Envelope,
  shape: ReplyShape,
  choices: WholeChoice[],
): Readable {
  return Readable.from(pieces(answer, envelope, shape, choices), { objectMode: false });
}

function* pieces(
  answer: ChatCompletionResponse,
  envelope: Envelope,
  shape: ReplyShape,
  choices: WholeChoice[],
): Generator<string> {
  const [before, after] = halves(JSON.stringify({ ...answer, choices: [] }), CHOICES);
  yield `${before}"choices":[`;
  for (const [index, choice] of choices.entries()) {
    const logprobs = choice.logprobs;
    choice.logprobs = [];
    const [head, tail] = halves(JSON.stringify(chatChoice(envelope, shape, choice, index)), CONTENT);
    yield `${index === 0 ? '' : ','}${head}"logprobs":{"content":[`;
    for (let first = 0; first < logprobs.length; first += PIECE_TOKENS) {
      const part = chatLogprobs(logprobs.slice(first, first + PIECE_TOKENS), envelope.output.tokensAsIds);
      yield (first === 0 ? '' : ',') + JSON.stringify(part.content).slice(1, -1);
    }
    yield `]}${tail}`;
  }
  yield `]${after}`;
}

function halves(json: string, mark: string): [string, string] {
  const at = json.indexOf(mark);
  if (at === -1) throw new Error(`An answer without ${mark}.`);
  return [json.slice(0, at), json.slice(at + mark.length)];
}
