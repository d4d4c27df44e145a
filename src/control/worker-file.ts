/** Where the entry of a thread lies. Threads need compiled code: from sources it comes from the build. */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** `entry`: as `sessions/render-worker`. */
export function workerFile(entry: string): string {
  const folder = import.meta.url.endsWith('.ts') ? '../../dist/control' : '.';
  const file = new URL(`${folder}/${entry}.js`, import.meta.url);
  if (!existsSync(file)) throw new Error(`${entry}.js is not built: run \`npm run build\`.`);
  return fileURLToPath(file);
}
