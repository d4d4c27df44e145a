/** Sequences that are steered from outside: controls per step, ends between steps. */
import { describe, expect, it } from 'vitest';
import type { Advice, Adviser } from '../../../src/control/scheduler/advice.ts';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import { Driver, options, request, VOCABULARY } from './drive.ts';
import { expectedOutputs } from './fake-native.mjs';

type Rule = (outputs: number[]) => Advice;

/** Steers the sequences that have a rule, and remembers what it was asked. */
function adviserOf(rules: Map<number, Rule>): Adviser & { asked: Map<number, number[][]> } {
  const asked = new Map<number, number[][]>();
  return {
    asked,
    open: ({ id }) => (rules.has(id) ? { id } : null),
    advise: (questions) =>
      questions.map(({ adviser, outputs }) => {
        const { id } = adviser as { id: number };
        asked.set(id, [...(asked.get(id) ?? []), [...outputs]]);
        return (rules.get(id) as Rule)([...outputs]);
      }),
  };
}

const ONWARD: Advice = { control: null };
const alone = (each: SequenceRequest) => expectedOutputs(each, VOCABULARY);

describe('advice', () => {
  it('is asked for once per token, with the tokens so far, and bends single steps', async () => {
    const requests = [1, 2].map((id) => request(id, 20, { maxTokens: 6 }));
    const adviser = adviserOf(
      new Map([[1, (outputs) => (outputs.length === 2 ? { control: { allowedIds: Int32Array.of(777) } } : ONWARD)]]),
    );
    const driver = new Driver(options({ adviser }));
    await driver.run(requests);
    const { tokens } = driver.of(1);
    expect(tokens[2]).toBe(777);
    expect(tokens.slice(0, 2)).toEqual(alone(requests[0]!).tokens.slice(0, 2));
    expect(adviser.asked.get(1)).toEqual(tokens.map((_, count) => tokens.slice(0, count)));
    expect(driver.of(2)).toMatchObject(alone(requests[1]!));
  });

  it('may end a sequence before its first token, in the middle, and in the queue', async () => {
    const stopAt =
      (count: number): Rule =>
      (outputs) =>
        outputs.length === count ? { stop: 'enough' } : ONWARD;
    const adviser = adviserOf(new Map([0, 3, 0, 2].map((count, index) => [index + 1, stopAt(count)])));
    const driver = new Driver(options({ adviser, maxSequences: 1 }));
    const requests = [1, 2, 3, 4, 5].map((id) => request(id, 20, { maxTokens: 6 }));
    await driver.run(requests);
    expect([1, 2, 3, 4, 5].map((id) => driver.of(id).tokens.length)).toEqual([0, 3, 0, 2, 6]);
    for (const { id } of requests) expect(driver.of(id).error).toBeUndefined();
    expect([1, 2, 3, 4].map((id) => driver.of(id).finish)).toEqual(['stop', 'stop', 'stop', 'stop']);
    expect(driver.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0 });
  });

  it('that is an error ends its own sequence alone', async () => {
    const fail: Rule = (outputs) => (outputs.length === 2 ? { error: 'it broke' } : ONWARD);
    const driver = new Driver(options({ adviser: adviserOf(new Map([[2, fail]])) }));
    const requests = [1, 2, 3].map((id) => request(id, 20, { maxTokens: 6 }));
    await driver.run(requests);
    expect(driver.of(2)).toMatchObject({ finish: 'error', error: 'it broke' });
    expect(driver.of(2).tokens).toEqual(alone(requests[1]!).tokens.slice(0, 2));
    for (const index of [0, 2]) expect(driver.of(index + 1)).toMatchObject(alone(requests[index]!));
  });

  it('survives preemption: the same tokens, and no question twice', async () => {
    const bend: Rule = (outputs) =>
      outputs.length % 3 === 1 ? { control: { allowedIds: Int32Array.of(outputs.length) } } : ONWARD;
    const requests = [1, 2, 3, 4].map((id) => request(id, 30, { maxTokens: 60 }));
    const run = async (pages: number) => {
      const adviser = adviserOf(new Map(requests.map(({ id }) => [id, bend])));
      const driver = new Driver(options({ adviser, pages, maxModelLen: 100, enablePrefixCaching: false }));
      await driver.run(requests);
      for (const { id } of requests) expect(adviser.asked.get(id)).toHaveLength(60);
      return { tokens: requests.map(({ id }) => driver.of(id).tokens), preemptions: driver.stats.preemptions };
    };
    const roomy = await run(256);
    const tight = await run(14);
    expect(tight.tokens).toEqual(roomy.tokens);
    expect([roomy.preemptions, tight.preemptions > 0]).toEqual([0, true]);
  });

  it('goes on after a restart with the tokens that there were', async () => {
    const adviser = adviserOf(new Map([[1, () => ONWARD]]));
    const driver = new Driver(options({ adviser }));
    const whole = alone(request(1, 20, { maxTokens: 6 })).tokens;
    await driver.run([{ ...request(1, 20, { maxTokens: 6 }), resumeIds: Int32Array.from(whole.slice(0, 4)) }]);
    expect(adviser.asked.get(1)?.[0]).toEqual(whole.slice(0, 4));
    expect(driver.of(1).tokens).toEqual(whole.slice(4));
  });
});
