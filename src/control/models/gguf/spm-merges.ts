/** The scores of a sentencepiece vocabulary as the list of merges that byte-pair libraries read, as transformers converts them. */
import { ModelError } from '../errors.ts';

/** Cuts of all pieces together, weighted by their length: pieces are short in real files. */
const MAX_WORK = 2 ** 28;

interface Merge {
  left: string;
  right: string;
  score: number;
  leftLength: number;
  rightLength: number;
}

/** `pieces`: text -> id of what text may become, `scores` by id. Best merges first. */
export function mergesOf(
  pieces: ReadonlyMap<string, number>,
  scores: readonly number[],
  file: string,
): [string, string][] {
  const merges: Merge[] = [];
  let work = 0;
  for (const [text, id] of pieces) {
    work += text.length ** 2;
    if (work > MAX_WORK)
      throw new ModelError(file, 'tokenizer.ggml.tokens holds too much text for a sentencepiece vocabulary.');
    for (const merge of cutsOf(text, pieces)) merges.push({ ...merge, score: scores[id] ?? 0 });
  }
  merges.sort((a, b) => b.score - a.score || b.leftLength - a.leftLength || b.rightLength - a.rightLength);
  return merges.map(({ left, right }) => [left, right]);
}

/** All ways to make the piece of two others, by their ids. */
function cutsOf(text: string, pieces: ReadonlyMap<string, number>): Omit<Merge, 'score'>[] {
  const cuts: (Omit<Merge, 'score'> & { ids: [number, number] })[] = [];
  const characters = Array.from(text);
  let at = 0;
  for (const [i, character] of characters.slice(0, -1).entries()) {
    at += character.length;
    const [left, right] = [text.slice(0, at), text.slice(at)];
    const [leftId, rightId] = [pieces.get(left), pieces.get(right)];
    if (leftId === undefined || rightId === undefined) continue;
    cuts.push({ left, right, leftLength: i + 1, rightLength: characters.length - i - 1, ids: [leftId, rightId] });
  }
  return cuts.sort((a, b) => a.ids[0] - b.ids[0] || a.ids[1] - b.ids[1]);
}
