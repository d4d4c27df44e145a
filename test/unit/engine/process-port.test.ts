/** What the engine process does when its parent reads slowly. */
import { expect, it } from 'vitest';
import { ProcessPort } from '../../../src/control/engine/process-port.ts';
import type { FromEngine } from '../../../src/control/engine/protocol.ts';

type Channel = NonNullable<ConstructorParameters<typeof ProcessPort>[0]>;

/** A channel that takes nothing until `read`. */
function blocked(): { port: ProcessPort; read: (count: number) => void } {
  const written: (() => void)[] = [];
  const send = (_message: unknown, _handle: unknown, _options: unknown, done: () => void): boolean => {
    written.push(done);
    return false;
  };
  const port = new ProcessPort({ connected: true, send: send as unknown as NonNullable<Channel['send']> });
  return { port, read: (count) => written.splice(0, count).forEach((done) => done()) };
}

const LINE: FromEngine = { type: 'log', line: 'x' };
const ANSWER: FromEngine = { type: 'compiled', id: 1, failure: null };

it('everybody who waits for a slow parent goes on once it has caught up', async () => {
  const { port, read } = blocked();
  const waits: Promise<void>[] = [];
  while (waits.length === 0) {
    const wait = port.send(LINE);
    if (wait) waits.push(wait);
  }
  // The loop waits now; a compilation ends meanwhile and is answered.
  const answered = port.send(ANSWER);
  expect(answered).toBeInstanceOf(Promise);
  let ended = 0;
  for (const wait of [...waits, answered]) void wait?.then(() => ended++);
  read(10);
  await new Promise((resolve) => setImmediate(resolve));
  expect(ended).toBe(0);
  read(1000);
  await new Promise((resolve) => setImmediate(resolve));
  expect(ended).toBe(2);
  expect(port.send(LINE)).toBeUndefined();
});
