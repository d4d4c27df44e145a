/** Body of POST /v1/completions. */
import { integer, nullable, string, type JsonSchema } from './json-schema.ts';
import { samplingProperties, splitSampling, type SamplingFields } from './sampling-fields.ts';
import { compileBody } from './validator.ts';

/** Prompts of one request; each is a generation of its own. */
export const MAX_PROMPTS = 1024;

export interface CompletionRequest extends SamplingFields {
  /** One text, several, one list of ids, or several. */
  prompt: string | (string | number | number[])[];
  logprobs?: number | null;
  suffix?: string | null;
  best_of?: number | null;
}

const properties: Record<keyof CompletionRequest, JsonSchema> = {
  ...samplingProperties,
  // 0 with echo: only the prompt is scored.
  max_tokens: nullable(integer({ minimum: 0 }, 'max_tokens must be at least 1, got {value}.')),
  prompt: { type: ['string', 'array'], items: { type: ['string', 'integer', 'array'], items: { type: 'integer' } } },
  logprobs: nullable(integer({ minimum: -1 }, '`logprobs` must be a positive value or -1.')),
  suffix: nullable(string()),
  best_of: nullable(integer({ minimum: 1 }, 'best_of must be at least 1, got {value}.')),
};

const { shape, sampling } = splitSampling({ type: 'object', required: ['prompt'], properties });

export const validateCompletion = compileBody<CompletionRequest>(shape);

/** Of a body that has passed validateCompletion. */
export const validateCompletionSampling = compileBody<CompletionRequest>(sampling);

export const completionFields: ReadonlySet<string> = new Set(Object.keys(properties));
