/** Every flag of `tandem serve` with its TANDEM_* variable, default and help: one table. */
import { fileURLToPath } from 'node:url';
import { parseJsonNumbers } from '../control/json-numbers.ts';
import { REASONING_PARSER_NAMES, TOOL_PARSER_NAMES } from '../control/sessions/parsers/create-parser.ts';
import { MAX_ADAPTER_RANK } from '../control/models/peft-config.ts';
import type { Settings } from '../control/settings.ts';
import { usableCores } from './machine.ts';
import { speculativeConfig } from './speculative-config.ts';
import {
  addresses,
  boolean,
  bytes,
  fraction,
  hosts,
  integer,
  jsonObject,
  list,
  namedPaths,
  oneOf,
  origins,
  secret,
  text,
  type Parser,
} from './parsers.ts';

interface OptionSpec<T> {
  flag: string;
  parse: Parser<T>;
  /** Shown in the help where it is not the default itself. */
  defaultText?: string;
  default: () => T;
  help: string;
}

type OptionTable = { [Key in keyof Settings]: OptionSpec<Settings[Key]> };

const STARTER_MODEL = fileURLToPath(new URL('../../models/starter', import.meta.url));
const MAX_INT = 2 ** 31 - 1;
/** A body becomes one string, and a string has less than 2^29 characters. */
const MAX_BODY_BYTES = 511 * 2 ** 20;

function kvCacheType(): Parser<Settings['kvCacheDtype']> {
  const named = oneOf('auto', 'bfloat16', 'int8');
  return Object.assign((value: string) => named(value === 'bf16' ? 'bfloat16' : value), { choices: named.choices });
}

