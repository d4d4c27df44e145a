/**
 * encrypted_content of reasoning items. The thoughts stand open in the item's `content`, so nothing is hidden here: it is their text in base64,
 * for clients that send nothing else back.
 */
const MARK = 'tandem-thoughts:';

export function packThoughts(text: string): string {
  return MARK + Buffer.from(text).toString('base64');
}

/** null: it is not ours. */
export function openThoughts(packed: string): string | null {
  return packed.startsWith(MARK) ? Buffer.from(packed.slice(MARK.length), 'base64').toString() : null;
}
