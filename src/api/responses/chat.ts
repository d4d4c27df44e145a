import type { ToolMode } from '../../control/sessions/parsers/create-parser.ts';
import { messageContent } from '../../control/sessions/parsers/reply-rules.ts';
import type { Generation } from '../../control/sessions/session.ts';
import type { ChatChoice, ChatCompletionResponse } from '../../schemas/chat-completion-response.ts';
import type { WholeChoice } from '../generation/collect.ts';
import type { Envelope } from './envelope.ts';
import { kvTransferHandle } from './kv-transfer.ts';
import { chatLogprob, chatLogprobs, promptLogprob, promptLogprobs } from './logprobs.ts';
import { madeFrom, MadeList } from './pieces.ts';
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
  const shown = choices.map((choice, index) => chatChoice(envelope, shape, choice, index));
  return frame(envelope, generation, shown, promptLogprobs(generation.promptLogprobs()));
}

/** The same answer for `answerPieces`. The choices are emptied on the way. */
export function largeChatResponse(
  envelope: Envelope,
  shape: ReplyShape,
  generation: Generation,
  choices: WholeChoice[],
): object {
  const shown = new MadeList(largeChoices(envelope, shape, choices), true);
  const scores = generation.promptLogprobs();
  const prompt = scores && madeFrom(scores, (score) => promptLogprob(score, Infinity));
  return frame(envelope, generation, shown, prompt);
}

function* largeChoices(envelope: Envelope, shape: ReplyShape, choices: WholeChoice[]): Generator<object[]> {
  for (const [index, choice] of choices.entries()) {
    const { logprobs } = choice;
    choice.logprobs = [];
    const shown = chatChoice(envelope, shape, choice, index);
    const content = madeFrom(logprobs, (token) => chatLogprob(token, envelope.output.tokensAsIds));
    yield [{ ...shown, logprobs: shown.logprobs && { content } }];
    choice.text = choice.reasoning = '';
    choice.tokenIds = [];
  }
}

function frame<Choices, Scores>(
  envelope: Envelope,
  generation: Generation,
  choices: Choices,
  prompt_logprobs: Scores,
): Omit<ChatCompletionResponse, 'choices' | 'prompt_logprobs'> & { choices: Choices; prompt_logprobs: Scores } {
  return {
    id: envelope.id,
    object: 'chat.completion',
    created: envelope.created,
    model: envelope.model,
    choices,
    usage: totalUsage([generation]),
    service_tier: envelope.serviceTier,
    system_fingerprint: envelope.systemFingerprint,
    prompt_logprobs,
    prompt_token_ids: envelope.output.returnTokenIds ? [...generation.promptIds] : null,
    kv_transfer_params: kvTransferHandle(generation.heldBlocks(), envelope.id),
  };
}

function chatChoice(envelope: Envelope, shape: ReplyShape, choice: WholeChoice, index: number): ChatChoice {
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
