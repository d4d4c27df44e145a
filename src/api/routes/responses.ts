import type { Context, Middleware } from 'koa';
import type { RequestMessage } from '../../schemas/chat-completion.ts';
import { SessionError, type ChoiceFinish, type GenerationInput } from '../../control/sessions/session.ts';
import { RESPONSES_NESTED_FIELDS, responsesFields } from '../../schemas/responses.ts';
import type { ResponseHead, ResponseObject } from '../../schemas/response-object.ts';
import { ApiError, ClientGoneError } from '../errors.ts';
import { deltaBytes, type AnswerBytes } from '../generation/answer-room.ts';
import { ClientWatch, startRun, type Run } from '../generation/run.ts';
import { recordSamples } from '../generation/sample-record.ts';
import { entityOf } from '../middleware/auth.ts';
import { requestId } from '../middleware/request-id.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import { readHistory, type History } from '../requests/responses-history.ts';
import { toRequestMessages } from '../requests/responses-items.ts';
import { namespacedNames } from '../requests/responses-tools.ts';
import { ownTerms, readResponsesRequest, type ResponsesWishes } from '../requests/responses-request.ts';
import { fitConversation } from '../requests/truncate-conversation.ts';
import { LARGE_ANSWER } from '../responses/answer-size.ts';
import { OutputItems } from '../responses/output-items.ts';
import { MadeList } from '../responses/pieces.ts';
import { closedHead, endOf, openHead } from '../responses/response-object.ts';
import { streamResponse } from '../sse/response-events.ts';
import { requestContext, sendPieces, type RouteDeps } from './context.ts';

/** What belongs to one request. */
interface Task {
  ctx: Context;
  deps: RouteDeps;
  entity: string;
  /** The request's items, as they are stored. */
  own: History['own'];
  head: ResponseHead;
  items: OutputItems;
  room: AnswerBytes;
}

export function responses(deps: RouteDeps): Middleware {
  return async (ctx) => {
    try {
      await answer(ctx, deps);
    } catch (error) {
      throw ownTerms(error);
    }
  };
}

/** Of the prompt that such a request would have. */
export function responsesInputTokens(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const raw = await deps.bodies.json(ctx);
    try {
      ctx.body = { object: 'response.input_tokens', input_tokens: await countInput(ctx, deps, raw) };
    } catch (error) {
      throw ownTerms(error);
    }
  };
}

async function countInput(ctx: Context, deps: RouteDeps, raw: unknown): Promise<number> {
  const wishes = readResponsesRequest(raw, await requestContext(ctx, deps, raw));
  const token = requestId(ctx, wishes.body.request_id);
  // For what it refuses: the request may be sent as it is afterwards.
  storesIt(deps, wishes.body.store ?? null);
  reportIgnored(ctx, raw, responsesFields, RESPONSES_NESTED_FIELDS);
  const watch = new ClientWatch(ctx.res);
  const count = async ({ prompt, tenant }: GenerationInput) =>
    (await deps.sessions.tokenize(prompt, tenant, watch.signal)).length;
  try {
    return await withInput(ctx, deps, wishes, token, watch.signal, count);
  } catch (error) {
    throw watch.signal.aborted ? new ClientGoneError() : error;
  } finally {
    watch.done();
  }
}

async function answer(ctx: Context, deps: RouteDeps): Promise<void> {
  const { task, run, watch, isStreamed } = await begin(ctx, deps);
  if (isStreamed) return stream(task, run);
  const whole = await gather(task, run);
  watch.done();
  send(ctx, await keep(task, whole));
}

/** Leaves of the body behind what is neither repeated nor stored: it may be large, and the request may wait for long. */
async function begin(ctx: Context, deps: RouteDeps) {
  const raw = await deps.bodies.json(ctx);
  const entity = entityOf(ctx);
  const wishes = readResponsesRequest(raw, await requestContext(ctx, deps, raw));
  const { body } = wishes;
  const token = requestId(ctx, body.request_id);
  const store = storesIt(deps, body.store ?? null);
  reportIgnored(ctx, raw, responsesFields, RESPONSES_NESTED_FIELDS);
  const watch = new ClientWatch(ctx.res);
  const { run, own, serviceTier } = await start(ctx, deps, wishes, token, watch.signal);
  deps.bodies.leave(ctx);
  const createdAt = Math.floor(Date.now() / 1000);
  const identity = { id: idOf(token), createdAt, model: wishes.model.displayName, store, serviceTier };
  const isStreamed = body.stream === true;
  const maxLogprobs = isStreamed ? LARGE_ANSWER : Infinity;
  const task: Task = {
    ctx,
    deps,
    entity,
    own: store ? own : [],
    head: openHead(identity, body),
    items: new OutputItems(token, { ...wishes.included, names: namespacedNames(body), maxLogprobs }),
    room: deps.answerRoom.open(entity, ctx.res),
  };
  return { task, run, watch, isStreamed };
}

function idOf(token: string): string {
  return `resp_${token}`;
}

