/** The engine process's end of the channel to its parent. */
import { EngineHost, type EnginePort } from './engine-host.ts';
import type { NativeAddon } from './native.ts';
import type { FromEngine, ToEngine } from './protocol.ts';

/** Messages that may lie unread before the loop waits: with a blocked reader they would fill the memory. */
const MAX_UNSENT = 64;

/** Serves one parent process until it goes away. */
export function serveParent(addon: () => NativeAddon): void {
  if (!process.send) {
    console.error('The engine process is started by the server, not by hand.');
    process.exit(64);
  }
  const host = new EngineHost(new ProcessPort(), addon);
  process.on('message', (message: ToEngine) => host.receive(message));
  // The channel closes also when the parent was killed. SIGKILL, because native threads may be in the middle of a step.
  process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  // A terminal sends these to the whole process group, SIGHUP when it is closed; when to end is the parent's decision. SIGUSR1 would open a debugger.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1'] as const) process.on(signal, () => {});
}

export class ProcessPort implements EnginePort {
  readonly #channel: Pick<NodeJS.Process, 'connected' | 'send'>;
  #unsent = 0;
  /** Of everybody who waits until all has left: the loop, and whoever else sent when it was behind. */
  readonly #waiting: (() => void)[] = [];

  constructor(channel: Pick<NodeJS.Process, 'connected' | 'send'> = process) {
    this.#channel = channel;
  }

  send(message: FromEngine): Promise<void> | undefined {
    if (!this.#channel.connected) return undefined;
    this.#unsent++;
    this.#channel.send?.(message, undefined, undefined, () => this.#sent());
    // What comes before 'exit' must have left this process.
    if (this.#unsent < MAX_UNSENT && message.type !== 'failed') return undefined;
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  exit(code: number, message?: string): void {
    if (message) console.error(message);
    process.exit(code);
  }

  #sent(): void {
    this.#unsent--;
    if (this.#unsent > 0) return;
    for (const caughtUp of this.#waiting.splice(0)) caughtUp();
  }
}
