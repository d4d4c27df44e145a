import type { Context, Middleware } from 'koa';
import type { ListedModel } from '../../control/models/resolver.ts';
import type { ModelCard, ModelList } from '../../schemas/models-response.ts';
import type { ApiDeps } from '../deps.ts';
import { isOfMessages } from '../messages-clients.ts';
import { entityOf } from '../middleware/auth.ts';
import { requireModel } from '../requests/model-name.ts';
import { readModelPage } from '../requests/model-page.ts';
import { modelInfo, modelPage } from '../responses/model-page.ts';
import type { RouteDeps } from './context.ts';

const PATH = '/v1/models/';
/** About what a card takes. */
const CARD_BYTES = 512;

interface Shown extends ListedModel {
  /** null: the base model. */
  parent: string | null;
}

/** Every served name of the base model, then the adapters that the caller may name, with `parent` set. */
export function models(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const all = await shown(deps, ctx);
    ctx.body = await deps.bodies.inTurn(entityOf(ctx), CARD_BYTES * all.length, () => listText(deps, ctx, all));
    ctx.type = 'json';
  };
}

function listText(deps: ApiDeps, ctx: Context, all: Shown[]): string {
  if (!isOfMessages(ctx.path, ctx.headers)) {
    const list: ModelList = { object: 'list', data: all.map((each) => card(deps, each)) };
    return JSON.stringify(list);
  }
  const { maxModelLen } = deps.sessions;
  const infos = all.map((each) => modelInfo(each, maxModelLen));
  return JSON.stringify(modelPage(infos, readModelPage(ctx)));
}

/** Of every name that a request may give, whether it is listed or not. Names have slashes: clients write them as they are, or as %2F. */
export function model(deps: ApiDeps): Middleware {
  return async (ctx) => {
    const name = decoded(ctx.path.slice(PATH.length));
    const found = await find(deps, ctx, name);
    if (found === null) requireModel(null, name);
    else if (isOfMessages(ctx.path, ctx.headers)) ctx.body = modelInfo(found, deps.sessions.maxModelLen);
    else ctx.body = card(deps, found);
  };
}

async function shown(deps: ApiDeps, ctx: Context): Promise<Shown[]> {
  const adapters = await deps.models.list(entityOf(ctx));
  const base = deps.model.names.map((name) => baseModel(deps, name));
  return [...base, ...adapters.map((each) => adapterModel(deps, each))];
}

async function find(deps: ApiDeps, ctx: Context, name: string): Promise<Shown | null> {
  if (deps.model.names.includes(name)) return baseModel(deps, name);
  const adapter = await deps.models.describe(name, entityOf(ctx));
  return adapter && adapterModel(deps, adapter);
}

function baseModel({ model: { root, created } }: ApiDeps, name: string): Shown {
  return { name, root, created, parent: null };
}

function adapterModel(deps: ApiDeps, adapter: ListedModel): Shown {
  return { ...adapter, parent: deps.model.names[0] ?? null };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function card(deps: ApiDeps, { name, root, created, parent }: Shown): ModelCard {
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
