/** Inputs of a generation, and its deltas as one. */
import type {
  ChatMessage,
  ChoiceDelta,
  Generation,
  GenerationInput,
  RenderOptions,
  SamplingRequest,
} from '../../../src/control/sessions/session.ts';
import { generationInput, RENDER, SAMPLING as UNSAID } from '../../fixtures/generation-input.ts';

export { RENDER, REPLY } from '../../fixtures/generation-input.ts';

const SAMPLING: SamplingRequest = { ...UNSAID, temperature: 1, seed: 1n, maxTokens: 20 };

export function bytes(text: string): number[] {
  return [...new TextEncoder().encode(text)];
}

export function chat(messages: ChatMessage[], render: Partial<RenderOptions> = {}): GenerationInput['prompt'] {
  return { kind: 'chat', messages, render: { ...RENDER, ...render } };
}

export function input(sampling: Partial<SamplingRequest> = {}, prompt?: GenerationInput['prompt']): GenerationInput {
  return generationInput({ sampling: { ...SAMPLING, ...sampling }, ...(prompt && { prompt }) });
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
): Pick<ChoiceDelta, 'index' | 'text' | 'tokenIds' | 'finish' | 'stopReason'> & { logprobs: number } {
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
