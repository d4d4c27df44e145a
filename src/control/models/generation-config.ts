/** generation_config.json: the model author's sampling defaults and end-of-sequence ids. */
import { readTokenIds } from './config.ts';
import { Fields } from './fields.ts';
import type { JsonObject } from './json-file.ts';
import type { GenerationDefaults } from './model.ts';

export const GENERATION_FILE = 'generation_config.json';

/** `eosTokenIds` of config.json count as well: some checkpoints name their turn end in one file only. */
export function readGenerationConfig(
  object: JsonObject | null,
  configEos: number[],
  vocabSize: number,
): GenerationDefaults {
  const fields = new Fields(GENERATION_FILE, object ?? {});
  const own = readTokenIds(fields, 'eos_token_id');
  const eosTokenIds = [...new Set([...own, ...configEos])];
  for (const id of eosTokenIds) {
    if (id >= vocabSize) fields.fail('eos_token_id', `${id} is outside the vocabulary of ${vocabSize}.`);
  }
  const defaults: GenerationDefaults = { eosTokenIds };
  if (object === null) return defaults;
  if (fields.has('temperature')) defaults.temperature = fields.number('temperature', { min: 0, max: 1000 });
  if (fields.has('top_p')) defaults.topP = fields.number('top_p', { min: 1e-9, max: 1 });
  if (fields.has('top_k')) defaults.topK = fields.integer('top_k', { min: -1, max: 2 ** 22 });
  if (fields.has('min_p')) defaults.minP = fields.number('min_p', { min: 0, max: 1 });
  if (fields.has('repetition_penalty')) {
    defaults.repetitionPenalty = fields.number('repetition_penalty', { min: 1e-6, max: 1e6 });
  }
  if (fields.has('max_new_tokens')) defaults.maxNewTokens = fields.integer('max_new_tokens', { max: 2 ** 27 });
  return defaults;
}
