/**
 * What trains: plain arithmetic, where the weights after a job depend on every token, gradient and step and on nothing else, or the real
 * engine in its process with the starter model.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { EngineSupervisor } from '../../../dist/control/engine/supervisor.js';
import { loadModel } from '../../../dist/control/models/load.js';
import { point } from '../../fixtures/faults.mjs';

const STARTER = fileURLToPath(new URL('../../../models/starter', import.meta.url));

const SPEC = {
  architecture: 'qwen3',
  vocabSize: 512,
  hiddenSize: 4,
  intermediateSize: 4,
  layers: 1,
  heads: 1,
  kvHeads: 1,
  headDim: 4,
  rmsNormEps: 1e-6,
  ropeTheta: 10_000,
  ropeScaling: { type: 'none' },
  maxPosition: 512,
  slidingWindow: 0,
  windowLayers: new Uint8Array(1),
  qkvBias: false,
  outputBias: false,
  mlpBias: false,
  qkNorm: true,
  tiedEmbeddings: true,
};

const zeros = (weights) =>
  weights.factors.map(({ a, b }) => ({ a: new Float32Array(a.length), b: new Float32Array(b.length) }));

class Session {
  #weights;
  #optimizer;
  #gradients;
  #row = null;
  #closed = false;
  #delayMs;

  constructor(state, delayMs) {
    const copy = structuredClone(state);
    this.#weights = copy.weights;
    this.#optimizer = copy.optimizer;
    this.#gradients = zeros(copy.weights);
    this.#delayMs = delayMs;
  }

  async forward(row) {
    await this.#call();
    this.#row = row;
    const { a } = this.#weights.factors[0];
    const logprobs = Float32Array.from(row.targets, (target, at) =>
      target < 0 ? 0 : -1.5 + 0.3 * Math.tanh(a[(row.tokens[at] + target) % a.length]),
    );
    return { logprobs, entropies: new Float32Array(row.tokens.length) };
  }

  async backward(gradients) {
    await this.#call();
    this.#gradients.forEach(({ a, b }, f) =>
      this.#row.targets.forEach((target, at) => {
        if (target < 0) return;
        a[(this.#row.tokens[at] * 31 + target + f) % a.length] += gradients[at];
        b[(this.#row.tokens[at] + target * 17 + f) % b.length] += gradients[at] * 0.5;
      }),
    );
  }

  async optimize({ learningRate }) {
    await this.#call();
    const moments = () =>
      zeros(this.#weights).map(({ a, b }) => ({ a: { m: a, v: a.slice() }, b: { m: b, v: b.slice() } }));
    this.#optimizer ??= { steps: 0, moments: moments() };
    this.#optimizer.steps++;
    point('optimize');
    this.#weights.factors.forEach((factor, f) => {
      for (const part of ['a', 'b']) {
        const { m, v } = this.#optimizer.moments[f][part];
        factor[part].forEach((value, i) => {
          const g = this.#gradients[f][part][i];
          m[i] = 0.9 * m[i] + 0.1 * g;
          v[i] = 0.99 * v[i] + 0.01 * g * g;
          factor[part][i] = value - (learningRate * m[i]) / (Math.sqrt(v[i]) + 1e-8);
        });
      }
    });
    this.#gradients = zeros(this.#weights);
    return { gradNorm: 1, applied: true };
  }

  async state() {
    await this.#call();
    return structuredClone({ weights: this.#weights, optimizer: this.#optimizer });
  }

  close() {
    this.#closed = true;
  }

  async #call() {
    await sleep(this.#delayMs);
    if (this.#closed) throw new Error('The session was closed.');
  }
}

function plainEngine(delayMs) {
  return {
    openTrainer: (state) => Promise.resolve(new Session(state, delayMs)),
    loadAdapter: () => Promise.resolve(),
    unloadAdapter: () => Promise.resolve(),
  };
}

async function nativeEngine() {
  const { spec, files, tensors, tokenizerSize } = await loadModel(STARTER);
  const config = {
    spec,
    files,
    tensors,
    dtype: 'bfloat16',
    threads: 2,
    maxSequences: 4,
    maxBatchTokens: 64,
    maxModelLen: 128,
    samplableVocab: tokenizerSize,
    maxLogprobs: 0,
    kvCacheBytes: 4 * 2 ** 20,
    enableChunkedPrefill: true,
    faults: [],
  };
  const engine = new EngineSupervisor({ config, maxWaitingRequests: 100, maxWaitingTokens: 100_000 });
  await engine.ready();
  return { engine, spec };
}

/** Trajectories carry their prompts' ids: nothing is rendered. */
const CHAT = {
  vocabSize: SPEC.vocabSize,
  maxModelLen: SPEC.maxPosition,
  chatTemplate: null,
  encodeChat: () => Promise.reject(new Error('not rendered here')),
  encodeText: () => Promise.reject(new Error('not rendered here')),
};

/** `delayMs`: of each call of plain arithmetic. */
export async function openEngine(kind, delayMs) {
  if (kind === 'plain')
    return { engine: plainEngine(delayMs), chat: CHAT, spec: SPEC, pid: null, close: () => Promise.resolve() };
  const { engine, spec } = await nativeEngine();
  return { engine, chat: CHAT, spec, pid: engine.pid, close: () => engine.close() };
}
