/** What is sent to the engine and when: bursts together, and one at a time what may have brought the engine down. */
import { expect, it } from 'vitest';
import { SequenceLedger, type LedgerEntry } from '../../../src/control/engine/ledger.ts';
import { Outbox } from '../../../src/control/engine/outbox.ts';
import type { ToEngine } from '../../../src/control/engine/protocol.ts';
import { submission } from '../../boundary/engine-process/harness.ts';

function fixture() {
  const ledger = new SequenceLedger({ maxSequences: 8, maxWaitingRequests: 8, maxWaitingTokens: 1000 });
  const sent: (string | number)[][] = [];
  const note = (message: ToEngine) => {
    if (message.type === 'submit') sent.push(['submit', ...message.requests.map(({ id }) => id)]);
    else if (message.type === 'abort') sent.push(['abort', ...message.ids]);
  };
  const add = (count: number) =>
    ledger.add(
      Array.from({ length: count }, (_, index) => submission(index, 5)),
      () => {},
    );
  return { ledger, outbox: new Outbox(ledger, note), sent, add };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));
/** The engine ended with these running, twice. */
const suspect = (entries: LedgerEntry[]) =>
  entries.forEach((entry) => Object.assign(entry, { replays: 2, sent: false }));

it('gathers a turn of the event loop; what has gone in it is not sent', async () => {
  const { ledger, outbox, sent, add } = fixture();
  outbox.submit(add(1));
  await turn();
  expect(sent, 'no engine is ready').toEqual([]);
  outbox.open(ledger.entries());
  const [second, third] = add(2) as [LedgerEntry, LedgerEntry];
  outbox.submit([second]);
  outbox.submit([third]);
  ledger.remove(second);
  outbox.abort(second);
  await turn();
  ledger.remove(third);
  outbox.abort(third);
  await turn();
  expect(sent).toEqual([
    ['submit', 1],
    ['submit', 3],
    ['abort', 3],
  ]);
});

it('tries suspects one at a time, before all else; a token acquits, and so does the leaving of a client', async () => {
  const { ledger, outbox, sent, add } = fixture();
  const [first, second, third] = add(3) as [LedgerEntry, LedgerEntry, LedgerEntry];
  suspect([second, third]);
  outbox.open(ledger.entries());
  outbox.submit(add(1));
  await turn();
  outbox.review();
  await turn();
  expect(sent).toEqual([['submit', 2]]);
  second.received.push(7);
  outbox.review();
  await turn();
  expect(sent.splice(0)).toEqual([
    ['submit', 2],
    ['submit', 3],
  ]);
  expect([ledger.isSuspect(second), second.replays]).toEqual([false, 1]);
  ledger.remove(third);
  outbox.abort(third);
  await turn();
  expect(sent).toEqual([
    ['submit', 1, 4],
    ['abort', 3],
  ]);
  expect(first.sent).toBe(true);
});

it('a trial that ended with its engine holds up nothing that is sent to the next one', async () => {
  const { ledger, outbox, sent, add } = fixture();
  const [only] = add(1) as [LedgerEntry];
  suspect([only]);
  outbox.open(ledger.entries());
  outbox.close();
  ledger.remove(only);
  outbox.open(ledger.entries());
  outbox.submit(add(1));
  await turn();
  expect(sent).toEqual([
    ['submit', 1],
    ['submit', 2],
  ]);
});
