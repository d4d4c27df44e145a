import type { Generation } from '../../control/sessions/session.ts';
import type { ChatChoice, ChatCompletionResponse } from '../../schemas/chat-completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Envelope } from './envelope.ts';
import { chatLogprobs } from './logprobs.ts';
import { totalUsage } from './usage.ts';

export function chatResponse(
  envelope: Envelope,
  role: string,
  generation: Generation,
  choices: WholeChoice[],
): ChatCompletionResponse {
  return {
    id: envelope.id,
    object: 'chat.completion',
    created: envelope.created,
    model: envelope.model,
    choices: choices.map((choice, index) => chatChoice(envelope, role, choice, index)),
    usage: totalUsage([generation]),
    service_tier: 'default',
    system_fingerprint: envelope.systemFingerprint,
    prompt_logprobs: null,
    prompt_token_ids: envelope.output.returnTokenIds ? [...generation.promptIds] : null,
    kv_transfer_params: null,
  };
}

function chatChoice(envelope: Envelope, role: string, choice: WholeChoice, index: number): ChatChoice {
  return {
    index,
    message: {
      role,
      content: choice.text,
      refusal: null,
      annotations: null,
      audio: null,
      function_call: null,
      reasoning: null,
    },
    logprobs: envelope.logprobs ? chatLogprobs(choice.logprobs, envelope.output.tokensAsIds) : null,
    finish_reason: choice.finish,
    stop_reason: choice.stopReason,
    token_ids: envelope.output.returnTokenIds ? choice.tokenIds : null,
  };
}
