/**
 * One history -> token sequences to train. Sampled ids are taken verbatim. Where every trained choice brings its real prompt, the
 * sequences are exactly what the model saw; otherwise the chat template renders what lies between the replies.
 */
import { SLOT_CLOSE, SLOT_OPEN } from '../models/prompt-encoder.ts';
import type { ChatEncoder, OpenChat } from '../sessions/open-chat.ts';
import type { ChatMessage } from '../sessions/session.ts';
import { sampledText, unscoredText, type SampledText } from './choice-tokens.ts';
import { TrainingInputError } from './errors.ts';
import { isChoice, messageOf, type ChoiceElement, type History } from './trajectories.ts';

export interface HistoryTokens {
  tokens: Int32Array;
  /** Indices of trained tokens, ascending. */
  trainable: Int32Array;
  /** Log-probabilities at sampling, one per trained token; NaN: not known. */
  logprobs: Float64Array;
}

export interface HistoryOptions {
  chat: ChatEncoder;
  /** Assistant texts without log-probabilities are trained as well. */
  withoutLogprobs: boolean;
}

/** What a template with thoughts writes for a reply that has none. */
const EMPTY_THOUGHT = '<think>\n\n</think>\n\n';

interface Reply {
  /** Index of its element. */
  at: number;
  /** null: the text is to be tokenised. */
  sampled: SampledText | null;
  /** null: sampled. */
  text: string | null;
  prompt: Int32Array | null;
}

/** Empty where nothing is to be trained. `path` names the history in errors. */
export async function historyTokens(history: History, path: string, options: HistoryOptions): Promise<HistoryTokens[]> {
  const replies = trainedReplies(history, path, options.withoutLogprobs);
  if (replies.length === 0) return [];
  const sequences = areExact(replies)
    ? exactSequences(replies)
    : [await renderedSequence(history, path, replies, options.chat)];
  return sequences.map((sequence) => sequence.build()).filter(({ trainable }) => trainable.length > 0);
}

/** What is rendered for a history whose replies all have log-probabilities, or are context; null: nothing. */
export function renderedChat(history: History, path: string): OpenChat | null {
  const replies = trainedReplies(history, path, false);
  return areExact(replies) ? null : openChat(history, replies);
}

/** None of them needs to be rendered. */
function areExact(replies: readonly Reply[]): boolean {
  return replies.every(({ prompt, sampled }) => prompt !== null && sampled !== null);
}

function trainedReplies(history: History, path: string, withoutLogprobs: boolean): Reply[] {
  return history.messages_and_choices.flatMap((element, at): Reply[] => {
    const where = `${path}.${at}`;
    const sampled = isChoice(element) ? sampledText(element, where) : null;
    if (isChoice(element) && sampled) return [{ at, sampled, text: null, prompt: promptOf(element) }];
    const text = withoutLogprobs ? unscoredText(element, where) : null;
    return text === null ? [] : [{ at, sampled: null, text, prompt: null }];
  });
}

function promptOf({ prompt_token_ids: ids = null }: ChoiceElement): Int32Array | null {
  return ids === null ? null : Int32Array.from(ids);
}

/** A reply whose prompt goes on from the sequence so far extends it; any other begins a new one. */
function exactSequences(replies: readonly Reply[]): SequenceBuilder[] {
  const sequences: SequenceBuilder[] = [];
  for (const { prompt, sampled } of replies) {
    if (!prompt || !sampled) continue;
    let current = sequences.at(-1);
    if (!current?.isPrefixOf(prompt)) {
      current = new SequenceBuilder();
      sequences.push(current);
    }
    current.add(prompt.subarray(current.length));
    current.train(sampled);
  }
  return sequences;
}

async function renderedSequence(
  history: History,
  path: string,
  replies: readonly Reply[],
  chat: ChatEncoder,
): Promise<SequenceBuilder> {
  const ids = await chat.encodeChat(openChat(history, replies));
  const thought = chat.chatTemplate?.includes('<think>') ? await chat.encodeText(EMPTY_THOUGHT) : null;
  return splice(ids, replies, thought, path);
}

/** Up to the last trained reply. */
function openChat(history: History, replies: readonly Reply[]): OpenChat {
  const last = replies.at(-1)?.at ?? 0;
  const messages = history.messages_and_choices.slice(0, last + 1).map((element) => messageOf(element) as ChatMessage);
  const slots = replies.map(({ at, text }) => ({ message: at, text }));
  const tools = history.tools && history.tools.length > 0 ? history.tools : null;
  return { messages, tools, templateKwargs: {}, slots, continueFinalMessage: true };
}

/** Puts the sampled ids where the rendered chat leaves room for them. */
function splice(ids: Int32Array, replies: readonly Reply[], thought: Int32Array | null, path: string): SequenceBuilder {
  const sequence = new SequenceBuilder();
  let from = 0;
  for (const { at, sampled } of replies) {
    const open = ids.indexOf(SLOT_OPEN, from);
    const close = ids.indexOf(SLOT_CLOSE, open);
    if (open === -1 || close === -1)
      throw new TrainingInputError(`${path}.${at}`, 'does not appear in the rendered chat.');
    sequence.add(ids.subarray(from, open));
    const text = sampled ?? unscored(ids.subarray(open + 1, close));
    if (thought && text.ids[0] === thought[0]) sequence.dropTail(thought);
    sequence.train(text);
    // The template closes a turn that the sampled end token has closed already.
    const closedTwice = text.ids.length > 0 && ids[close + 1] === text.ids.at(-1);
    from = close + (closedTwice ? 2 : 1);
  }
  return sequence;
}

function unscored(ids: Int32Array): SampledText {
  return { ids, logprobs: new Float64Array(ids.length).fill(NaN) };
}

class SequenceBuilder {
  readonly #tokens: number[] = [];
  readonly #trainable: number[] = [];
  readonly #logprobs: number[] = [];

  get length(): number {
    return this.#tokens.length;
  }

  isPrefixOf(ids: Int32Array): boolean {
    return this.#tokens.length <= ids.length && this.#tokens.every((token, i) => token === ids[i]);
  }

  add(ids: Int32Array): void {
    for (const id of ids) this.#tokens.push(id);
  }

  /** Only tokens after the last trained one. */
  dropTail(tail: Int32Array): void {
    const from = this.#tokens.length - tail.length;
    if (from <= (this.#trainable.at(-1) ?? -1)) return;
    if (tail.every((id, i) => id === this.#tokens[from + i])) this.#tokens.length = from;
  }

  train({ ids, logprobs }: SampledText): void {
    ids.forEach((id, i) => {
      // Nothing predicts a first token.
      if (this.#tokens.length > 0) {
        this.#trainable.push(this.#tokens.length);
        this.#logprobs.push(logprobs[i] ?? NaN);
      }
      this.#tokens.push(id);
    });
  }

  build(): HistoryTokens {
    return {
      tokens: Int32Array.from(this.#tokens),
      trainable: Int32Array.from(this.#trainable),
      logprobs: Float64Array.from(this.#logprobs),
    };
  }
}
