/** The flags of a script and what else it was given; an unknown one ends it, with the usage and status 2. Loads nothing: it runs before set-up. */
export function readFlags(usage, known, takesNames = false) {
  const given = process.argv.slice(2);
  const unknown = given.find((text) => (text.startsWith('-') ? !known.includes(text) : !takesNames));
  if (unknown !== undefined) {
    console.error(`Unknown option '${unknown}'\n\n${usage}`);
    process.exit(2);
  }
  return { flags: new Set(given), names: given.filter((text) => !text.startsWith('-')) };
}
