import { Turns } from '../turns.ts';

/** Pulls from one peer at once; each holds one chunk in memory. */
const MAX_PULLS = 8;

interface Place {
  active: number;
  /** Each begins one that waits; false: it waits no more. */
  readonly queue: Turns<() => boolean>;
}

/**
 * Who pulls when. Each peer has places of its own, so that one that hangs holds up nobody else's pulls; at each peer tenants
 * take turns.
 */
export class PullTurns {
  readonly #places = new Map<string, Place>();

  /** Resolves when the pull may begin, with what must be called at its end. Rejects when it has waited so long, or is aborted. */
  async take(peer: string, tenant: string, timeoutMs: number, signal: AbortSignal): Promise<() => void> {
    const place = this.#places.get(peer) ?? { active: 0, queue: new Turns(Infinity) };
    this.#places.set(peer, place);
    if (place.active < MAX_PULLS) place.active++;
    else await turn(place, tenant, timeoutMs, signal);
    return () => pass(place);
  }
}

function turn({ queue }: Place, tenant: string, timeoutMs: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    let waits = true;
    const end = () => {
      const waited = waits;
      waits = false;
      clearTimeout(timer);
      signal.removeEventListener('abort', leave);
      if (waited) resolve();
      return waited;
    };
    const leave = () => {
      reject(new Error('it waited longer than --kv-transfer-timeout-ms for other pulls to end.'));
      end();
    };
    const timer = setTimeout(leave, timeoutMs);
    signal.addEventListener('abort', leave, { once: true });
    if (signal.aborted) return leave();
    queue.push(tenant, end);
  });
}

/** A pull's place is the next one's. */
function pass(place: Place): void {
  for (let begin = place.queue.take(); begin; begin = place.queue.take()) if (begin()) return;
  place.active--;
}
