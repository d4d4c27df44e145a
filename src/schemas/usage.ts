export interface Usage {
  prompt_tokens: number;
  total_tokens: number;
  completion_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
  /** Where the model's reasoning is told apart. */
  completion_tokens_details?: { reasoning_tokens: number };
}
