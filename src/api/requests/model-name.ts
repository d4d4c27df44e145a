import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { ApiDeps } from '../deps.ts';
import { ApiError } from '../errors.ts';

/** What the body's `model` names, whatever else is wrong with the body; null: nothing. */
export function resolveModel(deps: ApiDeps, body: unknown, entity: string): Promise<ResolvedModel | null> {
  const { model } = (typeof body === 'object' && body !== null ? body : {}) as { model?: unknown };
  // null and no name mean the base model.
  return deps.models.resolve(typeof model === 'string' ? model : '', entity);
}

export function requireModel(model: ResolvedModel | null, name: string | null | undefined): ResolvedModel {
  if (model) return model;
  const asked = name ?? '';
  const shown = asked.length > 256 ? `${[...asked.slice(0, 512)].slice(0, 256).join('')}…` : asked;
  throw new ApiError('model_not_found', `The model \`${shown}\` does not exist.`, 'model');
}
