/** What the HTTP layer needs from the rest; the command line wires it. */
import type { Logger } from 'pino';
import type { EngineClient } from '../control/engine/client.ts';
import type { AdapterRegistry } from '../control/models/adapter-registry.ts';
import type { ModelResolver } from '../control/models/resolver.ts';
import type { Sessions } from '../control/sessions/session.ts';
import type { SampleMemory } from '../control/training/samples/sample-memory.ts';
import type { TrainingServices } from '../control/training/services.ts';
import type { Settings } from '../control/settings.ts';
import type { ResponseStore } from '../control/stored-responses.ts';
import type { ArgumentCheck } from './requests/extension-arguments.ts';
import type { Metrics } from './metrics.ts';

/** Who a request belongs to. */
export interface Caller {
  keyId: string;
  entity: string;
}

export interface KeyDirectory {
  /** Compares in constant time; null = no such key, or revoked. Runs no SQL. */
  find(token: string): Caller | null;
}

export interface ServedModel {
  /** The first is what responses report; all are accepted. */
  names: string[];
  /** Last part of the model's directory: what /v1/models reports as root. */
  root: string;
  /** Unix seconds. */
  created: number;
  systemFingerprint: string;
}

export interface ApiDeps {
  sessions: Sessions;
  engine: EngineClient;
  settings: Settings;
  keys: KeyDirectory;
  model: ServedModel;
  training: TrainingServices;
  /** False: what is there can be read; nothing is created, logged or trained. */
  trains: boolean;
  /** What is kept of responses. */
  responses: ResponseStore;
  /** Ids and log-probabilities of what trained models said. */
  samples: SampleMemory;
  /** Every name that `model` may have; the base model's among them. */
  models: ModelResolver;
  /** Adapters that the operator names; null: the engine serves none. */
  adapters: Pick<AdapterRegistry, 'add' | 'remove'> | null;
  metrics: Metrics;
  extensions: ArgumentCheck;
  log: Logger;
  version: string;
  /** True from SIGTERM on: no new generation is admitted. */
  draining(): boolean;
}
