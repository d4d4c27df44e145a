import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { ApiDeps } from '../deps.ts';
import { shorten } from '../../schemas/shorten.ts';
import { ApiError } from '../errors.ts';

function nameIn(body: unknown): string | null {
  const { model } = (typeof body === 'object' && body !== null ? body : {}) as { model?: unknown };
  return typeof model === 'string' ? model : null;
}

/** What the body's `model` names, whatever else is wrong with the body; null: nothing. */
export function resolveModel(deps: ApiDeps, body: unknown, entity: string): Promise<ResolvedModel | null> {
  // null and no name mean the base model.
  return deps.models.resolve(nameIn(body) ?? '', entity);
}

export function requireModel(model: ResolvedModel | null, name: string | null | undefined): ResolvedModel {
  if (model?.obstacle !== undefined) throw new ApiError('invalid_parameter', model.obstacle, 'model');
  if (model) return model;
  throw new ApiError('model_not_found', `The model \`${shorten(name ?? '', 256)}\` does not exist.`, 'model');
}
