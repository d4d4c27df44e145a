import { describe, expect, it, vi } from 'vitest';
import { QueueFullError } from '../../../src/control/engine/client.ts';
import { SequenceLedger, type LedgerEntry } from '../../../src/control/engine/ledger.ts';
import type { SequenceOutput, StepMessage } from '../../../src/control/engine/protocol.ts';
import { SERVE } from '../../../src/control/grammar/compile.ts';
import { submission } from '../../boundary/engine-process/harness.ts';

const LIMITS = { maxSequences: 2, maxWaitingRequests: 2, maxWaitingTokens: 100 };

function message(changes: Partial<StepMessage>): StepMessage {
  return {
    type: 'step',
    started: [],
    cached: (changes.started ?? []).map((id) => id + 100),
    ids: null,
    promptIds: null,
    result: null,
    forced: [],
    refused: [],
    ended: [],
    held: [],
    stats: {} as StepMessage['stats'],
    ...changes,
  };
}

/** A step in which the given sequences got one token each. */
function step(outputs: [id: number, token: number, finish: number][], started: number[] = []): StepMessage {
  const column = (index: number) => Int32Array.from(outputs, (output) => output[index] as number);
  const count = outputs.length;
  const result = {
    slots: new Int32Array(count),
    tokens: column(1),
    finish: Uint8Array.from(column(2)),
    forced: new Uint8Array(count),
    logprobs: new Float32Array(count).fill(NaN),
    ranks: new Int32Array(count),
    topRanges: new Int32Array(2 * count),
    topIds: new Int32Array(0),
    topLogprobs: new Float32Array(0),
    promptSlots: new Int32Array(0),
    promptPositions: new Int32Array(0),
    promptLogprobs: new Float32Array(0),
    promptRanks: new Int32Array(0),
    promptTopRanges: new Int32Array(0),
    micros: 1,
  };
  return message({ started, ids: Float64Array.from(column(0)), result });
}

function ledgerWith(count: number, limits = LIMITS) {
  const ledger = new SequenceLedger(limits);
  const outputs: [number, SequenceOutput][] = [];
  const requests = Array.from({ length: count }, (_, index) => submission(index, 10));
  const entries = ledger.add(requests, (index, output) => outputs.push([index, output]));
  return { ledger, entries, outputs, ids: entries.map(({ id }) => id) };
}

