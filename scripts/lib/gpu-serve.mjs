/**
 * The server on a GPU, end to end: the same requests to a server on the CPU and to one on the GPU, in BF16 both. Greedy answers must be
 * equal but for few (two roundings may part at a tie); grammars, streams and abandoned requests must work; many at once give a throughput.
 * Usage: node scripts/lib/gpu-serve.mjs [DEVICE (cuda)] [MODEL (models/starter)]
 */
import path from 'node:path';
import { BenchClient } from '../../benchmarks/server/client.mjs';
import { closedLoop } from '../../benchmarks/server/load.mjs';
import { summarise } from '../../benchmarks/server/metrics.mjs';
import { startServer } from '../../benchmarks/server/own-server.mjs';
import { root } from './paths.mjs';

const [device = 'cuda', model = path.join(root, 'models', 'starter')] = process.argv.slice(2);
const NAME = path.basename(model);
const QUESTIONS = [
  'Hello! What can you do?',
  'Tell a story about a fox.',
  'What is 3 + 4?',
  'Spell the word garden.',
  'Count to five.',
  'Which colour is the sky?',
  'Write one sentence about rain.',
  'Name three animals.',
];
const SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string', maxLength: 12 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
  required: ['name', 'age'],
  additionalProperties: false,
};

let failed = false;

function report(name, ok, text = '') {
  if (!ok) failed = true;
  console.log(`${ok ? 'ok    ' : 'FAILED'} ${name}${text ? `: ${text}` : ''}`);
}

async function chat({ baseUrl, apiKey }, body, signal) {
  const response = await fetch(`${baseUrl}/chat/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${apiKey}` },
    body: JSON.stringify({ model: NAME, temperature: 0, max_completion_tokens: 48, ...body }),
    signal,
  });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return body.stream ? response : await response.json();
}

const ask = (content) => ({ messages: [{ role: 'user', content }], logprobs: true, top_logprobs: 2 });

async function greedyAnswers(server) {
  const replies = await Promise.all(QUESTIONS.map((question) => chat(server, ask(question))));
  return replies.map(({ choices: [choice] }) => choice.logprobs.content.map(({ token }) => token).join(''));
}

async function compare(cpu, gpu) {
  const [wanted, seen, again] = [await greedyAnswers(cpu), await greedyAnswers(gpu), await greedyAnswers(gpu)];
  const equal = wanted.filter((text, index) => text === seen[index]).length;
  report('greedy answers of the CPU', equal >= 0.75 * wanted.length, `${equal} of ${wanted.length} equal`);
  const alone = [];
  for (const question of QUESTIONS) {
    const { choices } = await chat(gpu, ask(question));
    alone.push(choices[0].logprobs.content.map(({ logprob }) => logprob).join());
  }
  const batched = await Promise.all(QUESTIONS.map((question) => chat(gpu, ask(question))));
  const together = batched.map(({ choices }) => choices[0].logprobs.content.map(({ logprob }) => logprob).join());
  report('the same log-probabilities alone and together', alone.join() === together.join());
  report('the same answers twice', seen.join() === again.join());
}

async function structured(gpu) {
  const response_format = { type: 'json_schema', json_schema: { name: 'person', schema: SCHEMA, strict: true } };
  const body = {
    ...ask('A person, please.'),
    response_format,
    temperature: 1,
    max_completion_tokens: 64,
    n: 4,
    seed: 5,
  };
  const { choices } = await chat(gpu, body);
  const people = choices.map(({ message }) => JSON.parse(message.content));
  report(
    'structured output',
    people.every(({ name, age }) => typeof name === 'string' && Number.isInteger(age)),
  );
}

/** Clients that leave in the middle must leave nothing behind. */
async function leave(gpu) {
  await Promise.all(
    Array.from({ length: 40 }, async (_, index) => {
      const controller = new AbortController();
      const body = { ...ask(`Tell story ${index}.`), stream: true, max_completion_tokens: 400, ignore_eos: true };
      const response = await chat(gpu, body, controller.signal);
      const reader = response.body.getReader();
      await reader.read();
      controller.abort();
    }),
  );
  const { choices } = await chat(gpu, ask(QUESTIONS[0]));
  report('after forty clients left', choices[0].message.content.length > 0);
}

async function load({ baseUrl, apiKey }) {
  const client = new BenchClient({
    baseUrl,
    apiKey,
    model: NAME,
    endpoint: 'completions',
    ignoreEos: true,
    timeoutMs: 120_000,
  });
  const requests = Array.from({ length: 128 }, (_, index) => ({
    prompt: `Story ${index}: once upon a time`,
    outputTokens: 128,
  }));
  const { failed: lost, output_tok_s: rate } = summarise(await closedLoop(client, requests, 64));
  client.close();
  report('64 clients, 128 requests', lost === 0, `${rate} tokens/s`);
}

const cpu = await startServer(model, ['--device', 'cpu', '--dtype', 'bfloat16']);
try {
  const gpu = await startServer(model, ['--device', device, '--dtype', 'bfloat16']);
  try {
    await compare(cpu, gpu);
    await structured(gpu);
    await leave(gpu);
    await load(gpu);
  } finally {
    await gpu.stop();
  }
} finally {
  await cpu.stop();
}
process.exitCode = failed ? 1 : 0;
