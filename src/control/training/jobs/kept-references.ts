/**
 * Steps that an accepted job compares with stay beside its data, as links to their files: whoever deletes such a step meanwhile, even
 * between a crash and the next start, does not fail the job.
 */
import { copyFile, link, mkdir, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { BlobDraft } from '../../store/blob-store.ts';
import { ADAPTER_WEIGHTS_FILE } from '../../models/adapter-files.ts';
import { ADAPTER_CONFIG_FILE } from '../../models/peft-config.ts';
import type { Checkpoint, KeptAdapter } from '../ports.ts';

/** Bytes of files that are kept: as links, which take no room of their own while the step is there, or as copies. */
export interface KeptBytes {
  linked: number;
  copied: number;
}

/** Into the draft of the job's data. null: the files are gone. `linkFile`: for tests. */
export async function keepReference(
  draft: Pick<BlobDraft, 'directory'>,
  { step, adapter }: Checkpoint,
  linkFile: typeof link = link,
): Promise<KeptBytes | null> {
  const folder = join(draft.directory, `${nameOf(step)}-${adapter.version.split('.')[0] ?? ''}`);
  await mkdir(folder, { mode: 0o700 });
  const kept: KeptBytes = { linked: 0, copied: 0 };
  for (const file of [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE]) {
    const [from, to] = [join(adapter.directory, file), join(folder, file)];
    try {
      // Not every file system has links.
      const linked = await linkFile(from, to).then(
        () => true,
        () => copyFile(from, to).then(() => false),
      );
      kept[linked ? 'linked' : 'copied'] += (await stat(to)).size;
    } catch (error) {
      if ((error as { code?: unknown }).code === 'ENOENT') return null;
      throw error;
    }
  }
  return kept;
}

/** From the folder of the job's data, where the names of folders end with the digest of what is in them; null: the step was not kept. */
export async function keptReference(dataFolder: string, step: number): Promise<KeptAdapter | null> {
  for (const name of await readdir(dataFolder)) {
    const directory = join(dataFolder, name);
    if (name.startsWith(`${nameOf(step)}-`)) return { directory, version: name.slice(nameOf(step).length + 1) };
    if (name === nameOf(step)) return { directory };
  }
  return null;
}

function nameOf(step: number): string {
  return `step-${step}`;
}
