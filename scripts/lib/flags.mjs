/**
 * The flags of a script and what else it was given; `--help` ends it with the usage, an unknown one with that and status 2. Loads nothing: it
 * runs before set-up.
 */
export function readFlags(usage, known, takesNames = false) {
  const given = process.argv.slice(2);
  if (given.includes('--help') || given.includes('-h')) {
    console.log(usage);
    process.exit(0);
  }
  const unknown = given.find((text) => (text.startsWith('-') ? !known.includes(text) : !takesNames));
  if (unknown !== undefined) {
    console.error(`Unknown option '${unknown}'\n\n${usage}`);
    process.exit(2);
  }
  return { flags: new Set(given), names: given.filter((text) => !text.startsWith('-')) };
}
