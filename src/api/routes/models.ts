import type { Context, Middleware } from 'koa';
import type { ListedModel } from '../../control/models/resolver.ts';
import type { ModelCard, ModelList } from '../../schemas/models-response.ts';
import type { ApiDeps } from '../deps.ts';
import { entityOf } from '../middleware/auth.ts';
import { requireModel } from '../requests/model-name.ts';

const PATH = '/v1/models/';

/** Every served name of the base model, then the adapters that the caller may name, with `parent` set. */
export function models(deps: ApiDeps): Middleware {
  return async (ctx) => {
    const list: ModelList = { object: 'list', data: await cards(deps, ctx) };
    ctx.body = list;
  };
}

/** Of every name that a request may give, whether it is listed or not. Names have slashes: clients write them as they are, or as %2F. */
export function model(deps: ApiDeps): Middleware {
  return async (ctx) => {
    const name = decoded(ctx.path.slice(PATH.length));
    if (deps.model.names.includes(name)) {
      ctx.body = baseCard(deps, name);
      return;
    }
    const found = await deps.models.describe(name, entityOf(ctx));
    ctx.body = found === null ? requireModel(null, name) : adapterCard(deps, found);
  };
}

async function cards(deps: ApiDeps, ctx: Context): Promise<ModelCard[]> {
  const adapters = await deps.models.list(entityOf(ctx));
  const base = deps.model.names.map((name) => baseCard(deps, name));
  return [...base, ...adapters.map((each) => adapterCard(deps, each))];
}

function baseCard(deps: ApiDeps, name: string): ModelCard {
  const { root, created } = deps.model;
  return card(deps, { name, root, created }, null);
}

function adapterCard(deps: ApiDeps, adapter: ListedModel): ModelCard {
  return card(deps, adapter, deps.model.names[0] ?? null);
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function card(deps: ApiDeps, { name, root, created }: ListedModel, parent: string | null): ModelCard {
  return {
    id: name,
    object: 'model',
    created,
    owned_by: 'tandem',
    root,
    parent,
    max_model_len: deps.sessions.maxModelLen,
    permission: [
      {
        id: `modelperm-${name}`,
        object: 'model_permission',
        created,
        allow_create_engine: false,
        allow_sampling: true,
        allow_logprobs: true,
        allow_search_indices: false,
        allow_view: true,
        allow_fine_tuning: false,
        organization: '*',
        group: null,
        is_blocking: false,
      },
    ],
  };
}
