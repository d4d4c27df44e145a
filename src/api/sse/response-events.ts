/** Runs the stream of one response: typed events with their numbers, from `response.created` to how it ended. */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { ChoiceDelta, ChoiceFinish, Generation } from '../../control/sessions/session.ts';
import type { ResponseEvent, ResponseHead, ResponseObject } from '../../schemas/response-object.ts';
import { ClientGoneError, toApiError, type ApiError } from '../errors.ts';
import { deltaBytes, type AnswerBytes } from '../generation/answer-room.ts';
import type { OutputItems } from '../responses/output-items.ts';
import { closedHead, endOf, failedHead } from '../responses/response-object.ts';
import { logBrokenStream } from './broken-stream.ts';
import { EventStream } from './event-stream.ts';
import type { StreamBuffers } from './stream-buffers.ts';

export interface ResponseStream {
  head: ResponseHead;
  items: OutputItems;
  deltas: AsyncIterable<ChoiceDelta>;
  generation: Generation;
  /** Of the text that is gathered for the last events; they hold a bounded number of log-probabilities. */
  room: AnswerBytes;
  /** Before the last event says that it is stored: the response as it became. */
  store: (response: ResponseObject) => Promise<ResponseObject>;
}

export async function streamResponse(
  response: ServerResponse,
  parts: ResponseStream,
  buffers: StreamBuffers,
  log: Logger,
): Promise<void> {
  const events = new NumberedEvents(new EventStream(response, buffers));
  events.open(parts.head);
  try {
    await sendAll(events, parts);
  } catch (error) {
    if (error instanceof ClientGoneError) return;
    logBrokenStream(log, error);
    events.fail(parts, toApiError(error));
  }
  events.end();
}

async function sendAll(events: NumberedEvents, parts: ResponseStream): Promise<void> {
  const { head, items, generation } = parts;
  let finish: ChoiceFinish = 'abort';
  let begun = false;
  for await (const delta of parts.deltas) {
    if (!begun) generation.markStreamed();
    begun = true;
    parts.room.grow(deltaBytes({ ...delta, tokenIds: [], logprobs: [] }));
    for (const event of items.push(delta)) events.send(event);
    if (delta.finish !== null) finish = delta.finish;
  }
  const { status } = endOf(finish);
  for (const event of items.end(status === 'completed' ? status : 'incomplete')) events.sendAtOnce(event);
  const whole = await parts.store({ ...closedHead(head, finish, generation), output: items.items });
  events.sendAtOnce({ type: `response.${whole.status}`, response: whole });
}

class NumberedEvents {
  readonly #stream: EventStream;
  #next = 0;

  constructor(stream: EventStream) {
    this.#stream = stream;
  }

  /** Sends the 200; nothing of the reply yet. */
  open(head: ResponseHead): void {
    this.#stream.open();
    const response = { ...head, output: [] };
    this.sendAtOnce({ type: 'response.created', response });
    this.sendAtOnce({ type: 'response.in_progress', response });
  }

  send(event: ResponseEvent): void {
    this.#stream.send(this.#numbered(event), event.type);
  }

  /** What is whole in one event, such as a text at its end. */
  sendAtOnce(event: ResponseEvent): void {
    this.#stream.sendAtOnce(this.#numbered(event), event.type);
  }

  /** Clients look for `error`, or for the response's own end. */
  fail({ head, items }: ResponseStream, error: ApiError): void {
    const { message, param } = error;
    const code = codeOf(error);
    this.send({ type: 'error', code, message, param, ...error.toErrorBody() });
    items.breakOff();
    const failed = { ...failedHead(head, code, message), output: items.items };
    this.sendAtOnce({ type: 'response.failed', response: failed });
  }

  /** No `[DONE]`: the last event says how the response ended. */
  end(): void {
    this.#stream.end('');
  }

  #numbered({ type, ...rest }: ResponseEvent): ResponseEvent {
    return { type, sequence_number: this.#next++, ...rest };
  }
}

function codeOf(error: ApiError): string {
  if (error.status >= 500) return 'server_error';
  return error.status === 429 ? 'rate_limit_exceeded' : 'invalid_prompt';
}
