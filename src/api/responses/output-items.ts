/**
 * The deltas of a reply to the items of a response and to the events that tell of them. Neighbouring pieces of one kind are one item, so items
 * do not depend on how the reply was cut into deltas.
 */
import type { ParsedDelta, ToolCallDelta } from '../../control/sessions/parsers/output-parser.ts';
import { isWholeCall } from '../../control/sessions/parsers/reply-rules.ts';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import type { ChatTokenLogprob } from '../../schemas/chat-completion-response.ts';
import type {
  FunctionCallItem,
  ItemStatus,
  OutputItem,
  OutputMessage,
  ReasoningItem,
  ResponseEvent,
} from '../../schemas/response-object.ts';
import { packThoughts } from '../requests/encrypted-thoughts.ts';
import type { NamespacedName } from '../requests/responses-tools.ts';
import { piecesOf } from './reply-pieces.ts';
import { TextLogprobs } from './text-logprobs.ts';

export interface ItemOptions {
  logprobs: boolean;
  encryptedContent: boolean;
  /** Functions of namespaces, by the names that the model knows. */
  names: ReadonlyMap<string, NamespacedName>;
  /** Alternatives included. More of them are in the events alone that they come with. */
  maxLogprobs: number;
}

type Open = { kind: 'message'; item: OutputMessage } | { kind: 'reasoning'; item: ReasoningItem } | OpenCall;
type OpenCall = { kind: 'call'; item: FunctionCallItem; index: number };

export class OutputItems {
  readonly items: OutputItem[] = [];
  readonly #token: string;
  readonly #options: ItemOptions;
  #open: Open | null = null;
  readonly #logprobs: TextLogprobs | null;
  /** Log-probabilities of the items, alternatives included. */
  #kept = 0;
  /** Where the output ended from which the items were made. */
  #textEnd: number | undefined;

  /** `token`: what makes the items' ids this response's. */
  constructor(token: string, options: ItemOptions) {
    this.#token = token;
    this.#options = options;
    this.#logprobs = options.logprobs ? new TextLogprobs() : null;
  }

