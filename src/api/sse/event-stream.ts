/**
 * Server-sent events on one response. Events of one tick leave in one write. A reader that lets too much pile up is cut:
 * memory is bounded, and a stalled client never stalls the engine. What comes all at once, such as the scores of a long prompt, counts as
 * piled up for all readers together, but not for its own, who could not have read it yet; what one tick brings is looked at once the socket has
 * had it.
 */
import type { ServerResponse } from 'node:http';
import type { StreamBuffers } from './stream-buffers.ts';

/** A tick with more text than this writes at once instead of growing. */
const FLUSH_CHARS = 64 * 1024;

export class EventStream {
  readonly #response: ServerResponse;
  readonly #buffers: StreamBuffers;
  #pending = '';
  #scheduled = false;
  #over = false;
  /** Bytes booked with the buffers: written, but not taken by the socket. */
  #held = 0;
  /** Of these, at most so many came at once. */
  #atOnce = 0;
  #pendingAtOnce = false;
  #judging = false;

  constructor(response: ServerResponse, buffers: StreamBuffers) {
    this.#response = response;
    this.#buffers = buffers;
    response.on('drain', () => this.#book());
    response.once('close', () => {
      this.#over = true;
      this.#buffers.forget(this);
      this.#book(0);
    });
  }

  /** Sends the 200. From here on an error can only be an event. */
  open(): void {
    this.#response.statusCode = 200;
    this.#response.setHeader('Content-Type', 'text/event-stream; charset=utf-8');
    // Who compresses a stream holds back its events.
    this.#response.setHeader('Cache-Control', 'no-cache, no-transform');
    this.#response.setHeader('X-Accel-Buffering', 'no');
    this.#response.flushHeaders();
  }

  /** JSON.stringify leaves no line break in the text, so one event is one `data:` line. */
  send(payload: object, name: string | null = null): void {
    const event = name === null ? '' : `event: ${name}\n`;
    this.#append(`${event}data: ${JSON.stringify(payload)}\n\n`);
  }

  /** What the reader may take its time for, however large it is. */
  sendAtOnce(payload: object, name: string | null = null): void {
    this.#pendingAtOnce = true;
    this.send(payload, name);
  }

  /** Once; `last` is always last. */
  end(last = 'data: [DONE]\n\n'): void {
    if (this.#over) return;
    if (last !== '') this.#append(last);
    this.#flush();
    if (this.#over) return;
    this.#over = true;
    if (this.#held > 0) this.#buffers.linger(this);
    this.#response.end();
  }

  /** Bytes that were written and not taken. */
  get held(): number {
    return this.#held;
  }

  /** What was not taken is lost. The close event aborts the generation. Not the response: one that waits behind another has no socket. */
  cut(): void {
    this.#over = true;
    this.#book(0);
    this.#response.req.socket.destroy();
  }

  #append(text: string): void {
    if (this.#over) return;
    this.#pending += text;
    if (this.#pending.length >= FLUSH_CHARS) return this.#flush();
    if (this.#scheduled) return;
    this.#scheduled = true;
    // After all promise jobs of this tick: what one engine step brought goes out together.
    process.nextTick(() => {
      this.#scheduled = false;
      this.#flush();
    });
  }

  #flush(): void {
    if (this.#over || this.#pending === '' || this.#response.destroyed) return;
    const text = this.#pending;
    this.#pending = '';
    this.#book();
    this.#response.write(text);
    this.#book();
    if (this.#pendingAtOnce) this.#atOnce = this.#held;
    this.#pendingAtOnce = false;
    if (this.#judging) return;
    this.#judging = true;
    process.nextTick(() => this.#judge());
  }

  /** Behind the write: the socket is given what one tick brought only when all of it is there, however fast its reader is. */
  #judge(): void {
    this.#judging = false;
    if (this.#over) return;
    this.#book();
    if (this.#buffers.exceeds(this.#held, this.#atOnce)) this.cut();
  }

  #book(bytes = this.#response.writableLength): void {
    // Taken in the order in which it was written.
    if (bytes < this.#held) this.#atOnce = Math.max(0, this.#atOnce - (this.#held - bytes));
    this.#buffers.change(this.#held, bytes);
    this.#held = bytes;
  }
}
