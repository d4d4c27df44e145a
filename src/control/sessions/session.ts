/**
 * From a validated chat or completion request to tokens and back to text.
 * The API layer owns HTTP and JSON shapes; this layer owns templates, token ids, text, stop strings and logprob text.
 */
import type { EngineClient } from '../engine/client.ts';
import type { ExtensionArguments } from '../extensions/extension.ts';
import type { AdapterRef, TrainingEngine } from '../engine/training.ts';
import type { GrammarSpec } from '../engine/native-grammar.ts';
import type { EngineLimits } from './engine-limits.ts';
import type { ModelTokenizer } from './model-tokenizer.ts';
import type { BlockHandle, KvTransferRequest } from '../transfer/transfer.ts';
import type { FillTokens } from './fill-in-middle.ts';
import type { ReasoningParserName, ToolMode, ToolParserName } from './parsers/create-parser.ts';
import type { ParsedDelta, ToolCallDelta } from './parsers/output-parser.ts';
import type { RepetitionRule } from './repetition.ts';

export interface ChatMessage {
  role: string;
  content: string | null | ContentPart[];
  name?: string;
  [key: string]: unknown;
}
export type ContentPart = { type: string; [key: string]: unknown };

export interface RenderOptions {
  addGenerationPrompt: boolean;
  continueFinalMessage: boolean;
  addSpecialTokens: boolean;
  tools: unknown[] | null;
  documents: unknown[] | null;
  templateKwargs: Record<string, unknown>;
  /** A template of the request's own, which the server was told to trust; null = the model's. */
  chatTemplate: string | null;
}

/** Sampling as the client asked, after validation; null = server default (generation_config, then the API default). */
export interface SamplingRequest {
  n: number;
  temperature: number | null;
  topP: number | null;
  topK: number | null;
  minP: number | null;
  seed: bigint | null;
  /** null = context minus prompt (or generation_config's max_new_tokens). 0 = nothing: only the prompt is scored. */
  maxTokens: number | null;
  /** The field name that gave maxTokens, for error texts. */
  maxTokensField: 'max_tokens' | 'max_completion_tokens' | 'max_output_tokens';
  /** More tokens than the context has room for beside the prompt: as many as it has, not a refusal. */
  fitsMaxTokens: boolean;
  minTokens: number;
  stop: string[];
  stopTokenIds: number[];
  includeStopInOutput: boolean;
  ignoreEos: boolean;
  skipSpecialTokens: boolean;
  /** null = no logprobs; 0 = only the sampled token's; -1 = the whole vocabulary. */
  topLogprobs: number | null;
  logprobsMode: 'raw' | 'temperature' | 'processed';
  frequencyPenalty: number;
  presencePenalty: number;
  /** null = generation_config's, else 1. */
  repetitionPenalty: number | null;
  /** Token id -> what is added to its logit. */
  logitBias: ReadonlyMap<number, number>;
  /** Texts that must not be generated. */
  badWords: string[];
  /** null = all. */
  allowedTokenIds: number[] | null;
  /** null = the output may repeat itself. */
  repetition: RepetitionRule | null;
  /** A search for the likeliest n outputs instead of sampling; null = sampling. */
  beamSearch: { lengthPenalty: number } | null;
  /** k >= 0: score the prompt's tokens, with the k best alternatives of each; -1 = the whole vocabulary; null = no. */
  promptLogprobs: number | null;
}

export type PromptInput =
  | { kind: 'chat'; messages: ChatMessage[]; render: RenderOptions }
  | { kind: 'text'; text: string; addSpecialTokens: boolean }
  | { kind: 'ids'; ids: number[] };

/** How a chat reply is taken apart. */
export interface ReplyOptions {
  tools: ToolMode;
  /** With auto: a model whose format of calls is not known is refused; else its whole reply is content. */
  needsToolFormat: boolean;
  /** The request's tools, whose schemas give the types of bare values. */
  toolDefinitions: readonly unknown[];
  parallelToolCalls: boolean;
  /** Calls that the model chose are handed out from the beginning of their arguments on; false: when they are complete and valid. */
  streamsCalls: boolean;
  /** false: reasoning is dropped, with its ids and logprobs; its tokens still count. */
  includeReasoning: boolean;
}

