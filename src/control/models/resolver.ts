/** From the `model` of a request to what serves it. */
import type { AdapterRef } from '../engine/training.ts';

export interface ResolvedModel {
  /** null = the base model. */
  adapter: AdapterRef | null;
  /** A registered model that is being trained: log-probabilities and token ids are returned unless the request says otherwise. */
  trainable: boolean;
  /** What responses report as `model`. */
  displayName: string;
  /** Why it cannot be served with this server's settings, a sentence for its owner; absent: it can. */
  obstacle?: string;
}

/** What GET /v1/models shows of a name that is not the base model's. */
export interface ListedModel {
  name: string;
  /** Where it lies, or what it is a version of. */
  root: string;
  /** Unix seconds. */
  created: number;
}

/** One kind of names. Whatever belongs to another entity is answered like what does not exist, in the same time. */
export interface ModelResolver {
  /** null: no such model. The answer is of this moment: "latest" is resolved once per request. */
  resolve(name: string, entity: string): Promise<ResolvedModel | null>;
  /** null where `resolve` says so, and for names of the base model. */
  describe(name: string, entity: string): Promise<ListedModel | null>;
  /** What GET /v1/models shows to the entity besides the base model: one name for each. */
  list(entity: string): Promise<ListedModel[]>;
}

/** Asks one after the other; the first that knows the name answers. */
export class FirstResolver implements ModelResolver {
  readonly #resolvers: readonly ModelResolver[];

  constructor(resolvers: readonly ModelResolver[]) {
    this.#resolvers = resolvers;
  }

  async resolve(name: string, entity: string): Promise<ResolvedModel | null> {
    for (const resolver of this.#resolvers) {
      const found = await resolver.resolve(name, entity);
      if (found) return found;
    }
    return null;
  }

  async describe(name: string, entity: string): Promise<ListedModel | null> {
    for (const resolver of this.#resolvers) {
      const found = await resolver.describe(name, entity);
      if (found) return found;
    }
    return null;
  }

  async list(entity: string): Promise<ListedModel[]> {
    return (await Promise.all(this.#resolvers.map((resolver) => resolver.list(entity)))).flat();
  }
}

/** The names of the base model itself; '' is one of them. */
export class BaseModelResolver implements ModelResolver {
  readonly #names: readonly string[];

  constructor(names: readonly string[]) {
    this.#names = names;
  }

  resolve(name: string): Promise<ResolvedModel | null> {
    const known = name === '' || this.#names.includes(name);
    return Promise.resolve(known ? { adapter: null, trainable: false, displayName: this.#names[0] ?? '' } : null);
  }

  describe(): Promise<null> {
    return Promise.resolve(null);
  }

  list(): Promise<ListedModel[]> {
    return Promise.resolve([]);
  }
}
