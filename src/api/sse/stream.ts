/** Runs one stream from the first delta to `[DONE]`, errors included. */
import type { ServerResponse } from 'node:http';
import type { Logger } from 'pino';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import { ClientGoneError, toApiError } from '../errors.ts';
import { logBrokenStream } from './broken-stream.ts';
import { EventStream } from './event-stream.ts';
import type { StreamBuffers } from './stream-buffers.ts';

export interface StreamParts {
  deltas: AsyncIterable<ChoiceDelta>;
  /** Before the first delta's chunk. */
  first(): Iterable<object>;
  /** What a delta brings to the client; may be nothing. */
  chunks(delta: ChoiceDelta): object[];
  /** After all choices finished. */
  last(): object[];
  /** Called once, just before bytes of the answer leave. */
  markStreamed(): void;
}

export async function streamEvents(
  response: ServerResponse,
  parts: StreamParts,
  buffers: StreamBuffers,
  log: Logger,
): Promise<void> {
  const stream = new EventStream(response, buffers);
  stream.open();
  try {
    const begun = new Set<number>();
    for await (const delta of parts.deltas) {
      if (begun.size === 0) {
        parts.markStreamed();
        for (const chunk of parts.first()) stream.sendAtOnce(chunk);
      }
      // A choice begins with what is known of its prompt; a search's is whole.
      const begins = !begun.has(delta.index);
      begun.add(delta.index);
      for (const chunk of parts.chunks(delta)) {
        if (begins) stream.sendAtOnce(chunk);
        else stream.send(chunk);
      }
    }
    for (const chunk of parts.last()) stream.send(chunk);
  } catch (error) {
    if (error instanceof ClientGoneError) return;
    logBrokenStream(log, error);
    stream.send(toApiError(error).toBody());
  }
  stream.end();
}