async function start(ctx: Context, deps: RouteDeps, wishes: ResponsesWishes, token: string, signal: AbortSignal) {
  return withInput(ctx, deps, wishes, token, signal, async (input, own) => {
    const run = recordSamples(deps, idOf(token), input, await startRun(deps, input, wishes.model, signal));
    return { run, own, serviceTier: input.priority === 0 ? ('default' as const) : ('priority' as const) };
  });
}

/** What is read of the conversation is held until its prompt has been made, which `use` does. */
async function withInput<T>(
  ctx: Context,
  deps: RouteDeps,
  wishes: ResponsesWishes,
  token: string,
  signal: AbortSignal,
  use: (input: GenerationInput, own: History['own']) => Promise<T>,
): Promise<T> {
  const { body } = wishes;
  const entity = entityOf(ctx);
  const held = deps.bodies.hold(entity);
  const { responses: store, bodies, settings } = deps;
  try {
    const history = { responses: store, bodies, held, maxBytes: settings.maxBodyBytes };
    const { items, own } = await readHistory(history, entity, body, token);
    const messages = toRequestMessages(items, body.instructions ?? null);
    const fits = (some: RequestMessage[]) => fitsContext(deps, wishes, some, signal);
    const shown = body.truncation === 'auto' ? await fitConversation(messages, fits) : messages;
    return await use(wishes.toInput(shown), own);
  } catch (error) {
    throw ownTerms(error, wishes.toolPlaces);
  } finally {
    held.release();
  }
}

/** Beside the output that was asked for, or one token of it. */
async function fitsContext(
  { sessions }: RouteDeps,
  { toInput }: ResponsesWishes,
  messages: RequestMessage[],
  signal: AbortSignal,
): Promise<boolean> {
  const { prompt, tenant, sampling } = toInput(messages);
  try {
    const { length } = await sessions.tokenize(prompt, tenant, signal);
    return length + (sampling.maxTokens ?? 1) <= sessions.maxModelLen;
  } catch (error) {
    if (error instanceof SessionError && error.code === 'context_length') return false;
    throw error;
  }
}

/** Kept unless the caller says otherwise, as with OpenAI; what cannot be kept at all is refused only to whoever asks for it. */
function storesIt({ responses: store }: RouteDeps, asked: boolean | null): boolean {
  if (asked !== true || store.keeps) return (asked ?? true) && store.keeps;
  const message = '`store` true is not possible: this server keeps no responses (--max-stored-responses 0).';
  throw new ApiError('not_built', message, 'store');
}

async function gather({ items, room, head }: Task, { deltas, generation }: Run): Promise<ResponseObject> {
  let finish: ChoiceFinish = 'abort';
  for await (const delta of deltas) {
    room.grow(deltaBytes({ ...delta, tokenIds: [] }));
    items.push(delta);
    if (delta.finish !== null) finish = delta.finish;
  }
  const { status } = endOf(finish);
  items.end(status === 'completed' ? status : 'incomplete');
  return { ...closedHead(head, finish, generation), output: items.items };
}

async function stream(task: Task, run: Run): Promise<void> {
  const { ctx, deps, head, items, room } = task;
  ctx.respond = false;
  const { deltas, generation } = run;
  const store = (response: ResponseObject) => keep(task, response);
  const parts = { head, items, deltas, generation, room, store };
  await streamResponse(ctx.res, parts, deps.streamBuffers, deps.log);
}

/** The answer is there and is not lost with the disk: one that could not be kept says so. */
async function keep({ ctx, deps, entity, own }: Task, whole: ResponseObject): Promise<ResponseObject> {
  if (!whole.store) return whole;
  if (logprobCount(whole) >= LARGE_ANSWER) return { ...whole, store: false };
  const { output, ...head } = whole;
  const text = () => ({
    id: whole.id,
    previousId: whole.previous_response_id,
    head: JSON.stringify(head),
    output: JSON.stringify(output),
    input: JSON.stringify(own),
  });
  try {
    const stored = await deps.bodies.inTurn(entity, ctx.request.length ?? Infinity, text);
    return { ...whole, store: await deps.responses.insert(entity, stored) };
  } catch (error) {
    deps.log.error({ err: error, id: whole.id }, 'response not stored');
    return { ...whole, store: false };
  }
}

/** Alternatives included. */
function logprobCount({ output }: ResponseObject): number {
  let count = 0;
  for (const item of output) {
    if (item.type !== 'message') continue;
    for (const { logprobs } of item.content) for (const { top_logprobs } of logprobs) count += 1 + top_logprobs.length;
  }
  return count;
}

function send(ctx: Context, whole: ResponseObject): void {
  if (logprobCount(whole) < LARGE_ANSWER) ctx.body = whole;
  else
    sendPieces(ctx, {
      ...whole,
      output: new MadeList(
        whole.output.map((item) => [inPieces(item)]),
        true,
      ),
    });
}

/** Lists of log-probabilities are written some at a time where they stand in lists that are made. */
function inPieces(item: ResponseObject['output'][number]): object {
  if (item.type !== 'message') return item;
  return { ...item, content: new MadeList([item.content], true) };
}
