import type { Context, Middleware } from 'koa';
import { countTokensFields, MESSAGES_NESTED_FIELDS, messagesFields } from '../../schemas/messages.ts';
import { writeJson } from '../../control/json-numbers.ts';
import { ClientGoneError } from '../errors.ts';
import { deltaBytes, type AnswerBytes } from '../generation/answer-room.ts';
import { ClientWatch, startRun, type Run } from '../generation/run.ts';
import { recordSamples } from '../generation/sample-record.ts';
import { entityOf } from '../middleware/auth.ts';
import { messagesId } from '../middleware/messages-ids.ts';
import { requestId } from '../middleware/request-id.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import {
  messagesTerms,
  readCountRequest,
  readMessagesRequest,
  type MessagesWishes,
} from '../requests/messages-request.ts';
import { resolveModel } from '../requests/model-name.ts';
import { MessageBlocks, WholeBlocks } from '../responses/message-blocks.ts';
import { MessageEnding, wholeMessage, type MessageFacts } from '../responses/message.ts';
import { streamMessage } from '../sse/message-events.ts';
import type { MessageObject } from '../../schemas/message-object.ts';
import { requestContext, templateRules, type RouteDeps } from './context.ts';

export function messages(deps: RouteDeps): Middleware {
  return async (ctx) => {
    try {
      await answer(ctx, deps);
    } catch (error) {
      throw messagesTerms(error);
    }
  };
}

async function answer(ctx: Context, deps: RouteDeps): Promise<void> {
  const { facts, tenant, run, watch, isStreamed } = await begin(ctx, deps);
  if (isStreamed) {
    ctx.respond = false;
    const { deltas, generation } = run;
    const parts = { facts, deltas, generation, requestId: messagesId(ctx) };
    return streamMessage(ctx.res, parts, deps.streamBuffers, deps.log);
  }
  const whole = await gather(facts, run, deps.answerRoom.open(tenant, ctx.res));
  watch.done();
  ctx.body = writeJson(whole);
  ctx.type = 'json';
}

/** Leaves the body behind: it may be large, and the request may wait for long. */
async function begin(ctx: Context, deps: RouteDeps) {
  const { facts, input, model, isStreamed } = await read(ctx, deps);
  const watch = new ClientWatch(ctx.res);
  const run = recordSamples(deps, facts.id, input, await startRun(deps, input, model, watch.signal));
  deps.bodies.leave(ctx);
  return { facts, tenant: input.tenant, run, watch, isStreamed };
}

async function read(ctx: Context, deps: RouteDeps) {
  const raw = await deps.bodies.json(ctx);
  const wishes = readMessagesRequest(raw, await requestContext(ctx, deps, raw));
  const { body, input, model } = wishes;
  const facts = factsOf(wishes, `msg_${requestId(ctx, body.request_id)}`);
  reportIgnored(ctx, raw, messagesFields, MESSAGES_NESTED_FIELDS);
  return { facts, input, model, isStreamed: body.stream === true };
}

function factsOf({ body, input, model }: MessagesWishes, id: string): MessageFacts {
  return {
    id,
    model: model.displayName,
    maxTokens: body.max_tokens,
    stopSequences: body.stop_sequences ?? [],
    omitsThoughts: body.thinking?.display === 'omitted',
    // A priority other than 0 is refused where the queue has none.
    serviceTier: input.priority === 0 ? 'standard' : 'priority',
  };
}

async function gather(facts: MessageFacts, { deltas, generation }: Run, room: AnswerBytes): Promise<MessageObject> {
  const blocks = new MessageBlocks(facts.omitsThoughts);
  const whole = new WholeBlocks();
  const ending = new MessageEnding();
  for await (const delta of deltas) {
    room.grow(deltaBytes({ ...delta, tokenIds: [], logprobs: [] }));
    ending.delta(delta);
    for (const event of blocks.push(delta)) whole.take(event);
  }
  for (const event of blocks.end()) whole.take(event);
  return wholeMessage(facts, whole.blocks, ending, generation);
}

export function countTokens(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const raw = await deps.bodies.json(ctx);
    const entity = entityOf(ctx);
    const prompt = readCountRequest(raw, await resolveModel(deps, raw, entity), templateRules(deps));
    reportIgnored(ctx, raw, countTokensFields, MESSAGES_NESTED_FIELDS);
    const watch = new ClientWatch(ctx.res);
    const ids = await deps.sessions.tokenize(prompt, entity, watch.signal).catch((error: unknown) => {
      throw watch.signal.aborted ? new ClientGoneError() : messagesTerms(error);
    });
    watch.done();
    ctx.body = { input_tokens: ids.length };
  };
}
