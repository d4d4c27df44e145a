import type { Generation } from '../../control/sessions/session.ts';
import type { Usage } from '../../schemas/usage.ts';

export function makeUsage(promptTokens: number, completionTokens: number, cachedTokens: number): Usage {
  return {
    prompt_tokens: promptTokens,
    total_tokens: promptTokens + completionTokens,
    completion_tokens: completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}

/** All choices of all prompts together; a prompt counts once however many choices it has. */
export function totalUsage(generations: Generation[]): Usage {
  const total = { prompt: 0, completion: 0, cached: 0 };
  for (const generation of generations) {
    const usage = generation.usage();
    total.prompt += usage.promptTokens;
    total.completion += usage.completionTokens.reduce((sum, count) => sum + count, 0);
    total.cached += usage.cachedTokens;
  }
  return makeUsage(total.prompt, total.completion, total.cached);
}
