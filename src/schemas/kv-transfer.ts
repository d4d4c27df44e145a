/** kv_transfer_params of requests and responses. */
import { array, boolean, integer, nullable, object, string, type JsonSchema } from './json-schema.ts';

/** Blocks of one handle: a million tokens. */
const MAX_BLOCKS = 65_536;

export interface KvTransferParams {
  do_remote_decode?: boolean | null;
  do_remote_prefill?: boolean | null;
  remote_engine_id?: string | null;
  remote_block_ids?: number[] | null;
  remote_host?: string | null;
  remote_port?: number | null;
  tp_size?: number | null;
  /** These two say nothing here; proxies of vLLM hand them on. */
  remote_request_id?: string | null;
  remote_num_tokens?: number | null;
}

/** What a prefill server answers with. */
export interface KvTransferHandle {
  do_remote_prefill: true;
  do_remote_decode: false;
  remote_engine_id: string;
  remote_block_ids: number[];
  remote_host: string;
  remote_port: number;
  /** For proxies that look for it: blocks are found by their numbers. */
  remote_request_id: string;
  tp_size: 1;
}

const properties: Record<keyof KvTransferParams, JsonSchema> = {
  do_remote_decode: nullable(boolean()),
  do_remote_prefill: nullable(boolean()),
  remote_engine_id: nullable(string({ minLength: 1, maxLength: 128 })),
  remote_block_ids: nullable(array(integer({ minimum: 0, maximum: 2 ** 31 - 1 }), { maxItems: MAX_BLOCKS })),
  remote_host: nullable(string({ minLength: 1, maxLength: 255 })),
  remote_port: nullable(integer({ minimum: 1, maximum: 65_535 })),
  tp_size: nullable(integer()),
  remote_request_id: nullable(string({ maxLength: 512 })),
  remote_num_tokens: nullable(integer()),
};

export const kvTransferParams: JsonSchema = nullable(object({ properties, additionalProperties: false }));
