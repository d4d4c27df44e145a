/** Runs the stream of one message, from `message_start` to `message_stop`. */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { ChoiceDelta, Generation } from '../../control/sessions/session.ts';
import type { MessageEvent } from '../../schemas/message-object.ts';
import { ClientGoneError, toApiError } from '../errors.ts';
import { MessageBlocks } from '../responses/message-blocks.ts';
import { MessageEnding, messageTokens, openMessage, type MessageFacts } from '../responses/message.ts';
import { messagesError } from '../responses/messages-error.ts';
import { logBrokenStream } from './broken-stream.ts';
import { EventStream } from './event-stream.ts';
import { Pings } from './pings.ts';
import type { StreamBuffers } from './stream-buffers.ts';

export interface MessageStream {
  facts: MessageFacts;
  deltas: AsyncIterable<ChoiceDelta>;
  generation: Generation;
  requestId: string;
}

export async function streamMessage(
  response: ServerResponse,
  parts: MessageStream,
  buffers: StreamBuffers,
  log: Logger,
): Promise<void> {
  const stream = new EventStream(response, buffers);
  stream.open();
  const send = (event: MessageEvent) => stream.send(event, event.type);
  const pings = new Pings(() => send({ type: 'ping' }));
  try {
    for await (const event of eventsOf(parts)) {
      pings.reset();
      send(event);
    }
  } catch (error) {
    if (error instanceof ClientGoneError) return;
    logBrokenStream(log, error);
    stream.send(messagesError(toApiError(error), parts.requestId), 'error');
  } finally {
    pings.end();
  }
  // The last event says that it is the last.
  stream.end('');
}

/** The first waits for nothing: clients time the rest by it. */
async function* eventsOf({ facts, deltas, generation }: MessageStream): AsyncGenerator<MessageEvent> {
  const blocks = new MessageBlocks(facts.omitsThoughts);
  const ending = new MessageEnding();
  yield { type: 'message_start', message: openMessage(facts, generation) };
  let begun = false;
  for await (const delta of deltas) {
    // What was sent before says nothing of the reply: it may still be begun again.
    if (!begun) generation.markStreamed();
    begun = true;
    ending.delta(delta);
    yield* blocks.push(delta);
  }
  yield* blocks.end();
  const usage = messageTokens(generation);
  yield { type: 'message_delta', delta: ending.end(facts, usage.output_tokens), usage };
  yield { type: 'message_stop' };
}
