import type { Context, Middleware } from 'koa';
import { chatCompletionFields } from '../../schemas/chat-completion.ts';
import { scoreBytes } from '../generation/answer-room.ts';
import { collectChoices, type WholeChoice } from '../generation/collect.ts';
import { ClientWatch, startRun, type Run } from '../generation/run.ts';
import { recordSamples } from '../generation/sample-record.ts';
import { requestId } from '../middleware/request-id.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import { readChatRequest, type ChatRequest } from '../requests/chat-request.ts';
import { isLarge } from '../responses/answer-size.ts';
import { chatResponse, largeChatResponse } from '../responses/chat.ts';
import type { Envelope } from '../responses/envelope.ts';
import { promptEntries } from '../responses/prompt-part.ts';
import { ChatChunks } from '../sse/chat-chunks.ts';
import { streamEvents } from '../sse/stream.ts';
import { makeEnvelope, requestContext, sendPieces, type RouteDeps } from './context.ts';

export function chatCompletions(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const body = await deps.bodies.json(ctx);
    const request = readChatRequest(body, await requestContext(ctx, deps, body));
    const id = `chatcmpl-${requestId(ctx, request.requestId)}`;
    reportIgnored(ctx, body, chatCompletionFields);
    const envelope = makeEnvelope(deps, id, request, request.input);
    const watch = new ClientWatch(ctx.res);
    const run = recordSamples(
      deps,
      id,
      request.input,
      await startRun(deps, request.input, request.model, watch.signal),
    );
    if (request.output.stream) return stream(ctx, deps, request, envelope, run);
    const room = deps.answerRoom.open(request.input.tenant, ctx.res);
    const choices = await collectChoices(run.deltas, run.n, room);
    watch.done();
    const entries = promptEntries([run], [request.input], deps.sessions.vocabSize);
    room.grow(scoreBytes(entries));
    answer(ctx, request, envelope, run, choices, entries);
  };
}

function answer(
  ctx: Context,
  request: ChatRequest,
  envelope: Envelope,
  run: Run,
  choices: WholeChoice[],
  entries: number,
): void {
  const { role, echo } = request;
  const shape = { role, echo, tools: request.input.reply?.tools ?? 'none' };
  const large = isLarge(choices, {
    entries,
    chars: run.n * echo.length,
    ids: request.output.returnTokenIds ? run.generation.promptIds.length : 0,
  });
  if (large) sendPieces(ctx, largeChatResponse(envelope, shape, run.generation, choices));
  else ctx.body = chatResponse(envelope, shape, run.generation, choices);
}

async function stream(
  ctx: Context,
  deps: RouteDeps,
  request: ChatRequest,
  envelope: Envelope,
  run: Run,
): Promise<void> {
  ctx.respond = false;
  const chunks = new ChatChunks(envelope, request, run.generation, run.n);
  const parts = {
    deltas: run.deltas,
    first: () => chunks.first(),
    chunks: chunks.delta.bind(chunks),
    last: () => (envelope.output.includeUsage ? [chunks.usage()] : []),
    markStreamed: () => run.generation.markStreamed(),
  };
  await streamEvents(ctx.res, parts, deps.streamBuffers, deps.log);
}
