/** The compiler's threads, shared by tenants. */
import { expect, it } from 'vitest';
import { Grammars } from '../../../src/control/engine/grammars.ts';
import { loadNative } from '../../../src/control/engine/native.ts';
import { GENERATE } from '../../../src/control/grammar/compile.ts';

/** Takes much longer than any test. */
const SLOW = 'x*(a|b)([a-z]{1,9}){1,950}x';

it("a grammar of one tenant does not wait for another's slow ones, however many these are", async () => {
  const text = Buffer.from('abx');
  const grammars = new Grammars(loadNative(), { bytes: text, offsets: Int32Array.of(0, 1, 2, 3) });
  const options = { ...GENERATE, seconds: 600 };
  const leave = new AbortController();
  const slow = Array.from({ length: 3 }, (_, at) => {
    const source = { kind: 'regex', text: `${SLOW}{${at + 1}}` } as const;
    return grammars.compile('flood', { source, options }, leave.signal);
  });
  let ended = 0;
  for (const each of slow) void each.then(() => ended++);
  const compiled = await grammars.compile('other', { source: { kind: 'regex', text: 'ab' }, options });
  expect([ended, 'program' in compiled]).toEqual([0, true]);
  leave.abort();
  await Promise.all(slow);
});
