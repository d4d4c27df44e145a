/** Deltas of a chat generation to the chunks of its stream. */
import type { ChoiceDelta, Generation } from '../../control/sessions/session.ts';
import type { ChatChunkChoice, ChatCompletionChunk } from '../../schemas/chat-completion-response.ts';
import type { Envelope } from '../responses/envelope.ts';
import { chatLogprobs } from '../responses/logprobs.ts';
import { makeUsage, totalUsage } from '../responses/usage.ts';

export class ChatChunks {
  readonly #envelope: Envelope;
  readonly #role: string;
  readonly #generation: Generation;
  /** Output tokens so far, per choice. */
  readonly #tokens: number[];

  constructor(envelope: Envelope, role: string, generation: Generation, n: number) {
    this.#envelope = envelope;
    this.#role = role;
    this.#generation = generation;
    this.#tokens = Array.from({ length: n }, () => 0);
  }

  /** One per choice, before anything else. Only these carry the prompt's ids. */
  roles(): ChatCompletionChunk[] {
    return this.#tokens.map((_, index) => ({
      ...this.#chunk(index, {
        index,
        delta: { role: this.#role, content: '' },
        logprobs: null,
        finish_reason: null,
      }),
      prompt_token_ids: this.#envelope.output.returnTokenIds ? [...this.#generation.promptIds] : null,
    }));
  }

  /** null when there is nothing to tell yet (text held back). */
  delta(delta: ChoiceDelta): ChatCompletionChunk | null {
    const { output, logprobs } = this.#envelope;
    this.#tokens[delta.index] = (this.#tokens[delta.index] ?? 0) + delta.tokenIds.length;
    const carriesTokens = delta.tokenIds.length > 0 && (output.returnTokenIds || logprobs);
    if (delta.text === '' && delta.finish === null && !carriesTokens) return null;
    const choice: ChatChunkChoice = {
      index: delta.index,
      delta: delta.text === '' ? {} : { content: delta.text },
      logprobs: delta.logprobs.length === 0 ? null : chatLogprobs(delta.logprobs, output.tokensAsIds),
      finish_reason: delta.finish,
      ...(delta.finish === null ? {} : { stop_reason: delta.stopReason }),
      token_ids: output.returnTokenIds ? delta.tokenIds : null,
    };
    return this.#chunk(delta.index, choice);
  }

  usage(): ChatCompletionChunk {
    return { ...this.#head(), choices: [], usage: totalUsage([this.#generation]) };
  }

  #head(): Pick<ChatCompletionChunk, 'id' | 'object' | 'created' | 'model'> {
    const { id, created, model } = this.#envelope;
    return { id, object: 'chat.completion.chunk', created, model };
  }

  #chunk(index: number, choice: ChatChunkChoice): ChatCompletionChunk {
    const chunk: ChatCompletionChunk = { ...this.#head(), choices: [choice] };
    if (!this.#envelope.output.continuousUsage) return chunk;
    const { promptTokens, cachedTokens } = this.#generation.usage();
    return { ...chunk, usage: makeUsage(promptTokens, this.#tokens[index] ?? 0, cachedTokens) };
  }
}
