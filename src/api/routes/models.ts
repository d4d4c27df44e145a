import type { Context, Middleware } from 'koa';
import type { ListedModel } from '../../control/models/resolver.ts';
import type { ModelCard, ModelList } from '../../schemas/models-response.ts';
import type { ApiDeps } from '../deps.ts';
import type { AuthState } from '../middleware/auth.ts';
import { requireModel } from '../requests/model-name.ts';

const PATH = '/v1/models/';

/** Every served name of the base model, then the adapters that the caller may name, with `parent` set. */
export function models(deps: ApiDeps): Middleware {
  return async (ctx) => {
    const list: ModelList = { object: 'list', data: await cards(deps, ctx) };
    ctx.body = list;
  };
}

/** One line of the list. Names have slashes: clients write them as they are, or as %2F. */
export function model(deps: ApiDeps): Middleware {
  return async (ctx) => {
    const name = decoded(ctx.path.slice(PATH.length));
    const found = (await cards(deps, ctx)).find(({ id }) => id === name);
    ctx.body = found ?? requireModel(null, name);
  };
}

async function cards(deps: ApiDeps, ctx: Context): Promise<ModelCard[]> {
  const { names, root, created } = deps.model;
  const parent = names[0] ?? null;
  const adapters = await deps.models.list((ctx.state as AuthState).caller.entity);
  const base = names.map((name) => card(deps, { name, root, created }, null));
  return [...base, ...adapters.map((each) => card(deps, each, parent))];
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
