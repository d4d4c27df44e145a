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

/** What the answer needs of a request. Its body is left behind: it may be large, and the request may wait for long. */
interface Begun {
  tenant: string;
  n: number;
  /** Alternatives of the prompts' scores, -1 = the whole vocabulary; null: there are none. */
  scored: number | null;
  envelope: Envelope;
  runs: Run[];
  /** Of all runs. */
  deltas: AsyncIterable<ChoiceDelta>;
  prompts: PromptPart[];
  watch: ClientWatch;
}

export function completions(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const begun = await begin(ctx, deps);
    const { envelope, runs, deltas, prompts, watch } = begun;
    if (envelope.output.stream) return stream(ctx, deps, begun);
    const room = deps.answerRoom.open(begun.tenant, ctx.res);
    const choices = await collectChoices(deltas, runs.length * begun.n, room);
    watch.done();
    const entries = promptEntries(runs, begun.scored, deps.sessions.vocabSize);
    room.grow(scoreBytes(entries));
    if (isLarge(choices, { entries, ...repeatedPrompts(begun) }))
      sendPieces(ctx, largeCompletionResponse(envelope, runs, prompts, choices));
    else ctx.body = completionResponse(envelope, runs, prompts, choices);
  };
}

async function begin(ctx: Context, deps: RouteDeps): Promise<Begun> {
  const { request, envelope } = await read(ctx, deps);
  const [input] = request.inputs;
  if (input === undefined) throw new Error('A completion without a prompt.');
  const watch = new ClientWatch(ctx.res);
  const runs = await startRuns(deps, request.inputs, request.model, watch.signal);
  deps.bodies.leave(ctx);
  // All prompts share sampling.
  const scored = input.sampling.promptLogprobs;
  const prompts = promptParts(deps, request, runs, scored);
  const deltas = recordRuns(deps, envelope.id, input, runs, mergeRuns(runs));
  return { tenant: input.tenant, n: request.n, scored, envelope, runs, deltas, prompts, watch };
}

async function read(ctx: Context, deps: RouteDeps): Promise<{ request: TextRequest; envelope: Envelope }> {
  const body = await deps.bodies.json(ctx);
  const request = readCompletionRequest(body, await requestContext(ctx, deps, body));
  const id = `cmpl-${requestId(ctx, request.requestId)}`;
  reportIgnored(ctx, body, completionFields);
  const [input] = request.inputs;
  if (input === undefined) throw new Error('A completion without a prompt.');
  // All prompts share sampling and priority.
  return { request, envelope: makeEnvelope(deps, id, request, input) };
}

/** Every choice repeats its prompt. */
function repeatedPrompts({ envelope, runs, prompts }: Begun): Omit<PromptSize, 'entries'> {
  const chars = runs.reduce((sum, run, at) => sum + run.n * (prompts[at]?.text.length ?? 0), 0);
  const ids = runs.reduce((sum, run) => sum + run.n * run.generation.promptIds.length, 0);
  return { chars, ids: envelope.output.returnTokenIds ? ids : 0 };
}

async function stream(ctx: Context, deps: RouteDeps, { envelope, runs, deltas, prompts }: Begun): Promise<void> {
  ctx.respond = false;
  const chunks = new CompletionChunks(envelope, runs, prompts);
  const parts = {
    deltas,
    first: () => [],
    chunks: chunks.delta.bind(chunks),
    last: () => (envelope.output.includeUsage ? [chunks.usage()] : []),
    markStreamed: () => runs.forEach((run) => run.generation.markStreamed()),
  };
  await streamEvents(ctx.res, parts, deps.streamBuffers, deps.log);
}

/** Refuses scores that are too many, now that the prompts' lengths are known. */
function promptParts(deps: RouteDeps, request: TextRequest, runs: Run[], scored: number | null): PromptPart[] {
  try {
    checkScoredPrompts(runs, scored, deps.sessions.vocabSize);
  } catch (error) {
    for (const run of runs) run.generation.abort();
    throw error;
  }
  return runs.flatMap((run, at) => {
    const input = request.inputs[at];
    return input ? [new PromptPart(run, input, request, deps.sessions)] : [];
  });
}
