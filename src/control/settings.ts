/** All settings of the server, resolved from flags, then TANDEM_* variables, then defaults (cli/options.ts does that). */
import type { ReasoningParserName, ToolParserName } from './sessions/parsers/create-parser.ts';

export interface Settings {
  host: string;
  port: number;
  /** Model directory. */
  model: string;
  dataDir: string;
  /** A key given on the command line (never stored); null = keys of the data directory. */
  apiKey: string | null;
  dtype: 'auto' | 'float32' | 'bfloat16';
  device: 'auto' | 'cpu' | 'cuda';
  /** null = directory name of the model. The first is what responses report. */
  servedModelNames: string[];
  /** null = what the model allows. */
  maxModelLen: number | null;
  maxNumSeqs: number;
  maxNumBatchedTokens: number;
  /** null = chosen from the memory of the machine and what all slots can use. */
  kvCacheMemoryBytes: number | null;
  enableChunkedPrefill: boolean;
  /** Prompts that begin alike share what was computed for them. */
  enablePrefixCaching: boolean;
  /** How tool calls and reasoning are written; 'auto' = as the chat template shows, 'none' = replies are not searched. */
  toolCallParser: ToolParserName | 'auto' | 'none';
  reasoningParser: ReasoningParserName | 'auto' | 'none';
  schedulingPolicy: 'fcfs' | 'priority';
  /** Engine worker threads. */
  threads: number;
  maxLogprobs: number;
  /** Bounds of the waiting queue; beyond them 429. */
  maxWaitingRequests: number;
  maxWaitingTokens: number;
  /** Largest request body in bytes. */
  maxBodyBytes: number;
  /** Bytes buffered for one slow reader before its stream is cut. */
  maxStreamBufferBytes: number;
  /** A request must have arrived completely within this time. */
  requestTimeoutMs: number;
  /** After SIGTERM running requests have this long to finish. */
  shutdownTimeoutMs: number;
  /** Threads that render templates and tokenise. */
  tokenizerWorkers: number;
  /** Chat requests may bring a template of their own. */
  trustRequestChatTemplate: boolean;
  /** A template or tokenisation that takes longer is stopped and refused. */
  templateTimeoutMs: number;
  /** 'vllm' (default) reports finish_reason repetition; 'openai' reports stop. */
  repetitionFinishReason: 'vllm' | 'openai';
  /** Send usage with every stream chunk whatever the client says. */
  forceIncludeUsage: boolean;
  /** Echo X-Request-Id as a response header. */
  enableRequestIdHeaders: boolean;
  /** Also publish metrics under vllm: names. */
  vllmMetricNames: boolean;
  logLevel: 'silent' | 'error' | 'warn' | 'info' | 'debug';
  /** 'none' leaves the model's generation_config.json out. */
  generationConfig: 'auto' | 'none';
  /** Faults that the engine process injects (engine/faults.ts); tests only. */
  faults: string[];
}
