/** The implementation of Sessions: a render pool in front of the engine, text assembly behind it. */
import { EngineUnavailableError, type EngineClient } from '../engine/client.ts';
import type { AdapterRef, TrainingEngine } from '../engine/training.ts';
import { CHARS_PER_TOKEN } from '../json-weight.ts';
import type { GenerationDefaults } from '../models/model.ts';
import type { SamplingSpec } from '../engine/native.ts';
import { SharedBound } from '../shared-bound.ts';
import { BeamGeneration } from './beam-search.ts';
import { checkSearch } from './beams.ts';
import { ChoiceStream, type ChoiceRules } from './choice-stream.ts';
import { fillTokensOf, type FillTokens } from './fill-in-middle.ts';
import { decodeAll, decodeLong, decodePieces, Detokenizer } from './detokenizer.ts';
import { compileConstraint } from './compile-constraint.ts';
import { constraintOf, refuseBeam } from './constraint.ts';
import type { EngineLimits } from './engine-limits.ts';
import { RunningGeneration, type GenerationStart } from './generation.ts';
import type { ChatEncoder } from './open-chat.ts';
import { checkPromptScores, PromptScores } from './prompt-scores.ts';
import {
  checkToolFormat,
  chooseParsers,
  continuedLength,
  replyParsing,
  type ModelParsers,
  type ReplyParsing,
} from './reply-parser.ts';
import { readModelTokenizer } from './model-tokenizer.ts';
import { THOUGHT_TAGS } from './parsers/reasoning.ts';
import { RenderPool } from './render-pool.ts';
import { logprobCount, resolveSampling } from './sampling.ts';
import {
  SessionError,
  type Generation,
  type GenerationInput,
  type PromptInput,
  type SamplingRequest,
  type Sessions,
  type SessionsOptions,
} from './session.ts';
import { StopScanner, StopStrings } from './stop-strings.ts';
import type { TokenTable } from './token-table.ts';
import { truncatePrompt } from './truncate.ts';
import { readWordForms, type WordForm } from './word-forms.ts';

/** Enough for a think tag and the white space around it. */
const PROMPT_END_TOKENS = 16;
/** Training renders as well, whatever little the engine's queue takes. */
const MIN_WAITING_RENDERS = 1024;
/** Four bodies of the default size. */
const MIN_WAITING_CHARS = 2 ** 26;
const RETRY_AFTER_SECONDS = 1;
/** Why may name paths: the log has it. */
const ADAPTER_FAILED = "The server cannot load this model's adapter; its log says why.";

/** Sessions whose template and tokenizer also serve training. */
export interface ModelSessionsHandle extends Sessions {
  readonly chat: ChatEncoder;
}

export async function createSessions(options: SessionsOptions): Promise<ModelSessionsHandle> {
  const tokenizer = options.tokenizer ?? (await readModelTokenizer(options.modelPath));
  const { files, table, vocabSize } = tokenizer;
  const maxWaiting = Math.max(MIN_WAITING_RENDERS, options.maxWaitingRenders ?? 0);
  const pool = await RenderPool.start({
    modelPath: options.modelPath,
    maxModelLen: options.maxModelLen,
    workers: options.workers,
    timeoutMs: options.renderTimeoutMs,
    maxWaiting,
    maxWaitingChars: Math.max(MIN_WAITING_CHARS, CHARS_PER_TOKEN * (options.maxWaitingTokens ?? 0)),
  });
  return new ModelSessions({
    engine: options.engine,
    adapters: options.adapters ?? null,
    limits: options.limits ?? null,
    pool,
    maxStarting: maxWaiting,
    table,
    defaults: options.generationConfig === 'none' ? onlyEnds(tokenizer.generation) : tokenizer.generation,
    maxModelLen: options.maxModelLen,
    vocabSize,
    chatTemplate: files.chatTemplate,
    templateKwargs: options.templateKwargs ?? {},
    parsers: chooseParsers(options, files),
  });
}

const WHOLE_TEXT = { skipSpecialTokens: false, startsText: true };

function onlyEnds({ eosTokenIds }: GenerationDefaults): GenerationDefaults {
  return { eosTokenIds };
}

interface Parts {
  engine: EngineClient;
  adapters: Pick<TrainingEngine, 'loadAdapter'> | null;
  limits: EngineLimits | null;
  pool: RenderPool;
  /** Requests that may be on their way to the engine's queue. */
  maxStarting: number;
  table: TokenTable;
  defaults: GenerationDefaults;
  maxModelLen: number;
  vocabSize: number;
  chatTemplate: string | null;
  templateKwargs: Record<string, unknown>;
  parsers: ModelParsers;
}

class ModelSessions implements ModelSessionsHandle {
  readonly maxModelLen: number;
  readonly vocabSize: number;
  readonly fillTokens: FillTokens | null;
  readonly chat: ChatEncoder;
  readonly #parts: Parts;
  /** Requests that wait to be rendered, for their grammar or for their adapter. */
  readonly #starting: SharedBound;
  /** Special tokens in some models. */
  readonly #thoughtMarks: ReadonlySet<number>;

