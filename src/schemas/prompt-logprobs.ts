/** What `prompt_logprobs` answers for one token of the prompt: by id, the token itself and the best alternatives. */
export type PromptLogprob = Record<string, { logprob: number; rank: number; decoded_token: string }> | null;
