/** The engine process's side of grammars: cache, queue, cancelling; and the API process's open calls. */
import { describe, expect, it } from 'vitest';
import { CompileCalls } from '../../../src/control/engine/compile-calls.ts';
import { Grammars } from '../../../src/control/engine/grammars.ts';
import type { GrammarSpec, NativeGrammarAddon, NativeProgram } from '../../../src/control/engine/native-grammar.ts';
import { ProgramCache } from '../../../src/control/engine/program-cache.ts';
import type { ToEngine } from '../../../src/control/engine/protocol.ts';
import { GENERATE } from '../../../src/control/grammar/compile.ts';

const constrain = (): never => {
  throw new Error('no sequence runs here');
};
const program = (bytes: number): NativeProgram => ({ micros: 1, heldBytes: () => bytes, worn: () => false, constrain });
const spec = (text: string): GrammarSpec => ({ source: { kind: 'regex', text }, options: GENERATE });
const VOCABULARY = { bytes: new Uint8Array(1), offsets: Int32Array.of(0, 1) };

/** A compiler whose compilations end when the test says so. */
class FakeCompiler {
  readonly started: string[] = [];
  readonly cancelled: string[] = [];
  readonly #ends = new Map<string, (result: NativeProgram | Error) => void>();

  end(text: string, result: NativeProgram | Error = program(10)): Promise<void> {
    this.#ends.get(text)?.(result);
    return settled();
  }

  readonly addon = {
    createVocabulary: () => Promise.resolve({ size: 1 }),
    compileProgram: (source: GrammarSpec['source']) => {
      const text = 'text' in source ? source.text : '';
      this.started.push(text);
      const result = new Promise<NativeProgram>((resolve, reject) => {
        this.#ends.set(text, (value) => (value instanceof Error ? reject(value) : resolve(value)));
      });
      const cancel = () => {
        this.cancelled.push(text);
        this.#ends.get(text)?.(new Error('the compilation was cancelled'));
      };
      return { result, cancel };
    },
  } as unknown as NativeGrammarAddon;
}

async function settled(): Promise<void> {
  for (let i = 0; i < 20; i++) await Promise.resolve();
}

describe('ProgramCache', () => {
  it('keeps what was used last, within the bytes of a tenant', () => {
    const cache = new ProgramCache(5000, 100_000);
    for (const key of ['a', 'b', 'c']) cache.add('t', key, program(1000));
    expect(cache.find('t', 'a')).not.toBeNull();
    cache.add('t', 'd', program(1000));
    expect([...'abcd'].map((key) => cache.find('t', key) !== null)).toEqual([true, false, true, true]);
    expect(cache.bytesOf('t')).toBeLessThanOrEqual(5000);
  });

  it('gives nobody what is worn', () => {
    let worn = false;
    const cache = new ProgramCache();
    cache.add('t', 'a', { ...program(1000), worn: () => worn });
    cache.add('u', 'a', program(1000));
    expect(cache.find('t', 'a')).not.toBeNull();
    worn = true;
    expect(cache.find('t', 'a')).toBeNull();
    expect(cache.bytesOf('t')).toBe(0);
    expect(cache.find('u', 'a')).not.toBeNull();
  });

  it('shows one tenant nothing of another, and makes room among its own', () => {
    const cache = new ProgramCache(5000, 100_000);
    cache.add('t', 'a', program(1000));
    expect(cache.find('u', 'a')).toBeNull();
    for (let i = 0; i < 1000; i++) cache.add('u', `k${i}`, program(1000));
    expect(cache.find('t', 'a')).not.toBeNull();
    expect(cache.bytesOf('u')).toBeLessThanOrEqual(5000);
  });

  it('counts what masks have added since, and bounds all tenants together', () => {
    let held = 100;
    const cache = new ProgramCache(5000, 8000);
    cache.add('t', 'grows', { micros: 1, heldBytes: () => held, worn: () => false, constrain });
    held = 10_000;
    cache.add('t', 'next', program(100));
    expect(cache.find('t', 'grows')).toBeNull();
    for (const tenant of ['a', 'b', 'c', 'd'])
      for (const key of ['1', '2', '3', '4']) cache.add(tenant, key, program(600));
    const all = ['a', 'b', 'c', 'd', 't'].reduce((sum, tenant) => sum + cache.bytesOf(tenant), 0);
    expect(all).toBeLessThanOrEqual(8000);
  });

  it('bounds all tenants together where each has one entry, and keeps the newest of all', () => {
    const cache = new ProgramCache(5000, 8000);
    cache.add('large', 'a', program(4000));
    const tenants = Array.from({ length: 20 }, (_, at) => `t${at}`);
    for (const tenant of tenants) cache.add(tenant, 'a', program(1000));
    const all = ['large', ...tenants].reduce((sum, tenant) => sum + cache.bytesOf(tenant), 0);
    expect(all).toBeLessThanOrEqual(8000);
    expect(all).toBeGreaterThan(4000);
    cache.add('new', 'a', program(9000));
    expect(cache.find('new', 'a')).not.toBeNull();
    expect(tenants.map((tenant) => cache.bytesOf(tenant))).toEqual(tenants.map(() => 0));
  });

  it('measures a few entries per addition however many tenants it knows, all of them in turns', () => {
    const cache = new ProgramCache(5000, 1_000_000);
    let measured = 0;
    let held = 100;
    const counted = () => ({ micros: 1, heldBytes: () => (measured++, held), worn: () => false, constrain });
    for (let at = 0; at < 500; at++) cache.add(`t${at}`, 'a', counted());
    expect(measured).toBeLessThan(4 * 500);
    // Masks were made meanwhile: nobody uses these entries, and still they are counted.
    held = 3000;
    for (let at = 0; at < 1000; at++) cache.add('u', 'a', program(100));
    const all = Array.from({ length: 500 }, (_, at) => cache.bytesOf(`t${at}`)).reduce((sum, bytes) => sum + bytes, 0);
    expect(all).toBeGreaterThan(500_000);
    expect(all).toBeLessThanOrEqual(1_000_000);
  });
});

