/** What the generation routes share: reading limits from the server, and naming the answer. */
import type { Context } from 'koa';
import type { GenerationInput } from '../../control/sessions/session.ts';
import type { ResolvedModel } from '../../control/models/resolver.ts';
import { addressText } from '../../control/transfer/transfer.ts';
import type { ApiDeps } from '../deps.ts';
import type { AnswerRoom } from '../generation/answer-room.ts';
import { entityOf } from '../middleware/auth.ts';
import type { BodyReader } from '../middleware/body.ts';
import { resolveModel } from '../requests/model-name.ts';
import type { RequestContext } from '../requests/chat-request.ts';
import type { OutputOptions } from '../requests/output-options.ts';
import { PRIORITY_HEADER } from '../requests/priority.ts';
import type { TemplateRules } from '../requests/render.ts';
import type { Envelope } from '../responses/envelope.ts';
import { answerPieces } from '../responses/pieces.ts';
import type { StreamBuffers } from '../sse/stream-buffers.ts';

export interface RouteDeps extends ApiDeps {
  bodies: BodyReader;
  streamBuffers: StreamBuffers;
  answerRoom: AnswerRoom;
}

export async function requestContext(ctx: Context, deps: ApiDeps, body: unknown): Promise<RequestContext> {
  const entity = entityOf(ctx);
  return {
    limits: {
      vocabSize: deps.sessions.vocabSize,
      maxLogprobs: deps.settings.maxLogprobs,
      maxChoices: deps.settings.maxNumSeqs + deps.settings.maxWaitingRequests,
    },
    model: await resolveModel(deps, body, entity),
    tenant: entity,
    forceIncludeUsage: deps.settings.forceIncludeUsage,
    extensions: deps.extensions,
    fillTokens: deps.sessions.fillTokens,
    ...templateRules(deps),
    holdsBlocks: deps.settings.kvPort !== null,
    peers: new Set(deps.settings.kvPeers.map(addressText)),
    priorities: deps.settings.schedulingPolicy === 'priority',
    priorityHeader: ctx.get(PRIORITY_HEADER),
  };
}

export function templateRules({ settings }: ApiDeps): TemplateRules {
  return {
    trustsTemplates: settings.trustRequestChatTemplate,
    defaultTemplateKwargs: settings.defaultChatTemplateKwargs,
  };
}

export function makeEnvelope(
  deps: ApiDeps,
  id: string,
  request: { output: OutputOptions; model: ResolvedModel },
  input: GenerationInput,
): Envelope {
  return {
    id,
    created: Math.floor(Date.now() / 1000),
    model: request.model.displayName,
    // Read when it is written: a request may have come before the engine told its kernels.
    get systemFingerprint() {
      return deps.model.systemFingerprint;
    },
    output: request.output,
    logprobs: input.sampling.topLogprobs !== null,
    // A priority other than 0 is refused where the queue has none.
    serviceTier: input.priority === 0 ? 'default' : 'priority',
  };
}

/** An answer that is written in pieces. */
export function sendPieces(ctx: Context, answer: object): void {
  ctx.body = answerPieces(answer);
  ctx.type = 'json';
}
