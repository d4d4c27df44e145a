import { type ChildProcess, fork } from 'node:child_process';
import type { LlamaConfig } from '../llama/config.ts';
import type { EngineConfig, FromEngine, ToEngine } from './protocol.ts';

export interface ChildEvents {
  message(child: EngineChild, message: FromEngine): void;
  /** Once, however it ended; also when it could not be started. */
  exit(child: EngineChild, how: string): void;
}

/** One life of the engine process. */
export class EngineChild {
  readonly exited: Promise<void>;
  readonly #process: ChildProcess;

  constructor(entry: string, config: EngineConfig | LlamaConfig, events: ChildEvents) {
    this.#process = fork(entry, [], {
      serialization: 'advanced',
      execArgv: [],
      // Its standard output must not mix with the server's.
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    this.#process.on('message', (message) => events.message(this, message as FromEngine));
    // However the server ends: a process that hangs does not notice that its channel is closed.
    const kill = () => this.kill();
    process.once('exit', kill);
    this.exited = new Promise((resolve) => {
      let ended = false;
      const end = (how: string) => {
        if (ended) return;
        ended = true;
        process.off('exit', kill);
        resolve();
        events.exit(this, how);
      };
      this.#process.on('exit', (code, signal) => end(signal ? `signal ${signal}` : `exit code ${code}`));
      this.#process.on('error', (error) => {
        if (this.#process.pid === undefined) end(error.message);
      });
    });
    this.send({ type: 'start', config });
  }

  get pid(): number | undefined {
    return this.#process.pid;
  }

  /** Lost without an error when the process has just ended: its exit tells. */
  send(message: ToEngine): void {
    if (this.#process.connected) this.#process.send(message, () => {});
  }

  kill(): void {
    this.#process.kill('SIGKILL');
  }
}