describe('Grammars', () => {
  it('compiles equal grammars of a tenant once, and those of two tenants twice', async () => {
    const compiler = new FakeCompiler();
    const grammars = new Grammars(compiler.addon, VOCABULARY);
    const both = Promise.all([grammars.compile('t', spec('a')), grammars.compile('t', spec('a'))]);
    await settled();
    expect(compiler.started).toEqual(['a']);
    await compiler.end('a');
    expect(await both).toHaveLength(2);
    expect(grammars.find('t', spec('a'))).not.toBeNull();
    expect(grammars.find('u', spec('a'))).toBeNull();
    void grammars.compile('u', spec('a'));
    await settled();
    expect(compiler.started).toEqual(['a', 'a']);
  });

  it('lets no tenant hold all threads', async () => {
    const compiler = new FakeCompiler();
    const grammars = new Grammars(compiler.addon, VOCABULARY);
    for (const text of ['a', 'b', 'c', 'd']) void grammars.compile('t', spec(text));
    void grammars.compile('u', spec('x'));
    await settled();
    expect(compiler.started).toEqual(['a', 'x']);
    await compiler.end('a');
    expect(compiler.started).toEqual(['a', 'x', 'b']);
  });

  it('stops a compilation when the last client has left, whether it runs or waits', async () => {
    const compiler = new FakeCompiler();
    const grammars = new Grammars(compiler.addon, VOCABULARY);
    const [one, two, three] = [new AbortController(), new AbortController(), new AbortController()];
    const first = grammars.compile('t', spec('a'), one.signal);
    const second = grammars.compile('t', spec('a'), two.signal);
    for (const text of ['b', 'c']) void grammars.compile('t', spec(text));
    const waiting = grammars.compile('t', spec('d'), three.signal);
    await settled();
    one.abort();
    three.abort();
    expect(await first).toMatchObject({ failure: { kind: 'cancelled' } });
    expect(await waiting).toMatchObject({ failure: { kind: 'cancelled' } });
    expect(compiler.cancelled).toEqual([]);
    two.abort();
    expect(await second).toMatchObject({ failure: { kind: 'cancelled' } });
    expect(compiler.cancelled).toEqual(['a']);
    for (const text of ['a', 'b', 'c']) await compiler.end(text);
    expect(compiler.started).toEqual(['a', 'b', 'c']);
  });

  it('says whose fault a failure is, and is none the worse for it', async () => {
    const compiler = new FakeCompiler();
    const grammars = new Grammars(compiler.addon, VOCABULARY);
    const kinds: [Error, string][] = [
      [new TypeError('x'), 'malformed'],
      [new RangeError('x'), 'bound'],
      [new Error('x'), 'failed'],
    ];
    for (const [error, kind] of kinds) {
      const compiled = grammars.compile('t', spec('bad'));
      await settled();
      await compiler.end('bad', error);
      expect(await compiled).toMatchObject({ failure: { kind } });
    }
    const good = grammars.compile('t', spec('good'));
    await settled();
    await compiler.end('good');
    expect(await good).toHaveProperty('program');
    expect(await new Grammars(compiler.addon, undefined).compile('t', spec('a'))).toMatchObject({
      failure: { kind: 'failed' },
    });
  });

  it('takes only so many that wait', async () => {
    const grammars = new Grammars(new FakeCompiler().addon, VOCABULARY);
    const asked = Array.from({ length: 1100 }, (_, i) => grammars.compile('t', spec(`w${i}`)));
    expect(await Promise.race(asked)).toMatchObject({ failure: { kind: 'busy' } });
  });
});

describe('CompileCalls', () => {
  const make = () => {
    const sent: ToEngine[] = [];
    return { sent, calls: new CompileCalls((message) => sent.push(message)) };
  };

  it('waits for an engine, and passes its answer on', async () => {
    const { sent, calls } = make();
    const answer = calls.call('t', spec('a'));
    expect(sent).toEqual([]);
    calls.open();
    expect(sent).toMatchObject([{ type: 'compile', id: 1, tenant: 't' }]);
    calls.answered(1, null);
    expect(await answer).toBeNull();
  });

  it('tries once more only what may have brought an engine down, and ends with the last engine', async () => {
    const { sent, calls } = make();
    calls.open();
    const asked = calls.call('t', spec('a'));
    calls.crashed();
    const later = calls.call('t', spec('b'));
    calls.open();
    calls.crashed();
    expect(await asked).toMatchObject({ kind: 'failed' });
    calls.open();
    expect(sent).toMatchObject([1, 1, 2, 2].map((id) => ({ type: 'compile', id })));
    calls.failAll('over');
    await expect(later).rejects.toThrow('over');
  });

  it('tells the engine when the client leaves', async () => {
    const { sent, calls } = make();
    calls.open();
    const controller = new AbortController();
    const asked = calls.call('t', spec('a'), controller.signal);
    controller.abort();
    expect(await asked).toMatchObject({ kind: 'cancelled' });
    expect(sent.at(-1)).toEqual({ type: 'cancel-compile', id: 1 });
  });
});
