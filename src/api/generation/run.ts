/** One accepted generation under observation: aborted when its client leaves, measured as its outputs come. */
import { setMaxListeners } from 'node:events';
import type { ServerResponse } from 'node:http';
import type { ResolvedModel } from '../../control/models/resolver.ts';
import type { ChoiceDelta, Generation, GenerationInput } from '../../control/sessions/session.ts';
import type { Settings } from '../../control/settings.ts';
import type { ApiDeps } from '../deps.ts';
import { ClientGoneError } from '../errors.ts';
import { refuseWhileDraining } from '../middleware/limits.ts';
import { RunClock } from './run-clock.ts';

/** Aborts when the connection closes before the answer is complete. */
export class ClientWatch {
  readonly #controller = new AbortController();
  readonly #response: ServerResponse;
  readonly #onClose: () => void;

  constructor(response: ServerResponse) {
    this.#response = response;
    // Every prompt of a request listens.
    setMaxListeners(0, this.#controller.signal);
    this.#onClose = () => this.#controller.abort(new ClientGoneError());
    if (response.destroyed || response.closed) this.#onClose();
    else response.once('close', this.#onClose);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** The answer is on its way: a close from now on means nothing. */
  done(): void {
    this.#response.off('close', this.#onClose);
  }
}

export interface Run {
  readonly generation: Generation;
  readonly n: number;
  /** The generation's deltas, measured. Ends by ClientGoneError when the client has left. */
  readonly deltas: AsyncIterable<ChoiceDelta>;
}

/** Everything that can be refused is refused here. */
export async function startRun(
  deps: ApiDeps,
  input: GenerationInput,
  model: ResolvedModel,
  signal: AbortSignal,
): Promise<Run> {
  refuseWhileDraining(deps);
  return begin(deps, input, model, signal);
}

/** Starts all or none. */
export async function startRuns(
  deps: ApiDeps,
  inputs: GenerationInput[],
  model: ResolvedModel,
  signal: AbortSignal,
): Promise<Run[]> {
  refuseWhileDraining(deps);
  const runs: Run[] = [];
  try {
    // The queue is to take them as it would take one prompt of all their tokens.
    const request = {};
    for (const input of inputs) runs.push(await begin(deps, { ...input, request }, model, signal));
    return runs;
  } catch (error) {
    for (const run of runs) run.generation.abort();
    throw error;
  }
}

async function begin(deps: ApiDeps, input: GenerationInput, model: ResolvedModel, signal: AbortSignal): Promise<Run> {
  const arrived = performance.now();
  signal.throwIfAborted();
  let generation: Generation;
  try {
    generation = await deps.sessions.start(input, signal);
  } catch (error) {
    throw signal.aborted ? new ClientGoneError() : error;
  }
  const abort = () => generation.abort();
  if (signal.aborted) abort();
  else signal.addEventListener('abort', abort, { once: true });
  const { n, maxTokens } = input.sampling;
  const clock = new RunClock(deps.metrics, generation, arrived, n);
  const use = () => {
    // Only now: another prompt of the request may have been refused.
    deps.metrics.accepted(generation.promptIds.length, n, maxTokens);
    return deps.metrics.adapters.begin(generation, model);
  };
  const deltas = observe(generation, signal, clock, use, finishNames(deps.settings));
  return { generation, n, deltas };
}

type FinishNames = (delta: ChoiceDelta) => ChoiceDelta;

/** Strict OpenAI clients know no `repetition`. */
function finishNames(settings: Settings): FinishNames {
  if (settings.repetitionFinishReason === 'vllm') return (delta) => delta;
  return (delta) => (delta.finish === 'repetition' ? { ...delta, finish: 'stop' } : delta);
}

async function* observe(
  generation: Generation,
  signal: AbortSignal,
  clock: RunClock,
  use: () => () => void,
  named: FinishNames,
): AsyncGenerator<ChoiceDelta> {
  const end = use();
  try {
    for await (const delta of generation.deltas) {
      if (signal.aborted) break;
      clock.delta(delta);
      yield named(delta);
    }
    if (signal.aborted) throw new ClientGoneError();
    clock.finished();
  } catch (error) {
    if (signal.aborted) throw new ClientGoneError();
    clock.failed();
    throw error;
  } finally {
    // Also when the consumer stops early: whatever still runs is freed.
    generation.abort();
    clock.aborted();
    end();
  }
}
