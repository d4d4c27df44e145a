/**
 * Every trained model and its servable checkpoints, in memory: resolving a name runs no SQL and takes the same work whether the model is
 * there, belongs to another entity or never was. The store is written first, the registry after it.
 */
import type { AdapterRef } from '../../engine/training.ts';
import type { AdapterShape } from '../adapter-init.ts';
import { parseModelName } from './names.ts';

export interface RegisteredModel {
  readonly id: string;
  readonly entity: string;
  readonly project: string;
  readonly name: string;
  readonly baseModel: string;
  readonly runId: string;
  /** False where the server now runs on other base weights: nothing of it can be served or trained. */
  readonly usable: boolean;
  /** Why it can be neither served nor trained further; null: it can. */
  readonly obstacle: string | null;
  /** Shape of its adapters, whatever the server gives to new models now. */
  readonly lora: AdapterShape;
  /** Unix seconds. */
  readonly created: number;
}

export interface RegisteredCheckpoint {
  readonly id: string;
  readonly step: number;
  readonly adapter: AdapterRef;
}

/** A name resolved: which adapter serves the request. */
export interface ResolvedModel {
  model: RegisteredModel;
  checkpoint: RegisteredCheckpoint;
}

interface Entry {
  model: RegisteredModel;
  checkpoints: Map<number, RegisteredCheckpoint>;
  latest: RegisteredCheckpoint | null;
}

export class ModelRegistry {
  readonly #byId = new Map<string, Entry>();
  readonly #byName = new Map<string, Entry>();
  readonly #byRun = new Map<string, Entry>();

  add(model: RegisteredModel, checkpoints: readonly RegisteredCheckpoint[]): void {
    const entry: Entry = { model, checkpoints: new Map(), latest: null };
    for (const checkpoint of checkpoints) put(entry, checkpoint);
    this.#byId.set(model.id, entry);
    this.#byName.set(nameKey(model.entity, model.project, model.name), entry);
    this.#byRun.set(model.runId, entry);
  }

  remove(modelId: string): RegisteredCheckpoint[] {
    const entry = this.#byId.get(modelId);
    if (entry === undefined) return [];
    const { model } = entry;
    this.#byId.delete(modelId);
    this.#byName.delete(nameKey(model.entity, model.project, model.name));
    this.#byRun.delete(model.runId);
    return [...entry.checkpoints.values()];
  }

  addCheckpoint(modelId: string, checkpoint: RegisteredCheckpoint): void {
    const entry = this.#byId.get(modelId);
    if (entry !== undefined) put(entry, checkpoint);
  }

  removeCheckpoint(modelId: string, step: number): void {
    const entry = this.#byId.get(modelId);
    if (entry === undefined || !entry.checkpoints.delete(step)) return;
    if (entry.latest?.step === step) entry.latest = newest(entry.checkpoints);
  }

  /** Null for another entity's model. */
  owned(modelId: string, entity: string): RegisteredModel | null {
    const model = this.#byId.get(modelId)?.model;
    return model?.entity === entity ? model : null;
  }

  /** Whosever it is. */
  find(modelId: string): RegisteredModel | null {
    return this.#byId.get(modelId)?.model ?? null;
  }

  /** The model whose run this is; null for another entity's. */
  ofRun(runId: string, entity: string): RegisteredModel | null {
    const model = this.#byRun.get(runId)?.model;
    return model?.entity === entity ? model : null;
  }

  named(entity: string, project: string, name: string): RegisteredModel | null {
    return this.#byName.get(nameKey(entity, project, name))?.model ?? null;
  }

  /** The checkpoint at a step, or the newest. */
  checkpoint(modelId: string, step: number | null): RegisteredCheckpoint | null {
    const entry = this.#byId.get(modelId);
    if (entry === undefined) return null;
    return step === null ? entry.latest : (entry.checkpoints.get(step) ?? null);
  }

  /** What a client's name means to this entity; null where it has no such model or step. */
  resolve(text: string, entity: string): ResolvedModel | null {
    const name = parseModelName(text);
    const entry = name === null ? undefined : this.#byName.get(nameKey(name.entity, name.project, name.name));
    if (name === null || entry === undefined || entry.model.entity !== entity || !entry.model.usable) return null;
    const checkpoint = name.step === null ? entry.latest : (entry.checkpoints.get(name.step) ?? null);
    return checkpoint === null ? null : { model: entry.model, checkpoint };
  }

  /** Models of an entity, oldest first. */
  ofEntity(entity: string): RegisteredModel[] {
    return [...this.#byId.values()].map(({ model }) => model).filter((model) => model.entity === entity);
  }
}

function put(entry: Entry, checkpoint: RegisteredCheckpoint): void {
  entry.checkpoints.set(checkpoint.step, checkpoint);
  if (entry.latest === null || checkpoint.step >= entry.latest.step) entry.latest = checkpoint;
}

function newest(checkpoints: ReadonlyMap<number, RegisteredCheckpoint>): RegisteredCheckpoint | null {
  let found: RegisteredCheckpoint | null = null;
  for (const checkpoint of checkpoints.values()) {
    if (found === null || checkpoint.step > found.step) found = checkpoint;
  }
  return found;
}

/** None of the parts can hold a slash. */
function nameKey(entity: string, project: string, name: string): string {
  return `${entity}/${project}/${name}`;
}
