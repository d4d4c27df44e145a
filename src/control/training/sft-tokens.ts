/** Conversations -> token sequences of which only the assistant's turns are trained. */
import { SessionError } from '../sessions/session.ts';
import type { ChatEncoder, OpenChat } from '../sessions/open-chat.ts';
import { TrainingFailedError } from './errors.ts';
import type { TrainSequence } from './pack.ts';
import type { SftConfig } from './sft-config.ts';
import type { Conversation } from './sft-data.ts';

interface Markers {
  /** Ids that begin a turn of the user, and of the assistant. */
  instruction: Int32Array;
  response: Int32Array;
  /** Ids of what lies between a turn's beginning and its text. */
  gap: Int32Array;
}

/** By what a template writes; the first that matches counts. `gap` may melt into one token with what a text begins with. */
const MARKERS: { sign: string; instruction: string; response: string; gap: string }[] = [
  { sign: '<|im_start|>', instruction: '<|im_start|>user', response: '<|im_start|>assistant', gap: '\n' },
  {
    sign: '<|start_header_id|>',
    instruction: '<|start_header_id|>user<|end_header_id|>',
    response: '<|start_header_id|>assistant<|end_header_id|>',
    gap: '\n\n',
  },
  { sign: '<start_of_turn>', instruction: '<start_of_turn>user', response: '<start_of_turn>model', gap: '\n' },
  { sign: '[/INST]', instruction: '[INST]', response: '[/INST]', gap: '' },
];

const TEMPLATE_DEFAULTS: Record<string, unknown> = { enable_thinking: false, preserve_thinking: true };

export class SftTokenizer {
  readonly #chat: ChatEncoder;
  readonly #config: SftConfig;
  #markers: Markers | null = null;

  constructor(chat: ChatEncoder, config: SftConfig) {
    this.#chat = chat;
    this.#config = config;
  }

  /** null: longer than the context. `group` tells sequences apart that must share nothing. */
  async sequence(conversation: Conversation, group: number): Promise<TrainSequence | null> {
    const markers = (this.#markers ??= await this.#readMarkers());
    const tokens = await this.#encode(conversation);
    if (tokens === null || tokens.length > this.#chat.maxModelLen) return null;
    const spans = responseSpans(tokens, markers);
    const trained = this.#config.assistantTurns === 'last' ? spans.slice(-1) : spans;
    const trainable = trained.flatMap(([from, to]) => Array.from({ length: to - from }, (_, i) => from + i));
    return { group, tokens, trainable: Int32Array.from(trainable) };
  }

  async #encode(conversation: Conversation): Promise<Int32Array | null> {
    try {
      return await this.#chat.encodeChat(sftChat(conversation, this.#chat.chatTemplate));
    } catch (error) {
      if (!(error instanceof SessionError)) throw error;
      if (error.code === 'context_length') return null;
      if (error.code !== 'bad_request') throw error;
      throw new TrainingFailedError(unrenderable(conversation.line, error.message));
    }
  }

  async #readMarkers(): Promise<Markers> {
    const template = this.#chat.chatTemplate;
    if (template === null) throw new TrainingFailedError('The base model has no chat template.');
    const texts = MARKERS.find(({ sign }) => template.includes(sign));
    if (!texts) throw new TrainingFailedError("The chat template's turns are not of a known form.");
    const response = await this.#chat.encodeText(texts.response);
    const opened = await this.#chat.encodeText(texts.response + texts.gap);
    return {
      instruction: await this.#chat.encodeText(texts.instruction),
      response,
      gap: opened.subarray(response.length),
    };
  }
}

/** `why`: the chat template's own words, mostly. */
export function unrenderable(line: number, why: string): string {
  return `Line ${line} of the training data cannot be rendered: ${why}`;
}

/** What is rendered of a conversation. */
export function sftChat({ messages, tools }: Conversation, chatTemplate: string | null): OpenChat {
  const mentioned = Object.entries(TEMPLATE_DEFAULTS).filter(([name]) => chatTemplate?.includes(name));
  return { messages, tools, templateKwargs: Object.fromEntries(mentioned), slots: [], continueFinalMessage: false };
}

/** [from, to) of each reply: behind the beginning of its turn, up to that of the next instruction or the end. */
export function responseSpans(tokens: Int32Array, { instruction, response, gap }: Markers): [number, number][] {
  const spans: [number, number][] = [];
  let from = -1;
  let at = 0;
  while (at < tokens.length) {
    if (from === -1 && occursAt(tokens, at, response)) {
      at += response.length;
      // A text that begins with a line break may share a token with the template's own, which is not trained.
      at += occursAt(tokens, at, gap) ? gap.length : 1;
      from = at;
    } else if (from !== -1 && occursAt(tokens, at, instruction)) {
      spans.push([from, at]);
      from = -1;
      at += instruction.length;
    } else {
      at++;
    }
  }
  if (from !== -1 && from < tokens.length) spans.push([from, tokens.length]);
  return spans;
}

function occursAt(tokens: Int32Array, at: number, marker: Int32Array): boolean {
  return marker.every((id, i) => tokens[at + i] === id);
}
