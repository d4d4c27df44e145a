/** What POST /v1/completions answers: whole, or as the chunks of a stream. */
import type { KvTransferHandle } from './kv-transfer.ts';
import type { PromptLogprob } from './prompt-logprobs.ts';
import type { Usage } from './usage.ts';

/** Parallel lists over the tokens of `text`; with echo the prompt's come first, the first of them null. */
export interface CompletionLogprobs {
  text_offset: number[];
  token_logprobs: (number | null)[];
  tokens: string[];
  top_logprobs: (Record<string, number> | null)[];
}

export interface CompletionChoice {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: string | null;
  stop_reason: string | number | null;
  token_ids: number[] | null;
  prompt_logprobs: PromptLogprob[] | null;
  prompt_token_ids: number[] | null;
}

export interface CompletionResponse {
  id: string;
  object: 'text_completion';
  created: number;
  model: string;
  choices: CompletionChoice[];
  usage: Usage;
  service_tier: 'default' | 'priority';
  system_fingerprint: string;
  kv_transfer_params: KvTransferHandle | null;
}

export interface CompletionChunk {
  id: string;
  object: 'text_completion';
  created: number;
  model: string;
  choices: (Omit<CompletionChoice, 'prompt_logprobs'> & { prompt_logprobs?: PromptLogprob[] })[];
  usage?: Usage;
}
