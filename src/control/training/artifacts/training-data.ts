/** Opens training_data_url: an artifact of the caller's, and what else the operator allows. */
import { constants } from 'node:fs';
import { open, realpath } from 'node:fs/promises';
import { isAbsolute, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { invalid, type ValidationError } from '../../../schemas/validation-error.ts';
import type { OpenTrainingData } from '../jobs/job-service.ts';
import { ServiceError } from '../service-error.ts';
import type { ArtifactService } from './artifact-service.ts';
import { parseArtifactUrl } from './artifact-url.ts';
import { LookUps } from './look-ups.ts';
import { FetchRefusedError, guardedFetch, PUBLIC_NETWORK, type FetchNetwork } from './guarded-fetch.ts';

export interface TrainingDataOptions {
  artifacts: ArtifactService;
  /** file:// URLs may name files below this folder; null: none. */
  fileRoot: string | null;
  /** Hosts of http(s) URLs; empty: none. */
  hosts: readonly string[];
  maxBytes: number;
  network?: FetchNetwork;
}

const IDLE_TIMEOUT_MS = 30_000;
const TOTAL_TIMEOUT_MS = 600_000;

export function trainingDataOpener(options: TrainingDataOptions): OpenTrainingData {
  const { network = PUBLIC_NETWORK } = options;
  const lookUps = new LookUps((host, signal) => network.resolve(host, signal));
  return async (url, entity) => {
    const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(url)?.[1]?.toLowerCase();
    if (scheme === 'wandb-artifact') return openArtifact(url, entity, options.artifacts);
    if (scheme === 'file' && options.fileRoot !== null) return readFile(url, options.fileRoot);
    if ((scheme === 'http' || scheme === 'https') && options.hosts.length > 0) {
      return fetched(url, options, { ...network, resolve: lookUps.of(entity) });
    }
    throw refused(
      'The server takes training data from its artifact store: wandb-artifact:///entity/project/name:v0' +
        `${options.fileRoot === null ? '' : ', file://'}${options.hosts.length === 0 ? '' : ', https://'}.`,
    );
  };
}

async function openArtifact(
  url: string,
  entity: string,
  artifacts: ArtifactService,
): Promise<AsyncIterable<Uint8Array>> {
  const name = parseArtifactUrl(url);
  if (name === null) throw refused('It should look like wandb-artifact:///entity/project/name:v0.');
  // Looked up under the caller's entity whatever the URL says: others' artifacts cost the same work.
  const owned = name.entity === entity ? name.name : '';
  const find = () => artifacts.openData(entity, name.project, owned, name.version);
  const data = await find();
  if (data === null) throw missing();
  return untilDeleted(data, find);
}

/** What is not there may have been deleted since it was found, or lost. */
async function* untilDeleted(
  data: AsyncIterable<Uint8Array>,
  find: () => Promise<unknown>,
): AsyncGenerator<Uint8Array> {
  try {
    yield* data;
  } catch (error) {
    if (error instanceof ServiceError && (await find()) === null) throw missing();
    throw error;
  }
}

function missing(): ValidationError {
  return refused('There is no such artifact with a train.jsonl or trajectories.jsonl.');
}

/** Opened when it is first read: whoever asked may be refused before, and would leave it open. */
async function* readFile(url: string, root: string): AsyncGenerator<Uint8Array> {
  const noFile = refused('There is no such file below the folder that the server reads training data from.');
  let path: string;
  try {
    path = await realpath(fileURLToPath(url));
  } catch {
    throw noFile;
  }
  const below = relative(await realpath(root), path);
  if (below === '' || below.startsWith('..') || isAbsolute(below)) throw noFile;
  // NOFOLLOW: the last part cannot have become a link since it was looked at. NONBLOCK: a pipe does not hold us.
  const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(() => {
    throw noFile;
  });
  if (!(await handle.stat()).isFile()) {
    await handle.close();
    throw noFile;
  }
  yield* handle.createReadStream() as AsyncIterable<Uint8Array>;
}

async function* fetched(
  url: string,
  { hosts, maxBytes }: TrainingDataOptions,
  network: FetchNetwork,
): AsyncGenerator<Uint8Array> {
  const limits = { hosts, maxBytes, idleTimeoutMs: IDLE_TIMEOUT_MS, totalTimeoutMs: TOTAL_TIMEOUT_MS };
  try {
    yield* guardedFetch(url, limits, network);
  } catch (error) {
    throw error instanceof FetchRefusedError ? refused(error.message) : error;
  }
}

function refused(message: string): ValidationError {
  return invalid(['body', 'training_data_url'], message);
}
