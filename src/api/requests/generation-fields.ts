/** Parts of a generation that every interface asks for in the same words. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { GenerationInput } from '../../control/sessions/session.ts';
import type { SamplingFields } from '../../schemas/sampling-fields.ts';
import type { RequestContext } from './chat-request.ts';
import { toExtensionArguments } from './extension-arguments.ts';

type GenerationFields = Pick<
  GenerationInput,
  'tenant' | 'cacheSalt' | 'extensionArguments' | 'adapter' | 'modelDefaults'
>;

export function toGenerationFields(
  body: SamplingFields,
  model: ResolvedModel,
  { tenant, extensions }: Pick<RequestContext, 'tenant' | 'extensions'>,
): GenerationFields {
  return {
    tenant,
    cacheSalt: body.cache_salt ?? null,
    extensionArguments: toExtensionArguments(body, extensions),
    adapter: model.adapter,
    modelDefaults: !model.trainable,
  };
}
