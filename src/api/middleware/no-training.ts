/** Where the engine trains nothing, what changes anything of the training endpoints is refused; the rest still reads. */
import type { Middleware } from 'koa';
import { ApiError } from '../errors.ts';

const PREVIEW = '/v1/preview/';
const MESSAGE =
  "This server's engine (llama.cpp) trains no adapters: models, logs, training jobs and artifacts can be read, but not written.";

/** `routed`: there is an endpoint for this method and path. */
export function refuseTraining(routed: (method: string, path: string) => boolean): Middleware {
  return (ctx, next) => {
    const { method, path } = ctx;
    if (method === 'GET' || method === 'HEAD' || !path.startsWith(PREVIEW) || !routed(method, path)) return next();
    throw new ApiError('not_built', MESSAGE);
  };
}
