/** Models as clients of the Messages API list them. */
import type { ListedModel } from '../../control/models/resolver.ts';
import type { ModelInfo, ModelPage } from '../../schemas/models-response.ts';
import type { PageWish } from '../requests/model-page.ts';
import { refuse } from '../requests/refuse.ts';

export function modelInfo({ name, created }: ListedModel, maxModelLen: number): ModelInfo {
  return {
    type: 'model',
    id: name,
    display_name: name,
    created_at: new Date(created * 1000).toISOString(),
    max_input_tokens: maxModelLen,
    max_tokens: maxModelLen,
  };
}

/** Before an id stand those that are next to it. */
export function modelPage(all: readonly ModelInfo[], { limit, afterId, beforeId }: PageWish): ModelPage {
  const from = afterId === null ? 0 : placeOf(all, afterId, 'after_id') + 1;
  const to = beforeId === null ? all.length : placeOf(all, beforeId, 'before_id');
  const data = beforeId === null ? all.slice(from, from + limit) : all.slice(Math.max(0, to - limit), to);
  return {
    data,
    has_more: data.length < to - from,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
  };
}

function placeOf(all: readonly ModelInfo[], id: string, param: string): number {
  const at = all.findIndex((model) => model.id === id);
  if (at < 0) refuse('There is no such model.', param);
  return at;
}
