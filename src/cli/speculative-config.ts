import { InvalidArgumentError } from 'commander';
import { checkSpeculation, NEVER_DISABLED, type SpeculationOptions } from '../control/scheduler/speculation.ts';
import { jsonObject, type Parser } from './parsers.ts';

/** The fields that count, by their names in --speculative-config. */
const FIELDS = {
  num_speculative_tokens: 'numSpeculativeTokens',
  prompt_lookup_max: 'promptLookupMax',
  prompt_lookup_min: 'promptLookupMin',
  disable_by_batch_size: 'disableByBatchSize',
} as const;

/** vLLM's `--speculative-config` for the method `ngram`. */
export function speculativeConfig(): Parser<SpeculationOptions> {
  const readObject = jsonObject('{"method": "ngram", "num_speculative_tokens": 5}');
  return (text) => {
    const { method, ...fields } = readObject(text);
    if (method !== 'ngram') throw new InvalidArgumentError('method must be "ngram": there is no draft model.');
    const options = {
      numSpeculativeTokens: 5,
      promptLookupMax: 4,
      promptLookupMin: 2,
      disableByBatchSize: NEVER_DISABLED,
    };
    for (const [name, value] of Object.entries(fields)) {
      if (!Object.hasOwn(FIELDS, name)) throw new InvalidArgumentError(`${name} is not a field of it.`);
      options[FIELDS[name as keyof typeof FIELDS]] = value as number;
    }
    if (fields['prompt_lookup_min'] === undefined)
      options.promptLookupMin = Math.min(options.promptLookupMin, options.promptLookupMax);
    try {
      checkSpeculation(options);
    } catch (error) {
      throw new InvalidArgumentError((error as Error).message);
    }
    return options;
  };
}
