/** One streamed request to an OpenAI-compatible server, with the time of each of its events. */
import http from 'node:http';
import https from 'node:https';
import { createParser } from 'eventsource-parser';

export class BenchClient {
  #base;
  #transport;
  #agent;
  #options;

  /** options: { baseUrl, apiKey, model, endpoint: 'chat' | 'completions', ignoreEos, timeoutMs, keepAlive (default true) } */
  constructor(options) {
    this.#options = options;
    this.#base = options.baseUrl.replace(/\/+$/, '');
    this.#transport = this.#base.startsWith('https:') ? https : http;
    this.#agent = new this.#transport.Agent({ keepAlive: options.keepAlive ?? true, maxSockets: Infinity });
  }

  #body(prompt, outputTokens, stream) {
    const { model, endpoint, ignoreEos } = this.#options;
    const chat = { messages: [{ role: 'user', content: prompt }], max_completion_tokens: outputTokens };
    return JSON.stringify({
      model,
      ...(endpoint === 'chat' ? chat : { prompt, max_tokens: outputTokens }),
      temperature: 0,
      ...(ignoreEos ? { ignore_eos: true } : {}),
      ...(stream ? { stream: true, stream_options: { include_usage: true } } : {}),
    });
  }

  #send(path, body, onResponse, onError) {
    const headers = { 'Content-Type': 'application/json' };
    if (body !== null) headers['Content-Length'] = Buffer.byteLength(body);
    if (this.#options.apiKey) headers.Authorization = `Bearer ${this.#options.apiKey}`;
    const options = { method: body === null ? 'GET' : 'POST', agent: this.#agent, headers };
    const request = this.#transport.request(`${this.#base}${path}`, options, onResponse);
    request.setTimeout(this.#options.timeoutMs, () => request.destroy(new Error('timed out')));
    request.on('error', onError);
    request.end(body ?? undefined);
  }

  /** A whole JSON answer; rejects on any status but 200. */
  json(path, body = null) {
    return new Promise((resolve, reject) => {
      const collect = (response) => {
        let text = '';
        response.setEncoding('utf8').on('data', (chunk) => (text += chunk));
        response.on('error', reject);
        response.on('end', () => {
          if (response.statusCode === 200) resolve(JSON.parse(text));
          else reject(new Error(`${path} answered ${response.statusCode}: ${text.slice(0, 300)}`));
        });
      };
      this.#send(path, body, collect, reject);
    });
  }

  get #path() {
    return this.#options.endpoint === 'chat' ? '/chat/completions' : '/completions';
  }

  /** Prompt tokens as the server counts them. */
  async promptTokens(prompt) {
    const answer = await this.json(this.#path, this.#body(prompt, 1, false));
    return answer.usage.prompt_tokens;
  }

  /**
   * Resolves with { start, times, end, promptTokens, outputTokens, error }: times in ms of every event that brought text.
   * A failure is a result too: what fails under load is part of what is measured. After `leaveAfter` events the client hangs up.
   */
  stream(prompt, outputTokens, leaveAfter = Infinity) {
    const result = { start: performance.now(), times: [], end: 0, promptTokens: 0, outputTokens: 0, error: null };
    return new Promise((resolve) => {
      const finish = (error) => {
        if (result.end > 0) return;
        result.end = performance.now();
        result.error = error;
        resolve(result);
      };
      const receive = (response) => {
        response.setEncoding('utf8').on('error', (error) => finish(error.message));
        if (response.statusCode !== 200) {
          let text = '';
          response.on('data', (chunk) => (text += chunk));
          response.on('end', () => finish(`status ${response.statusCode}: ${text.slice(0, 200)}`));
          return;
        }
        const parser = createParser({ onEvent: (event) => this.#event(event.data, result, finish) });
        response.on('data', (chunk) => {
          parser.feed(chunk);
          if (result.times.length < leaveAfter) return;
          finish(null);
          response.destroy();
        });
        response.on('end', () => finish('the stream ended without [DONE]'));
      };
      this.#send(this.#path, this.#body(prompt, outputTokens, true), receive, (error) => finish(error.message));
    });
  }

  #event(data, result, finish) {
    if (data === '[DONE]') return finish(null);
    const chunk = JSON.parse(data);
    if (chunk.error) return finish(chunk.error.message ?? 'error event');
    const choice = chunk.choices?.[0];
    const text = choice?.delta?.content ?? choice?.delta?.reasoning ?? choice?.text;
    if (text) result.times.push(performance.now());
    if (chunk.usage) {
      result.promptTokens = chunk.usage.prompt_tokens;
      result.outputTokens = chunk.usage.completion_tokens;
    }
  }

  close() {
    this.#agent.destroy();
  }
}
