/** The Python process of torch_worker.py, behind the calls of lib/worker.mjs. */
import { spawn, spawnSync } from 'node:child_process';
import path from 'node:path';
import readline from 'node:readline';

export const PEER_NAME = 'PyTorch + PEFT';

/** True where the interpreter has what the peer needs. */
export function hasPeer(python) {
  const probe =
    'import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in ("torch", "transformers", "peft")))';
  return spawnSync(python, ['-c', probe]).status === 0;
}

export class TorchPeer {
  #child;
  #pending = null;

  constructor(python, threads) {
    const env = { ...process.env, OMP_NUM_THREADS: String(threads) };
    this.#child = spawn(python, [path.join(import.meta.dirname, 'torch_worker.py')], {
      env,
      stdio: ['pipe', 'pipe', 'ignore'],
    });
    readline.createInterface({ input: this.#child.stdout }).on('line', (line) => {
      const { result, error } = JSON.parse(line);
      const pending = this.#pending;
      this.#pending = null;
      if (error === undefined) pending?.resolve(result);
      else pending?.reject(new Error(`${PEER_NAME}: ${error}`));
    });
    this.#child.on('exit', (code, signal) =>
      this.#pending?.reject(new Error(`${PEER_NAME} ended (${signal ?? code}).`)),
    );
  }

  call(method, argument) {
    return new Promise((resolve, reject) => {
      this.#pending = { resolve, reject };
      this.#child.stdin.write(`${JSON.stringify({ method, argument })}\n`);
    });
  }

  close() {
    this.#child.kill();
  }
}
