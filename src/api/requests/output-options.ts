/** What the answer of a generation carries besides its text. */
import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { SamplingFields } from '../../schemas/sampling-fields.ts';

export interface OutputOptions {
  stream: boolean;
  includeUsage: boolean;
  continuousUsage: boolean;
  returnTokenIds: boolean;
  /** Logprob tokens as `token_id:<id>`. */
  tokensAsIds: boolean;
}

/** A model that is being trained needs the ids of what it said: they are its training data. */
export function toOutputOptions(
  body: SamplingFields,
  forceIncludeUsage: boolean,
  model: Pick<ResolvedModel, 'trainable'>,
): OutputOptions {
  const includeUsage = forceIncludeUsage || body.stream_options?.include_usage === true;
  return {
    stream: body.stream ?? false,
    includeUsage,
    // Acts only beside include_usage.
    continuousUsage: forceIncludeUsage || (includeUsage && body.stream_options?.continuous_usage_stats === true),
    returnTokenIds: body.return_token_ids ?? model.trainable,
    tokensAsIds: body.return_tokens_as_token_ids ?? model.trainable,
  };
}
