/**
 * Of requests that ask the database an entity has so many at work at once; more of its own wait for these, oldest first. The database does one
 * thing after another, whoever asks: nobody is to wait there for hundreds that another has sent together.
 */
import type { Middleware } from 'koa';
import { ClientGoneError } from '../errors.ts';
import { entityOf } from './auth.ts';

const AT_ONCE = 8;

interface Place {
  working: number;
  readonly waiting: (() => void)[];
}

export function entityTurns(): Middleware {
  /** Of entities with something at work. */
  const places = new Map<string, Place>();
  return async (ctx, next) => {
    const entity = entityOf(ctx);
    const place = places.get(entity) ?? { working: 0, waiting: [] };
    places.set(entity, place);
    // Whoever ends hands its turn on.
    if (place.working < AT_ONCE) place.working++;
    else await new Promise<void>((resolve) => place.waiting.push(resolve));
    try {
      if (ctx.res.closed || ctx.res.destroyed) throw new ClientGoneError();
      await next();
    } finally {
      const first = place.waiting.shift();
      if (first) first();
      else if (--place.working === 0) places.delete(entity);
    }
  };
}
