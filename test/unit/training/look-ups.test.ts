/** Names whose look-up does not end hold up nobody but the entity that named them. */
import { expect, test } from 'vitest';
import type { ArtifactService } from '../../../src/control/training/artifacts/artifact-service.ts';
import { LookUps } from '../../../src/control/training/artifacts/look-ups.ts';
import { trainingDataOpener } from '../../../src/control/training/artifacts/training-data.ts';

const waiting = new AbortController().signal;
const turn = () => new Promise((resolve) => setImmediate(resolve));

test('one look-up of an entity runs at a time, whatever others do', async () => {
  const begun: string[] = [];
  const ends = new Map<string, (error: Error | null) => void>();
  const lookUps = new LookUps((host) => {
    begun.push(host);
    return new Promise((resolve, reject) =>
      ends.set(host, (error) => (error === null ? resolve([host]) : reject(error))),
    );
  });
  const [theirs, second] = [lookUps.of('flood')('slow.test', waiting), lookUps.of('flood')('b.test', waiting)];
  const left = lookUps.of('flood')('left.test', AbortSignal.abort(new Error('left')));
  const third = lookUps.of('flood')('c.test', waiting);
  const ours = lookUps.of('other')('ours.test', waiting);
  await turn();
  expect(begun).toEqual(['slow.test', 'ours.test']);
  ends.get('ours.test')?.(null);
  expect(await ours).toEqual(['ours.test']);
  ends.get('slow.test')?.(new Error('no answer'));
  await expect(theirs).rejects.toThrow('no answer');
  await turn();
  expect(begun).toEqual(['slow.test', 'ours.test', 'b.test']);
  ends.get('b.test')?.(null);
  await Promise.all([second, expect(left).rejects.toThrow('left')]);
  await turn();
  expect(begun).toEqual(['slow.test', 'ours.test', 'b.test', 'c.test']);
  ends.get('c.test')?.(null);
  expect(await third).toEqual(['c.test']);
});

test('so it is for URLs of training data', async () => {
  const begun: string[] = [];
  const resolve = (host: string) => new Promise<string[]>(() => begun.push(host));
  const network = { resolve, allowed: () => true };
  const open = trainingDataOpener({
    artifacts: {} as ArtifactService,
    fileRoot: null,
    hosts: ['*'],
    maxBytes: 1,
    network,
  });
  for (const [entity, host] of [
    ['flood', 'slow.test'],
    ['flood', 'slower.test'],
    ['other', 'ours.test'],
  ] as const) {
    const data = await open(`http://${host}/`, entity);
    void data[Symbol.asyncIterator]().next();
  }
  await turn();
  expect(begun).toEqual(['slow.test', 'ours.test']);
});
