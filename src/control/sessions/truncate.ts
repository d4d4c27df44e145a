/** truncate_prompt_tokens: the last tokens of a prompt. */
import { SessionError, type GenerationInput } from './session.ts';

export function truncatePrompt(ids: Int32Array, input: GenerationInput, maxModelLen: number): Int32Array {
  const wanted = input.truncatePromptTokens;
  if (wanted === null) return ids;
  if (wanted === 0) {
    const message = 'truncate_prompt_tokens=0 leaves nothing of the prompt. The decoder prompt cannot be empty';
    throw new SessionError('bad_request', message, 'truncate_prompt_tokens');
  }
  const { maxTokens, fitsMaxTokens } = input.sampling;
  if (wanted === -1 && maxTokens !== null && fitsMaxTokens) return lastOf(ids, Math.max(maxModelLen - maxTokens, 1));
  // Without a wish for the output at least one token of it must fit.
  const output = fitsMaxTokens ? null : maxTokens;
  const most = maxModelLen - (output ?? 1);
  // No prompt has room beside such an output: it is max_tokens that will be refused.
  if (wanted === -1 && most < 1) return ids;
  if (wanted > most) {
    const shown = output === null ? 'max_model_len - 1' : 'max_model_len - max_tokens';
    const message = `truncate_prompt_tokens=${wanted} cannot be greater than ${shown} = ${most}.`;
    throw new SessionError('bad_request', message, 'truncate_prompt_tokens');
  }
  return lastOf(ids, wanted === -1 ? most : wanted);
}

function lastOf(ids: Int32Array, count: number): Int32Array {
  return count >= ids.length ? ids : ids.slice(ids.length - count);
}
