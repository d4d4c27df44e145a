import type { Context, Middleware } from 'koa';
import { chatCompletionFields } from '../../schemas/chat-completion.ts';
import { scoreBytes } from '../generation/answer-room.ts';
import { collectChoices, type WholeChoice } from '../generation/collect.ts';
import { ClientWatch, startRun, type Run } from '../generation/run.ts';
import { recordSamples } from '../generation/sample-record.ts';
import { requestId } from '../middleware/request-id.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import { readChatRequest } from '../requests/chat-request.ts';
import { isLarge } from '../responses/answer-size.ts';
import { chatResponse, largeChatResponse, type ReplyShape } from '../responses/chat.ts';
import type { Envelope } from '../responses/envelope.ts';
import { promptEntries } from '../responses/prompt-part.ts';
import { ChatChunks } from '../sse/chat-chunks.ts';
import { streamEvents } from '../sse/stream.ts';
import { makeEnvelope, requestContext, sendPieces, type RouteDeps } from './context.ts';

/** What the answer needs of a request. Its body is left behind: it may be large, and the request may wait for long. */
interface Begun {
  shape: ReplyShape;
  tenant: string;
  /** Alternatives of the prompt's scores, -1 = the whole vocabulary; null: there are none. */
  scored: number | null;
  envelope: Envelope;
  run: Run;
  watch: ClientWatch;
}

export function chatCompletions(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const begun = await begin(ctx, deps);
    const { envelope, run, watch } = begun;
    if (envelope.output.stream) return stream(ctx, deps, begun);
    const room = deps.answerRoom.open(begun.tenant, ctx.res);
    const choices = await collectChoices(run.deltas, run.n, room);
    watch.done();
    const entries = promptEntries([run], begun.scored, deps.sessions.vocabSize);
    room.grow(scoreBytes(entries));
    answer(ctx, begun, choices, entries);
  };
}

async function begin(ctx: Context, deps: RouteDeps): Promise<Begun> {
  const { input, model, envelope, shape } = await read(ctx, deps);
  const watch = new ClientWatch(ctx.res);
  const run = recordSamples(deps, envelope.id, input, await startRun(deps, input, model, watch.signal));
  deps.bodies.leave(ctx);
  return { shape, tenant: input.tenant, scored: input.sampling.promptLogprobs, envelope, run, watch };
}

async function read(ctx: Context, deps: RouteDeps) {
  const body = await deps.bodies.json(ctx);
  const request = readChatRequest(body, await requestContext(ctx, deps, body));
  const id = `chatcmpl-${requestId(ctx, request.requestId)}`;
  reportIgnored(ctx, body, chatCompletionFields);
  const { input, model, role, echo } = request;
  const shape = { role, echo, tools: input.reply?.tools ?? ('none' as const) };
  return { input, model, envelope: makeEnvelope(deps, id, request, input), shape };
}

function answer(ctx: Context, { shape, envelope, run }: Begun, choices: WholeChoice[], entries: number): void {
  const large = isLarge(choices, {
    entries,
    chars: run.n * shape.echo.length,
    ids: envelope.output.returnTokenIds ? run.generation.promptIds.length : 0,
  });
  if (large) sendPieces(ctx, largeChatResponse(envelope, shape, run.generation, choices));
  else ctx.body = chatResponse(envelope, shape, run.generation, choices);
}

async function stream(ctx: Context, deps: RouteDeps, { shape, envelope, run }: Begun): Promise<void> {
  ctx.respond = false;
  const chunks = new ChatChunks(envelope, shape, run.generation, run.n);
  const parts = {
    deltas: run.deltas,
    first: () => chunks.first(),
    chunks: chunks.delta.bind(chunks),
    last: () => (envelope.output.includeUsage ? [chunks.usage()] : []),
    markStreamed: () => run.generation.markStreamed(),
  };
  await streamEvents(ctx.res, parts, deps.streamBuffers, deps.log);
}
