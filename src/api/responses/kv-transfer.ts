import type { BlockHandle } from '../../control/transfer/transfer.ts';
import type { KvTransferHandle } from '../../schemas/kv-transfer.ts';

/** What the client hands to a decode server as it is. */
export function kvTransferHandle(blocks: BlockHandle | null, responseId: string): KvTransferHandle | null {
  if (blocks === null) return null;
  return {
    do_remote_prefill: true,
    do_remote_decode: false,
    remote_engine_id: blocks.engineId,
    remote_block_ids: blocks.blockIds,
    remote_host: blocks.host,
    remote_port: blocks.port,
    remote_request_id: responseId,
    tp_size: 1,
  };
}
