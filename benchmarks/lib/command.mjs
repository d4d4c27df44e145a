/**
 * Runs a benchmark as a command. What is wrong with its command line ends it with one line, the usage and status 2; what goes wrong later,
 * with one line and status 1.
 */
export async function runCommand(usage, parse, main) {
  let options;
  try {
    options = parse();
  } catch (error) {
    console.error(`${error.message}\n\n${usage}`);
    process.exitCode = 2;
    return;
  }
  if (options.help) return console.log(usage);
  try {
    await main(options);
  } catch (error) {
    // Other kinds are faults of the benchmark's own.
    console.error(error.constructor === Error ? error.message : error);
    process.exitCode = 1;
  }
}
