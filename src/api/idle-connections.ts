import type { Socket } from 'node:net';

/** Connections on which nothing is asked or answered, as they began to be idle: whoever needs no key can open them, and most clients keep theirs. */
export class IdleConnections {
  readonly #idle = new Map<Socket, { since: number; bytesRead: number }>();

  put(socket: Socket): void {
    if (socket.destroyed) return;
    this.#idle.delete(socket);
    this.#idle.set(socket, { since: performance.now(), bytesRead: socket.bytesRead });
  }

  take(socket: Socket): void {
    this.#idle.delete(socket);
  }

  /** Ends the one that has been idle for longest, where that is so long; not one on which a request has begun to come. */
  endOldest(leastMs: number): void {
    for (const [socket, { since, bytesRead }] of this.#idle) {
      if (performance.now() - since < leastMs) return;
      this.#idle.delete(socket);
      if (socket.bytesRead > bytesRead) continue;
      socket.destroy();
      return;
    }
  }
}