  constructor(parts: Parts) {
    this.maxModelLen = parts.maxModelLen;
    this.vocabSize = parts.vocabSize;
    this.fillTokens = fillTokensOf(parts.table);
    this.#thoughtMarks = new Set(THOUGHT_TAGS.map((tag) => parts.table.idOf(tag)).filter((id) => id !== null));
    this.#parts = parts;
    this.#starting = new SharedBound(parts.maxStarting);
    this.chat = {
      maxModelLen: parts.maxModelLen,
      chatTemplate: parts.chatTemplate,
      encodeChat: (chat) => {
        const templateKwargs = { ...parts.templateKwargs, ...chat.templateKwargs };
        return parts.pool.run(null, { kind: 'open', chat: { ...chat, templateKwargs } });
      },
      encodeText: (text) => parts.pool.run(null, { kind: 'text', text, addSpecialTokens: false }),
    };
  }

  async start(input: GenerationInput, signal?: AbortSignal): Promise<Generation> {
    const { tenant } = input;
    if (!this.#starting.fits(tenant, 1)) {
      const message = 'Too many requests wait for their prompt, grammar or adapter. Please try again later.';
      throw new SessionError('queue_full', message, null, RETRY_AFTER_SECONDS);
    }
    this.#starting.add(tenant, 1);
    try {
      return await this.#start(input, signal);
    } finally {
      this.#starting.add(tenant, -1);
    }
  }

