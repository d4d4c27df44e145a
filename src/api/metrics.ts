/**
 * Prometheus metrics. Labels take values from closed sets only (the served model, the operator's adapters, finish reasons, known routes), so that
 * no client can grow them.
 */
import { setImmediate } from 'node:timers/promises';
import { Counter, Gauge, Histogram, Registry, collectDefaultMetrics } from 'prom-client';
import type { EngineClient } from '../control/engine/client.ts';
import { PAGE_SIZE } from '../control/engine/native.ts';
import { STEP_TOKENS_BOUNDS } from '../control/scheduler/step-counts.ts';
import type { ChoiceFinish } from '../control/sessions/session.ts';
import type { Settings } from '../control/settings.ts';
import { AdapterUse } from './adapter-metrics.ts';
import { Buckets, countedHistogram, type BucketCount } from './counted-histogram.ts';
import { trainingMetrics } from './training-metrics.ts';

const PREFIX = 'tandem_';
/** Names that vLLM has too; only these get an alias. HTTP and process metrics stay ours. */
const OWN_ONLY = /^tandem_(http|process|nodejs|engine|kv_transfer|training)_/;

// vLLM's bucket ladders, so that dashboards made for it fit.
const TTFT_SECONDS = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
];
const ITL_SECONDS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80];
const LATENCY_SECONDS = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680];
const TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000];
const CHOICES = [1, 2, 5, 10, 20];

type ModelLabels = 'model_name' | 'engine';

export interface RequestTimes {
  generatedTokens: number;
  queueSeconds: number;
  prefillSeconds: number;
  decodeSeconds: number;
  totalSeconds: number;
}

export interface MetricsOptions {
  modelName: string;
  settings: Pick<Settings, 'vllmMetricNames' | 'maxNumSeqs'>;
  engine: EngineClient;
}

export class Metrics {
  /** Told of every generation. */
  readonly adapters: AdapterUse;
  readonly #registry = new Registry();
  readonly #options: MetricsOptions;
  readonly #labels: Record<ModelLabels, string>;
  readonly #http: Counter<'method' | 'handler' | 'status'>;
  readonly #success: Counter<ModelLabels | 'finished_reason'>;
  readonly #promptTokens: Counter<ModelLabels>;
  #generationTokens = 0;
  /** Not begun yet. */
  #rendering: Promise<string> | null = null;
  readonly #ttft: Histogram<ModelLabels>;
  readonly #itl = new Buckets(ITL_SECONDS);
  readonly #e2e: Histogram<ModelLabels>;
  readonly #queue: Histogram<ModelLabels>;
  readonly #prefill: Histogram<ModelLabels>;
  readonly #decode: Histogram<ModelLabels>;
  readonly #inference: Histogram<ModelLabels>;
  readonly #requestPromptTokens: Histogram<ModelLabels>;
  readonly #requestGenerationTokens: Histogram<ModelLabels>;
  readonly #requestN: Histogram<ModelLabels>;
  readonly #requestMaxTokens: Histogram<ModelLabels>;

