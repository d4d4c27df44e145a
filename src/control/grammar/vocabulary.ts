/** A tokenizer's bytes as the native matchers need them. */
import type { NativeGrammarAddon, NativeVocabulary } from '../engine/native-grammar.ts';

export interface TokenBytes {
  readonly size: number;
  bytes(id: number): Uint8Array;
  isSpecial(id: number): boolean;
}

/** Special tokens have no bytes in a grammar: only the end tokens among them ever come, where a text may end. */
export function createVocabulary(
  addon: NativeGrammarAddon,
  table: TokenBytes,
  endTokens: readonly number[],
): Promise<NativeVocabulary> {
  const offsets = new Int32Array(table.size + 1);
  const pieces: Uint8Array[] = [];
  for (let id = 0; id < table.size; id++) {
    const piece = table.isSpecial(id) ? new Uint8Array(0) : table.bytes(id);
    pieces.push(piece);
    offsets[id + 1] = (offsets[id] ?? 0) + piece.length;
  }
  const bytes = new Uint8Array(offsets[table.size] ?? 0);
  for (const [id, piece] of pieces.entries()) bytes.set(piece, offsets[id]);
  return addon.createVocabulary(bytes, offsets, Int32Array.from(endTokens));
}
