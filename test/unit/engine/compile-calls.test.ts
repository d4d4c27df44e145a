/** Compilations that are asked of an engine process which may end. */
import { expect, test } from 'vitest';
import { CompileCalls } from '../../../src/control/engine/compile-calls.ts';
import type { GrammarSpec } from '../../../src/control/engine/native-grammar.ts';
import type { ToEngine } from '../../../src/control/engine/protocol.ts';
import { SERVE } from '../../../src/control/grammar/compile.ts';

const GRAMMAR: GrammarSpec = { source: { kind: 'regex', text: 'a' }, options: SERVE };

function compiling() {
  const sent: ToEngine[] = [];
  const calls = new CompileCalls((message) => sent.push(message));
  return { calls, sentIds: () => sent.splice(0).map((message) => (message.type === 'compile' ? message.id : null)) };
}

test('what an engine did not answer before it ended is asked of the next one, once', async () => {
  const { calls, sentIds } = compiling();
  calls.open();
  const [first, second] = [calls.call('a', GRAMMAR), calls.call('b', GRAMMAR)];
  expect(sentIds()).toEqual([1, 2]);
  calls.crashed();
  const third = calls.call('a', GRAMMAR);
  expect(sentIds()).toEqual([]);
  calls.open();
  expect(sentIds()).toEqual([1, 2, 3]);
  calls.answered(1, null);
  expect(await first).toBeNull();
  calls.crashed();
  expect(await second).toMatchObject({ kind: 'failed' });
  calls.open();
  expect(sentIds()).toEqual([3]);
  calls.answered(3, null);
  expect(await third).toBeNull();
});

test('an engine that ends before it is ready has not compiled anything', async () => {
  const { calls, sentIds } = compiling();
  const call = calls.call('a', GRAMMAR);
  for (let end = 0; end < 5; end++) calls.crashed();
  calls.open();
  expect(sentIds()).toEqual([1]);
  calls.answered(1, null);
  expect(await call).toBeNull();
});

test('a tenant whose large grammars wait gets no more of them in until some are compiled; another one does', async () => {
  const { calls, sentIds } = compiling();
  calls.open();
  const large: GrammarSpec = { source: { kind: 'json_schema', text: ' '.repeat(16 * 2 ** 20) }, options: SERVE };
  const asked = Array.from({ length: 4 }, () => calls.call('a', large));
  expect(await calls.call('a', large)).toMatchObject({ kind: 'busy' });
  expect(sentIds()).toEqual([1, 2, 3, 4]);
  const other = calls.call('b', large);
  expect(sentIds()).toEqual([5]);
  for (const id of [1, 2, 3, 4, 5]) calls.answered(id, null);
  expect(await Promise.all([...asked, other])).toEqual([null, null, null, null, null]);
  void calls.call('a', large);
  expect(sentIds()).toEqual([6]);
});
