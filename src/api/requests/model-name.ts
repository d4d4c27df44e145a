import type { ChatCompletionRequest } from '../../schemas/chat-completion.ts';
import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { ApiDeps } from '../deps.ts';
import { shorten } from '../../schemas/shorten.ts';
import { SchemaError, type BodyValidator } from '../../schemas/validator.ts';
import { ApiError } from '../errors.ts';

/** How to sample matters once there is a model to sample from: a value that one of these does not take is told after its name. */
const SAMPLING: ReadonlySet<string> = new Set<keyof ChatCompletionRequest>([
  'n',
  'max_tokens',
  'max_completion_tokens',
  'min_tokens',
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'frequency_penalty',
  'presence_penalty',
  'repetition_penalty',
  'stop',
  'stop_token_ids',
  'bad_words',
  'allowed_token_ids',
]);

/** The body as its schema's type. A model that does not exist is told before values that no model would take. */
export function validateFor<T>(validate: BodyValidator<T>, raw: unknown, model: ResolvedModel | null): T {
  try {
    return validate(raw);
  } catch (error) {
    const [field = ''] = (error instanceof SchemaError && error.kind === 'range' && error.param?.split('.', 1)) || [];
    if (SAMPLING.has(field)) requireModel(model, nameIn(raw));
    throw error;
  }
}

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
  if (model) return model;
  throw new ApiError('model_not_found', `The model \`${shorten(name ?? '', 256)}\` does not exist.`, 'model');
}