  async #start(input: GenerationInput, signal: AbortSignal | undefined): Promise<Generation> {
    const { limits: engineLimits } = this.#parts;
    engineLimits?.checkInput(input);
    checkToolFormat(input, this.#parts.parsers);
    const promptIds = truncatePrompt(await this.#render(input, signal), input, this.#parts.maxModelLen);
    if (promptIds.length === 0)
      throw new SessionError('bad_request', 'The decoder prompt cannot be empty', paramOf(input.prompt));
    const { maxModelLen, vocabSize, defaults } = this.#parts;
    const generation = input.modelDefaults ? defaults : { eosTokenIds: defaults.eosTokenIds };
    const wordForms = await this.#wordForms(input.sampling.badWords, input.tenant, signal);
    const context = { wordForms, promptTokens: promptIds.length, maxModelLen, vocabSize, generation };
    const sampling = resolveSampling(input.sampling, context);
    for (const spec of sampling.slice(0, 1)) engineLimits?.checkSampling(spec);
    const parsing = replyParsing(input, this.#parts.parsers, this.#endOf(promptIds, input.prompt));
    const constraint = constraintOf(input, parsing);
    refuseBeam(input, constraint);
    if (constraint) engineLimits?.refuseGrammar(constraint.param);
    if (constraint) await compileConstraint(this.#parts.engine, input.tenant, constraint, signal);
    if (input.adapter) await this.#loadAdapter(input.adapter, input.tenant, signal);
    if (signal?.aborted) throw new SessionError('unavailable', 'The request was cancelled.');
    const start = {
      promptIds,
      grammar: constraint?.grammar ?? null,
      // Every token of a trainable model is to be its own choice.
      jumpForward: input.modelDefaults,
      choices: this.#choices(input, promptIds, parsing, constraint !== null),
      countsReasoning: parsing?.countsReasoning ?? false,
      priority: input.priority,
      tenant: input.tenant,
      cacheSalt: input.cacheSalt,
      extensionArguments: input.extensionArguments,
      adapter: input.adapter,
      kvTransfer: input.kvTransfer,
      request: input.request,
      promptScores: this.#promptScores(input.sampling, promptIds),
    };
    const running = this.#generate(input.sampling, sampling, start);
    signal?.addEventListener('abort', () => running.abort(), { once: true });
    return running;
  }

  tokenize(prompt: PromptInput, tenant: string, signal?: AbortSignal): Promise<Int32Array> {
    return this.#render({ prompt, tenant, truncatePromptTokens: null }, signal);
  }

  async #render(
    { prompt, tenant, truncatePromptTokens }: Pick<GenerationInput, 'prompt' | 'tenant' | 'truncatePromptTokens'>,
    signal: AbortSignal | undefined,
  ): Promise<Int32Array> {
    if (prompt.kind !== 'ids')
      return this.#parts.pool.run(tenant, { ...prompt, keepsEnd: truncatePromptTokens !== null }, signal);
    this.#checkIds(prompt.ids, 'prompt');
    return Int32Array.from(prompt.ids);
  }

  detokenize(ids: number[]): string {
    this.#checkIds(ids, 'tokens');
    return decodeAll(this.#parts.table, ids, WHOLE_TEXT);
  }

  async detokenizeLong(ids: number[], maxChars: number): Promise<string | null> {
    this.#checkIds(ids, 'tokens');
    return decodeLong(this.#parts.table, ids, WHOLE_TEXT, maxChars);
  }

  textPieces(ids: Int32Array): string[] {
    return decodePieces(this.#parts.table, ids, WHOLE_TEXT);
  }

  tokenString(id: number): string {
    return this.#parts.table.vocabularyText(id);
  }

  close(): Promise<void> {
    return this.#parts.pool.close();
  }

  #checkIds(ids: readonly number[], param: string): void {
    const outside = ids.find((id) => !Number.isInteger(id) || id < 0 || id >= this.vocabSize);
    if (outside === undefined) return;
    const message = `Token id ${outside} is out of vocabulary. Vocabulary size: ${this.vocabSize}`;
    throw new SessionError('bad_request', message, param);
  }

  /** What cannot be loaded is refused before anything is queued. The request has named a model that is there: its files are the server's. */
  async #loadAdapter(adapter: AdapterRef, tenant: string, signal: AbortSignal | undefined): Promise<void> {
    const { adapters } = this.#parts;
    if (!adapters) throw new SessionError('bad_request', 'This server serves no adapters.', 'model');
    try {
      await adapters.loadAdapter(adapter, signal, tenant);
    } catch (error) {
      if (error instanceof EngineUnavailableError) throw new SessionError('unavailable', error.message);
      const cause = new Error(`The adapter in ${adapter.directory} cannot be loaded`, { cause: error });
      throw new SessionError('adapter_failed', ADAPTER_FAILED, null, null, { cause });
    }
  }

  async #wordForms(words: string[], tenant: string, signal: AbortSignal | undefined): Promise<WordForm[]> {
    return words.length === 0
      ? []
      : readWordForms(await this.#parts.pool.run(tenant, { kind: 'words', words }, signal));
  }

  #generate(request: SamplingRequest, sampling: SamplingSpec[], start: Omit<GenerationStart, 'sampling'>): Generation {
    const { engine, vocabSize } = this.#parts;
    const [spec] = sampling;
    if (request.beamSearch === null || !spec) return new RunningGeneration(engine, { ...start, sampling });
    checkSearch(request.n, spec);
    return new BeamGeneration(engine, { ...start, sampling: spec, vocabSize, ...request.beamSearch });
  }

  #promptScores(sampling: SamplingRequest, promptIds: Int32Array): GenerationStart['promptScores'] {
    if (sampling.promptLogprobs === null) return null;
    const alternatives = logprobCount(sampling.promptLogprobs, this.#parts.vocabSize);
    checkPromptScores(promptIds.length, alternatives);
    return { alternatives, scores: new PromptScores(promptIds, this.#parts.table) };
  }

  /** The text of the prompt's last tokens: where its thoughts stand. */
  #endOf(promptIds: Int32Array, prompt: PromptInput): string {
    const options = { skipSpecialTokens: false, startsText: false };
    const tokens = continuedLength(prompt) + PROMPT_END_TOKENS;
    return decodeAll(this.#parts.table, promptIds.subarray(-tokens), options);
  }

  #choices(
    input: GenerationInput,
    promptIds: Int32Array,
    parsing: ReplyParsing | null,
    constrained: boolean,
  ): ChoiceStream[] {
    const sampling = input.sampling.beamSearch === null ? input.sampling : searchRules(input.sampling);
    const { table } = this.#parts;
    const stops = new StopStrings(sampling.stop.map((stop) => stop.replace(/\p{Surrogate}/gu, '\ufffd')));
    const detokenizing = {
      // A grammar lets no special token in but marks, which are its text.
      skipSpecialTokens: sampling.skipSpecialTokens && parsing?.showSpecialTokens !== true && !constrained,
      ...(parsing !== null && parsing.thoughts !== 'none' && { marks: this.#thoughtMarks }),
      startsText: this.#startsText(input.prompt, promptIds),
    };
    const rules = this.#rules(sampling, parsing);
    return Array.from({ length: sampling.n }, (_, index) => {
      const scanner = new StopScanner(stops, sampling.includeStopInOutput);
      return new ChoiceStream(index, table, new Detokenizer(table, detokenizing), scanner, rules, parsing);
    });
  }

  /** A reply is a text of its own; a completion or a continued message goes on where its prompt ends. */
  #startsText(prompt: PromptInput, promptIds: Int32Array): boolean {
    if (prompt.kind === 'chat') return !prompt.render.continueFinalMessage;
    return promptIds.every((id) => this.#parts.table.isSpecial(id));
  }

  #rules(sampling: SamplingRequest, parsing: ReplyParsing | null): ChoiceRules {
    return {
      minTokens: sampling.minTokens,
      includeStop: sampling.includeStopInOutput,
      skipSpecialTokens: sampling.skipSpecialTokens,
      silentStopIds: new Set(sampling.ignoreEos ? [] : this.#parts.defaults.eosTokenIds.slice(0, 1)),
      withLogprobs: sampling.topLogprobs !== null,
      repetition: sampling.repetition,
      promptOnly: sampling.maxTokens === 0,
      reply: parsing?.options ?? null,
    };
  }
}

/** A beam search ends its outputs itself, and reports the token that ended one whatever it is. */
function searchRules(sampling: SamplingRequest): SamplingRequest {
  return { ...sampling, stop: [], repetition: null, minTokens: 0, ignoreEos: true };
}

function paramOf(prompt: PromptInput): string {
  return prompt.kind === 'chat' ? 'messages' : 'prompt';
}
