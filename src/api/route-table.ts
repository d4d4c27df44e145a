/** Routes as data: what the router registers, the 405 answers and the metrics read from one list. */
import type { Middleware } from 'koa';
import type { RouteDeps } from './routes/context.ts';

export interface Route {
  method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  /** `:name` stands for one part of the path, `*name` for its rest. */
  path: string;
  handler: (deps: RouteDeps) => Middleware;
  /** The body is streamed and may take as long as it needs. */
  upload?: boolean;
  /** It asks the database, briefly: each entity has its turns. */
  turns?: boolean;
}

export class RouteTable {
  readonly #fixed = new Map<string, Route[]>();
  readonly #patterns: { pattern: RegExp; routes: Route[] }[] = [];

  constructor(routes: readonly Route[]) {
    for (const route of routes) {
      const same = this.#fixed.get(route.path);
      if (same) same.push(route);
      else this.#fixed.set(route.path, [route]);
    }
    for (const [path, same] of this.#fixed) {
      if (/\/[:*]/.test(path)) this.#patterns.push({ pattern: toPattern(path), routes: same });
    }
  }

  /** All methods of a path; none where nothing is there. */
  find(path: string): readonly Route[] {
    const fixed = this.#fixed.get(path);
    if (fixed) return fixed;
    return this.#patterns.find(({ pattern }) => pattern.test(path))?.routes ?? [];
  }

  /** A path without parts that a request fills in. */
  isFixed(path: string): boolean {
    return this.#fixed.has(path);
  }
}

function toPattern(path: string): RegExp {
  const source = path
    .replace(/[.+?^${}()|[\]\\]/g, '\\$&')
    .replace(/:\w+/g, '[^/]+')
    .replace(/\*\w+/g, '.+');
  return new RegExp(`^${source}$`);
}
