/** What a trained model's names mean, from publication to publication. */
import { expect, test } from 'vitest';
import { TrainedModelResolver } from '../../../src/control/training/models/model-resolver.ts';
import { ModelRegistry, type RegisteredModel } from '../../../src/control/training/models/registry.ts';
import { BASE, startPlane } from './plane.ts';

const model: RegisteredModel = {
  id: 'one',
  entity: 'us',
  project: 'p',
  name: 'agent',
  baseModel: 'base',
  runId: 'run',
  usable: true,
  created: 0,
};
const checkpoint = (step: number) => ({
  id: `c${step}`,
  step,
  adapter: { version: `v${step}`, directory: `/${step}` },
});

test('a name without a step is the newest one of this moment; a step is itself until it is deleted', async () => {
  const registry = new ModelRegistry();
  const resolver = new TrainedModelResolver(registry);
  const version = async (suffix: string, entity = 'us') =>
    (await resolver.resolve(`wandb-artifact:///us/p/agent${suffix}`, entity))?.adapter?.version ?? null;
  registry.add(model, [checkpoint(0)]);
  for (let step = 1; step <= 5; step++) {
    expect(await version('')).toBe(`v${step - 1}`);
    registry.addCheckpoint('one', checkpoint(step));
    expect([await version(''), await version(':latest'), await version(`:step${step}`)]).toEqual(
      Array<string>(3).fill(`v${step}`),
    );
  }
  // What is registered again, or late, does not turn the name back.
  registry.addCheckpoint('one', checkpoint(3));
  expect(await version('')).toBe('v5');
  expect([await version('', 'them'), await version(':step9')]).toEqual([null, null]);
  registry.removeCheckpoint('one', 5);
  expect([await version(''), await version(':v5'), await version(':v2')]).toEqual(['v4', null, 'v2']);
  registry.remove('one');
  expect(await version('')).toBeNull();
});

test('a name that is asked for twice in one instant becomes one model', async () => {
  const plane = await startPlane({ paused: true });
  try {
    const request = { project: 'p', name: 'twins', baseModel: BASE, entity: null, returnExisting: true };
    const create = () => plane.side.services.models.create('default', request);
    const [one, two] = await Promise.all([create(), create()]);
    expect(two).toEqual(one);
  } finally {
    await plane.end();
  }
});
