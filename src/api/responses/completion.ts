import { codePoints } from '../../control/sessions/code-points.ts';
import type { CompletionChoice, CompletionResponse } from '../../schemas/completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Run } from '../generation/run.ts';
import type { Envelope } from './envelope.ts';
import { kvTransferHandle } from './kv-transfer.ts';
import { completionLogprobs } from './logprobs.ts';
import { joinLogprobs, type PromptPart } from './prompt-part.ts';
import { totalUsage } from './usage.ts';

/** `prompts`: parallel to `runs`. */
export function completionResponse(
  envelope: Envelope,
  runs: Run[],
  prompts: PromptPart[],
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
      return completionChoice(envelope, index, choice, prompts[owner], runs[owner]);
    }),
    usage: totalUsage(runs.map((run) => run.generation)),
    service_tier: envelope.serviceTier,
    system_fingerprint: envelope.systemFingerprint,
    kv_transfer_params: kvTransferHandle(runs[0]?.generation.heldBlocks() ?? null),
  };
}

function completionChoice(
  envelope: Envelope,
  index: number,
  choice: WholeChoice,
  prompt: PromptPart | undefined,
  run: Run | undefined,
): CompletionChoice {
  const { returnTokenIds, tokensAsIds } = envelope.output;
  const prefix = prompt?.text ?? '';
  const output = () => completionLogprobs(choice.logprobs, tokensAsIds, codePoints(prefix));
  return {
    index,
    text: prefix + choice.text,
    logprobs: envelope.logprobs ? joinLogprobs(prompt?.logprobs() ?? null, output()) : null,
    finish_reason: choice.finish,
    stop_reason: choice.stopReason,
    token_ids: returnTokenIds ? choice.tokenIds : null,
    prompt_logprobs: prompt?.scores() ?? null,
    prompt_token_ids: returnTokenIds && run ? [...run.generation.promptIds] : null,
  };
}
