/** The artifact store: create, upload files, commit, read, delete. */
import type { Middleware } from 'koa';
import type { ArtifactView } from '../../../control/training/artifacts/artifact-service.ts';
import {
  validateArtifactCreate,
  type ArtifactFileItem,
  type ArtifactResponse,
} from '../../../schemas/preview/artifacts.ts';
import { toPage, type PageBody } from '../../../schemas/preview/page.ts';
import { entityOf } from '../../middleware/auth.ts';
import { refuseWhileDraining } from '../../middleware/limits.ts';
import { uploadOf } from '../../middleware/upload.ts';
import type { RouteDeps } from '../context.ts';
import { pathId, pathParameter, readJson, readPage } from './request.ts';
import { sendFile } from './send-file.ts';

export function createArtifact(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const body = validateArtifactCreate(await readJson(ctx, deps));
    const artifact = await deps.training.artifacts.create(entityOf(ctx), {
      entity: body.entity ?? null,
      project: body.project,
      name: body.name,
      type: body.type ?? 'dataset',
      metadata: body.metadata ?? {},
    });
    ctx.body = toResponse(artifact);
  };
}

export function listArtifacts(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const { after, limit } = readPage(ctx);
    const { rows, hasMore } = await deps.training.artifacts.page(entityOf(ctx), after, limit);
    const body: PageBody<ArtifactResponse> = toPage(rows.map(toResponse), hasMore);
    ctx.body = body;
  };
}

export function getArtifact(deps: RouteDeps): Middleware {
  return async (ctx) => {
    ctx.body = toResponse(await deps.training.artifacts.get(pathId(ctx, 'artifact_id'), entityOf(ctx)));
  };
}

export function uploadArtifactFile(deps: RouteDeps): Middleware {
  return async (ctx) => {
    refuseWhileDraining(deps);
    const source = uploadOf(ctx, deps.settings.maxTrainingBodyBytes);
    const [id, file] = [pathId(ctx, 'artifact_id'), pathParameter(ctx, 'file')];
    const body: ArtifactFileItem = await deps.training.artifacts.upload(id, entityOf(ctx), file, source);
    ctx.body = body;
  };
}

export function readArtifactFile(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const [id, file] = [pathId(ctx, 'artifact_id'), pathParameter(ctx, 'file')];
    sendFile(ctx, await deps.training.artifacts.read(id, entityOf(ctx), file));
  };
}

export function commitArtifact(deps: RouteDeps): Middleware {
  return async (ctx) => {
    ctx.body = toResponse(await deps.training.artifacts.commit(pathId(ctx, 'artifact_id'), entityOf(ctx)));
  };
}

export function deleteArtifact(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const id = pathId(ctx, 'artifact_id');
    await deps.training.artifacts.delete(id, entityOf(ctx));
    ctx.body = { id, deleted: true };
  };
}

function toResponse(artifact: ArtifactView): ArtifactResponse {
  const { createdAt, ...rest } = artifact;
  return { ...rest, created_at: createdAt };
}
