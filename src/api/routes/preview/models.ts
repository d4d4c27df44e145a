/** Models and their checkpoints. */
import type { Middleware } from 'koa';
import { toPage, type PageBody } from '../../../schemas/preview/page.ts';
import {
  validateCheckpointsDelete,
  validateModelCreate,
  type CheckpointItem,
  type CheckpointsDeleted,
  type ModelDeleted,
  type ModelResponse,
} from '../../../schemas/preview/models.ts';
import { entityOf } from '../../middleware/auth.ts';
import type { RouteDeps } from '../context.ts';
import { pathId, pathParameter, readJson, readPage } from './request.ts';
import { sendFile } from './send-file.ts';

const STEP = /^\d{1,15}$/;

export function createModel(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const body = validateModelCreate(await readJson(ctx, deps));
    const model = await deps.training.models.create(entityOf(ctx), {
      project: body.project,
      name: body.name,
      baseModel: body.base_model,
      entity: body.entity ?? null,
      returnExisting: body.return_existing ?? false,
    });
    const response: ModelResponse = {
      id: model.id,
      entity: model.entity,
      project: model.project,
      name: model.name,
      base_model: model.baseModel,
      run_id: model.runId,
    };
    ctx.body = response;
  };
}

export function listCheckpoints(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const page = readPage(ctx, ['order']);
    const { rows, hasMore } = await deps.training.models.checkpoints(pathId(ctx, 'model_id'), entityOf(ctx), page);
    const body: PageBody<CheckpointItem> = toPage(rows, hasMore);
    ctx.body = body;
  };
}

export function readAdapterFile(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const [step, file] = [pathParameter(ctx, 'step'), pathParameter(ctx, 'file')];
    // What is no step has no checkpoint.
    const number = STEP.test(step) ? Number(step) : NaN;
    sendFile(ctx, await deps.training.models.adapterFile(pathId(ctx, 'model_id'), entityOf(ctx), number, file));
  };
}

export function deleteCheckpoints(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const modelId = pathId(ctx, 'model_id');
    const { steps } = validateCheckpointsDelete(await readJson(ctx, deps));
    const { deleted, notFound } = await deps.training.models.deleteCheckpoints(modelId, entityOf(ctx), steps);
    const body: CheckpointsDeleted = { deleted_count: deleted, not_found_steps: notFound };
    ctx.body = body;
  };
}

export function deleteModel(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const modelId = pathId(ctx, 'model_id');
    const { deletedCheckpoints } = await deps.training.models.delete(modelId, entityOf(ctx));
    // The run goes with the model, always.
    const body: ModelDeleted = { model_id: modelId, deleted_checkpoints: deletedCheckpoints, deleted_run: true };
    ctx.body = body;
  };
}
