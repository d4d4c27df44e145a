/** Replies that are being generated do not wait for a long prompt: it is read in pieces. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ApiServer } from './server.ts';

let server: ApiServer;
beforeAll(async () => {
  server = await ApiServer.start({ flags: ['--step-target-ms', '1'] });
}, 90_000);
afterAll(() => server?.stop());

const PATH = '/v1/completions';
const PROMPT_TOKENS = 900;
/** A piece of a millisecond has far fewer tokens, the whole prompt more. */
const PIECE = 512;

async function largeSteps(): Promise<number> {
  const text = await (await server.call('/metrics')).text();
  const read = (sample: string) =>
    Number(new RegExp(`^tandem_iteration_tokens_total_${sample} (\\S+)$`, 'm').exec(text)?.[1] ?? NaN);
  return read('count\\{[^}]*\\}') - read(`bucket\\{[^}]*le="${PIECE}"\\}`);
}
const prompt = (from: number) => Array.from({ length: PROMPT_TOKENS }, (_, at) => from + (at % 50));

test('a long prompt is read whole while nobody generates, and in pieces beside who does', async () => {
  const ask = async (from: number) => {
    const response = await server.post(PATH, { prompt: prompt(from), max_tokens: 1 });
    expect(response.status).toBe(200);
    await response.json();
  };
  await ask(300);
  expect(await largeSteps()).toBe(1);
  const stream = await server.post(PATH, { prompt: 'Hi', max_tokens: 900, ignore_eos: true, stream: true });
  const reader = stream.body?.getReader();
  await reader?.read();
  await ask(400);
  expect(await largeSteps()).toBe(1);
  await reader?.cancel();
}, 60_000);