export const OPTIONS: OptionTable = {
  host: { flag: 'host', parse: text(), default: () => '127.0.0.1', help: 'address to listen on' },
  port: { flag: 'port', parse: integer(0, 65_535), default: () => 8000, help: 'port; 0 takes a free one' },
  model: {
    flag: 'model',
    parse: text(),
    default: () => STARTER_MODEL,
    defaultText: 'the starter model',
    help: 'model directory, or a GGUF file',
  },
  engine: {
    flag: 'engine',
    parse: oneOf('auto', 'native', 'llama.cpp'),
    default: () => 'auto',
    help: 'auto takes llama.cpp for GGUF files that the native engine cannot run, where it is installed',
  },
  dataDir: { flag: 'data-dir', parse: text(), default: () => 'data', help: 'keys and state; one server per directory' },
  apiKey: {
    flag: 'api-key',
    parse: secret(),
    default: () => null,
    help: 'a key that is accepted besides the stored ones',
  },
  dtype: {
    flag: 'dtype',
    parse: oneOf('auto', 'float32', 'bfloat16'),
    default: () => 'auto',
    help: 'arithmetic; auto is float32 for F32 and F16 weights on the CPU, else bfloat16',
  },
  quantize: {
    flag: 'quantize',
    parse: oneOf('none', 'int8', 'int4', 'fp8'),
    default: () => 'none',
    help: 'weights as 8- or 4-bit numbers, made from any model when it is loaded; fp8 with --device cuda only',
  },
  weightCacheBytes: {
    flag: 'weight-cache',
    parse: bytes(0),
    default: () => 8 * 2 ** 30,
    defaultText: '8G',
    help: 'disk for quantised weights in the data directory, so that they are made once; 0 keeps none',
  },
  device: {
    flag: 'device',
    parse: oneOf('auto', 'cpu', 'cuda'),
    default: () => 'auto',
    help: 'cpu or cuda (an NVIDIA GPU); auto is cpu',
  },
  servedModelNames: {
    flag: 'served-model-name',
    parse: list(),
    default: () => [],
    defaultText: "the model's directory or file name",
    help: 'names of the model; the first is the one in responses',
  },
  maxModelLen: {
    flag: 'max-model-len',
    parse: integer(1, MAX_INT),
    default: () => null,
    defaultText: 'what the model allows and the KV cache holds',
    help: 'longest sequence, prompt and output together',
  },
  maxNumSeqs: { flag: 'max-num-seqs', parse: integer(1, 4096), default: () => 64, help: 'sequences that run at once' },
  maxNumBatchedTokens: {
    flag: 'max-num-batched-tokens',
    parse: integer(1, 65_536),
    default: () => 2048,
    help: 'tokens of one engine step',
  },
  stepTargetMs: {
    flag: 'step-target-ms',
    parse: integer(0, MAX_INT),
    default: () => 500,
    help: 'time of one engine step while replies are generated: prompts are read in pieces that keep to it; 0 = in the largest pieces',
  },
  kvCacheMemoryBytes: {
    flag: 'kv-cache-memory',
    parse: bytes(1),
    default: () => null,
    defaultText: 'a quarter of the memory, 4G at most',
    help: 'memory for the KV cache, such as 2G',
  },
  kvCacheDtype: {
    flag: 'kv-cache-dtype',
    parse: kvCacheType(),
    default: () => 'auto',
    help: 'type of keys and values; auto is that of --dtype, int8 takes half the memory and serves no trained models',
  },
  enableChunkedPrefill: {
    flag: 'enable-chunked-prefill',
    parse: boolean(),
    default: () => true,
    help: 'split long prompts over steps',
  },
  enablePrefixCaching: {
    flag: 'enable-prefix-caching',
    parse: boolean(),
    default: () => true,
    help: 'keep computed prompts and share them between requests of one tenant',
  },
  enableJumpForward: {
    flag: 'enable-jump-forward',
    parse: boolean(),
    default: () => true,
    help: 'append text that a grammar forces at once, instead of sampling it token by token',
  },
  toolCallParser: {
    flag: 'tool-call-parser',
    parse: oneOf('auto', 'none', ...TOOL_PARSER_NAMES),
    default: () => 'auto',
    help: "format of the model's tool calls; auto follows its chat template",
  },
  reasoningParser: {
    flag: 'reasoning-parser',
    parse: oneOf('auto', 'none', ...REASONING_PARSER_NAMES),
    default: () => 'auto',
    help: "format of the model's reasoning; auto follows its chat template",
  },
  schedulingPolicy: {
    flag: 'scheduling-policy',
    parse: oneOf('fcfs', 'priority'),
    default: () => 'fcfs',
    help: "order of the queue: by arrival, or by the requests' priority (lower first)",
  },
  speculativeConfig: {
    flag: 'speculative-config',
    parse: speculativeConfig(),
    default: () => null,
    defaultText: 'none',
    help: 'JSON, such as {"method": "ngram", "num_speculative_tokens": 5}: propose what a sequence said before, where that is faster',
  },
  loraModules: {
    flag: 'lora-modules',
    parse: namedPaths(),
    default: () => [],
    defaultText: 'none',
    help: 'adapters to serve, as name=folder; may be given several times',
  },
  allowRuntimeLoraUpdating: {
    flag: 'allow-runtime-lora-updating',
    parse: boolean(),
    default: () => false,
    help: 'let requests to /v1/load_lora_adapter name folders of this machine',
  },
  maxLoraRank: {
    flag: 'max-lora-rank',
    parse: integer(1, MAX_ADAPTER_RANK),
    default: () => 128,
    help: 'largest rank of an adapter',
  },
  maxAdapterMemoryBytes: {
    flag: 'max-adapter-memory',
    parse: bytes(2 ** 20),
    default: () => 2 ** 30,
    defaultText: '1G',
    help: 'memory for adapters; the least recently used go to disk',
  },
  threads: {
    flag: 'threads',
    parse: integer(1, 256),
    default: usableCores,
    defaultText: 'the cores',
    help: 'engine threads; on a GPU those that make masks of grammars',
  },
  maxLogprobs: {
    flag: 'max-logprobs',
    parse: integer(-1, 1024),
    default: () => 20,
    help: 'most top_logprobs of a request; -1 for any number',
  },
  maxWaitingRequests: {
    flag: 'max-waiting-requests',
    parse: integer(1, 1_000_000),
    default: () => 1024,
    help: 'sequences that may wait; more get 429',
  },
  maxWaitingTokens: {
    flag: 'max-waiting-tokens',
    parse: integer(1, MAX_INT),
    default: () => 4_194_304,
    help: 'prompt tokens that may wait (four characters of a grammar or schema count as one); more get 429',
  },
  maxBodyBytes: {
    flag: 'max-body-size',
    parse: bytes(1024, MAX_BODY_BYTES),
    default: () => 16 * 2 ** 20,
    defaultText: '16M',
    help: 'largest request body, 511M at most',
  },
  maxStreamBufferBytes: {
    flag: 'max-stream-buffer',
    parse: bytes(1024),
    default: () => 2 ** 20,
    defaultText: '1M',
    help: 'unread bytes after which a slow reader is cut',
  },
  maxAnswerBytes: {
    flag: 'max-answer-size',
    parse: bytes(1024),
    default: () => 256 * 2 ** 20,
    defaultText: '256M',
    help: 'largest answer that is not streamed, as it lies in memory; a larger one ends with an error',
  },
  requestTimeoutMs: {
    flag: 'request-timeout-ms',
    parse: integer(1000, MAX_INT),
    default: () => 60_000,
    help: 'time for a request to arrive',
  },
  shutdownTimeoutMs: {
    flag: 'shutdown-timeout-ms',
    parse: integer(0, MAX_INT),
    default: () => 30_000,
    help: 'time for running requests after SIGTERM',
  },
  tokenizerWorkers: {
    flag: 'tokenizer-workers',
    parse: integer(1, 64),
    default: () => 1,
    help: 'threads for templates and tokenisation',
  },
  templateTimeoutMs: {
    flag: 'template-timeout-ms',
    parse: integer(10, MAX_INT),
    default: () => 10_000,
    help: 'time for one template or tokenisation',
  },
  trustRequestChatTemplate: {
    flag: 'trust-request-chat-template',
    parse: boolean(),
    default: () => false,
    help: 'take `chat_template` from requests',
  },
  defaultChatTemplateKwargs: {
    flag: 'default-chat-template-kwargs',
    parse: jsonObject('{"enable_thinking": false}', parseJsonNumbers),
    default: () => ({}),
    defaultText: 'none',
    help: "JSON object of chat template variables; a request's chat_template_kwargs win",
  },
  kvHost: {
    flag: 'kv-host',
    parse: text(),
    default: () => '127.0.0.1',
    help: 'address at which peers pull KV blocks, as they reach it',
  },
  kvPort: {
    flag: 'kv-port',
    parse: integer(0, 65_535),
    default: () => null,
    defaultText: 'none: nothing is held for peers',
    help: 'port at which peers pull KV blocks; 0 takes a free one, and keeps it',
  },
  kvPeers: {
    flag: 'kv-peers',
    parse: addresses(),
    default: () => [],
    defaultText: 'none',
    help: 'host:port of servers whose KV blocks may be pulled; no other is ever contacted',
  },
  kvSecret: {
    flag: 'kv-secret',
    parse: secret(),
    default: () => null,
    help: 'secret that the peers share, of 16 characters or more',
  },
  kvHoldSeconds: {
    flag: 'kv-hold-seconds',
    parse: integer(1, 86_400),
    default: () => 120,
    help: 'time for a peer to pull held KV blocks',
  },
  kvHoldPercent: {
    flag: 'kv-hold-percent',
    parse: integer(1, 90),
    default: () => 25,
    help: 'part of the KV cache that may be held for peers',
  },
  kvTransferTimeoutMs: {
    flag: 'kv-transfer-timeout-ms',
    parse: integer(10, MAX_INT),
    default: () => 30_000,
    help: 'time for one pull; after it the prompt is computed here',
  },
  engineExtensions: {
    flag: 'engine-extension',
    parse: list(),
    default: () => [],
    defaultText: 'none',
    help: 'module whose extensions requests may name in engine_xargs',
  },
  engineExtensionTimeoutMs: {
    flag: 'engine-extension-timeout-ms',
    parse: integer(1, 60_000),
    default: () => 250,
    help: 'time for one step of one choice under extensions',
  },
  repetitionFinishReason: {
    flag: 'repetition-finish-reason',
    parse: oneOf('vllm', 'openai'),
    default: () => 'vllm',
    help: 'vllm reports `repetition`, openai `stop`',
  },
  forceIncludeUsage: {
    flag: 'enable-force-include-usage',
    parse: boolean(),
    default: () => false,
    help: 'usage in every stream chunk',
  },
  allowedOrigins: {
    flag: 'allowed-origins',
    parse: origins(),
    default: () => [],
    defaultText: 'none',
    help: 'origins whose pages may send requests from a browser, such as https://chat.example.org; * for all',
  },
  enableRequestIdHeaders: {
    flag: 'enable-request-id-headers',
    parse: boolean(),
    default: () => false,
    help: 'answer with an X-Request-Id header',
  },
  vllmMetricNames: {
    flag: 'vllm-metric-names',
    parse: boolean(),
    default: () => false,
    help: 'also publish metrics as vllm:*',
  },
  logLevel: {
    flag: 'log-level',
    parse: oneOf('silent', 'error', 'warn', 'info', 'debug'),
    default: () => 'warn',
    help: 'log lines go to standard error as JSON',
  },
  generationConfig: {
    flag: 'generation-config',
    parse: oneOf('auto', 'none'),
    default: () => 'auto',
    help: "auto takes sampling defaults from the model's generation_config.json",
  },
  loraRank: {
    flag: 'lora-rank',
    parse: integer(1, 256),
    default: () => 8,
    help: 'rank of the adapters of new models, --max-lora-rank at most',
  },
  loraAlpha: {
    flag: 'lora-alpha',
    parse: integer(1, 4096),
    default: () => 16,
    help: 'alpha of the adapters of new models; they are scaled by alpha / rank',
  },
  maxModelsPerEntity: {
    flag: 'max-models-per-entity',
    parse: integer(1, 1_000_000),
    default: () => 1000,
    help: 'trained models that one entity may have',
  },
  maxEntityStorageBytes: {
    flag: 'max-entity-storage',
    parse: bytes(1),
    default: () => 100 * 2 ** 30,
    defaultText: '100G',
    help: 'checkpoints, logs, artifacts, jobs and their events and inputs that one entity may keep',
  },
  trainingFloor: {
    flag: 'training-floor',
    parse: fraction(0, 0.9),
    default: () => 0.1,
    help: "share of the engine's time that training gets however busy serving is; one pause of serving takes 0.25 s at most",
  },
  maxTrainingRowTokens: {
    flag: 'max-training-row-tokens',
    parse: integer(1, 1_048_576),
    default: () => 32_768,
    help: 'tokens of one packed row of training; its activations are kept in memory',
  },
  trainingMemoryBytes: {
    flag: 'training-memory',
    parse: bytes(1024),
    default: () => null,
    defaultText: 'a quarter of the memory, 4G on a GPU',
    help:
      'memory for the activations and gradients of one packed row of training, on a GPU for all that a trainer takes there; ' +
      'rows are packed for it, and a sequence that needs more fails its job',
  },
  recomputeActivations: {
    flag: 'recompute-activations',
    parse: boolean(),
    default: () => false,
    help: 'compute activations of training twice instead of keeping them: slower, less memory',
  },
  maxTrainingBodyBytes: {
    flag: 'max-training-body-size',
    parse: bytes(1024),
    default: () => 4 * 2 ** 30,
    defaultText: '4G',
    help: 'largest body of trajectories or training data; it is streamed to the disk',
  },
  maxOpenJobs: {
    flag: 'max-open-jobs',
    parse: integer(1, 1_000_000),
    default: () => 100,
    help: 'training jobs of one model that have not ended; more get 429',
  },
  maxTrainingAttempts: {
    flag: 'max-training-attempts',
    parse: integer(1, 1000),
    default: () => 5,
    help: 'times that a job is interrupted in a row without progress before it fails',
  },
  trainingTurnSeconds: {
    flag: 'training-turn',
    parse: integer(0, 86_400),
    default: () => 60,
    help: 'seconds after which a job lets waiting jobs of other models go first, between two of its steps; 0: it runs to its end',
  },
  trainingFileRoot: {
    flag: 'training-file-root',
    parse: text(),
    default: () => null,
    help: 'folder below which file:// URLs of training data may lie',
  },
  trainingUrlHosts: {
    flag: 'training-url-hosts',
    parse: hosts(),
    default: () => [],
    defaultText: 'none',
    help: 'hosts of http(s) URLs of training data; * for every public host',
  },
  sampleMemoryBytes: {
    flag: 'sample-memory',
    parse: bytes(0),
    default: () => 64 * 2 ** 20,
    defaultText: '64M',
    help: 'memory for sampled ids of trained models, which trajectories may name by request_id',
  },
  maxStoredResponses: {
    flag: 'max-stored-responses',
    parse: integer(0, 100_000_000),
    default: () => 10_000,
    help: 'answers of /v1/responses that are kept for one entity, the oldest leave; 0 keeps none',
  },
  maxStoredResponseBytes: {
    flag: 'max-response-storage',
    parse: bytes(1),
    default: () => 256 * 2 ** 20,
    defaultText: '256M',
    help: 'disk for the kept answers of /v1/responses of one entity',
  },
  faults: { flag: '', parse: list(), default: () => [], help: 'faults to inject, for tests (variable only)' },
};
