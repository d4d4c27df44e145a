/** Training jobs and their events. */
import { createHash } from 'node:crypto';
import type { Context, Middleware } from 'koa';
import type { JobView } from '../../../control/training/jobs/job-service.ts';
import { toPage, type PageBody } from '../../../schemas/preview/page.ts';
import {
  validateSftJob,
  type TrainingEventItem,
  type TrainingJobCreated,
  type TrainingJobResponse,
} from '../../../schemas/preview/training-jobs.ts';
import { entityOf } from '../../middleware/auth.ts';
import { refuseWhileDraining } from '../../middleware/limits.ts';
import { uploadOf } from '../../middleware/upload.ts';
import type { RouteDeps } from '../context.ts';
import { pathId, readJson, readPage, requireJson } from './request.ts';

export function createTrainingJob(deps: RouteDeps): Middleware {
  return async (ctx) => {
    refuseWhileDraining(deps);
    requireJson(ctx);
    const source = uploadOf(ctx, deps.settings.maxTrainingBodyBytes);
    const id = await deps.training.jobs.createRl(entityOf(ctx), source, idempotencyKey(ctx));
    const body: TrainingJobCreated = { id };
    ctx.body = body;
  };
}

export function createSftTrainingJob(deps: RouteDeps): Middleware {
  return async (ctx) => {
    refuseWhileDraining(deps);
    const request = validateSftJob(await readJson(ctx, deps));
    const digest = createHash('sha256').update(JSON.stringify(request)).digest('hex');
    const id = await deps.training.jobs.createSft(entityOf(ctx), request, idempotencyKey(ctx), digest);
    const body: TrainingJobCreated = { id };
    ctx.body = body;
  };
}

export function getTrainingJob(deps: RouteDeps): Middleware {
  return async (ctx) => {
    ctx.body = toResponse(await deps.training.jobs.get(pathId(ctx, 'training_job_id'), entityOf(ctx)));
  };
}

export function cancelTrainingJob(deps: RouteDeps): Middleware {
  return async (ctx) => {
    ctx.body = toResponse(await deps.training.jobs.cancel(pathId(ctx, 'training_job_id'), entityOf(ctx)));
  };
}

export function listTrainingEvents(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const { after, limit } = readPage(ctx);
    const events = await deps.training.jobs.events(pathId(ctx, 'training_job_id'), entityOf(ctx), after, limit);
    const items = events.map(({ id, type, data }): TrainingEventItem => ({ id, type, data }));
    const body: PageBody<TrainingEventItem> = toPage(items.slice(0, limit), items.length > limit);
    ctx.body = body;
  };
}

/** One that is sent empty is refused like other bad keys: its sender counts on it. */
function idempotencyKey(ctx: Context): string | null {
  return 'idempotency-key' in ctx.headers ? ctx.get('idempotency-key') : null;
}

function toResponse({ job, gradientSteps, numSequences }: JobView): TrainingJobResponse {
  return {
    id: job.id,
    model_id: job.modelId,
    kind: job.kind,
    status: job.state,
    created_at: job.createdAt,
    training_start: job.startedAt,
    training_end: job.endedAt,
    error_message: job.errorMessage,
    progress: { gradient_steps: gradientSteps, num_sequences: numSequences },
  };
}
