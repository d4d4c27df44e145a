/** The threads that read what clients send to training: who waits for whom, and what becomes of a task whose thread ends. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { expect, test, vi } from 'vitest';
import type { ChatEncoder, OpenChat } from '../../../src/control/sessions/open-chat.ts';
import { IntakePool } from '../../../src/control/training/intake/intake-pool.ts';
import { ROW_LIMITS } from './intake-limits.ts';

test('a small body waits neither for a large one nor for a small one of another entity', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'intake-'));
  /** What lets the chats go on that are being rendered, by the names of their bodies. */
  const rendering = new Map<string, () => void>();
  const encodeChat = ({ messages }: OpenChat) =>
    new Promise<Int32Array>((resolve) => rendering.set(String(messages[0]?.content), () => resolve(new Int32Array())));
  const chat = { chatTemplate: null, maxModelLen: 1, encodeChat } as unknown as ChatEncoder;
  const pool = new IntakePool(ROW_LIMITS, () => null, chat);
  const ended: string[] = [];
  const read = async (name: string) => {
    const source = join(folder, name);
    const [entity = '', size] = name.split(' ');
    const messages = [
      { role: 'user', content: name },
      { role: 'assistant', content: 'yes' },
    ];
    writeFileSync(source, JSON.stringify({ messages }));
    await pool.run({ kind: 'rows', source, target: `${source}.gz` }, entity, size === 'large' ? 2 ** 30 : 100);
    ended.push(name);
  };
  const begun = (...names: string[]) => vi.waitFor(() => expect([...rendering.keys()].sort()).toEqual(names), 20_000);
  const end = async (name: string) => {
    rendering.get(name)?.();
    rendering.delete(name);
    await vi.waitFor(() => expect(ended.at(-1)).toBe(name), 20_000);
  };
  try {
    const all = ['a large', 'a small', 'a small too', 'b small', 'b large'].map((name) => read(name));
    await begun('a large', 'a small', 'b small');
    await end('b small');
    await begun('a large', 'a small');
    await end('a small');
    await begun('a large', 'a small too');
    await end('a large');
    await begun('a small too', 'b large');
    await end('b large');
    await end('a small too');
    await Promise.all(all);
  } finally {
    await pool.close();
    rmSync(folder, { recursive: true });
  }
});

test('a thread that a fault ends is not told as a body that is too large', async () => {
  const chat = { chatTemplate: null, maxModelLen: 1 } as ChatEncoder;
  const pool = new IntakePool(ROW_LIMITS, () => null, chat);
  const post = vi.spyOn(Worker.prototype, 'postMessage').mockImplementationOnce(function (this: Worker) {
    this.emit('error', new Error('a fault'));
    void this.terminate();
  });
  try {
    await expect(pool.run({ kind: 'rows', source: '', target: '' }, 'e', 1)).rejects.toThrow(/^a fault$/);
  } finally {
    post.mockRestore();
    await pool.close();
  }
});

test('tasks whose thread cannot be started fail, each of them, and hold up none', async () => {
  // What no thread can be given: `new Worker` throws, as it does where there is no memory for one.
  const chat = { chatTemplate: () => '', maxModelLen: 1 } as unknown as ChatEncoder;
  const pool = new IntakePool(ROW_LIMITS, () => null, chat);
  try {
    const task = { kind: 'rows', source: '', target: '' } as const;
    for (let i = 0; i < 2; i++) await expect(pool.run(task, 'e', 1)).rejects.toThrow(/could not be cloned/);
  } finally {
    await pool.close();
  }
});