/** What the reply's content must be. */
export interface ContentConstraint {
  grammar: GrammarSpec;
  /** The request field that asks for it, for error texts. */
  param: string;
  /** Opens the sentence that says what is wrong with it, where the interface has words of its own for that. */
  refusal?: string;
}

export interface GenerationInput {
  prompt: PromptInput;
  /** null: the whole output is content (text completions). */
  reply: ReplyOptions | null;
  sampling: SamplingRequest;
  /** null = anything. Required and named tool calls bring grammars of their own. */
  constraint: ContentConstraint | null;
  /** Keeps the last so many prompt tokens; -1 = as many as fit beside the output; null = all. */
  truncatePromptTokens: number | null;
  priority: number;
  tenant: string;
  /** The same object for all prompts of one request; absent: it has no other. */
  request?: object;
  /** Prompts with different salts share nothing in the prefix cache. */
  cacheSalt: string | null;
  /** What is asked of disaggregated serving; null = nothing. */
  kvTransfer: KvTransferRequest | null;
  /** Checked arguments of the server's extensions; null = none. */
  extensionArguments: ExtensionArguments | null;
  /** null = the base model. */
  adapter: AdapterRef | null;
  /**
   * false: sampling defaults of generation_config.json are not used, and what a grammar forces is sampled token by token (trained models
   * sample from the distribution they are trained on).
   */
  modelDefaults: boolean;
}

export interface TokenScore {
  token: string;
  logprob: number;
  /** UTF-8 bytes of the token (exact, also for partial characters). */
  bytes: number[];
  tokenId: number;
  top: { token: string; logprob: number; bytes: number[]; tokenId: number }[];
}

/** One token of a reply. */
export interface TokenLogprob extends TokenScore {
  /** Code points that the reply's text gets by it: none where it is not shown or its character goes on. */
  chars: number;
  /** Where its text begins in that of the whole output, thoughts and marks included: in characters as JavaScript counts them. */
  at: number;
}

/** One token of a scored prompt. */
export interface PromptTokenLogprob extends TokenScore {
  /** 1 = the likeliest. */
  rank: number;
}

export type ChoiceFinish = 'stop' | 'length' | 'abort' | 'tool_calls' | 'repetition';

/** One piece of one choice. Text may be empty (held back); after `finish` nothing more comes for that choice. */
export interface ChoiceDelta {
  index: number;
  /** Content. */
  text: string;
  reasoning: string;
  toolCalls: ToolCallDelta[];
  /** The same three in the order in which the model wrote them; absent where nothing takes the output apart. */
  pieces?: ParsedDelta[];
  /**
   * With `finish`, where there are pieces: where the text that they were taken from ends. Tokens from there on ended
   * it: an end token, a stop string.
   */
  textEnd?: number;
  /** Tokens generated, and those of them that are reasoning: hidden ones too, which `tokenIds` lacks. */
  tokens: number;
  reasoningTokens: number;
  tokenIds: number[];
  /** Parallel to tokenIds when asked for, else empty. */
  logprobs: TokenLogprob[];
  finish: ChoiceFinish | null;
  /** Stop string or stop token id that ended it, or 'repetition_detected'; null for EOS and length. */
  stopReason: string | number | null;
}

