/** What a model says of its tokens, read once and shared by the sessions and the engine's grammars. */
import type { GrammarVocabulary } from '../engine/protocol.ts';
import { readModelTexts } from '../models/load.ts';
import type { GenerationDefaults, ModelTexts } from '../models/model.ts';
import type { TokenizerFiles } from '../models/tokenizer-files.ts';
import { TokenTable } from './token-table.ts';

export interface ModelTokenizer {
  files: TokenizerFiles;
  table: TokenTable;
  vocabSize: number;
  /** With all ids that end a turn, the tokenizer's own first. */
  generation: GenerationDefaults;
}

/** Special tokens that replies are told apart by: in a grammar they are text like any other. */
const MARKS: ReadonlySet<string> = new Set([
  '<think>',
  '</think>',
  '<tool_call>',
  '</tool_call>',
  '[TOOL_CALLS]',
  '[ARGS]',
  '<|python_tag|>',
  '<|python_start|>',
  '<|python_end|>',
  '<|start|>',
  '<|channel|>',
  '<|constrain|>',
  '<|message|>',
  '<|end|>',
]);

export async function readModelTokenizer(path: string): Promise<ModelTokenizer> {
  return modelTokenizer(await readModelTexts(path));
}

/** Of a model that has been read already. */
export function modelTokenizer({ vocabSize, generation, tokenizer: files }: ModelTexts): ModelTokenizer {
  const table = new TokenTable(files);
  const eosText = files.specialTokens['eos_token'];
  const eosId = eosText === undefined ? null : table.idOf(eosText);
  // The tokenizer's eos_token ends a turn as well: chat models may name it only there. It comes first: it is the usual end.
  const eosTokenIds = [...new Set([...(eosId === null ? [] : [eosId]), ...generation.eosTokenIds])];
  return { files, table, vocabSize, generation: { ...generation, eosTokenIds } };
}

/** Tokens that end a turn and special tokens that are no marks have no text: no grammar lets them into one. */
export function grammarVocabulary({ table, generation }: ModelTokenizer): GrammarVocabulary {
  const ends = new Set(generation.eosTokenIds);
  const hasText = (id: number) => !ends.has(id) && (!table.isSpecial(id) || MARKS.has(table.text(id)));
  const pieces = Array.from({ length: table.size }, (_, id) => (hasText(id) ? table.bytes(id) : new Uint8Array(0)));
  const offsets = new Int32Array(table.size + 1);
  pieces.forEach((piece, id) => (offsets[id + 1] = (offsets[id] ?? 0) + piece.length));
  const bytes = new Uint8Array(offsets[table.size] ?? 0);
  pieces.forEach((piece, id) => bytes.set(piece, offsets[id]));
  return { bytes, offsets };
}
