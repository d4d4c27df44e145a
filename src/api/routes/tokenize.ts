import type { Middleware } from 'koa';
import type { PromptInput } from '../../control/sessions/session.ts';
import {
  tokenizeFields,
  tokenizeTextFields,
  validateTokenize,
  type TokenizeRequest,
  type TokenizeResponse,
} from '../../schemas/tokenize.ts';
import { ApiError, ClientGoneError } from '../errors.ts';
import { withExactNumbers } from '../exact-json.ts';
import { ClientWatch } from '../generation/run.ts';
import { entityOf } from '../middleware/auth.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import { requireModel, resolveModel } from '../requests/model-name.ts';
import { checkContinuation, toChatPrompt, type TemplateRules } from '../requests/render.ts';
import { LARGE_ANSWER } from '../responses/answer-size.ts';
import { madeFrom } from '../responses/pieces.ts';
import { sendPieces, templateRules, type RouteDeps } from './context.ts';

export function tokenize(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const raw = await deps.bodies.json(ctx);
    const body = validateTokenize(raw);
    reportIgnored(ctx, raw, body.prompt === undefined ? tokenizeFields : tokenizeTextFields);
    checkContinuation(body);
    const entity = entityOf(ctx);
    requireModel(await resolveModel(deps, body, entity), body.model);
    const prompt = toPrompt(withExactNumbers(body, raw), templateRules(deps));
    const watch = new ClientWatch(ctx.res);
    const ids = await deps.sessions.tokenize(prompt, entity, watch.signal).catch((error: unknown) => {
      throw watch.signal.aborted ? new ClientGoneError() : error;
    });
    watch.done();
    const textOf = body.return_token_strs === true ? (id: number) => deps.sessions.tokenString(id) : null;
    const facts = { count: ids.length, max_model_len: deps.sessions.maxModelLen };
    if (ids.length >= LARGE_ANSWER) {
      sendPieces(ctx, { ...facts, tokens: madeFrom(ids, Number), token_strs: textOf && madeFrom(ids, textOf) });
      return;
    }
    const response: TokenizeResponse = { ...facts, tokens: [...ids], token_strs: textOf && Array.from(ids, textOf) };
    ctx.body = response;
  };
}

function toPrompt(body: TokenizeRequest, rules: TemplateRules): PromptInput {
  if (body.messages !== undefined && body.prompt !== undefined) {
    throw new ApiError('invalid_parameter', 'Give `prompt` or `messages`, not both.', 'prompt');
  }
  if (body.messages !== undefined) return toChatPrompt(body.messages, body, rules);
  if (body.prompt === undefined) throw new ApiError('invalid_body', 'prompt: Field required (missing)', 'prompt');
  return { kind: 'text', text: body.prompt, addSpecialTokens: body.add_special_tokens ?? true };
}
