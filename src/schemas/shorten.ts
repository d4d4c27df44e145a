/** What a client wrote, for an error that must not grow with it. By code points: a cut inside a surrogate pair would not be valid UTF-8. */
export function shorten(text: string, most: number): string {
  return text.length > most ? `${[...text.slice(0, 2 * most)].slice(0, most).join('')}…` : text;
}
