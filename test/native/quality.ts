/** How well a model does on conversations: perplexity of what the assistant says, and greedy answers that are right. */
import { Driver, generate, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import type { ComputeDType, LoadOptions } from '../../src/control/engine/native.ts';
import { readModelTokenizer, type ModelTokenizer } from '../../src/control/sessions/model-tokenizer.ts';

export interface Conversation {
  ids: number[];
  /** Positions that the assistant wrote. */
  learn: number[];
  /** Where one answer is right: the prompt, and the text or the tool calls that it asks for. */
  prompt?: number[];
  want?: string | object[];
}

export interface Quality {
  perplexity: number;
  /** Right answers in percent of those asked for. */
  score: number;
  weightBytes: number;
  pageBytes: number;
}

const ANSWER_TOKENS = 120;
const SLOTS = 32;

export async function qualityOf(
  directory: string,
  conversations: Conversation[],
  dtype: ComputeDType,
  formats: Pick<LoadOptions, 'quantize' | 'kvCacheDtype'> = {},
): Promise<Quality> {
  const opened = await openModel(directory, dtype, formats);
  try {
    const tokenizer = await readModelTokenizer(directory);
    const perplexity = await perplexityOf(opened, conversations);
    const score = await scoreOf(opened, tokenizer, conversations);
    const { weightBytes, pageBytes } = opened.model;
    return { perplexity, score, weightBytes, pageBytes };
  } finally {
    opened.model.close();
  }
}

function batches<T>(items: T[]): T[][] {
  return Array.from({ length: Math.ceil(items.length / SLOTS) }, (_, i) => items.slice(i * SLOTS, (i + 1) * SLOTS));
}

async function perplexityOf(opened: OpenModel, conversations: Conversation[]): Promise<number> {
  let sum = 0;
  let count = 0;
  for (const batch of batches(conversations)) {
    const driver = new Driver(opened, { maxBatchTokens: 32_768, maxModelLen: 1024, pages: 2048, maxLogprobs: 1 });
    batch.forEach(({ ids }, slot) => driver.open(slot, ids.length, { logprobs: 0 }, undefined, 0));
    await driver.step(batch.map(({ ids }, slot) => ({ slot, tokens: ids })));
    const { promptSlots, promptPositions, promptLogprobs } = driver.last!;
    const learn = batch.map((conversation) => new Set(conversation.learn));
    promptSlots.forEach((slot, index) => {
      if (!learn[slot]!.has(promptPositions[index]!)) return;
      sum -= promptLogprobs[index]!;
      count++;
    });
    driver.engine.close();
  }
  return Math.exp(sum / count);
}

async function scoreOf(opened: OpenModel, tokenizer: ModelTokenizer, conversations: Conversation[]): Promise<number> {
  const asked = conversations.filter(({ want }) => want !== undefined);
  const stopIds = Int32Array.from(tokenizer.generation.eosTokenIds);
  let right = 0;
  for (const batch of batches(asked)) {
    const driver = new Driver(opened, { maxBatchTokens: 32_768, maxModelLen: 1024, pages: 2048, maxLogprobs: 1 });
    const prompts = batch.map(({ prompt }, slot) => ({
      slot,
      ids: prompt!,
      sampling: { maxTokens: Math.min(ANSWER_TOKENS, 1024 - prompt!.length), stopIds },
    }));
    const answers = await generate(driver, prompts);
    driver.engine.close();
    right += answers.filter(({ tokens }, i) => isRight(textOf(tokenizer, tokens), batch[i]!.want!)).length;
  }
  return (100 * right) / asked.length;
}

function textOf({ table, generation }: ModelTokenizer, tokens: number[]): string {
  const ends = new Set(generation.eosTokenIds);
  return Buffer.concat(tokens.filter((id) => !ends.has(id)).map((id) => table.bytes(id))).toString('utf8');
}

function isRight(said: string, want: string | object[]): boolean {
  const answer = said.split('</think>').at(-1)!;
  if (typeof want === 'string') return answer.trim() === want;
  const calls = [...answer.matchAll(/<tool_call>(.*?)<\/tool_call>/gs)].map(([, body]) => body!);
  try {
    return JSON.stringify(calls.map((body) => sorted(JSON.parse(body)))) === JSON.stringify(want.map(sorted));
  } catch {
    return false;
  }
}

/** With the members of every object in order. */
function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== 'object' || value === null) return value;
  const members = Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1));
  return Object.fromEntries(members.map(([name, member]) => [name, sorted(member)]));
}
