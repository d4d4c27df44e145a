import type { ToolMode } from '../../control/sessions/parsers/create-parser.ts';
import { messageContent } from '../../control/sessions/parsers/reply-rules.ts';
import type { Generation } from '../../control/sessions/session.ts';
import type { ChatChoice, ChatCompletionResponse } from '../../schemas/chat-completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Envelope } from './envelope.ts';
import { kvTransferHandle } from './kv-transfer.ts';
import { chatLogprobs, promptLogprobs } from './logprobs.ts';
import { totalUsage } from './usage.ts';

export interface ReplyShape {
  role: string;
  tools: ToolMode;
  /** Comes before the text of every choice. */
  echo: string;
}

export function chatResponse(
  envelope: Envelope,
  shape: ReplyShape,
  generation: Generation,
  choices: WholeChoice[],
): ChatCompletionResponse {
  return {
    id: envelope.id,
    object: 'chat.completion',
    created: envelope.created,
    model: envelope.model,
    choices: choices.map((choice, index) => chatChoice(envelope, shape, choice, index)),
    usage: totalUsage([generation]),
    service_tier: envelope.serviceTier,
    system_fingerprint: envelope.systemFingerprint,
    prompt_logprobs: promptLogprobs(generation.promptLogprobs()),
    prompt_token_ids: envelope.output.returnTokenIds ? [...generation.promptIds] : null,
    kv_transfer_params: kvTransferHandle(generation.heldBlocks()),
  };
}

export function chatChoice(envelope: Envelope, shape: ReplyShape, choice: WholeChoice, index: number): ChatChoice {
  const content = messageContent({ ...choice, content: choice.text }, shape.tools);
  const calls = choice.toolCalls.map(({ id, name, arguments: args }) => ({
    id,
    type: 'function' as const,
    function: { name, arguments: args },
  }));
  return {
    index,
    message: {
      role: shape.role,
      content: shape.echo === '' ? content : shape.echo + (content ?? ''),
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
