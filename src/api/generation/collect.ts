/** Gathers a whole answer per choice. */
import type { ChoiceDelta, ChoiceFinish, TokenLogprob } from '../../control/sessions/session.ts';

export interface WholeChoice {
  text: string;
  tokenIds: number[];
  logprobs: TokenLogprob[];
  finish: ChoiceFinish;
  stopReason: string | number | null;
}

export async function collectChoices(deltas: AsyncIterable<ChoiceDelta>, count: number): Promise<WholeChoice[]> {
  const pieces: string[][] = Array.from({ length: count }, () => []);
  const choices = pieces.map((): WholeChoice => ({
    text: '',
    tokenIds: [],
    logprobs: [],
    finish: 'abort',
    stopReason: null,
  }));
  for await (const delta of deltas) {
    const choice = choices[delta.index];
    if (choice === undefined) throw new Error(`A delta names choice ${delta.index} of ${count}.`);
    pieces[delta.index]?.push(delta.text);
    for (const id of delta.tokenIds) choice.tokenIds.push(id);
    for (const logprob of delta.logprobs) choice.logprobs.push(logprob);
    if (delta.finish !== null) choice.finish = delta.finish;
    if (delta.finish !== null) choice.stopReason = delta.stopReason;
  }
  choices.forEach((choice, index) => (choice.text = (pieces[index] ?? []).join('')));
  return choices;
}
