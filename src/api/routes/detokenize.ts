import type { Middleware } from 'koa';
import { detokenizeFields, validateDetokenize, type DetokenizeResponse } from '../../schemas/detokenize.ts';
import { ApiError } from '../errors.ts';
import { entityOf } from '../middleware/auth.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import { requireModel, resolveModel } from '../requests/model-name.ts';
import type { RouteDeps } from './context.ts';

const BYTES_PER_CHAR = 2;

export function detokenize(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const raw = await deps.bodies.json(ctx);
    const body = validateDetokenize(raw);
    reportIgnored(ctx, raw, detokenizeFields);
    requireModel(await resolveModel(deps, body, entityOf(ctx)), body.model);
    const { vocabSize } = deps.sessions;
    const outside = body.tokens.find((id) => id >= vocabSize);
    if (outside !== undefined) {
      const message = `tokens contains out-of-vocab token id ${outside}. Vocabulary size: ${vocabSize}`;
      throw new ApiError('invalid_parameter', message, 'tokens');
    }
    const { maxAnswerBytes } = deps.settings;
    const prompt = await deps.sessions.detokenizeLong(body.tokens, maxAnswerBytes / BYTES_PER_CHAR);
    if (prompt === null) {
      const message = `The text takes more than ${maxAnswerBytes} bytes (--max-answer-size): send fewer tokens.`;
      throw new ApiError('answer_too_large', message, 'tokens');
    }
    const response: DetokenizeResponse = { prompt };
    ctx.body = response;
  };
}
