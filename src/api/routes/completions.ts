import type { Context, Middleware } from 'koa';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import { completionFields } from '../../schemas/completion.ts';
import { scoreBytes } from '../generation/answer-room.ts';
import { collectChoices } from '../generation/collect.ts';
import { mergeRuns } from '../generation/merge.ts';
import { ClientWatch, startRuns, type Run } from '../generation/run.ts';
import { recordRuns } from '../generation/sample-record.ts';
import { requestId } from '../middleware/request-id.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import { readCompletionRequest, type TextRequest } from '../requests/completion-request.ts';
import { isLarge, type PromptSize } from '../responses/answer-size.ts';
import { completionResponse, largeCompletionResponse } from '../responses/completion.ts';
import type { Envelope } from '../responses/envelope.ts';
import { checkScoredPrompts, promptEntries, PromptPart } from '../responses/prompt-part.ts';
import { CompletionChunks } from '../sse/completion-chunks.ts';
import { streamEvents } from '../sse/stream.ts';
import { makeEnvelope, requestContext, sendPieces, type RouteDeps } from './context.ts';

export function completions(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const body = await deps.bodies.json(ctx);
    const request = readCompletionRequest(body, await requestContext(ctx, deps, body));
    const id = `cmpl-${requestId(ctx, request.requestId)}`;
    reportIgnored(ctx, body, completionFields);
    const [input] = request.inputs;
    if (input === undefined) throw new Error('A completion without a prompt.');
    // All prompts share sampling and priority.
    const envelope = makeEnvelope(deps, id, request, input);
    const watch = new ClientWatch(ctx.res);
    const runs = await startRuns(deps, request.inputs, request.model, watch.signal);
    const prompts = promptParts(deps, request, runs);
    const deltas = recordRuns(deps, id, input, runs, mergeRuns(runs));
    if (request.output.stream) return stream(ctx, deps, request, { envelope, runs, prompts, deltas });
    const room = deps.answerRoom.open(input.tenant, ctx.res);
    const choices = await collectChoices(deltas, runs.length * request.n, room);
    watch.done();
    const entries = promptEntries(runs, request.inputs, deps.sessions.vocabSize);
    room.grow(scoreBytes(entries));
    if (isLarge(choices, { entries, ...repeatedPrompts(request, runs, prompts) }))
      sendPieces(ctx, largeCompletionResponse(envelope, runs, prompts, choices));
    else ctx.body = completionResponse(envelope, runs, prompts, choices);
  };
}

/** Every choice repeats its prompt. */
function repeatedPrompts({ output }: TextRequest, runs: Run[], prompts: PromptPart[]): Omit<PromptSize, 'entries'> {
  const chars = runs.reduce((sum, run, at) => sum + run.n * (prompts[at]?.text.length ?? 0), 0);
  const ids = runs.reduce((sum, run) => sum + run.n * run.generation.promptIds.length, 0);
  return { chars, ids: output.returnTokenIds ? ids : 0 };
}

interface Started {
  envelope: Envelope;
  runs: Run[];
  prompts: PromptPart[];
  /** Of all runs. */
  deltas: AsyncIterable<ChoiceDelta>;
}

async function stream(
  ctx: Context,
  deps: RouteDeps,
  request: TextRequest,
  { envelope, runs, prompts, deltas }: Started,
): Promise<void> {
  ctx.respond = false;
  const chunks = new CompletionChunks(envelope, runs, prompts);
  const parts = {
    deltas,
    first: () => [],
    chunks: chunks.delta.bind(chunks),
    last: () => (request.output.includeUsage ? [chunks.usage()] : []),
    markStreamed: () => runs.forEach((run) => run.generation.markStreamed()),
  };
  await streamEvents(ctx.res, parts, deps.streamBuffers, deps.log);
}

/** Refuses scores that are too many, now that the prompts' lengths are known. */
function promptParts(deps: RouteDeps, request: TextRequest, runs: Run[]): PromptPart[] {
  const { inputs } = request;
  try {
    checkScoredPrompts(runs, inputs, deps.sessions.vocabSize);
  } catch (error) {
    for (const run of runs) run.generation.abort();
    throw error;
  }
  return runs.flatMap((run, at) => {
    const input = inputs[at];
    return input ? [new PromptPart(run, input, request, deps.sessions)] : [];
  });
}
