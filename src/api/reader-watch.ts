/**
 * Cuts readers that take nothing of what was written for them: they would hold it in memory for ever. A slow one is not cut. What the kernel
 * takes from this process does not tell them apart, as it takes more only when a third of its buffer, megabytes on some lines, has been read;
 * its table of connections says whether bytes reach the reader.
 */
import { readFile } from 'node:fs/promises';
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

const TABLES = ['/proc/self/net/tcp', '/proc/self/net/tcp6'];
/** Ports of a connection and the bytes that its peer has not yet acknowledged. */
const CONNECTION = /^ *\d+: [\dA-F]+:([\dA-F]{4}) [\dA-F]+:([\dA-F]{4}) [\dA-F]{2} ([\dA-F]{8}):/gm;
const LOOKS = 4;

interface Progress {
  /** Bytes that the kernel took. */
  taken: number;
  /** What the kernel's table said last; null: not looked up since the kernel took something. */
  queued: string | null;
  /** When something moved last. */
  at: number;
}

export class ReaderWatch {
  readonly #idleMs: number;
  readonly #readers = new Map<ServerResponse, Progress>();
  #timer: NodeJS.Timeout | null = null;
  #looking = false;

  /** A reader may rest for `idleMs`. */
  constructor(idleMs: number) {
    this.#idleMs = idleMs;
  }

  /** Until the response is closed. */
  watch(response: ServerResponse): void {
    if (response.closed || response.destroyed) return;
    this.#readers.set(response, { taken: -1, queued: null, at: performance.now() });
    this.#timer ??= setInterval(() => void this.#look(), this.#idleMs / LOOKS).unref();
    response.once('close', () => this.#forget(response));
  }

  #forget(response: ServerResponse): void {
    this.#readers.delete(response);
    if (this.#readers.size > 0 || this.#timer === null) return;
    clearInterval(this.#timer);
    this.#timer = null;
  }

  async #look(): Promise<void> {
    if (this.#looking) return;
    this.#looking = true;
    const suspects = [...this.#readers].filter(([response, progress]) => !kernelTook(response, progress));
    if (suspects.length > 0) this.#judge(suspects, await readQueues());
    this.#looking = false;
  }

  #judge(suspects: [ServerResponse, Progress][], queues: ReadonlyMap<string, string>): void {
    const now = performance.now();
    for (const [response, progress] of suspects) {
      const queued = queues.get(portsOf(response.socket)) ?? '';
      if (progress.queued !== null && progress.queued !== queued) progress.at = now;
      progress.queued = queued;
      if (now - progress.at >= this.#idleMs) response.destroy();
    }
  }
}

/** Whether it took something since the last look; notes how much. An answer without a socket waits behind another of its connection. */
function kernelTook({ socket }: ServerResponse, progress: Progress): boolean {
  const taken = socket === null ? -1 : socket.bytesWritten - socket.writableLength;
  if (taken === progress.taken && socket !== null) return false;
  Object.assign(progress, { taken, queued: null, at: performance.now() });
  return true;
}

function portsOf(socket: Socket | null): string {
  return `${socket?.localPort}:${socket?.remotePort}`;
}

/** By ports. Two peers may have the same: then one that reads speaks for both. */
async function readQueues(): Promise<Map<string, string>> {
  const queues = new Map<string, string>();
  for (const text of await Promise.all(TABLES.map((table) => readFile(table, 'latin1').catch(() => '')))) {
    for (const [, local = '', remote = '', queued = ''] of text.matchAll(CONNECTION)) {
      const ports = `${parseInt(local, 16)}:${parseInt(remote, 16)}`;
      queues.set(ports, (queues.get(ports) ?? '') + queued);
    }
  }
  return queues;
}
