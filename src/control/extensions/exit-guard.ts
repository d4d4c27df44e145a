/** Calls that would end the process, refused while an extension runs: they are its own error, and what others asked for goes on. */
import { syncBuiltinESMExports } from 'node:module';

const ENDS = ['exit', 'reallyExit', 'abort'] as const;

type Call = (...args: unknown[]) => unknown;

let installed = false;
let refusing = false;

/** Once in a process, and before modules are imported: an imported function is the one that is there then. */
export function guardExits(): void {
  if (installed) return;
  installed = true;
  const calls = process as unknown as Record<string, Call>;
  const guard = (name: string, ends: (...args: unknown[]) => boolean) => {
    const call = calls[name];
    calls[name] = (...args) => {
      if (refusing && ends(...args)) throw new Error('it tried to end the process.');
      return call?.apply(process, args);
    };
  };
  for (const name of ENDS) guard(name, () => true);
  // 0 and what is below are groups that this process may be in.
  guard('kill', (pid) => Number(pid) <= 0 || Number(pid) === process.pid);
  syncBuiltinESMExports();
}

export function refusingExits(work: () => void): void {
  refusing = true;
  try {
    work();
  } finally {
    refusing = false;
  }
}
