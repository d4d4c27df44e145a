import type { Middleware } from 'koa';
import { toPage, type PageBody } from '../../../schemas/preview/page.ts';
import type { RouteDeps } from '../context.ts';

interface BaseModelItem {
  id: string;
  object: 'base_model';
  created: number;
  max_model_len: number;
}

/** What `base_model` of a new model may be: the served names of the one base model. */
export function baseModels(deps: RouteDeps): Middleware {
  return (ctx) => {
    const { names, created } = deps.model;
    const trainable = deps.trains ? names : [];
    const items = trainable.map((id) => ({
      id,
      object: 'base_model' as const,
      created,
      max_model_len: deps.sessions.maxModelLen,
    }));
    const body: PageBody<BaseModelItem> = toPage(items, false);
    ctx.body = body;
  };
}
