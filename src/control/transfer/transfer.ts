/** Types of disaggregated serving: one server computes a prompt's KV blocks, another pulls them and generates. */

export interface PeerAddress {
  host: string;
  port: number;
}

/** Where a prompt's blocks lie: what a prefill server returns and a decode server is given (kv_transfer_params). */
export interface BlockHandle extends PeerAddress {
  /** Names one life of the engine that holds the blocks. */
  engineId: string;
  /** Pages of the prompt's full blocks, in order. */
  blockIds: number[];
}

/** What a request asks for: keep its prompt's blocks for a peer, or begin with a peer's. */
export type KvTransferRequest = { hold: true } | { pull: BlockHandle };

export interface TransferSettings {
  /** Where peers may pull; null: nothing is held here. */
  listen: PeerAddress | null;
  /** The only addresses that are ever contacted. */
  peers: PeerAddress[];
  /** Shared by all peers; the proof that one belongs. */
  secret: string;
  /** Of the weights and the tokenizer. */
  modelDigest: string;
  /** Held blocks that nobody pulls are given up after so long. */
  holdMs: number;
  /** Part of the KV pages that may be held, 0 to 1. */
  holdShare: number;
  /** For one whole pull. */
  timeoutMs: number;
}

/** What two engines must have in common so that the blocks of one are, bit for bit, those of the other. */
export interface EngineIdentity {
  modelDigest: string;
  dtype: string;
  /** Kernels: another instruction set rounds elsewhere. */
  isa: string;
  pageBytes: number;
  pageSize: number;
}

export interface TransferStats {
  /** Pulls that ended well, and those after which the prompt was computed here. */
  pulls: number;
  pullFailures: number;
  /** Tokens whose keys and values were pulled. */
  pulledTokens: number;
  /** Blocks held for peers now. */
  heldBlocks: number;
  /** Pulls of peers that were served. */
  served: number;
}

export function addressText({ host, port }: PeerAddress): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}
