/**
 * llama.cpp behind a plain HTTP server, for bench:serve: `node llama-server.mjs GGUF SEQUENCES CONTEXT THREADS`. Streams text completions
 * (greedy, to their full length) from continuous batches, running sequences first, as llama.cpp's own server puts them together. Prints
 * its address when it is ready.
 */
import http from 'node:http';
import { loadLlama } from '../engine/llama-native.mjs';

const [gguf, sequences, contextSize, threads] = process.argv.slice(2);
const MODEL = 'llama.cpp';

class Batcher {
  #context;
  #free;
  #waiting = [];
  #running = [];
  #stepping = false;

  constructor(context, count) {
    this.#context = context;
    this.#free = Array.from({ length: count }, (_, index) => index);
  }

  /** job: { ids, most, onToken(token), onEnd() } */
  add(job) {
    this.#waiting.push({ ...job, tokens: 0 });
    if (!this.#stepping) void this.#run();
  }

  /** The client has gone. */
  remove(onEnd) {
    this.#waiting = this.#waiting.filter((job) => job.onEnd !== onEnd);
    for (const job of this.#running) if (job.onEnd === onEnd) job.most = 0;
  }

  #admit() {
    while (this.#free.length > 0 && this.#waiting.length > 0) {
      const job = this.#waiting.shift();
      const sequence = this.#free.pop();
      this.#context.keep(sequence, 0);
      this.#running.push({ ...job, piece: { sequence, position: 0, ids: job.ids } });
    }
  }

  #take(job, token) {
    if (job.tokens < job.most) job.onToken(token);
    if (++job.tokens < job.most) return void (job.piece.ids = [token]);
    this.#free.push(job.piece.sequence);
    this.#running.splice(this.#running.indexOf(job), 1);
    job.onEnd();
  }

  async #run() {
    this.#stepping = true;
    for (this.#admit(); this.#running.length > 0; this.#admit()) {
      // Decoding first: a prompt fills what the batch has left.
      const order = [...this.#running].sort((a, b) => Math.min(1, b.tokens) - Math.min(1, a.tokens));
      const sampled = await this.#context.step(order.map(({ piece }) => piece));
      for (const job of order) if (sampled.has(job.piece.sequence)) this.#take(job, sampled.get(job.piece.sequence));
    }
    this.#stepping = false;
  }
}

async function readBody(request) {
  let text = '';
  for await (const chunk of request.setEncoding('utf8')) text += chunk;
  return JSON.parse(text);
}

function answerStream(response, llama, prompt, most, batcher) {
  const ids = llama.tokenize(prompt);
  const event = (value) => response.write(`data: ${typeof value === 'string' ? value : JSON.stringify(value)}\n\n`);
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  const onEnd = () => {
    event({ choices: [], usage: { prompt_tokens: ids.length, completion_tokens: most } });
    event('[DONE]');
    response.end();
  };
  // A token that is half of a character still is an event.
  const onToken = (token) => event({ choices: [{ index: 0, text: llama.detokenize([token]) || ' ' }] });
  response.on('close', () => batcher.remove(onEnd));
  batcher.add({ ids, most, onToken, onEnd });
}

function answerWhole(response, llama, prompt, most, batcher) {
  const ids = llama.tokenize(prompt);
  const tokens = [];
  const onEnd = () => {
    const usage = { prompt_tokens: ids.length, completion_tokens: tokens.length };
    response.writeHead(200, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify({ choices: [{ index: 0, text: llama.detokenize(tokens) }], usage }));
  };
  batcher.add({ ids, most, onToken: (token) => tokens.push(token), onEnd });
}

const llama = await loadLlama({ gguf, threads: Number(threads) });
const size = { sequences: Number(sequences), contextSize: Number(contextSize), flashAttention: true };
const batcher = new Batcher(await llama.createContext(size), size.sequences);
const server = http.createServer(async (request, response) => {
  if (request.url === '/v1/models') return response.end(JSON.stringify({ data: [{ id: MODEL }] }));
  if (request.url !== '/v1/completions') return response.writeHead(404).end();
  const { prompt, max_tokens: most, stream } = await readBody(request);
  (stream ? answerStream : answerWhole)(response, llama, prompt, most, batcher);
});
server.listen(0, '127.0.0.1', () => {
  console.log(JSON.stringify({ origin: `http://127.0.0.1:${server.address().port}`, variant: llama.variant }));
});
process.on('disconnect', () => process.exit(0));
