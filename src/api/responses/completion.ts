import type { CompletionChoice, CompletionResponse } from '../../schemas/completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Run } from '../generation/run.ts';
import type { Envelope } from './envelope.ts';
import { completionLogprobs } from './logprobs.ts';
import { totalUsage } from './usage.ts';

/** `prefixes`: the text before each run's choices (the prompt with echo, else ''). */
export function completionResponse(
  envelope: Envelope,
  runs: Run[],
  prefixes: string[],
  choices: WholeChoice[],
): CompletionResponse {
  const owners = runs.flatMap((run, index) => Array.from({ length: run.n }, () => index));
  return {
    id: envelope.id,
    object: 'text_completion',
    created: envelope.created,
    model: envelope.model,
    choices: choices.map((choice, index) => {
      const owner = owners[index] ?? 0;
      return completionChoice(envelope, index, choice, prefixes[owner] ?? '', runs[owner]);
    }),
    usage: totalUsage(runs.map((run) => run.generation)),
    service_tier: 'default',
    system_fingerprint: envelope.systemFingerprint,
    kv_transfer_params: null,
  };
}

function completionChoice(
  envelope: Envelope,
  index: number,
  choice: WholeChoice,
  prefix: string,
  run: Run | undefined,
): CompletionChoice {
  const { returnTokenIds, tokensAsIds } = envelope.output;
  return {
    index,
    text: prefix + choice.text,
    logprobs: envelope.logprobs ? completionLogprobs(choice.logprobs, tokensAsIds, prefix.length) : null,
    finish_reason: choice.finish,
    stop_reason: choice.stopReason,
    token_ids: returnTokenIds ? choice.tokenIds : null,
    prompt_logprobs: null,
    prompt_token_ids: returnTokenIds && run ? [...run.generation.promptIds] : null,
  };
}
