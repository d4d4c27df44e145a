/** What --model names -> LoadedModel: a Hugging Face directory or a GGUF file. */
import { realpath, stat } from 'node:fs/promises';
import { loadDirectory, readDirectoryTexts } from './directory.ts';
import { ModelError } from './errors.ts';
import { loadForeignGguf } from './gguf/foreign.ts';
import { loadGguf, readGgufTexts } from './gguf/load.ts';
import type { ForeignModel, LoadedModel, ModelTexts } from './model.ts';

const MAX_WARNINGS = 20;

export async function loadModel(path: string): Promise<LoadedModel> {
  const found = await resolve(path);
  const model = await (found.isFile ? loadGguf(found.path) : loadDirectory(found.path));
  return { ...model, warnings: model.warnings.slice(0, MAX_WARNINGS) };
}

/** For an engine that reads the weights itself. */
export async function loadForeignModel(path: string): Promise<ForeignModel> {
  const found = await resolve(path);
  if (!found.isFile) throw new ModelError(path, 'is a directory; this engine serves GGUF files.');
  return loadForeignGguf(found.path);
}

/** What sessions need besides the weights. */
export async function readModelTexts(path: string): Promise<ModelTexts> {
  const found = await resolve(path);
  return found.isFile ? readGgufTexts(found.path) : readDirectoryTexts(found.path);
}

async function resolve(path: string): Promise<{ path: string; isFile: boolean }> {
  try {
    const found = await realpath(path);
    const info = await stat(found);
    if (info.isDirectory() || info.isFile()) return { path: found, isFile: info.isFile() };
  } catch {
    throw new ModelError(
      path,
      'does not exist or cannot be read. Name a directory or a GGUF file of this machine: nothing is downloaded.',
    );
  }
  throw new ModelError(path, 'is neither a directory nor a file.');
}
