import { afterEach, describe, expect, it } from 'vitest';
import { EngineUnavailableError } from '../../../src/control/engine/client.ts';
import { createLocalEngine, type LocalEngine } from '../../../src/control/engine/local.ts';
import type { SequenceOutput } from '../../../src/control/engine/protocol.ts';
import { config, Receiver, submission } from '../../boundary/engine-process/harness.ts';
import { VOCABULARY } from '../scheduler/drive.ts';
import { expectedOutputs, fakeAddon } from '../scheduler/fake-native.mjs';

let engine: LocalEngine;
afterEach(() => engine.close());

function receive(requests: ReturnType<typeof submission>[]): Receiver[] {
  const receivers = requests.map(() => new Receiver());
  const sink = (index: number, output: SequenceOutput) => receivers[index]?.take(output);
  engine.submit(requests, sink).forEach((handle, index) => ((receivers[index] as Receiver).handle = handle));
  return receivers;
}

describe('LocalEngine', () => {
  it('runs sequences in this process', async () => {
    engine = await createLocalEngine(config(), { addon: fakeAddon() });
    await engine.ready();
    const requests = [submission(1, 30), submission(2, 100, { logprobs: 2 })];
    const receivers = receive(requests);
    await Promise.all(receivers.map(({ ended }) => ended));
    receivers.forEach((receiver, index) =>
      expect(receiver).toMatchObject(expectedOutputs(requests[index] as (typeof requests)[0], VOCABULARY)),
    );
    expect(engine.stats()).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0, generatedTokens: 20 });
  });

  it('aborts', async () => {
    engine = await createLocalEngine(config(), { addon: fakeAddon() });
    const [long, short] = receive([submission(1, 30, { maxTokens: 400 }), submission(2, 5, { maxTokens: 40 })]);
    await long?.has(3);
    long?.handle.abort();
    await short?.ended;
    expect(long?.finish).toBeNull();
    expect(long?.tokens.length).toBeLessThan(10);
    await engine.drain(10_000);
    expect(engine.stats()).toMatchObject({ running: 0, pagesUsed: 0 });
  });

  it('drains what was submitted in the same turn', async () => {
    engine = await createLocalEngine(config(), { addon: fakeAddon() });
    const [receiver] = receive([submission(1, 30)]);
    await engine.drain(10_000);
    expect(receiver?.finish).toBe('length');
    expect(() => receive([submission(2, 3)])).toThrow(EngineUnavailableError);
  });

  it('ends with an error for everybody when a step fails', async () => {
    engine = await createLocalEngine(config([], { faults: ['step-error-at=3'] }), { addon: fakeAddon() });
    const receivers = receive([submission(1, 3), submission(2, 3)]);
    for (const { ended } of receivers) expect(await ended).toBe('error');
    expect(receivers[0]?.error).toContain('step 3');
    expect(engine.state).toBe('dead');
  });
});
