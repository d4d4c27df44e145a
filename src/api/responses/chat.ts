import type { ToolMode } from '../../control/sessions/parsers/create-parser.ts';
import { messageContent } from '../../control/sessions/parsers/reply-rules.ts';
import type { Generation } from '../../control/sessions/session.ts';
import type { ChatChoice, ChatCompletionResponse } from '../../schemas/chat-completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Envelope } from './envelope.ts';
import { chatLogprobs } from './logprobs.ts';
import { totalUsage } from './usage.ts';

export function chatResponse(
  envelope: Envelope,
  role: string,
  tools: ToolMode,
  generation: Generation,
  choices: WholeChoice[],
): ChatCompletionResponse {
  return {
    id: envelope.id,
    object: 'chat.completion',
    created: envelope.created,
    model: envelope.model,
    choices: choices.map((choice, index) => chatChoice(envelope, role, tools, choice, index)),
    usage: totalUsage([generation]),
    service_tier: 'default',
    system_fingerprint: envelope.systemFingerprint,
    prompt_logprobs: null,
    prompt_token_ids: envelope.output.returnTokenIds ? [...generation.promptIds] : null,
    kv_transfer_params: null,
  };
}

function chatChoice(envelope: Envelope, role: string, tools: ToolMode, choice: WholeChoice, index: number): ChatChoice {
  const calls = choice.toolCalls.map(({ id, name, arguments: args }) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: args },
  }));
  return {
    index,
    message: {
      role,
      content: messageContent({ ...choice, content: choice.text }, tools),
      refusal: null,
      annotations: null,
      audio: null,
      function_call: null,
      ...(calls.length === 0 ? {} : { tool_calls: calls }),
      reasoning: choice.reasoning === '' ? null : choice.reasoning,
    },
    logprobs: envelope.logprobs ? chatLogprobs(choice.logprobs, envelope.output.tokensAsIds) : null,
    finish_reason: choice.finish,
    stop_reason: choice.stopReason,
    token_ids: envelope.output.returnTokenIds ? choice.tokenIds : null,
  };
}
