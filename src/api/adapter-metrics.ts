/**
 * vLLM's lora_requests_info, by which gateways send requests where their adapter is at work. Only adapters that the operator named: everybody
 * may see these, while names of trained models are their entity's.
 */
import { Gauge, type Registry } from 'prom-client';
import type { ResolvedModel } from '../control/models/resolver.ts';
import type { Generation } from '../control/sessions/session.ts';

type Begun = Pick<Generation, 'startedAt'>;

export class AdapterUse {
  readonly #names = new Map<Begun, string>();

  /** `maxAdapters`: at work at once, at most. */
  constructor(registry: Registry, prefix: string, maxAdapters: number) {
    const running = () => this.#list((begun) => begun.startedAt() !== null);
    const waiting = () => this.#list((begun) => begun.startedAt() === null);
    new Gauge({
      name: `${prefix}lora_requests_info`,
      help: 'Adapters of requests that run and that wait; the value is the time, in seconds since 1970.',
      labelNames: ['max_lora', 'running_lora_adapters', 'waiting_lora_adapters'],
      registers: [registry],
      collect() {
        this.reset();
        const labels = { max_lora: maxAdapters, running_lora_adapters: running(), waiting_lora_adapters: waiting() };
        this.set(labels, Date.now() / 1000);
      },
    });
  }

  /** To be called when the generation has ended. */
  begin(generation: Begun, { adapter, trainable, displayName }: ResolvedModel): () => void {
    if (adapter !== null && !trainable) this.#names.set(generation, displayName);
    return () => void this.#names.delete(generation);
  }

  #list(which: (generation: Begun) => boolean): string {
    const names = [...this.#names].flatMap(([generation, name]) => (which(generation) ? [name] : []));
    return [...new Set(names)].sort().join(',');
  }
}
