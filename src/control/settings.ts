/** All settings of the server, resolved from flags, then TANDEM_* variables, then defaults (cli/resolve-settings.ts does that). */
import type { WeightQuantization } from './engine/native.ts';
import type { PeerAddress } from './transfer/transfer.ts';
import type { NamedAdapter } from './models/adapter-registry.ts';
import type { SpeculationOptions } from './scheduler/speculation.ts';
import type { ReasoningParserName, ToolParserName } from './sessions/parsers/create-parser.ts';

export interface Settings {
  host: string;
  port: number;
  /** Model directory or GGUF file. */
  model: string;
  /** What runs it; 'auto' = the native engine, or llama.cpp for a GGUF file that is beyond it. */
  engine: 'auto' | 'native' | 'llama.cpp';
  dataDir: string;
  /** A key given on the command line (never stored); null = keys of the data directory. */
  apiKey: string | null;
  dtype: 'auto' | 'float32' | 'bfloat16';
  /** Weights are quantised while they are loaded; 'none' = they are kept in the type of `dtype`. */
  quantize: 'none' | WeightQuantization;
  /** Disk for quantised weights of several models and formats; 0 = they are made at every start. */
  weightCacheBytes: number;
  /** 'auto' = the type of `dtype`. */
  kvCacheDtype: 'auto' | 'bfloat16' | 'int8';
  device: 'auto' | 'cpu' | 'cuda';
  /** null = directory name of the model. The first is what responses report. */
  servedModelNames: string[];
  /** null = what the model allows and the KV cache holds. */
  maxModelLen: number | null;
  maxNumSeqs: number;
  maxNumBatchedTokens: number;
  /** What a step that reads prompts should take at most while sequences generate; 0 = tokens alone bound it. */
  stepTargetMs: number;
  /** null = chosen from the memory of the machine and what all slots can use. */
  kvCacheMemoryBytes: number | null;
  enableChunkedPrefill: boolean;
  /** Prompts that begin alike share what was computed for them. */
  enablePrefixCaching: boolean;
  /** What a grammar forces is appended without a forward pass per token. */
  enableJumpForward: boolean;
  /** How tool calls and reasoning are written; 'auto' = as the chat template shows, 'none' = replies are not searched. */
  toolCallParser: ToolParserName | 'auto' | 'none';
  reasoningParser: ReasoningParserName | 'auto' | 'none';
  schedulingPolicy: 'fcfs' | 'priority';
  /** Proposes tokens that a sequence said before; null = never. */
  speculativeConfig: SpeculationOptions | null;
  /** Adapters that requests may name from the start on. */
  loraModules: NamedAdapter[];
  /** Adapters may be named over HTTP, by paths on this machine. */
  allowRuntimeLoraUpdating: boolean;
  maxLoraRank: number;
  /** Memory for adapters; those not in use are read again from disk when they are needed. */
  maxAdapterMemoryBytes: number;
  /** Engine worker threads. */
  threads: number;
  /** -1 = the whole vocabulary. */
  maxLogprobs: number;
  /** Bounds of the waiting queue; beyond them 429. */
  maxWaitingRequests: number;
  maxWaitingTokens: number;
  /** Largest request body in bytes. */
  maxBodyBytes: number;
  /** Bytes buffered for one slow reader before its stream is cut. */
  maxStreamBufferBytes: number;
  /** Bytes of one answer that is not streamed, as it is gathered. */
  maxAnswerBytes: number;
  /** A request must have arrived completely within this time. */
  requestTimeoutMs: number;
  /** After SIGTERM running requests have this long to finish. */
  shutdownTimeoutMs: number;
  /** Threads that render templates and tokenise. */
  tokenizerWorkers: number;
  /** Chat requests may bring a template of their own. */
  trustRequestChatTemplate: boolean;
  /** Added to every chat template's variables; a request's chat_template_kwargs win. */
  defaultChatTemplateKwargs: Record<string, unknown>;
  /** Disaggregated serving: where peers pull KV blocks from this server; port null = they cannot. */
  kvHost: string;
  kvPort: number | null;
  /** The only servers whose KV blocks this one pulls. */
  kvPeers: PeerAddress[];
  /** Shared by all peers. */
  kvSecret: string | null;
  /** Held blocks that nobody has pulled are given up after so many seconds. */
  kvHoldSeconds: number;
  /** Percent of the KV cache that may be held. */
  kvHoldPercent: number;
  /** For one whole pull. */
  kvTransferTimeoutMs: number;
  /** Modules whose extensions requests may name in engine_xargs. */
  engineExtensions: string[];
  /** For one check of an argument, or one step of one choice. */
  engineExtensionTimeoutMs: number;
  /** A template or tokenisation that takes longer is stopped and refused. */
  templateTimeoutMs: number;
  /** 'vllm' (default) reports finish_reason repetition; 'openai' reports stop. */
  repetitionFinishReason: 'vllm' | 'openai';
  /** Send usage with every stream chunk whatever the client says. */
  forceIncludeUsage: boolean;
  /** Origins whose pages may send requests from a browser; `*` for all. */
  allowedOrigins: string[];
  /** Echo X-Request-Id as a response header. */
  enableRequestIdHeaders: boolean;
  /** Also publish metrics under vllm: names. */
  vllmMetricNames: boolean;
  logLevel: 'silent' | 'error' | 'warn' | 'info' | 'debug';
  /** 'none' leaves the model's generation_config.json out. */
  generationConfig: 'auto' | 'none';
  /** Shape of the adapters of new models. */
  loraRank: number;
  loraAlpha: number;
  /** Models that one entity may have. */
  maxModelsPerEntity: number;
  /** Bytes of checkpoints, logs, artifacts and inputs of jobs that one entity may keep. */
  maxEntityStorageBytes: number;
  /** Share of the engine's time that training gets however busy serving is. */
  trainingFloor: number;
  /** Tokens of one packed row of training. */
  maxTrainingRowTokens: number;
  /** Bytes of the activations and gradients of one packed row; null: a quarter of the memory, 4 GiB on a GPU. */
  trainingMemoryBytes: number | null;
  /** Compute activations again in the backward pass instead of keeping them. */
  recomputeActivations: boolean;
  /** Largest body of trajectories or training data, in bytes; it goes to the disk, not to memory. */
  maxTrainingBodyBytes: number;
  /** Jobs of one model that have not ended. */
  maxOpenJobs: number;
  /** Starts of a job without progress before it fails. */
  maxTrainingAttempts: number;
  /** After which a job lets waiting jobs of other models go first; 0: it runs to its end. */
  trainingTurnSeconds: number;
  /** Folder below which file:// URLs of training data may lie; null: none may. */
  trainingFileRoot: string | null;
  /** Hosts of http(s) URLs of training data; empty: none. */
  trainingUrlHosts: string[];
  /** Bytes of ids and log-probabilities of completions that trajectories may name by request_id. */
  sampleMemoryBytes: number;
  /** Responses that are kept for one entity; 0 = none. The oldest leave. */
  maxStoredResponses: number;
  /** Bytes that they may take. */
  maxStoredResponseBytes: number;
  /** Faults that the engine process injects (engine/faults.ts); tests only. */
  faults: string[];
}
