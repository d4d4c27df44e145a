/** The engine's side of the channel: from typed messages to a loaded engine and its loop. */
import { BackgroundShare } from '../scheduler/background.ts';
import { SchedulerLoop, type StepReport } from '../scheduler/loop.ts';
import type { Grammars } from './grammars.ts';
import { checkSamples } from '../models/digest.ts';
import { openLlama, type OpenLlama } from '../llama/binding.ts';
import type { LlamaConfig } from '../llama/config.ts';
import { loadLlama } from '../llama/load-llama.ts';
import { AdapterGate } from './adapter-gate.ts';
import { DEFAULT_TRAINING_FLOOR, loadEngine, type LoadedEngine } from './load-engine.ts';
import type { NativeAddon } from './native.ts';
import type { GrammarSpec } from './native-grammar.ts';
import type { EngineConfig, FromEngine, GrammarFailure, ToEngine } from './protocol.ts';
import type { TrainerHost } from './trainer-host.ts';
import type { TrainerAnswer } from './trainer-messages.ts';
import { RowRefusedError } from './training.ts';

export interface EnginePort {
  /** A promise when the other side is behind; it settles once it has caught up. */
  send(message: FromEngine): Promise<void> | undefined;
  /** Ends the process. 0: drained; 1: the model could not be loaded; 70: a step failed. */
  exit(code: number, message?: string): void;
}

const NO_GRAMMARS = 'This engine compiles no grammars.';
const NO_ADAPTERS = 'This engine serves no adapters.';
const NO_TRAINING = 'This engine trains nothing.';

/** Handles messages one by one; what is malformed or out of place is reported and ignored. */
export class EngineHost {
  readonly #port: EnginePort;
  readonly #addon: () => NativeAddon;
  readonly #llama: OpenLlama;
  #started = false;
  #loop: SchedulerLoop | null = null;
  #grammars: Grammars | null = null;
  readonly #compiling = new Map<number, AbortController>();
  readonly #loadingAdapters = new Map<number, AbortController>();
  #adapters: AdapterGate | null = null;
  #trainers: TrainerHost | null = null;

  constructor(port: EnginePort, addon: () => NativeAddon, llama: OpenLlama = openLlama) {
    this.#port = port;
    this.#addon = addon;
    this.#llama = llama;
  }

  receive(message: ToEngine): void {
    try {
      this.#dispatch(message);
    } catch (error) {
      complain(error);
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
      case 'compile':
        this.#compile(message.id, message.tenant, message.grammar).catch(complain);
        break;
      case 'cancel-compile':
        this.#compiling.get(message.id)?.abort();
        break;
      case 'load-adapter':
        this.#loadAdapter(message);
        break;
      case 'cancel-load-adapter':
        this.#loadingAdapters.get(message.id)?.abort();
        break;
      case 'unload-adapter':
        this.#adapters?.unload(message.version);
        break;
      case 'trainer-open':
        this.#trainers?.open(message.session);
        break;
      case 'trainer-call':
        this.#train(message.call, (trainers) => trainers.call(message.session, message.work));
        break;
      case 'trainer-close':
        this.#trainers?.close(message.session);
        break;
      case 'drain':
        this.#running().drain();
        break;
      default:
        throw new Error('its type is unknown');
    }
  }

  async #run(config: EngineConfig | LlamaConfig): Promise<void> {
    const loaded = await this.#load(config);
    if (!loaded) return;
    const { isa, weightBytes, pages, pageBytes, engine, scheduler, grammars, transfers, trainers } = loaded;
    this.#grammars = grammars;
    this.#adapters = loaded.adapters && new AdapterGate(loaded.adapters);
    const report = (news: StepReport) => this.#report(news);
    this.#trainers = trainers;
    const { trainingFloor = DEFAULT_TRAINING_FLOOR } = 'engine' in config ? {} : config;
    const background = trainers && new BackgroundShare(trainers, trainingFloor);
    if (background) background.onSign = () => void this.#port.send({ type: 'training' });
    const services = { grammars, gate: transfers, adapters: this.#adapters, background };
    this.#loop = new SchedulerLoop(scheduler, engine, report, services);
    const kvPort = transfers?.port;
    this.#port.send({ type: 'ready', isa, weightBytes, pages, pageBytes, ...(kvPort !== undefined && { kvPort }) });
    try {
      await this.#loop.run();
      loaded.close();
      this.#port.exit(0);
    } catch (error) {
      this.#port.exit(70, `The engine stops: ${textOf(error)}`);
    }
  }

  async #compile(id: number, tenant: string, grammar: GrammarSpec): Promise<void> {
    this.#running();
    const answer = (failure: GrammarFailure | null) => void this.#port.send({ type: 'compiled', id, failure });
    if (!this.#grammars) return answer({ kind: 'refused', message: NO_GRAMMARS });
    const controller = new AbortController();
    this.#compiling.set(id, controller);
    try {
      const compiled = await this.#grammars.compile(tenant, grammar, controller.signal);
      answer('failure' in compiled ? compiled.failure : null);
    } finally {
      this.#compiling.delete(id);
    }
  }

  async #load(config: EngineConfig | LlamaConfig): Promise<LoadedEngine | null> {
    try {
      const progress = (done: number, total: number) => void this.#port.send({ type: 'loading', done, total });
      const log = (line: string) => void this.#port.send({ type: 'log', line });
      // An engine that is started again gets what the tokenizer, and all that has been trained, belong to, or nothing.
      await checkSamples(config.samples ?? []);
      if ('engine' in config) return await loadLlama(this.#llama, config, progress, log);
      return await loadEngine(this.#addon(), config, progress, log);
    } catch (error) {
      await this.#port.send({ type: 'failed', message: textOf(error) });
      this.#port.exit(1);
      return null;
    }
  }

  #train(call: number, ask: (trainers: TrainerHost) => Promise<TrainerAnswer>): void {
    this.#running();
    const tell = (answer: TrainerAnswer, error: string | null, refused = false) =>
      void this.#port.send({ type: 'trainer', call, answer, error, refused });
    if (!this.#trainers) return tell(null, NO_TRAINING);
    ask(this.#trainers).then(
      (answer) => tell(answer, null),
      (error: unknown) => tell(null, textOf(error), error instanceof RowRefusedError),
    );
  }

  #loadAdapter({ id, adapter, tenant }: Extract<ToEngine, { type: 'load-adapter' }>): void {
    this.#running();
    const answer = (error: string | null) => {
      this.#loadingAdapters.delete(id);
      void this.#port.send({ type: 'adapter', id, error });
    };
    if (!this.#adapters) return answer(NO_ADAPTERS);
    const controller = new AbortController();
    this.#loadingAdapters.set(id, controller);
    this.#adapters.load(adapter, controller.signal, tenant).then(
      () => answer(null),
      (error: unknown) => answer(textOf(error)),
    );
  }

  #report(report: StepReport): Promise<void> | undefined {
    return this.#port.send({ type: 'step', ...report });
  }

  #running(): SchedulerLoop {
    if (!this.#loop) throw new Error('the model is not loaded');
    return this.#loop;
  }
}

function complain(error: unknown): void {
  console.error(`The engine ignored a message: ${textOf(error)}`);
}

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