  constructor(options: MetricsOptions) {
    this.#options = options;
    this.#labels = { model_name: options.modelName, engine: '0' };
    this.#http = new Counter({
      name: `${PREFIX}http_requests_total`,
      help: 'HTTP requests by method, route and status class.',
      labelNames: ['method', 'handler', 'status'],
      registers: [this.#registry],
    });
    this.#success = this.#counter('request_success_total', 'Choices that finished, by reason.', ['finished_reason']);
    this.#promptTokens = this.#counter('prompt_tokens_total', 'Prompt tokens of accepted requests.');
    this.#follow('generation_tokens_total', 'Generated tokens.', () => this.#generationTokens);
    this.#ttft = this.#histogram('time_to_first_token_seconds', 'Arrival to first token.', TTFT_SECONDS);
    this.#counted('inter_token_latency_seconds', 'Between two outputs of one choice.', ITL_SECONDS, () => this.#itl);
    this.#e2e = this.#histogram('e2e_request_latency_seconds', 'Arrival to last token.', LATENCY_SECONDS);
    this.#queue = this.#histogram('request_queue_time_seconds', 'Arrival to the first step.', LATENCY_SECONDS);
    this.#prefill = this.#histogram('request_prefill_time_seconds', 'First step to first token.', LATENCY_SECONDS);
    this.#decode = this.#histogram('request_decode_time_seconds', 'First token to last token.', LATENCY_SECONDS);
    this.#inference = this.#histogram('request_inference_time_seconds', 'First step to last token.', LATENCY_SECONDS);
    this.#requestPromptTokens = this.#histogram('request_prompt_tokens', 'Prompt tokens per request.', TOKENS);
    this.#requestGenerationTokens = this.#histogram(
      'request_generation_tokens',
      'Generated tokens per request, all choices.',
      TOKENS,
    );
    this.#requestN = this.#histogram('request_params_n', 'n per request.', CHOICES);
    this.#requestMaxTokens = this.#histogram(
      'request_params_max_tokens',
      'max_tokens per request, where given.',
      TOKENS,
    );
    this.#engineGauges(options.engine);
    // Each sequence may have an adapter of its own.
    this.adapters = new AdapterUse(this.#registry, PREFIX, options.settings.maxNumSeqs);
    collectDefaultMetrics({ register: this.#registry, prefix: PREFIX });
  }

  /** The exposition text. Those who ask in one turn of the event loop share it: it takes some milliseconds. */
  render(): Promise<string> {
    this.#rendering ??= setImmediate().then(() => {
      this.#rendering = null;
      return this.#render();
    });
    return this.#rendering;
  }

  async #render(): Promise<string> {
    const text = await this.#registry.metrics();
    return this.#options.settings.vllmMetricNames ? `${text}${vllmAliases(text)}` : text;
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  addTraining(services: Parameters<typeof trainingMetrics>[1]): void {
    trainingMetrics(this.#registry, services);
  }

  http(method: string, handler: string, status: number): void {
    this.#http.inc({ method, handler, status: `${Math.floor(status / 100)}xx` });
  }

  accepted(promptTokens: number, n: number, maxTokens: number | null): void {
    this.#promptTokens.inc(this.#labels, promptTokens);
    this.#requestPromptTokens.observe(this.#labels, promptTokens);
    this.#requestN.observe(this.#labels, n);
    if (maxTokens !== null) this.#requestMaxTokens.observe(this.#labels, maxTokens);
  }

  tokens(count: number): void {
    this.#generationTokens += count;
  }

  firstToken(seconds: number): void {
    this.#ttft.observe(this.#labels, seconds);
  }

  nextToken(seconds: number): void {
    this.#itl.observe(seconds);
  }

  choiceFinished(reason: ChoiceFinish | 'error'): void {
    this.#success.inc({ ...this.#labels, finished_reason: reason });
  }

  requestFinished(times: RequestTimes): void {
    this.#queue.observe(this.#labels, times.queueSeconds);
    this.#prefill.observe(this.#labels, times.prefillSeconds);
    this.#decode.observe(this.#labels, times.decodeSeconds);
    this.#inference.observe(this.#labels, times.prefillSeconds + times.decodeSeconds);
    this.#e2e.observe(this.#labels, times.totalSeconds);
    this.#requestGenerationTokens.observe(this.#labels, times.generatedTokens);
  }

  #engineGauges(engine: EngineClient): void {
    const labels = this.#labels;
    const gauge = (name: string, help: string, read: () => number) =>
      new Gauge<ModelLabels>({
        name: `${PREFIX}${name}`,
        help,
        labelNames: ['model_name', 'engine'],
        registers: [this.#registry],
        collect() {
          this.set(labels, read());
        },
      });
    gauge('num_requests_running', 'Sequences in the running batch.', () => engine.stats().running);
    gauge('num_requests_waiting', 'Sequences waiting for a slot.', () => engine.stats().waiting);
    gauge('kv_cache_usage_perc', 'Share of KV pages in use, 0 to 1.', () => {
      const { pagesUsed, pagesTotal } = engine.stats();
      return pagesTotal === 0 ? 0 : pagesUsed / pagesTotal;
    });
    gauge('engine_steps', 'Steps since the engine process began.', () => engine.stats().steps);
    gauge('engine_step_seconds', 'Seconds inside native steps since the engine process began.', () => {
      return engine.stats().stepMicros / 1e6;
    });
    gauge('engine_adapters', 'Adapters in the memory of the engine process.', () => {
      return engine.stats().adapters?.resident ?? 0;
    });
    gauge('engine_adapter_bytes', 'Their bytes.', () => engine.stats().adapters?.bytes ?? 0);
    gauge('engine_up', '1 while the engine is ready.', () => (engine.state === 'ready' ? 1 : 0));
    this.#engineCounters(engine);
    this.#counted(
      'iteration_tokens_total',
      'Tokens per engine step.',
      STEP_TOKENS_BOUNDS,
      () => engine.stats().stepTokens,
    );
    this.#transfers(engine);
    this.#speculation(engine);
    gauge('kv_transfer_held_blocks', 'KV blocks held for peers.', () => engine.stats().transfers?.heldBlocks ?? 0);
    this.#cacheConfig(engine);
  }

  #cacheConfig(engine: EngineClient): void {
    const labels = this.#labels;
    new Gauge({
      name: `${PREFIX}cache_config_info`,
      help: 'Pages of the KV cache and tokens per page; the value is 1.',
      labelNames: ['model_name', 'engine', 'block_size', 'num_gpu_blocks'],
      registers: [this.#registry],
      collect() {
        this.reset();
        this.set({ ...labels, block_size: PAGE_SIZE, num_gpu_blocks: engine.stats().pagesTotal }, 1);
      },
    });
  }

  #engineCounters(engine: EngineClient): void {
    this.#follow('num_preemptions_total', 'Sequences that gave up their pages to others.', () => {
      return engine.stats().preemptions;
    });
    this.#follow('prefix_cache_queries_total', 'Prompt tokens looked up in the prefix cache.', () => {
      return engine.stats().prefixCacheQueries;
    });
    this.#follow('prefix_cache_hits_total', 'Prompt tokens found in the prefix cache.', () => {
      return engine.stats().prefixCacheHits;
    });
  }

  /** Of speculation; 0 where it is off. */
  #speculation(engine: EngineClient): void {
    const counters = [
      ['spec_decode_num_drafts_total', 'Proposals, one per sequence and step.', 'drafts'],
      ['spec_decode_num_draft_tokens_total', 'Tokens that were proposed.', 'draftTokens'],
      ['spec_decode_num_accepted_tokens_total', 'Proposed tokens that were sampled.', 'acceptedTokens'],
    ] as const;
    for (const [name, help, field] of counters)
      this.#follow(name, help, () => engine.stats().speculation?.[field] ?? 0);
    const labels = this.#labels;
    new Counter<ModelLabels | 'position'>({
      name: `${PREFIX}spec_decode_num_accepted_tokens_per_pos_total`,
      help: 'Proposed tokens that were sampled, by their position in the proposal.',
      labelNames: ['model_name', 'engine', 'position'],
      registers: [this.#registry],
      collect() {
        this.reset();
        engine.stats().speculation?.acceptedPerPosition.forEach((count, position) => {
          this.inc({ ...labels, position }, count);
        });
      },
    });
  }

  /** Of disaggregated serving; 0 where it is off. */
  #transfers(engine: EngineClient): void {
    const counters = [
      ['kv_transfer_pulls_total', 'Pulls of KV blocks from peers that ended well.', 'pulls'],
      ['kv_transfer_failures_total', 'Pulls that failed, so that the prompt was computed here.', 'pullFailures'],
      ['kv_transfer_tokens_total', 'Tokens whose KV blocks were pulled.', 'pulledTokens'],
      ['kv_transfer_served_total', 'Pulls of peers that were served.', 'served'],
    ] as const;
    for (const [name, help, field] of counters) this.#follow(name, help, () => engine.stats().transfers?.[field] ?? 0);
  }

  /** Follows a count that is kept elsewhere; should it fall, it began again at 0. */
  #follow(name: string, help: string, read: () => number): void {
    const labels = this.#labels;
    let last = 0;
    new Counter<ModelLabels>({
      name: `${PREFIX}${name}`,
      help,
      labelNames: ['model_name', 'engine'],
      registers: [this.#registry],
      collect() {
        const now = read();
        this.inc(labels, now >= last ? now - last : now);
        last = now;
      },
    });
  }

  #counted(name: string, help: string, bounds: readonly number[], read: () => BucketCount): void {
    const metric = { name: `${PREFIX}${name}`, help, labels: this.#labels };
    this.#registry.registerMetric(countedHistogram(metric, bounds, read));
  }

  #counter<Extra extends string = never>(
    name: string,
    help: string,
    extra: Extra[] = [],
  ): Counter<ModelLabels | Extra> {
    return new Counter<ModelLabels | Extra>({
      name: `${PREFIX}${name}`,
      help,
      labelNames: ['model_name', 'engine', ...extra],
      registers: [this.#registry],
    });
  }

  #histogram(name: string, help: string, buckets: number[]): Histogram<ModelLabels> {
    return new Histogram<ModelLabels>({
      name: `${PREFIX}${name}`,
      help,
      labelNames: ['model_name', 'engine'],
      buckets,
      registers: [this.#registry],
    });
  }
}

/** The same samples under `vllm:`, for autoscalers that look for those names. */
function vllmAliases(text: string): string {
  const lines = text.split('\n').flatMap((line) => {
    const name = line.startsWith('#') ? (line.split(' ', 3)[2] ?? '') : line;
    if (!name.startsWith(PREFIX) || OWN_ONLY.test(name)) return [];
    return [line.replace(PREFIX, 'vllm:')];
  });
  return `${lines.join('\n')}\n`;
}
