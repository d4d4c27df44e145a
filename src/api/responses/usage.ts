import type { Generation } from '../../control/sessions/session.ts';
import type { Usage } from '../../schemas/usage.ts';

/** `reasoningTokens`: null where reasoning is not told apart. */
export function makeUsage(
  promptTokens: number,
  completionTokens: number,
  cachedTokens: number,
  reasoningTokens: number | null = null,
): Usage {
  return {
    prompt_tokens: promptTokens,
    total_tokens: promptTokens + completionTokens,
    completion_tokens: completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
    ...(reasoningTokens === null ? {} : { completion_tokens_details: { reasoning_tokens: reasoningTokens } }),
  };
}

/** All choices of all prompts together; a prompt counts once however many choices it has. */
export function totalUsage(generations: Generation[]): Usage {
  const total = { prompt: 0, completion: 0, cached: 0 };
  let reasoning: number | null = null;
  for (const generation of generations) {
    const usage = generation.usage();
    total.prompt += usage.promptTokens;
    total.completion += sum(usage.completionTokens);
    total.cached += usage.cachedTokens;
    if (usage.reasoningTokens) reasoning = (reasoning ?? 0) + sum(usage.reasoningTokens);
  }
  return makeUsage(total.prompt, total.completion, total.cached, reasoning);
}

function sum(counts: readonly number[]): number {
  return counts.reduce((total, count) => total + count, 0);
}
