/** Bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter. */
import { boolean, nullable, string, type JsonSchema } from './json-schema.ts';
import { compileBody } from './validator.ts';

export interface LoadLoraAdapterRequest {
  lora_name: string;
  lora_path: string;
  /** The name may be there already: it names the new adapter from now on. */
  load_inplace?: boolean | null;
}

const loadProperties: Record<keyof LoadLoraAdapterRequest, JsonSchema> = {
  lora_name: string(),
  lora_path: string(),
  load_inplace: nullable(boolean()),
};

export const validateLoadLoraAdapter = compileBody<LoadLoraAdapterRequest>({
  type: 'object',
  required: ['lora_name', 'lora_path'],
  properties: loadProperties,
});

export const loadLoraAdapterFields: ReadonlySet<string> = new Set(Object.keys(loadProperties));

export const validateUnloadLoraAdapter = compileBody<{ lora_name: string }>({
  type: 'object',
  required: ['lora_name'],
  properties: { lora_name: string() },
});

export const unloadLoraAdapterFields: ReadonlySet<string> = new Set(['lora_name']);
