/** The engine's side of the channel: from typed messages to a loaded engine and its loop. */
import { SchedulerLoop, type StepReport } from '../scheduler/loop.ts';
import { loadEngine, type LoadedEngine } from './load-engine.ts';
import type { NativeAddon } from './native.ts';
import type { EngineConfig, FromEngine, ToEngine } from './protocol.ts';

export interface EnginePort {
  /** A promise when the other side is behind; it settles once it has caught up. */
  send(message: FromEngine): Promise<void> | undefined;
  /** Ends the process. 0: drained; 1: the model could not be loaded; 70: a step failed. */
  exit(code: number, message?: string): void;
}

/** Handles messages one by one; what is malformed or out of place is reported and ignored. */
export class EngineHost {
  readonly #port: EnginePort;
  readonly #addon: () => NativeAddon;
  #started = false;
  #loop: SchedulerLoop | null = null;

  constructor(port: EnginePort, addon: () => NativeAddon) {
    this.#port = port;
    this.#addon = addon;
  }

  receive(message: ToEngine): void {
    try {
      this.#dispatch(message);
    } catch (error) {
      console.error(`The engine ignored a message: ${textOf(error)}`);
    }
  }

  #dispatch(message: ToEngine): void {
    switch (message.type) {
      case 'start':
        if (this.#started) throw new Error('it has been started already');
        this.#started = true;
        void this.#run(message.config);
        break;
      case 'submit':
        this.#running().submit(message.requests);
        break;
      case 'abort':
        this.#running().abort(message.ids);
        break;
      case 'reset-prefix-cache':
        this.#running().resetPrefixCache();
        break;
      case 'drain':
        this.#running().drain();
        break;
      default:
        throw new Error('its type is unknown');
    }
  }

  async #run(config: EngineConfig): Promise<void> {
    const loaded = await this.#load(config);
    if (!loaded) return;
    const { isa, weightBytes, pages, pageBytes, engine, scheduler } = loaded;
    this.#loop = new SchedulerLoop(scheduler, engine, (report) => this.#report(report));
    this.#port.send({ type: 'ready', isa, weightBytes, pages, pageBytes });
    try {
      await this.#loop.run();
      loaded.close();
      this.#port.exit(0);
    } catch (error) {
      this.#port.exit(70, `The engine stops: ${textOf(error)}`);
    }
  }

  async #load(config: EngineConfig): Promise<LoadedEngine | null> {
    try {
      const progress = (done: number, total: number) => void this.#port.send({ type: 'loading', done, total });
      return await loadEngine(this.#addon(), config, progress);
    } catch (error) {
      await this.#port.send({ type: 'failed', message: textOf(error) });
      this.#port.exit(1);
      return null;
    }
  }

  #report(report: StepReport): Promise<void> | undefined {
    return this.#port.send({ type: 'step', ...report });
  }

  #running(): SchedulerLoop {
    if (!this.#loop) throw new Error('the model is not loaded');
    return this.#loop;
  }
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
