/** Body of POST /detokenize. */
import { array, integer, nullable, string, type JsonSchema } from './json-schema.ts';
import { compileBody } from './validator.ts';

export interface DetokenizeRequest {
  model?: string | null;
  tokens: number[];
}

export interface DetokenizeResponse {
  prompt: string;
}

const properties: Record<keyof DetokenizeRequest, JsonSchema> = {
  model: nullable(string()),
  tokens: array(integer({ minimum: 0 })),
};

const detokenizeSchema: JsonSchema = { type: 'object', required: ['tokens'], properties };

export const validateDetokenize = compileBody<DetokenizeRequest>(detokenizeSchema);

export const detokenizeFields: ReadonlySet<string> = new Set(Object.keys(properties));
