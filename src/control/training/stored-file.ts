/** A file of the store on its way to a client. */
import { open, type FileHandle } from 'node:fs/promises';
import { ServiceError } from './service-error.ts';

export interface StoredContent {
  bytes: number;
  content: NodeJS.ReadableStream;
}

/** Of a file that the database names. Rejects with ServiceError where the disk has it no more. */
export async function openStored(path: string): Promise<StoredContent> {
  const file = await open(path).catch((error: unknown) => {
    throw lost(error);
  });
  return { bytes: await sizeOf(file), content: file.createReadStream() };
}

async function sizeOf(file: FileHandle): Promise<number> {
  try {
    return (await file.stat()).size;
  } catch (error) {
    await file.close();
    throw error;
  }
}

function lost(error: unknown): unknown {
  const { code } = error as { code?: unknown };
  if (code !== 'ENOENT' && code !== 'ENOTDIR') return error;
  return new ServiceError('file_lost', "The file is missing in the server's storage.", null, null, { cause: error });
}
