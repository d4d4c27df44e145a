/** Inputs of a generation, and its deltas as one. */
import type {
  ChatMessage,
  ChoiceDelta,
  Generation,
  GenerationInput,
  RenderOptions,
  ReplyOptions,
  SamplingRequest,
} from '../../../src/control/sessions/session.ts';

export const RENDER: RenderOptions = {
  addGenerationPrompt: true,
  continueFinalMessage: false,
  addSpecialTokens: false,
  tools: null,
  documents: null,
  templateKwargs: {},
  chatTemplate: null,
};

export const SAMPLING: SamplingRequest = {
  n: 1,
  temperature: 1,
  topP: null,
  topK: null,
  minP: null,
  seed: 1n,
  maxTokens: 20,
  maxTokensField: 'max_tokens',
  minTokens: 0,
  stop: [],
  stopTokenIds: [],
  includeStopInOutput: false,
  ignoreEos: false,
  skipSpecialTokens: true,
  topLogprobs: null,
  logprobsMode: 'raw',
  frequencyPenalty: 0,
  presencePenalty: 0,
  repetitionPenalty: null,
  logitBias: new Map(),
  badWords: [],
  allowedTokenIds: null,
  repetition: null,
  beamSearch: null,
  promptLogprobs: null,
};

export const REPLY: ReplyOptions = {
  tools: 'none',
  toolDefinitions: [],
  parallelToolCalls: true,
  includeReasoning: true,
};

export function bytes(text: string): number[] {
  return [...new TextEncoder().encode(text)];
}

export function chat(messages: ChatMessage[], render: Partial<RenderOptions> = {}): GenerationInput['prompt'] {
  return { kind: 'chat', messages, render: { ...RENDER, ...render } };
}

export function input(sampling: Partial<SamplingRequest> = {}, prompt?: GenerationInput['prompt']): GenerationInput {
  return {
    prompt: prompt ?? chat([{ role: 'user', content: 'Hi' }]),
    reply: REPLY,
    sampling: { ...SAMPLING, ...sampling },
    truncatePromptTokens: null,
    priority: 0,
    tenant: 't',
    cacheSalt: null,
  };
}

export async function collect(generation: Generation): Promise<ChoiceDelta[]> {
  const deltas: ChoiceDelta[] = [];
  for await (const delta of generation.deltas) deltas.push(delta);
  return deltas;
}

/** All deltas of one choice as one. */
export function merged(
  deltas: ChoiceDelta[],
  index = 0,
): Omit<ChoiceDelta, 'logprobs' | 'reasoning' | 'toolCalls'> & { logprobs: number } {
  const own = deltas.filter((delta) => delta.index === index);
  const last = own.at(-1);
  return {
    index,
    text: own.map((delta) => delta.text).join(''),
    tokenIds: own.flatMap((delta) => delta.tokenIds),
    logprobs: own.flatMap((delta) => delta.logprobs).length,
    finish: last?.finish ?? null,
    stopReason: last?.stopReason ?? null,
  };
}
