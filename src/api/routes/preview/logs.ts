/** Logged trajectories and the run's history. */
import { Readable } from 'node:stream';
import type { Context, Middleware } from 'koa';
import type { LogView } from '../../../control/training/logs/log-service.ts';
import type { HistoryItem, LogItem } from '../../../schemas/preview/log.ts';
import { toPage, type PageBody } from '../../../schemas/preview/page.ts';
import { invalid } from '../../../schemas/validation-error.ts';
import { entityOf } from '../../middleware/auth.ts';
import { refuseWhileDraining } from '../../middleware/limits.ts';
import { uploadOf } from '../../middleware/upload.ts';
import type { RouteDeps } from '../context.ts';
import { pathId, readPage, requireJson, single } from './request.ts';

export function logTrajectories(deps: RouteDeps): Middleware {
  return async (ctx) => {
    refuseWhileDraining(deps);
    requireJson(ctx);
    const source = uploadOf(ctx, deps.settings.maxTrainingBodyBytes);
    const log = await deps.training.logs.log(pathId(ctx, 'model_id'), entityOf(ctx), source);
    const body: LogItem = toItem(log);
    ctx.body = body;
  };
}

export function listLogs(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const { after, limit } = readPage(ctx, ['split', 'step']);
    const query = { after, limit, split: single(ctx, 'split') ?? null, step: readStep(ctx) };
    const { rows, hasMore } = await deps.training.logs.page(pathId(ctx, 'model_id'), entityOf(ctx), query);
    const body: PageBody<LogItem> = toPage(rows.map(toItem), hasMore);
    ctx.body = body;
  };
}

export function getLog(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const { log, groups } = await deps.training.logs.find(
      pathId(ctx, 'model_id'),
      entityOf(ctx),
      pathId(ctx, 'log_id'),
    );
    ctx.type = 'application/json';
    ctx.body = Readable.from(logJson(toItem(log), groups));
  };
}

export function runHistory(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const { after, limit } = readPage(ctx);
    const { rows, hasMore } = await deps.training.logs.history(pathId(ctx, 'run_id'), entityOf(ctx), after, limit);
    const items = rows.map(({ id, step, key, metrics, createdAt }): HistoryItem => {
      return { id, step, key, metrics, created_at: createdAt };
    });
    const body: PageBody<HistoryItem> = toPage(items, hasMore);
    ctx.body = body;
  };
}

function toItem(log: LogView): LogItem {
  return {
    id: log.id,
    split: log.split,
    step: log.step,
    num_groups: log.groups,
    num_trajectories: log.trajectories,
    metrics: log.metrics,
    created_at: log.createdAt,
  };
}

/** The groups lie one per line: between lines goes a comma. */
async function* logJson(item: LogItem, lines: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  yield Buffer.from(`${JSON.stringify(item).slice(0, -1)},"trajectory_groups":[`);
  let pending = false;
  for await (const chunk of lines) {
    const text = Buffer.from(chunk);
    let from = 0;
    for (let at = text.indexOf(0x0a); at !== -1; at = text.indexOf(0x0a, from)) {
      if (pending) yield COMMA;
      pending = true;
      yield text.subarray(from, at);
      from = at + 1;
    }
    if (from < text.length) {
      if (pending) yield COMMA;
      pending = false;
      yield text.subarray(from);
    }
  }
  yield Buffer.from(']}');
}

const COMMA = Buffer.from(',');

function readStep(ctx: Context): number | null {
  const text = single(ctx, 'step');
  if (text === undefined) return null;
  if (/^\d{1,15}$/.test(text)) return Number(text);
  throw invalid(['query', 'step'], 'Input should be a valid integer', 'int_parsing');
}
