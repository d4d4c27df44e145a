/** Deltas of text completions to the chunks of their stream. */
import { codePoints } from '../../control/sessions/code-points.ts';
import type { ChoiceDelta, TokenLogprob } from '../../control/sessions/session.ts';
import type { CompletionChunk, CompletionLogprobs } from '../../schemas/completion-response.ts';
import type { Run } from '../generation/run.ts';
import type { Envelope } from '../responses/envelope.ts';
import { completionLogprobs } from '../responses/logprobs.ts';
import { joinLogprobs, type PromptPart } from '../responses/prompt-part.ts';
import { makeUsage, totalUsage } from '../responses/usage.ts';

interface ChoiceState {
  run: Run;
  /** Not yet told of; null once it went out. */
  prompt: PromptPart | null;
  tokens: number;
  /** Where the next token's text begins in the choice's. */
  offset: number;
}

export class CompletionChunks {
  readonly #envelope: Envelope;
  readonly #runs: Run[];
  readonly #choices: ChoiceState[];

  /** `prompts`: parallel to `runs`. */
  constructor(envelope: Envelope, runs: Run[], prompts: PromptPart[]) {
    this.#envelope = envelope;
    this.#runs = runs;
    this.#choices = runs.flatMap((run, index) => {
      const prompt = prompts[index] ?? null;
      return Array.from({ length: run.n }, () => ({ run, prompt, tokens: 0, offset: codePoints(prompt?.text ?? '') }));
    });
  }

  /** Empty when there is nothing to tell yet (text held back). */
  delta(delta: ChoiceDelta): CompletionChunk[] {
    const state = this.#choices[delta.index];
    if (state === undefined) throw new Error(`A delta names choice ${delta.index} of ${this.#choices.length}.`);
    const { output } = this.#envelope;
    const carriesTokens = delta.tokenIds.length > 0 && (output.returnTokenIds || this.#envelope.logprobs);
    state.tokens += delta.tokens;
    const { prompt } = state;
    const text = (prompt?.text ?? '') + delta.text;
    if (text === '' && delta.finish === null && !carriesTokens) return [];
    state.prompt = null;
    const scores = prompt?.scores() ?? null;
    const choice = {
      index: delta.index,
      text,
      logprobs: this.#logprobs(delta.logprobs, state, prompt?.logprobs() ?? null),
      finish_reason: delta.finish,
      stop_reason: delta.stopReason,
      prompt_token_ids: output.returnTokenIds && prompt !== null ? [...state.run.generation.promptIds] : null,
      token_ids: output.returnTokenIds ? delta.tokenIds : null,
      ...(scores === null ? {} : { prompt_logprobs: scores }),
    };
    const chunk = this.#frame([choice]);
    return [output.continuousUsage ? { ...chunk, usage: this.#usageOf(state) } : chunk];
  }

  usage(): CompletionChunk {
    return { ...this.#frame([]), usage: totalUsage(this.#runs.map((run) => run.generation)) };
  }

  #logprobs(tokens: TokenLogprob[], state: ChoiceState, prompt: CompletionLogprobs | null): CompletionLogprobs | null {
    if (tokens.length === 0) return prompt;
    const offset = state.offset;
    state.offset += tokens.reduce((sum, token) => sum + token.chars, 0);
    return joinLogprobs(prompt, completionLogprobs(tokens, this.#envelope.output.tokensAsIds, offset));
  }

  #usageOf(state: ChoiceState) {
    const { promptTokens, cachedTokens } = state.run.generation.usage();
    return makeUsage(promptTokens, state.tokens, cachedTokens);
  }

  #frame(choices: CompletionChunk['choices']): CompletionChunk {
    const { id, created, model } = this.#envelope;
    return { id, object: 'text_completion', created, model, choices };
  }
}
