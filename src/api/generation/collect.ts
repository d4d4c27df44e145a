/** Gathers a whole answer per choice. */
import { joinCall, type ToolCall } from '../../control/sessions/parsers/output-parser.ts';
import type { ChoiceDelta, ChoiceFinish, TokenLogprob } from '../../control/sessions/session.ts';
import { deltaBytes, type AnswerBytes } from './answer-room.ts';

export interface WholeChoice {
  text: string;
  reasoning: string;
  toolCalls: ToolCall[];
  tokenIds: number[];
  logprobs: TokenLogprob[];
  finish: ChoiceFinish;
  stopReason: string | number | null;
}

/** `room`: of the whole answer. Where it has no more, the generation ends. */
export async function collectChoices(
  deltas: AsyncIterable<ChoiceDelta>,
  count: number,
  room: AnswerBytes,
): Promise<WholeChoice[]> {
  const pieces: string[][] = Array.from({ length: count }, () => []);
  const choices = pieces.map((): WholeChoice => ({
    text: '',
    reasoning: '',
    toolCalls: [],
    tokenIds: [],
    logprobs: [],
    finish: 'abort',
    stopReason: null,
  }));
  for await (const delta of deltas) {
    room.grow(deltaBytes(delta));
    const choice = choices[delta.index];
    if (choice === undefined) throw new Error(`A delta names choice ${delta.index} of ${count}.`);
    pieces[delta.index]?.push(delta.text);
    choice.reasoning += delta.reasoning;
    for (const call of delta.toolCalls) joinCall(choice.toolCalls, call);
    for (const id of delta.tokenIds) choice.tokenIds.push(id);
    for (const logprob of delta.logprobs) choice.logprobs.push(logprob);
    if (delta.finish !== null) choice.finish = delta.finish;
    if (delta.finish !== null) choice.stopReason = delta.stopReason;
  }
  choices.forEach((choice, index) => (choice.text = (pieces[index] ?? []).join('')));
  return choices;
}