describe('SequenceLedger', () => {
  it('counts what waits until it starts, ends or is removed', () => {
    const { ledger, entries, ids } = ledgerWith(4);
    expect([ledger.size, ledger.waiting]).toEqual([4, 4]);
    ledger.receive(message({ started: [ids[0] as number, ids[1] as number, 999] }));
    expect([ledger.size, ledger.waiting]).toEqual([4, 2]);
    ledger.remove(entries[0] as (typeof entries)[0]);
    ledger.remove(entries[2] as (typeof entries)[0]);
    expect(ledger.remove(entries[2] as (typeof entries)[0])).toBe(false);
    expect([ledger.size, ledger.waiting]).toEqual([2, 1]);
    ledger.receive(step([[ids[1] as number, 5, 1]]));
    expect([ledger.size, ledger.waiting, ledger.completed]).toEqual([1, 1, 1]);
  });

  it('delivers by index and drops what nobody waits for', () => {
    const { ledger, ids, outputs } = ledgerWith(2);
    ledger.receive(
      step(
        [
          [ids[1] as number, 8, 0],
          [ids[0] as number, 9, 2],
          [-1, 3, 0],
          [12345, 3, 1],
        ],
        ids,
      ),
    );
    expect(outputs.map(([index, { tokens, finish }]) => [index, tokens[0], finish])).toEqual([
      [1, 8, null],
      [0, 9, 'length'],
    ]);
  });

  it('books all sequences of a request or none', () => {
    const { ledger } = ledgerWith(3);
    expect(() => ledger.add([submission(1, 1), submission(2, 1)], () => {})).toThrow(QueueFullError);
    expect([ledger.size, ledger.waiting]).toEqual([3, 3]);
    ledger.add([submission(1, 1)], () => {});
    expect(() => ledger.add([submission(1, 1)], () => {})).toThrow(QueueFullError);
  });

  it('keeps places for those who go on, in which they find room however full the queue is', () => {
    const ledger = new SequenceLedger({ ...LIMITS, maxWaitingTokens: 25 });
    const places = ledger.reserve('a', 3);
    expect(() => ledger.reserve('a', 2)).toThrow('3 requests are running or waiting');
    expect(() => ledger.add([submission(1, 1), submission(2, 1)], () => {})).toThrow(QueueFullError);
    const [other] = ledger.add([submission(1, 20)], () => {}) as [LedgerEntry];
    // The first time it comes like any other.
    expect(() => ledger.add([submission(1, 10)], () => {}, { places })).toThrow('prompt tokens');
    ledger.remove(other);
    const [begun] = ledger.add([submission(1, 20)], () => {}, { places }) as [LedgerEntry];
    ledger.remove(begun);
    ledger.add([submission(1, 20)], () => {});
    const going = [1, 2, 3].map((at) => submission(at, 10));
    for (const entry of ledger.add(going, () => {}, { places })) ledger.remove(entry);
    expect(() => ledger.reserve('a', 1)).toThrow(QueueFullError);
    for (let again = 0; again < 2; again++) places.release();
    ledger.reserve('a', 3);
    expect(() => ledger.reserve('a', 1)).toThrow(QueueFullError);
  });

  it('frees the tokens of those that started', () => {
    const { ledger, ids } = ledgerWith(2, { ...LIMITS, maxWaitingTokens: 25 });
    expect(() => ledger.add([submission(1, 10)], () => {})).toThrow('prompt tokens');
    ledger.receive(message({ started: [ids[0] as number] }));
    ledger.add([submission(1, 10)], () => {});
  });

  it('has room for the equal share of each tenant, whatever others fill it with', () => {
    const ledger = new SequenceLedger({ maxSequences: 2, maxWaitingRequests: 10, maxWaitingTokens: 1000 });
    const add = (tenant: string, tokens: number) =>
      ledger.add([{ ...submission(1, tokens), tenant }], () => {})[0] as LedgerEntry;
    const entries = Array.from({ length: 12 }, () => add('a', 1));
    expect(() => add('a', 1)).toThrow(QueueFullError);
    const theirs = Array.from({ length: 6 }, () => add('b', 1));
    expect(() => add('b', 1)).toThrow(QueueFullError);
    for (let i = 0; i < 4; i++) add('c', 1);
    expect(() => add('c', 1)).toThrow(QueueFullError);
    for (const entry of [...entries, ...theirs]) ledger.remove(entry);
    // Tenants that have nothing any more have no share.
    for (let i = 0; i < 8; i++) add('c', 1);
    expect(() => add('c', 1)).toThrow(QueueFullError);
  });

  it('has room for the equal share of waiting prompt tokens, and for one prompt of each tenant', () => {
    const ledger = new SequenceLedger({ maxSequences: 2, maxWaitingRequests: 100, maxWaitingTokens: 100 });
    const add = (tenant: string, tokens: number) => ledger.add([{ ...submission(1, tokens), tenant }], () => {});
    add('a', 100);
    expect(() => add('a', 1)).toThrow('prompt tokens');
    add('b', 30);
    add('b', 20);
    expect(() => add('b', 1)).toThrow('prompt tokens');
    add('c', 90);
    expect(() => add('c', 1)).toThrow('prompt tokens');
  });

  it('takes the prompts of one request, one by one, as it would take one prompt of all their tokens', () => {
    const ledger = new SequenceLedger({ maxSequences: 2, maxWaitingRequests: 100, maxWaitingTokens: 100 });
    const add = (tokens: number, request?: object) =>
      ledger.add([{ ...submission(1, tokens), tenant: 'a' }], () => {}, { request })[0] as LedgerEntry;
    const list = {};
    const prompts = [add(90, list), add(90, list), add(90, list)];
    expect(() => add(1)).toThrow('270 prompt tokens');
    expect(() => add(1, {})).toThrow('270 prompt tokens');
    ledger.receive(message({ started: prompts.slice(0, 2).map(({ id }) => id) }));
    const other = add(10, {});
    // Something else of the tenant waits now.
    expect(() => add(1, list)).toThrow('100 prompt tokens');
    ledger.remove(other);
    add(90, list);
  });

  it('counts grammars by their size while they wait, once for all choices of a request', () => {
    const ledger = new SequenceLedger({ maxSequences: 2, maxWaitingRequests: 100, maxWaitingTokens: 100 });
    const grammar = (chars: number) => ({
      source: { kind: 'regex' as const, text: 'a'.repeat(chars) },
      options: SERVE,
    });
    const add = (count: number, chars: number) => {
      const constrained = { ...submission(1, 5), tenant: 'a', grammar: grammar(chars) };
      return ledger.add(
        Array.from({ length: count }, () => constrained),
        () => {},
      );
    };
    const entries = add(3, 320);
    expect(() => add(1, 4)).toThrow('prompt tokens');
    for (const entry of entries) ledger.remove(entry);
    add(3, 320);
    add(1, 0);
    expect(() => add(1, 0)).toThrow('100 prompt tokens');
  });

  it('asks clients to come back after 1 to 59 whole seconds', () => {
    const now = vi.spyOn(performance, 'now').mockReturnValue(0);
    const { ledger, ids } = ledgerWith(4);
    const [first] = ids as [number];
    const asked = (): number | null => {
      try {
        ledger.add([submission(1, 1)], () => {});
        return null;
      } catch (error) {
        return (error as QueueFullError).retryAfterSeconds;
      }
    };
    expect(asked()).toBe(1);
    ledger.receive(message({ started: [first] }));
    // Clients take no more than a minute at their word, and some only less than that.
    now.mockReturnValue(3_600_000);
    ledger.receive(step([[first, 7, 2]]));
    expect(asked()).toBeNull();
    expect(asked()).toBe(59);
    now.mockRestore();
  });

  it('after a crash keeps what can be replayed, with its tokens, and ends what has streamed', () => {
    const { ledger, entries, ids, outputs } = ledgerWith(3);
    ledger.receive(
      step(
        [
          [ids[0] as number, 4, 0],
          [ids[1] as number, 5, 0],
        ],
        ids.slice(0, 2),
      ),
    );
    (entries[1] as (typeof entries)[0]).streamed = true;
    ledger.crashed();
    expect(ledger.entries().map(({ id, received }) => [id, received])).toEqual([
      [ids[0], [4]],
      [ids[2], []],
    ]);
    expect(ledger.waiting).toBe(2);
    expect(outputs.at(-1)).toMatchObject([1, { finish: 'error', tokens: new Int32Array(0) }]);
  });

  it('tells what the prefix cache had when a sequence first began, whatever the next engine finds', () => {
    const { ledger, ids, outputs } = ledgerWith(2);
    ledger.receive(message({ started: ids, cached: [32, 48] }));
    ledger.crashed();
    ledger.receive(message({ started: [ids[0] as number], cached: [0] }));
    ledger.receive(step([[ids[0] as number, 4, 2]]));
    ledger.failAll('the end');
    // Which is no failure of the engine's.
    expect(outputs.at(-1)?.[1]).toMatchObject({ error: 'the end', unavailable: true });
    expect(outputs.map(([index, { finish, cachedTokens }]) => [index, finish, cachedTokens])).toEqual([
      [0, 'length', 32],
      [1, 'error', 48],
    ]);
  });

  it('replays one that is marked streamed only after the crash: it continues where its client stands', () => {
    const { ledger, entries, ids } = ledgerWith(1);
    ledger.receive(step([[ids[0] as number, 4, 0]], ids));
    ledger.crashed();
    (entries[0] as (typeof entries)[0]).streamed = true;
    ledger.crashed();
    expect(ledger.entries().map(({ received }) => received)).toEqual([[4]]);
  });

  it('gives up a sequence after two replays, one that has not begun after three, and none that the engine did not have', () => {
    const { ledger, entries, ids, outputs } = ledgerWith(3);
    const [begun, waiting, unsent] = entries as [(typeof entries)[0], (typeof entries)[0], (typeof entries)[0]];
    const suspects: number[][] = [];
    for (let crash = 0; crash < 4; crash++) {
      waiting.sent = true;
      ledger.receive(message({ started: [ids[0] as number] }));
      ledger.crashed();
      suspects.push(
        [begun, waiting, unsent].filter((each) => ledger.has(each) && ledger.isSuspect(each)).map(({ id }) => id),
      );
    }
    expect(suspects).toEqual([[], [begun.id], [waiting.id], []]);
    expect(outputs.map(([index, { finish }]) => [index, finish])).toEqual([
      [0, 'error'],
      [1, 'error'],
    ]);
    expect(ledger.entries()).toEqual([unsent]);
    expect(ledger.waiting).toBe(1);
  });

  it('does not end a suspect over an engine that it was not handed to', () => {
    const { ledger, entries } = ledgerWith(2);
    const [tried, next] = entries as [LedgerEntry, LedgerEntry];
    for (let crash = 0; crash < 3; crash++) {
      for (const entry of entries) entry.sent = true;
      ledger.crashed();
    }
    expect([ledger.isSuspect(tried), ledger.isSuspect(next)]).toEqual([true, true]);
    tried.sent = true;
    ledger.crashed();
    expect(ledger.entries()).toEqual([next]);
  });

  it('ends the sequence of a receiver that throws, and says that the engine is to drop it unless it has ended', () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => undefined);
    try {
      const ledger = new SequenceLedger(LIMITS);
      const entries = ledger.add([submission(0, 10), submission(1, 10)], () => {
        throw new Error('gone');
      });
      const [first, second] = entries.map(({ id }) => id) as [number, number];
      expect(
        ledger.receive(
          step(
            [
              [first, 4, 0],
              [second, 5, 1],
            ],
            [first, second],
          ),
        ),
      ).toEqual([first]);
      expect([ledger.size, warned.mock.calls.length]).toEqual([0, 2]);
    } finally {
      warned.mockRestore();
    }
  });

  it('forgets crashes before it began once it runs', () => {
    const { ledger, entries, ids, outputs } = ledgerWith(1);
    const [entry] = entries as [(typeof entries)[0]];
    for (let crash = 0; crash < 2; crash++) {
      entry.sent = true;
      ledger.crashed();
    }
    entry.sent = true;
    ledger.receive(message({ started: ids }));
    for (let crash = 0; crash < 2; crash++) {
      ledger.crashed();
      entry.sent = true;
    }
    expect(outputs).toEqual([]);
    expect(entry).toMatchObject({ replays: 1, crashesBefore: 1 });
  });

  it('does not end one that has streamed and waits again: its client goes on from where it stands', () => {
    const { ledger, entries, ids } = ledgerWith(1);
    const [entry] = entries as [(typeof entries)[0]];
    ledger.receive(step([[ids[0] as number, 4, 0]], ids));
    ledger.crashed();
    entry.streamed = true;
    entry.sent = true;
    ledger.crashed();
    expect(ledger.entries().map(({ received }) => received)).toEqual([[4]]);
  });
});
