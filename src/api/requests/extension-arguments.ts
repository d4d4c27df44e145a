/** engine_xargs, or vllm_xargs as vLLM calls it: arguments of the server's extensions. */
import { ExtensionArgumentError } from '../../control/extensions/extensions.ts';
import type { ExtensionArguments } from '../../control/extensions/extension.ts';
import type { SamplingFields } from '../../schemas/sampling-fields.ts';
import { refuse } from './refuse.ts';

export interface ArgumentCheck {
  /** Throws ExtensionArgumentError. */
  check(values: ExtensionArguments): void;
}

/** null: none were given. */
export function toExtensionArguments(body: SamplingFields, extensions: ArgumentCheck): ExtensionArguments | null {
  const own = (body.engine_xargs ?? {}) as ExtensionArguments;
  const alias = (body.vllm_xargs ?? {}) as ExtensionArguments;
  const field = Object.keys(own).length > 0 ? 'engine_xargs' : 'vllm_xargs';
  const twice = Object.keys(alias).find((name) => Object.hasOwn(own, name));
  if (twice !== undefined) refuse(`'${twice.slice(0, 40)}' is in engine_xargs and in vllm_xargs.`, 'vllm_xargs');
  const values = { ...own, ...alias };
  if (Object.keys(values).length === 0) return null;
  if (body.use_beam_search === true) refuse('Extensions cannot steer a beam search.', field);
  try {
    extensions.check(values);
  } catch (error) {
    if (error instanceof ExtensionArgumentError) refuse(error.message, field);
    throw error;
  }
  return values;
}
