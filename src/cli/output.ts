/** Where the server writes while it serves. */
import { constants, fstatSync, openSync, writeSync } from 'node:fs';
import type { Output } from './progress.ts';

/**
 * A write to a pipe or terminal whose reader rests (a pager, Ctrl-S) waits for it, and every request with it. Opened anew, the same pipe has flags
 * of its own: a write that would wait fails, and whoever shares the descriptor notices nothing. Files never wait. Sockets cannot be opened anew,
 * nor what belongs to another user: there a write may wait.
 */
export function withoutWaiting(fd: number): number {
  try {
    const stats = fstatSync(fd);
    if (!stats.isFIFO() && !stats.isCharacterDevice()) return fd;
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK | constants.O_NOCTTY);
  } catch {
    return fd;
  }
}

/** Standard output for texts that are lost where nobody reads them. */
export function lossyOutput(): Output {
  const fd = withoutWaiting(1);
  const write = (text: string) => {
    try {
      writeSync(fd, text);
    } catch {
      // Full, closed, or on a disk without room: as it is for the log.
    }
  };
  return { isTTY: process.stdout.isTTY, write };
}
