/** Public data files that are not in the repository; tests that need them skip, visibly, where they are absent. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const DEFAULT = fileURLToPath(new URL('../../../../shared/data', import.meta.url));

export const SHARED_DATA = process.env['TANDEM_SHARED_DATA'] ?? DEFAULT;
export const hasSharedData = existsSync(join(SHARED_DATA, 'chat-templates', 'goldens.json'));

export function sharedPath(...path: string[]): string {
  return join(SHARED_DATA, ...path);
}

export function sharedBytes(...path: string[]): Buffer {
  return readFileSync(sharedPath(...path));
}

export function sharedText(...path: string[]): string {
  return readFileSync(join(SHARED_DATA, ...path), 'utf8');
}

export function sharedJson(...path: string[]): unknown {
  return JSON.parse(sharedText(...path));
}
