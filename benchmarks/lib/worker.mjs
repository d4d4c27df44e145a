/** One engine in a process of its own, asked for one measurement at a time. */
import { fork } from 'node:child_process';

export class Worker {
  #child;
  #pending = null;
  #name;

  constructor(name, file, env = {}) {
    this.#name = name;
    this.#child = fork(file, [], { env: { ...process.env, ...env }, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    this.#child.on('message', ({ result, error }) => {
      const { resolve, reject } = this.#pending;
      this.#pending = null;
      if (error === undefined) resolve(result);
      else reject(new Error(`${name}: ${error}`));
    });
    this.#child.on('error', (error) => this.#fail(error));
    this.#child.on('exit', (code, signal) => this.#fail(new Error(`${name} ended (${signal ?? code}).`)));
  }

  #fail(error) {
    this.#pending?.reject(error);
    this.#pending = null;
  }

  /** One call at a time. */
  call(method, argument) {
    if (!this.#child.connected) return Promise.reject(new Error(`${this.#name} is not running.`));
    return new Promise((resolve, reject) => {
      this.#pending = { resolve, reject };
      this.#child.send({ method, argument });
    });
  }

  close() {
    if (this.#child.connected) this.#child.disconnect();
    this.#child.kill();
  }
}

/** The worker's side: methods by name, each answering with JSON. */
export function serveCalls(methods) {
  process.on('message', async ({ method, argument }) => {
    try {
      process.send({ result: await methods[method](argument) });
    } catch (error) {
      process.send({ error: error.stack ?? String(error) });
    }
  });
  process.on('disconnect', () => process.exit(0));
}
