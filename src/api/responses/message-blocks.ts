/**
 * The deltas of a reply to the events that tell of a message's content blocks, and back to whole blocks. Neighbouring pieces of one kind are one
 * block, so blocks do not depend on how the reply was cut into deltas.
 */
import { createHash, type Hash } from 'node:crypto';
import { parseJsonNumbers } from '../../control/json-numbers.ts';
import type { ParsedDelta, ToolCallDelta } from '../../control/sessions/parsers/output-parser.ts';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import type { BlockDelta, BlockEvent, ContentBlock } from '../../schemas/message-object.ts';
import { isPlainObject } from '../../schemas/plain-object.ts';
import { packThoughts } from '../requests/encrypted-thoughts.ts';
import { piecesOf } from './reply-pieces.ts';

type Open = { kind: 'text' } | { kind: 'thinking'; signature: Signature } | { kind: 'call'; index: number };

export class MessageBlocks {
  readonly #omitsThoughts: boolean;
  #open: Open | null = null;
  /** Blocks that have begun. */
  #count = 0;

  /** `omitsThoughts`: the signature alone has them, for the client to send back. */
  constructor(omitsThoughts: boolean) {
    this.#omitsThoughts = omitsThoughts;
  }

  push(delta: ChoiceDelta): BlockEvent[] {
    return piecesOf(delta).flatMap((piece) => this.#take(piece));
  }

  /** Call once. */
  end(): BlockEvent[] {
    return this.#close();
  }

  #take(piece: ParsedDelta): BlockEvent[] {
    if ('content' in piece) return this.#text(piece.content);
    if ('reasoning' in piece) return this.#thinking(piece.reasoning);
    return this.#call(piece.toolCall);
  }

  #text(text: string): BlockEvent[] {
    if (text === '') return [];
    const begun = this.#open?.kind === 'text' ? [] : this.#begin({ kind: 'text' }, { type: 'text', text: '' });
    return [...begun, this.#delta({ type: 'text_delta', text })];
  }

  #thinking(thinking: string): BlockEvent[] {
    const events: BlockEvent[] = [];
    if (this.#open?.kind !== 'thinking') {
      const signature = this.#omitsThoughts ? new CarriedThoughts() : new HashedThoughts();
      events.push(...this.#begin({ kind: 'thinking', signature }, { type: 'thinking', thinking: '', signature: '' }));
    }
    if (this.#open?.kind !== 'thinking') throw new Error('No thoughts are open.');
    this.#open.signature.add(thinking);
    if (thinking === '' || this.#omitsThoughts) return events;
    return [...events, this.#delta({ type: 'thinking_delta', thinking })];
  }

  #call({ index, id = '', name = '', arguments: args = '' }: ToolCallDelta): BlockEvent[] {
    const events: BlockEvent[] = [];
    if (this.#open?.kind !== 'call' || this.#open.index !== index) {
      events.push(...this.#begin({ kind: 'call', index }, { type: 'tool_use', id: toolId(id), name, input: {} }));
    }
    if (args === '') return events;
    return [...events, this.#delta({ type: 'input_json_delta', partial_json: args })];
  }

  #begin(open: Open, content_block: ContentBlock): BlockEvent[] {
    const closed = this.#close();
    this.#open = open;
    this.#count++;
    return [...closed, { type: 'content_block_start', index: this.#count - 1, content_block }];
  }

  #close(): BlockEvent[] {
    const open = this.#open;
    if (open === null) return [];
    const signed =
      open.kind === 'thinking' ? [this.#delta({ type: 'signature_delta', signature: open.signature.text() })] : [];
    this.#open = null;
    return [...signed, { type: 'content_block_stop', index: this.#count - 1 }];
  }

  #delta(delta: BlockDelta): BlockEvent {
    return { type: 'content_block_delta', index: this.#count - 1, delta };
  }
}

/** What clients want of a thinking block, and send back unread. */
interface Signature {
  add(thoughts: string): void;
  text(): string;
}

/** Thoughts that stand open need none: it is their hash, and nobody asks for it. */
class HashedThoughts implements Signature {
  readonly #hash: Hash = createHash('sha256');

  add(thoughts: string): void {
    // Not UTF-8: a piece may end in half of a surrogate pair.
    this.#hash.update(thoughts, 'utf16le');
  }

  text(): string {
    return this.#hash.digest('base64');
  }
}

class CarriedThoughts implements Signature {
  #thoughts = '';

  add(thoughts: string): void {
    this.#thoughts += thoughts;
  }

  text(): string {
    return packThoughts(this.#thoughts);
  }
}

/** As clients know ids of calls; the end stays, by which templates with short ids tell them apart. */
function toolId(id: string): string {
  return `toolu_${id.replace(/^(?:call_|chatcmpl-tool-)/, '')}`;
}

/** Whole blocks, from the events of all of them. */
export class WholeBlocks {
  readonly #blocks: ContentBlock[] = [];
  /** Of the last block, where it is a call. */
  #json = '';

  take(event: BlockEvent): void {
    if (event.type === 'content_block_start') this.#blocks.push({ ...event.content_block });
    else if (event.type === 'content_block_delta') this.#grow(event.delta);
    else this.#end();
  }

  /** Once they have ended. */
  get blocks(): ContentBlock[] {
    return this.#blocks;
  }

  #grow(delta: BlockDelta): void {
    const block = this.#blocks.at(-1);
    if (delta.type === 'input_json_delta') this.#json += delta.partial_json;
    else if (delta.type === 'text_delta' && block?.type === 'text') block.text += delta.text;
    else if (delta.type === 'thinking_delta' && block?.type === 'thinking') block.thinking += delta.thinking;
    else if (delta.type === 'signature_delta' && block?.type === 'thinking') block.signature = delta.signature;
  }

  #end(): void {
    const block = this.#blocks.at(-1);
    if (block?.type === 'tool_use') block.input = toInput(this.#json);
    this.#json = '';
  }
}

/** Numbers as they were written. A call that was cut has no input. */
function toInput(json: string): Record<string, unknown> {
  try {
    const value = parseJsonNumbers(json);
    return isPlainObject(value) ? value : {};
  } catch {
    return {};
  }
}
