/** Names of trained models for the generation endpoints. */
import type { ListedModel, ModelResolver, ResolvedModel } from '../../models/resolver.ts';
import { formatModelName } from './names.ts';
import type { ModelRegistry, RegisteredModel } from './registry.ts';

export class TrainedModelResolver implements ModelResolver {
  readonly #registry: ModelRegistry;

  constructor(registry: ModelRegistry) {
    this.#registry = registry;
  }

  resolve(name: string, entity: string): Promise<ResolvedModel | null> {
    const found = this.#registry.resolve(name, entity);
    if (found === null) return Promise.resolve(null);
    const resolved = { adapter: found.checkpoint.adapter, trainable: true, displayName: name };
    const { obstacle } = found.model;
    return Promise.resolve(obstacle === null ? resolved : { ...resolved, obstacle });
  }

  /** Of steps and other spellings too, which are not listed. */
  describe(name: string, entity: string): Promise<ListedModel | null> {
    const found = this.#registry.resolve(name, entity);
    return Promise.resolve(found?.model.obstacle === null ? listed(name, found.model) : null);
  }

  /** One line per model that can be served; its steps have names of their own. */
  list(entity: string): Promise<ListedModel[]> {
    const servable = this.#registry
      .ofEntity(entity)
      .filter((model) => model.obstacle === null && this.#registry.checkpoint(model.id, null) !== null);
    return Promise.resolve(servable.map((model) => listed(formatModelName({ ...model, step: null }), model)));
  }
}

function listed(name: string, { baseModel, created }: RegisteredModel): ListedModel {
  return { name, root: baseModel, created };
}
