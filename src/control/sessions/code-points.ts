/** Characters as clients in most languages count them: code points, not the units of UTF-16. */
export function codePoints(text: string): number {
  let length = text.length;
  for (let at = 0; at < text.length; at++) {
    if ((text.codePointAt(at) ?? 0) > 0xffff) {
      at++;
      length--;
    }
  }
  return length;
}
