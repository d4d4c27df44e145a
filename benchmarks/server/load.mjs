/** The two ways to put load on a server: a closed loop of clients, and arrivals at random times. */
import { randomFrom } from '../lib/stats.mjs';
import { setTimeout as sleep } from 'node:timers/promises';

/** `concurrency` clients, each sending its next request when the last one ended. */
export async function closedLoop(client, requests, concurrency) {
  const results = [];
  let next = 0;
  async function loop() {
    while (next < requests.length) {
      const { prompt, outputTokens } = requests[next++];
      results.push(await client.stream(prompt, outputTokens));
    }
  }
  await Promise.all(Array.from({ length: Math.min(concurrency, requests.length) }, loop));
  return results;
}

/** Poisson arrivals, `rate` requests per second, however many are still running. */
export async function poisson(client, requests, rate, seed) {
  const random = randomFrom(seed);
  const running = [];
  const start = performance.now();
  let due = 0;
  for (const { prompt, outputTokens } of requests) {
    due += (-Math.log(1 - random()) / rate) * 1000;
    await sleep(Math.max(0, start + due - performance.now()));
    running.push(client.stream(prompt, outputTokens));
  }
  return Promise.all(running);
}
