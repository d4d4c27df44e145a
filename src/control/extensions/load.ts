import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { guardExits } from './exit-guard.ts';
import type { EngineExtension } from './extension.ts';
import { Extensions } from './extensions.ts';

export interface ExtensionSettings {
  /** Modules, as paths. */
  modules: string[];
  /** For one check, or one step of one choice. */
  timeoutMs: number;
}

/** A module that has not loaded by then, such as one that waits for what never comes, is refused. */
const LOAD_TIMEOUT_MS = 30_000;
const STOPS = ['SIGTERM', 'SIGINT', 'SIGHUP', 'disconnect'];

/** Imports every module; ids below `vocabSize` may be generated. Throws a sentence that names the module at fault. */
export async function loadExtensions(
  { modules, timeoutMs }: ExtensionSettings,
  vocabSize: number,
  loadTimeoutMs: number = LOAD_TIMEOUT_MS,
): Promise<Extensions> {
  const found = new Map<string, EngineExtension>();
  if (modules.length > 0) guardExits();
  for (const path of modules) {
    for (const [name, extension] of await readModule(path, loadTimeoutMs)) {
      if (found.has(name)) throw new Error(`--engine-extension ${path}: another module has an extension '${name}'.`);
      found.set(name, extension);
    }
  }
  return new Extensions(found, timeoutMs, vocabSize);
}

async function readModule(path: string, timeoutMs: number): Promise<[string, EngineExtension][]> {
  const fail = (why: string) => new Error(`--engine-extension ${path}: ${why}`);
  let module: { extensions?: unknown };
  try {
    const load = () => within(timeoutMs, import(pathToFileURL(resolve(path)).href));
    module = (await namingWhoEnds(path, load)) as { extensions?: unknown };
  } catch (error) {
    throw fail(error instanceof Error ? error.message : String(error));
  }
  const { extensions } = module;
  if (typeof extensions !== 'object' || extensions === null)
    throw fail("it must export 'extensions', an object from names to extensions.");
  const entries = Object.entries(extensions);
  if (entries.length === 0) throw fail("its 'extensions' are empty.");
  return entries.map(([name, value]) => {
    if (!/^[\w.-]{1,64}$/.test(name)) throw fail(`'${name.slice(0, 80)}' is no name for an argument.`);
    if (!isExtension(value))
      throw fail(`'${name}' must have a function 'create', and 'check' must be one where given.`);
    return [name, value];
  });
}

/** A module that ends the process while it loads would leave nobody a word. What is asked to stop meanwhile is not ended by the module. */
async function namingWhoEnds(path: string, load: () => Promise<unknown>): Promise<unknown> {
  let isAsked = false;
  const ask = () => (isAsked = true);
  const name = () => {
    if (isAsked) return;
    process.stderr.write(`tandem: --engine-extension ${path}: it ended the process while it was being loaded.\n`);
    process.exitCode ||= 1;
  };
  // One more listener would keep a process without any from being stopped.
  const events: NodeJS.EventEmitter = process;
  const stops = STOPS.filter((event) => events.listenerCount(event) > 0);
  for (const event of stops) events.prependListener(event, ask);
  process.once('exit', name);
  try {
    return await load();
  } finally {
    process.off('exit', name);
    for (const event of stops) events.off(event, ask);
  }
}

/** The timer also keeps a process alive that would end, without a word, when nothing else is left to wait for. */
async function within(timeoutMs: number, loading: Promise<unknown>): Promise<unknown> {
  let timer: NodeJS.Timeout | undefined;
  const tooLong = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it did not load within ${timeoutMs} ms.`)), timeoutMs);
  });
  try {
    return await Promise.race([loading, tooLong]);
  } finally {
    clearTimeout(timer);
  }
}

function isExtension(value: unknown): value is EngineExtension {
  if (typeof value !== 'object' || value === null) return false;
  const { create, check } = value as Partial<EngineExtension>;
  return typeof create === 'function' && (check === undefined || typeof check === 'function');
}
