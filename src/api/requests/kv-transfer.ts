/** kv_transfer_params: disaggregated serving, in the shapes of vLLM's connector. */
import { addressText, type KvTransferRequest } from '../../control/transfer/transfer.ts';
import type { SamplingFields } from '../../schemas/sampling-fields.ts';
import { ApiError } from '../errors.ts';

export interface TransferRules {
  /** Peers may pull from here. */
  holdsBlocks: boolean;
  /** `host:port` of every peer that may be contacted. */
  peers: ReadonlySet<string>;
}

type Params = NonNullable<SamplingFields['kv_transfer_params']>;

/** `scoresPrompt`: the whole prompt must be computed here. null: nothing is asked for. */
export function toKvTransfer(
  body: SamplingFields,
  rules: TransferRules,
  scoresPrompt: boolean,
): KvTransferRequest | null {
  const params = body.kv_transfer_params ?? null;
  if (params === null) return null;
  const { do_remote_decode: holds = false, do_remote_prefill: pulls = false } = params;
  if (holds !== true && pulls !== true) return null;
  if (holds === true && pulls === true) refuse('do_remote_decode and do_remote_prefill cannot both be true.');
  if (body.use_beam_search === true) refuse('a beam search cannot be transferred.');
  return holds === true ? toHold(body, rules) : toPull(params, rules, scoresPrompt);
}

function toHold(body: SamplingFields, rules: TransferRules): KvTransferRequest {
  if (!rules.holdsBlocks) refuse('do_remote_decode needs a server that was started with --kv-port.');
  // A stream has no place for the handle.
  if (body.stream === true) refuse('do_remote_decode is not available when `stream=True`.');
  return { hold: true };
}

function toPull(params: Params, rules: TransferRules, scoresPrompt: boolean): KvTransferRequest | null {
  if (rules.peers.size === 0) refuse('do_remote_prefill needs a server that was started with --kv-peers.');
  if (scoresPrompt) refuse('do_remote_prefill cannot be used where the prompt is scored (prompt_logprobs, echo).');
  const { remote_engine_id: engineId, remote_block_ids: blockIds, remote_host: host, remote_port: port } = params;
  const given = { remote_engine_id: engineId, remote_block_ids: blockIds, remote_host: host, remote_port: port };
  const missing = Object.entries(given).find(([, value]) => value === undefined || value === null);
  if (missing) refuse(`do_remote_prefill needs ${missing[0]}.`, missing[0]);
  if (!engineId || !blockIds || !host || !port) return null;
  if ((params.tp_size ?? 1) !== 1) refuse('tp_size must be 1.', 'tp_size');
  const address = addressText({ host, port });
  if (!rules.peers.has(address)) refuse(`${address} is not among the --kv-peers of this server.`, 'remote_host');
  return blockIds.length === 0 ? null : { pull: { engineId, blockIds, host, port } };
}

function refuse(message: string, field?: string): never {
  const param = field === undefined ? 'kv_transfer_params' : `kv_transfer_params.${field}`;
  throw new ApiError('invalid_parameter', `kv_transfer_params: ${message}`, param);
}
