import type { Middleware } from 'koa';
import type { PromptInput } from '../../control/sessions/session.ts';
import { validateTokenize, type TokenizeRequest, type TokenizeResponse } from '../../schemas/tokenize.ts';
import { ApiError } from '../errors.ts';
import { requireModel } from '../requests/model-name.ts';
import { toChatPrompt } from '../requests/render.ts';
import type { RouteDeps } from './context.ts';

export function tokenize(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const body = validateTokenize(await deps.bodies.json(ctx));
    const prompt = toPrompt(body, deps.settings.trustRequestChatTemplate);
    requireModel(body.model, deps.model.names);
    const ids = await deps.sessions.tokenize(prompt);
    const tokens = [...ids];
    const response: TokenizeResponse = {
      count: tokens.length,
      max_model_len: deps.sessions.maxModelLen,
      tokens,
      token_strs: body.return_token_strs === true ? tokens.map((id) => deps.sessions.tokenString(id)) : null,
    };
    ctx.body = response;
  };
}

function toPrompt(body: TokenizeRequest, trustsTemplates: boolean): PromptInput {
  if (body.messages !== undefined && body.prompt !== undefined) {
    throw new ApiError('invalid_parameter', 'Give `prompt` or `messages`, not both.', 'prompt');
  }
  if (body.messages !== undefined) return toChatPrompt(body.messages, body, trustsTemplates);
  if (body.prompt === undefined) throw new ApiError('invalid_body', 'prompt: Field required (missing)', 'prompt');
  return { kind: 'text', text: body.prompt, addSpecialTokens: body.add_special_tokens ?? true };
}
