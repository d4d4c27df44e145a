/** A message object: its head, how it ended, what it took. */
import type { ToolCallDelta } from '../../control/sessions/parsers/output-parser.ts';
import { CallWatch } from '../../control/sessions/parsers/reply-rules.ts';
import type { ChoiceFinish, Generation } from '../../control/sessions/session.ts';
import type { ContentBlock, MessageEnd, MessageObject, MessageTokens } from '../../schemas/message-object.ts';

/** What belongs to one answer. */
export interface MessageFacts {
  id: string;
  model: string;
  maxTokens: number;
  stopSequences: readonly string[];
  /** Its thoughts are not shown. */
  omitsThoughts: boolean;
  serviceTier: 'standard' | 'priority';
}

/** How the generation ended, and which kinds of blocks it had. */
export class MessageEnding {
  #finish: ChoiceFinish = 'abort';
  #stopReason: string | number | null = null;
  readonly #calls = new CallWatch();

  delta({
    finish,
    stopReason,
    toolCalls,
  }: {
    finish: ChoiceFinish | null;
    stopReason: string | number | null;
    toolCalls: ToolCallDelta[];
  }): void {
    for (const call of toolCalls) this.#calls.take(call);
    if (finish === null) return;
    this.#finish = finish;
    this.#stopReason = stopReason;
  }

  end({ maxTokens, stopSequences }: MessageFacts, outputTokens: number): MessageEnd {
    if (this.#finish === 'length') {
      // No more of them were asked for than there was room for.
      const stop_reason = outputTokens < maxTokens ? 'model_context_window_exceeded' : 'max_tokens';
      return { stop_reason, stop_sequence: null };
    }
    const stop = this.#stopReason;
    if (typeof stop === 'string' && stopSequences.includes(stop))
      return { stop_reason: 'stop_sequence', stop_sequence: stop };
    return { stop_reason: this.#calls.hasWhole ? 'tool_use' : 'end_turn', stop_sequence: null };
  }
}

/** Before anything is known of the reply: what of its prompt was cached is told at its end, as clients of streams expect. */
export function openMessage(facts: MessageFacts, generation: Generation): MessageObject {
  const usage = {
    input_tokens: generation.usage().promptTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: 0,
    output_tokens: 0,
    service_tier: facts.serviceTier,
  };
  return frame(facts, [], { stop_reason: null, stop_sequence: null }, usage);
}

export function wholeMessage(
  facts: MessageFacts,
  content: ContentBlock[],
  ending: MessageEnding,
  generation: Generation,
): MessageObject {
  const tokens = messageTokens(generation);
  const usage = { ...tokens, service_tier: facts.serviceTier };
  return frame(facts, content, ending.end(facts, tokens.output_tokens), usage);
}

function frame(
  { id, model }: MessageFacts,
  content: ContentBlock[],
  end: MessageEnd,
  usage: MessageObject['usage'],
): MessageObject {
  return { id, type: 'message', role: 'assistant', model, content, ...end, usage };
}

/** What was found in the prefix cache counts by itself; nothing is charged for what is put there. */
export function messageTokens(generation: Generation): MessageTokens {
  const { promptTokens, completionTokens, reasoningTokens, cachedTokens } = generation.usage();
  return {
    input_tokens: promptTokens - cachedTokens,
    cache_creation_input_tokens: 0,
    cache_read_input_tokens: cachedTokens,
    output_tokens: completionTokens[0] ?? 0,
    ...(reasoningTokens === null ? {} : { output_tokens_details: { thinking_tokens: reasoningTokens[0] ?? 0 } }),
  };
}
