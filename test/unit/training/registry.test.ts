/** What a trained model's names mean, from publication to publication. */
import { expect, test } from 'vitest';
import { TrainedModelResolver } from '../../../src/control/training/models/model-resolver.ts';
import type { BlobStore } from '../../../src/control/store/blob-store.ts';
import { checkpointRef, registeredModel } from '../../../src/control/training/models/records.ts';
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
  obstacle: null,
  lora: { rank: 4, alpha: 8 },
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

test('a model is its entity’s alone, by its id, its run and its name, until it is removed', () => {
  const registry = new ModelRegistry();
  registry.add(model, [checkpoint(0)]);
  registry.add({ ...model, id: 'two', entity: 'them', runId: 'theirs' }, []);
  const seen = (entity: string) => [
    registry.owned('one', entity)?.id,
    registry.ofRun('run', entity)?.id,
    registry.named(entity, 'p', 'agent')?.id,
    ...registry.ofEntity(entity).map(({ id }) => id),
  ];
  expect(seen('us')).toEqual(['one', 'one', 'one', 'one']);
  expect(seen('them')).toEqual([undefined, undefined, 'two', 'two']);
  registry.remove('one');
  expect(seen('us')).toEqual([undefined, undefined, undefined]);
});

test('a model of other base weights, or without a step, is not served and not listed', async () => {
  const registry = new ModelRegistry();
  const resolver = new TrainedModelResolver(registry);
  const at = '2026-01-01T00:00:01.000Z';
  const stored = { ...model, baseDigest: 'now', nextStep: 1, createdAt: at };
  const fits = registeredModel(stored, 'now');
  const foreign = registeredModel({ ...stored, id: 'two', name: 'old', runId: 'r', baseDigest: 'before' }, 'now');
  expect([fits.usable, foreign.usable, fits.created]).toEqual([true, false, Date.parse(at) / 1000]);
  expect(fits.lora).toEqual({ rank: 4, alpha: 8 });
  registry.add(foreign, [checkpoint(0)]);
  registry.add(fits, []);
  const seen = async () => [
    (await resolver.list('us')).map(({ name }) => name),
    await resolver.resolve('us/p/old', 'us'),
    (await resolver.describe('us/p/agent', 'us'))?.root,
  ];
  expect(await seen()).toEqual([[], null, undefined]);
  registry.addCheckpoint('one', checkpoint(0));
  expect(await seen()).toEqual([['wandb-artifact:///us/p/agent'], null, 'base']);
  expect(await resolver.list('them')).toEqual([]);
});

test('steps of the same content are told apart: one that is unloaded does not take the other with it', () => {
  const made = { modelId: 'one', step: 0, jobId: null, version: 'same', bytes: 1, createdAt: '' };
  const blobs = { path: (key: string) => `/${key}` } as unknown as BlobStore;
  const [first, second] = ['a', 'b'].map((id) => checkpointRef({ ...made, id, blobKey: id }, blobs));
  expect(first?.adapter.version).not.toBe(second?.adapter.version);
  expect(checkpointRef({ ...made, id: 'a', blobKey: 'a' }, blobs)).toEqual(first);
});

test('a name that is asked for twice in one instant becomes one model, and others have their own at once', async () => {
  const plane = await startPlane({ paused: true, settings: { maxModelsPerEntity: 1 } });
  try {
    const { models } = plane.side.services;
    const request = { project: 'p', name: 'twins', baseModel: BASE, entity: null, returnExisting: true };
    const create = (entity: string) => models.create(entity, request);
    const [one, two, theirs] = await Promise.all([create('default'), create('default'), create('rivals')]);
    expect(two).toEqual(one);
    expect(theirs.id).not.toBe(one.id);
    const page = (after: string | null) => models.checkpoints(one.id, 'default', { after, limit: 1, order: 'asc' });
    const [first] = (await page(null)).rows;
    expect(await page(first?.id ?? '')).toEqual({ rows: [], hasMore: false });
    await expect(page(theirs.id)).rejects.toThrow('There is no such checkpoint.');
    await expect(models.create('default', { ...request, entity: 'rivals' })).rejects.toMatchObject({
      code: 'forbidden',
    });
  } finally {
    await plane.end();
  }
});