  push(delta: ChoiceDelta): ResponseEvent[] {
    this.#logprobs?.add(delta.logprobs);
    const events = piecesOf(delta).flatMap((piece) => this.#take(piece));
    if (delta.textEnd !== undefined) this.#textEnd = delta.textEnd;
    else this.#logprobs?.forget(this.#options.maxLogprobs);
    return events;
  }

  /** Call once. `status`: of the item that the reply ended in. A reply of nothing is an empty message. */
  end(status: Exclude<ItemStatus, 'in_progress'>): ResponseEvent[] {
    const empty = this.items.length === 0 ? this.#message('', this.#textEnd) : [];
    if (this.#open?.kind === 'message') {
      this.#keepLogprobs(this.#open.item, this.#logprobs?.rest(this.#textEnd) ?? []);
    }
    return [...empty, ...this.#close(status)];
  }

  /** The reply failed: no event tells the end of the item that it was in, and nobody works on it any more. */
  breakOff(): void {
    this.#close('incomplete');
  }

  #take(piece: ParsedDelta): ResponseEvent[] {
    if ('content' in piece) return this.#message(piece.content, piece.at);
    if ('reasoning' in piece) return this.#reasoning(piece.reasoning);
    return this.#call(piece.toolCall);
  }

  /** `at`: where the text stands in the output. */
  #message(text: string, at: number | undefined): ResponseEvent[] {
    const events: ResponseEvent[] = [];
    if (this.#open?.kind !== 'message') {
      events.push(...this.#close('completed'), ...this.#begin({ kind: 'message', item: this.#newMessage() }));
    }
    if (this.#open?.kind !== 'message') throw new Error('No message is open.');
    const { item } = this.#open;
    const [part] = item.content;
    if (part) part.text += text;
    const logprobs = this.#logprobs?.take(text, at) ?? [];
    this.#keepLogprobs(item, logprobs);
    if (text === '') return events;
    return [...events, { type: 'response.output_text.delta', ...this.#partPlace(item), delta: text, logprobs }];
  }

  /** All or, where they are too many, none. */
  #keepLogprobs(item: OutputMessage, logprobs: readonly ChatTokenLogprob[]): void {
    const [part] = item.content;
    for (const logprob of logprobs) {
      this.#kept += 1 + logprob.top_logprobs.length;
      if (this.#kept <= this.#options.maxLogprobs) part?.logprobs.push(logprob);
      else part?.logprobs.splice(0);
    }
  }

  #reasoning(text: string): ResponseEvent[] {
    const events: ResponseEvent[] = [];
    if (this.#open?.kind !== 'reasoning') {
      events.push(...this.#close('completed'), ...this.#begin({ kind: 'reasoning', item: this.#newReasoning() }));
    }
    if (this.#open?.kind !== 'reasoning') throw new Error('No reasoning is open.');
    const { item } = this.#open;
    const [part] = item.content;
    if (part) part.text += text;
    return [...events, { type: 'response.reasoning_text.delta', ...this.#partPlace(item), delta: text }];
  }

  #call({ index, id = '', name = '', arguments: args = '' }: ToolCallDelta): ResponseEvent[] {
    const events: ResponseEvent[] = [];
    if (this.#open?.kind !== 'call' || this.#open.index !== index) {
      events.push(...this.#close('completed'));
      events.push(...this.#begin({ kind: 'call', item: this.#newCall(id, name), index }));
    }
    if (this.#open?.kind !== 'call') throw new Error('No call is open.');
    const { item } = this.#open;
    item.arguments += args;
    if (args === '') return events;
    return [...events, { type: 'response.function_call_arguments.delta', ...this.#place(item), delta: args }];
  }

  #begin(open: Open): ResponseEvent[] {
    const { item } = open;
    this.#open = open;
    this.items.push(item);
    const output_index = this.items.length - 1;
    if (item.type === 'function_call') return [added(output_index, { ...item })];
    const [part] = item.content;
    return [
      added(output_index, { ...item, content: [] }),
      // Before it grows: what is added to its lists meanwhile is told by events of its own.
      { type: 'response.content_part.added', ...this.#partPlace(item), part: structuredClone(part) },
    ];
  }

  /** Nothing where no item is open. */
  #close(status: ItemStatus): ResponseEvent[] {
    const open = this.#open;
    if (open === null) return [];
    this.#open = null;
    const { item } = open;
    // Its arguments are all that tells whether a call can be run.
    const brokeOff = item.type === 'function_call' && !isWholeCall(item.arguments);
    item.status = brokeOff ? 'incomplete' : status;
    const done = { type: 'response.output_item.done', output_index: this.items.length - 1, item };
    return [...this.#doneOf(item), done];
  }

  #doneOf(item: OutputItem): ResponseEvent[] {
    if (item.type === 'function_call') {
      const { name, arguments: args } = item;
      return [{ type: 'response.function_call_arguments.done', ...this.#place(item), name, arguments: args }];
    }
    const [part] = item.content;
    const place = this.#partPlace(item);
    const partDone = { type: 'response.content_part.done', ...place, part };
    if (item.type === 'message') {
      const { text = '', logprobs = [] } = item.content[0] ?? {};
      return [{ type: 'response.output_text.done', ...place, text, logprobs }, partDone];
    }
    const { text = '' } = item.content[0] ?? {};
    if (this.#options.encryptedContent) item.encrypted_content = packThoughts(text);
    return [{ type: 'response.reasoning_text.done', ...place, text }, partDone];
  }

  /** Of the item that is open, the last. */
  #place({ id }: OutputItem): { item_id: string; output_index: number } {
    return { item_id: id, output_index: this.items.length - 1 };
  }

  #partPlace(item: OutputItem): { item_id: string; output_index: number; content_index: 0 } {
    return { ...this.#place(item), content_index: 0 };
  }

  #newMessage(): OutputMessage {
    const content: OutputMessage['content'] = [{ type: 'output_text', text: '', annotations: [], logprobs: [] }];
    return { id: this.#idOf('msg'), type: 'message', status: 'in_progress', role: 'assistant', content };
  }

  #newReasoning(): ReasoningItem {
    const content: ReasoningItem['content'] = [{ type: 'reasoning_text', text: '' }];
    return { id: this.#idOf('rs'), type: 'reasoning', status: 'in_progress', summary: [], content };
  }

  #newCall(call_id: string, name: string): FunctionCallItem {
    const known = this.#options.names.get(name) ?? { name };
    return { id: this.#idOf('fc'), type: 'function_call', status: 'in_progress', call_id, ...known, arguments: '' };
  }

  #idOf(prefix: string): string {
    return itemId(prefix, this.#token, this.items.length);
  }
}

/** Items say which response they are of: `responseOf` (responses-history.ts) reads it. */
export function itemId(prefix: string, token: string, at: number | string): string {
  return `${prefix}_${token}_${at}`;
}

function added(output_index: number, item: OutputItem): ResponseEvent {
  return { type: 'response.output_item.added', output_index, item };
}
