/** bench:serve --peer: the same load on this server and on llama.cpp behind HTTP, in turn, each alone while it is measured. */
import { fork } from 'node:child_process';
import path from 'node:path';
import { ensurePeers, PEER_NAME } from '../engine/peers.mjs';
import { table } from '../lib/output.mjs';
import { median, rounded, spread } from '../lib/stats.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { BenchClient } from './client.mjs';
import { isBuilt, startLlamaCppServer } from './llama-cpp-server.mjs';

/** What is compared: throughput, and the latencies' quantiles. */
const VALUES = [
  { name: 'output_tok_s', unit: 'tok/s', of: (summary) => summary.output_tok_s },
  { name: 'ttft_ms', unit: 'ms', of: (summary) => summary.latencies.ttft_ms.median },
  { name: 'itl_ms', unit: 'ms', of: (summary) => summary.latencies.itl_ms.median },
  { name: 'itl_p99_ms', unit: 'ms', of: (summary) => summary.latencies.itl_ms.p99 },
];

/** llama.cpp's own server where it has been built; else its library behind a plain one. */
function startPeer(gguf, { concurrency, threads, prompt, output }) {
  // Room for lengths that are drawn in another tokenizer's tokens.
  const context = prompt.high + output.high + 64;
  if (isBuilt()) return startLlamaCppServer(gguf, { concurrency, context, threads });
  const args = [gguf, concurrency, context, threads].map(String);
  const options = { stdio: ['ignore', 'pipe', 'inherit', 'ipc'] };
  const child = fork(path.join(import.meta.dirname, 'llama-server.mjs'), args, options);
  return new Promise((resolve, reject) => {
    let text = '';
    child.stdout.setEncoding('utf8').on('data', (chunk) => {
      text += chunk;
      const line = text.split('\n').find((each) => each.startsWith('{'));
      if (line !== undefined && text.includes('\n')) resolve({ ...JSON.parse(line), stop: () => child.kill() });
    });
    child.on('exit', (code) => reject(new Error(`The peer's server ended (${code}).`)));
  });
}

/** `measure(client, round)` puts the load on a server and summarises it; `client` is this server's. */
export async function measureAgainstPeer(options, client, measure) {
  ensurePeers();
  const peer = await startPeer(ensureRandomModel(options.shape).gguf, options);
  // llama.cpp's server hangs up on connections that are used again: with kept ones a quarter of the requests failed.
  const fixed = { endpoint: 'completions', ignoreEos: true, timeoutMs: 600_000, keepAlive: false };
  console.log(`  peer: ${peer.variant}`);
  const peerClient = new BenchClient({ ...fixed, baseUrl: `${peer.origin}/v1`, model: 'llama.cpp' });
  const rounds = [];
  try {
    for (let round = 1; round <= options.rounds; round++) {
      rounds.push({ tandem: await measure(client, round), peer: await measure(peerClient, round) });
      console.log(`  round ${round} of ${options.rounds} done`);
    }
  } finally {
    peerClient.close();
    peer.stop();
  }
  const name = `serve/closed/${options.concurrency}`;
  const cases = VALUES.map(({ name: value, unit, of }) => {
    const [ours, theirs] = [rounds.map(({ tandem }) => of(tandem)), rounds.map(({ peer: one }) => of(one))];
    const ratio = rounded(median(ours.map((each, round) => each / theirs[round])));
    return { name: `${name}/${value}`, tandem: spread(ours), peer: spread(theirs), peer_name: PEER_NAME, ratio, unit };
  });
  const failed = rounds.reduce((sum, round) => sum + round.tandem.failed + round.peer.failed, 0);
  const row = (one) => [one.name, one.tandem.median, one.peer.median, one.ratio].map(String);
  console.log(`\n${table([['case', 'tandem', 'peer', 'ratio'], ...cases.map(row)])}\n${failed} requests failed`);
  return { result: { variants: [peer.variant], cases, rounds }, failed };
}
