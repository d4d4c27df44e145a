/** What POST /v1/chat/completions answers: whole, or as the chunks of a stream. */
import type { KvTransferHandle } from './kv-transfer.ts';
import type { PromptLogprob } from './prompt-logprobs.ts';
import type { Usage } from './usage.ts';

export interface ChatTopLogprob {
  token: string;
  logprob: number;
  bytes: number[];
}
export interface ChatTokenLogprob extends ChatTopLogprob {
  top_logprobs: ChatTopLogprob[];
}
export interface ChatLogprobs {
  content: ChatTokenLogprob[];
}

/** Fields without a feature behind them yet are null, never absent: clients read them unguarded. */
export interface ChatResponseMessage {
  role: string;
  content: string | null;
  refusal: null;
  annotations: null;
  audio: null;
  function_call: null;
  /** Absent when there are none. */
  tool_calls?: ChatToolCall[];
  reasoning: string | null;
}

export interface ChatToolCall {
  id: string;
  type: 'function';
  /** `arguments` is JSON text of an object. */
  function: { name: string; arguments: string };
}

export interface ChatChunkToolCall {
  /** Position of the call. */
  index: number;
  id?: string;
  type?: 'function';
  function: { name?: string; arguments?: string };
}

export interface ChatChunkDelta {
  role?: string;
  content?: string;
  reasoning?: string;
  tool_calls?: ChatChunkToolCall[];
}

export interface ChatChoice {
  index: number;
  message: ChatResponseMessage;
  logprobs: ChatLogprobs | null;
  finish_reason: string;
  stop_reason: string | number | null;
  token_ids: number[] | null;
}

export interface ChatCompletionResponse {
  id: string;
  object: 'chat.completion';
  created: number;
  model: string;
  choices: ChatChoice[];
  usage: Usage;
  service_tier: 'default' | 'priority';
  system_fingerprint: string;
  prompt_logprobs: PromptLogprob[] | null;
  prompt_token_ids: number[] | null;
  kv_transfer_params: KvTransferHandle | null;
}

export interface ChatChunkChoice {
  index: number;
  delta: ChatChunkDelta;
  logprobs: ChatLogprobs | null;
  finish_reason: string | null;
  /** Only in the finish chunk. */
  stop_reason?: string | number | null;
  /** In every chunk but the role chunk. */
  token_ids?: number[] | null;
}

export interface ChatCompletionChunk {
  id: string;
  object: 'chat.completion.chunk';
  created: number;
  model: string;
  choices: ChatChunkChoice[];
  /** Only in role chunks. */
  prompt_token_ids?: number[] | null;
  /** Only in the first choice's role chunk, where asked for. */
  prompt_logprobs?: PromptLogprob[];
  usage?: Usage;
}
