/** How well a model does on conversations: perplexity of what the assistant says, and greedy answers that are right. */
import { Driver, generate, openModel, type OpenModel, type Prompt } from '../fixtures/engine-driver.ts';
import { PAGE_SIZE, type ComputeDType, type LoadOptions } from '../../src/control/engine/native.ts';
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
    const batches = await inBatches(conversations, (batch) => judge(opened, tokenizer, batch));
    const total = (of: (judged: Judged) => number) => batches.reduce((sum, judged) => sum + of(judged), 0);
    const perplexity = Math.exp(total(({ loss }) => loss) / total(({ count }) => count));
    const score = (100 * total(({ right }) => right)) / total(({ asked }) => asked);
    const { weightBytes, pageBytes } = opened.model;
    return { perplexity, score, weightBytes, pageBytes };
  } finally {
    opened.model.close();
  }
}

/** What a batch adds to the whole. */
interface Judged {
  /** The negative log-probabilities of what the assistants wrote, and how many. */
  loss: number;
  count: number;
  right: number;
  asked: number;
}

async function inBatches<T, R>(items: T[], use: (batch: T[]) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  for (let at = 0; at < items.length; at += SLOTS) results.push(await use(items.slice(at, at + SLOTS)));
  return results;
}

/** Conversations are scored in the first slots; the answers, in the second, begin with the pages that this has written. */
async function judge(opened: OpenModel, tokenizer: ModelTokenizer, batch: Conversation[]): Promise<Judged> {
  const options = { maxSequences: 2 * SLOTS, maxBatchTokens: 32_768, maxModelLen: 1024, pages: 4096, maxLogprobs: 1 };
  const driver = new Driver(opened, options);
  try {
    batch.forEach(({ ids }, slot) => driver.open(slot, ids.length, { logprobs: 0 }, undefined, 0));
    await driver.step(batch.map(({ ids }, slot) => ({ slot, tokens: ids })));
    const losses = lossesOf(driver, batch);
    const asked = batch.flatMap((conversation, slot) => (conversation.want === undefined ? [] : [slot]));
    const answers = await generate(
      driver,
      asked.map((slot) => question(driver, tokenizer, batch[slot]!, slot)),
    );
    const right = answers.filter(({ tokens }, i) => isRight(textOf(tokenizer, tokens), batch[asked[i]!]!.want!)).length;
    return { loss: losses.reduce((sum, loss) => sum + loss, 0), count: losses.length, right, asked: asked.length };
  } finally {
    driver.engine.close();
  }
}

function lossesOf(driver: Driver, batch: Conversation[]): number[] {
  const { promptSlots, promptPositions, promptLogprobs } = driver.last!;
  const learn = batch.map((conversation) => new Set(conversation.learn));
  const losses: number[] = [];
  promptSlots.forEach((slot, index) => {
    if (learn[slot]!.has(promptPositions[index]!)) losses.push(-promptLogprobs[index]!);
  });
  return losses;
}

function question(driver: Driver, tokenizer: ModelTokenizer, { ids, prompt }: Conversation, slot: number): Prompt {
  const known = prompt!;
  const same = known.every((id, index) => ids[index] === id);
  const pages = same ? Math.floor((known.length - 1) / PAGE_SIZE) : 0;
  const stopIds = Int32Array.from(tokenizer.generation.eosTokenIds);
  return {
    slot: SLOTS + slot,
    ids: known,
    sampling: { maxTokens: Math.min(ANSWER_TOKENS, 1024 - known.length), stopIds },
    prefix: { tokens: known.slice(0, pages * PAGE_SIZE), pages: driver.pagesOf(slot).slice(0, pages) },
  };
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