/** An error that belongs to the client: the API layer turns it into status + body by code. */
export class SessionError extends Error {
  readonly code: SessionErrorCode;
  /** The request field at fault, or null. */
  readonly param: string | null;
  /** With code queue_full: when to try again; null where nothing is known. */
  readonly retryAfterSeconds: number | null;
  constructor(
    code: SessionErrorCode,
    message: string,
    param: string | null = null,
    retryAfterSeconds: number | null = null,
    options: ErrorOptions = {},
  ) {
    super(message, options);
    this.name = 'SessionError';
    this.code = code;
    this.param = param;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}
export type SessionErrorCode =
  | 'bad_request' // 400
  | 'context_length' // 400
  | 'queue_full' // 429
  | 'unavailable' // 503
  | 'adapter_failed' // 500
  | 'engine_failed'; // 500

export interface GenerationUsage {
  promptTokens: number;
  /** Per choice. */
  completionTokens: number[];
  /** Of the completion tokens, those of reasoning; null where the model's reasoning is not told apart. */
  reasoningTokens: number[] | null;
  cachedTokens: number;
}

/** A generation that has been accepted: the prompt is rendered and checked, and all its sequences are queued. */
export interface Generation {
  readonly promptIds: Int32Array;
  /** For n choices; iterate to the end or call abort(). Throws SessionError('engine_failed') when a sequence fails. */
  readonly deltas: AsyncIterable<ChoiceDelta>;
  /** Tokens generated so far per choice, cached prompt tokens. Complete once all choices finished. */
  usage(): GenerationUsage;
  /** The prompt's scores, one entry per token, the first null; null where none were asked for. Complete before the first delta. */
  promptLogprobs(): (PromptTokenLogprob | null)[] | null;
  /** Where the first choice's prompt is held for a peer, once that choice has finished; null where it is not. */
  heldBlocks(): BlockHandle | null;
  /** When the first of its sequences began to run, by performance.now(); null while all wait. For metrics. */
  startedAt(): number | null;
  /** Tell that bytes went to the client (no replay after a crash any more). */
  markStreamed(): void;
  abort(): void;
}

export interface Sessions {
  readonly maxModelLen: number;
  readonly vocabSize: number;
  /** null: the tokenizer has no tokens to fill a middle with. */
  readonly fillTokens: FillTokens | null;
  /**
   * Renders, tokenises, checks lengths and ranges, queues. Everything refusable is refused here, by SessionError. An abort of the signal ends
   * that, and later on the generation.
   */
  start(input: GenerationInput, signal?: AbortSignal): Promise<Generation>;
  /** Prompt ids only (for /tokenize). */
  tokenize(prompt: PromptInput, tenant: string, signal?: AbortSignal): Promise<Int32Array>;
  detokenize(ids: number[]): string;
  /** The same of very many, between which others are served; null where the text is longer than `maxChars`. */
  detokenizeLong(ids: number[], maxChars: number): Promise<string | null>;
  /** What each id brings to `detokenize` of them all. */
  textPieces(ids: Int32Array): string[];
  /** The vocabulary's text of one id, as /tokenize's token_strs shows it. */
  tokenString(id: number): string;
  close(): Promise<void>;
}

export interface SessionsOptions {
  modelPath: string;
  /** What the model says of its tokens, where it has been read already. */
  tokenizer?: ModelTokenizer;
  engine: EngineClient;
  /** Makes the adapters of requests servable before these are queued; null: requests have none. */
  adapters?: Pick<TrainingEngine, 'loadAdapter'> | null;
  /** What the engine lacks; absent or null: nothing. */
  limits?: EngineLimits | null;
  maxModelLen: number;
  /** Output formats; 'auto' = as the chat template shows, null = none. */
  toolParser?: ToolParserName | 'auto' | null;
  reasoningParser?: ReasoningParserName | 'auto' | null;
  /** Threads that render templates and tokenise, >= 1. */
  workers: number;
  /** A render or tokenisation that takes longer is killed and refused. */
  renderTimeoutMs: number;
  /** Prompts that may wait to be rendered: whatever the engine's queue takes must get that far. Default and least 1,024. */
  maxWaitingRenders?: number;
  /** As the engine's queue takes, four characters each. Default and least 2^26. */
  maxWaitingTokens?: number;
  /** The server's own template variables, for the chats of training. Those of requests come with these in them. */
  templateKwargs?: Record<string, unknown>;
  /** none: sampling defaults of generation_config.json are not used (its end-of-sequence ids are). Default auto. */
  generationConfig?: 'auto' | 'none';
}
