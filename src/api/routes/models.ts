import type { Middleware } from 'koa';
import type { ModelCard, ModelList } from '../../schemas/models-response.ts';
import type { ApiDeps } from '../deps.ts';

/** Every served name of the base model; adapters will follow with `parent` set. */
export function models(deps: ApiDeps): Middleware {
  return (ctx) => {
    const list: ModelList = { object: 'list', data: deps.model.names.map((name) => card(deps, name)) };
    ctx.body = list;
  };
}

function card(deps: ApiDeps, name: string): ModelCard {
  const { created, root } = deps.model;
  return {
    id: name,
    object: 'model',
    created,
    owned_by: 'tandem',
    root,
    parent: null,
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
