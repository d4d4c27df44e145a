/** Which part of the list of models a client of the Messages API asks for. */
import type { Context } from 'koa';
import { echo } from '../../schemas/validator.ts';
import { refuse } from './refuse.ts';

const DEFAULT_LIMIT = 20;
const MAX_LIMIT = 1000;

export interface PageWish {
  limit: number;
  /** At most one of them. */
  afterId: string | null;
  beforeId: string | null;
}

export function readModelPage({ query }: Pick<Context, 'query'>): PageWish {
  const { limit = String(DEFAULT_LIMIT), after_id: afterId = null, before_id: beforeId = null } = query;
  const count = typeof limit === 'string' && /^\d{1,4}$/.test(limit) ? Number(limit) : 0;
  if (count < 1 || count > MAX_LIMIT) refuse(`limit must be between 1 and ${MAX_LIMIT}, got ${echo(limit)}.`, 'limit');
  if (Array.isArray(afterId)) refuse('after_id must be one id.', 'after_id');
  if (Array.isArray(beforeId)) refuse('before_id must be one id.', 'before_id');
  if (afterId !== null && beforeId !== null) refuse('before_id and after_id exclude each other.', 'before_id');
  return { limit: count, afterId, beforeId };
}
