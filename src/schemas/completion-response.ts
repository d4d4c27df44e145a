/** What POST /v1/completions answers: whole, or as the chunks of a stream. */
import type { Usage } from './usage.ts';

/** Parallel lists over the tokens of `text`; with echo the prompt has no entries. */
export interface CompletionLogprobs {
  text_offset: number[];
  token_logprobs: number[];
  tokens: string[];
  top_logprobs: Record<string, number>[];
}

export interface CompletionChoice {
  index: number;
  text: string;
  logprobs: CompletionLogprobs | null;
  finish_reason: string | null;
  stop_reason: string | number | null;
  token_ids: number[] | null;
  prompt_logprobs: null;
  prompt_token_ids: number[] | null;
}

export interface CompletionResponse {
  id: string;
  object: 'text_completion';
  created: number;
  model: string;
  choices: CompletionChoice[];
  usage: Usage;
  service_tier: 'default';
  system_fingerprint: string;
  kv_transfer_params: null;
}

export interface CompletionChunk {
  id: string;
  object: 'text_completion';
  created: number;
  model: string;
  choices: Omit<CompletionChoice, 'prompt_logprobs'>[];
  usage?: Usage;
}
