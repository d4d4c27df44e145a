/** Deltas of a chat generation to the chunks of its stream. */
import type { ChoiceDelta, Generation } from '../../control/sessions/session.ts';
import type { ToolCallDelta } from '../../control/sessions/parsers/output-parser.ts';
import type {
  ChatChunkChoice,
  ChatChunkDelta,
  ChatChunkToolCall,
  ChatCompletionChunk,
} from '../../schemas/chat-completion-response.ts';
import type { Envelope } from '../responses/envelope.ts';
import { chatLogprobs, promptLogprobs } from '../responses/logprobs.ts';
import { makeUsage, totalUsage } from '../responses/usage.ts';

interface Told {
  tokens: number;
  reasoningTokens: number;
}

export class ChatChunks {
  readonly #envelope: Envelope;
  readonly #role: string;
  readonly #echo: string;
  readonly #generation: Generation;
  /** Told of so far, per choice. The generation's own counts run ahead of the chunks. */
  readonly #told: Told[];

  constructor(envelope: Envelope, shape: { role: string; echo: string }, generation: Generation, n: number) {
    this.#envelope = envelope;
    this.#role = shape.role;
    this.#echo = shape.echo;
    this.#generation = generation;
    this.#told = Array.from({ length: n }, () => ({ tokens: 0, reasoningTokens: 0 }));
  }

  /** Before anything else: the roles of all choices, then what echo repeats. One at a time: each may hold a long prompt's ids. */
  *first(): Generator<ChatCompletionChunk> {
    for (const index of this.#told.keys()) yield this.#roleChunk(index);
    if (this.#echo === '') return;
    for (const index of this.#told.keys()) yield this.#echoChunk(index);
  }

  /** Only these carry what is known of the prompt. */
  #roleChunk(index: number): ChatCompletionChunk {
    const scores = index === 0 ? promptLogprobs(this.#generation.promptLogprobs()) : null;
    return {
      ...this.#chunk(index, {
        index,
        delta: { role: this.#role, content: '' },
        logprobs: null,
        finish_reason: null,
      }),
      prompt_token_ids: this.#envelope.output.returnTokenIds ? [...this.#generation.promptIds] : null,
      ...(scores === null ? {} : { prompt_logprobs: scores }),
    };
  }

  #echoChunk(index: number): ChatCompletionChunk {
    return this.#chunk(index, { index, delta: { content: this.#echo }, logprobs: null, finish_reason: null });
  }

  /** One chunk per kind of news; none while there is nothing to tell (text held back). */
  delta(delta: ChoiceDelta): ChatCompletionChunk[] {
    const { output, logprobs } = this.#envelope;
    const told = this.#toldOf(delta.index);
    told.tokens += delta.tokens;
    told.reasoningTokens += delta.reasoningTokens;
    const carriesTokens = delta.tokenIds.length > 0 && (output.returnTokenIds || logprobs);
    const news = newsOf(delta);
    if (news.length === 0 && (delta.finish !== null || carriesTokens)) news.push({});
    const last = news.length - 1;
    return news.map((content, at) => this.#chunk(delta.index, this.#choice(delta, content, at === 0, at === last)));
  }

  #choice(delta: ChoiceDelta, content: ChatChunkDelta, isFirst: boolean, isLast: boolean): ChatChunkChoice {
    const { returnTokenIds, tokensAsIds } = this.#envelope.output;
    const { index } = delta;
    const logprobs = isFirst && delta.logprobs.length > 0 ? chatLogprobs(delta.logprobs, tokensAsIds) : null;
    const token_ids = returnTokenIds ? (isFirst ? delta.tokenIds : []) : null;
    if (!isLast || delta.finish === null) return { index, delta: content, logprobs, finish_reason: null, token_ids };
    const { finish: finish_reason, stopReason: stop_reason } = delta;
    return { index, delta: content, logprobs, finish_reason, stop_reason, token_ids };
  }

  usage(): ChatCompletionChunk {
    return { ...this.#frame([]), usage: totalUsage([this.#generation]) };
  }

  #frame(choices: ChatChunkChoice[]): ChatCompletionChunk {
    const { id, created, model } = this.#envelope;
    return { id, object: 'chat.completion.chunk', created, model, choices };
  }

  #chunk(index: number, choice: ChatChunkChoice): ChatCompletionChunk {
    const chunk = this.#frame([choice]);
    if (!this.#envelope.output.continuousUsage) return chunk;
    const { promptTokens, cachedTokens, reasoningTokens: counted } = this.#generation.usage();
    const { tokens, reasoningTokens } = this.#toldOf(index);
    const reasoning = counted === null ? null : reasoningTokens;
    return { ...chunk, usage: makeUsage(promptTokens, tokens, cachedTokens, reasoning) };
  }

  #toldOf(index: number): Told {
    const told = this.#told[index];
    if (told === undefined) throw new Error(`A delta names choice ${index} of ${this.#told.length}.`);
    return told;
  }
}

function newsOf(delta: ChoiceDelta): ChatChunkDelta[] {
  const news: ChatChunkDelta[] = [];
  if (delta.reasoning !== '') news.push({ reasoning: delta.reasoning });
  if (delta.text !== '') news.push({ content: delta.text });
  for (const call of delta.toolCalls) news.push({ tool_calls: [toCallChunk(call)] });
  return news;
}

/** id, type and name come with the first piece of a call only. */
function toCallChunk({ index, id, name, arguments: args }: ToolCallDelta): ChatChunkToolCall {
  return {
    index,
    ...(id === undefined ? {} : { id, type: 'function' as const }),
    function: { ...(name === undefined ? {} : { name }), ...(args === undefined ? {} : { arguments: args }) },
  };
}
