import type { Context, Middleware } from 'koa';
import type { PromptInput, Sessions } from '../../control/sessions/session.ts';
import { completionFields } from '../../schemas/completion.ts';
import { collectChoices } from '../generation/collect.ts';
import { mergeRuns } from '../generation/merge.ts';
import { ClientWatch, startRuns, type Run } from '../generation/run.ts';
import { requestId } from '../middleware/request-id.ts';
import { readCompletionRequest, type TextRequest } from '../requests/completion-request.ts';
import { completionResponse } from '../responses/completion.ts';
import type { Envelope } from '../responses/envelope.ts';
import { CompletionChunks } from '../sse/completion-chunks.ts';
import { streamEvents } from '../sse/stream.ts';
import { makeEnvelope, reportIgnored, requestContext, type RouteDeps } from './context.ts';

export function completions(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const body = await deps.bodies.json(ctx);
    const request = readCompletionRequest(body, requestContext(ctx, deps));
    const id = `cmpl-${requestId(ctx, request.requestId)}`;
    reportIgnored(ctx, body, completionFields);
    const logprobs = request.inputs.some((input) => input.sampling.topLogprobs !== null);
    const envelope = makeEnvelope(deps, id, request.output, logprobs);
    const watch = new ClientWatch(ctx.res);
    const runs = await startRuns(deps, request.inputs, watch.signal);
    const prefixes = request.inputs.map((input) => (request.echo ? promptText(input.prompt, deps.sessions) : ''));
    if (request.output.stream) return stream(ctx, deps, request, envelope, runs, prefixes);
    const choices = await collectChoices(mergeRuns(runs), runs.length * request.n);
    watch.done();
    ctx.body = completionResponse(envelope, runs, prefixes, choices);
  };
}

async function stream(
  ctx: Context,
  deps: RouteDeps,
  request: TextRequest,
  envelope: Envelope,
  runs: Run[],
  prefixes: string[],
): Promise<void> {
  ctx.respond = false;
  const chunks = new CompletionChunks(envelope, runs, prefixes);
  const parts = {
    deltas: mergeRuns(runs),
    first: () => [],
    chunks: chunks.delta.bind(chunks),
    last: () => (request.output.includeUsage ? [chunks.usage()] : []),
    markStreamed: () => runs.forEach((run) => run.generation.markStreamed()),
  };
  await streamEvents(ctx.res, parts, deps.streamBuffers, deps.log);
}

function promptText(prompt: PromptInput, sessions: Sessions): string {
  if (prompt.kind === 'text') return prompt.text;
  return prompt.kind === 'ids' ? sessions.detokenize(prompt.ids) : '';
}
