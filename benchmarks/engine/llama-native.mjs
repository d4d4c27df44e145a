/**
 * llama.cpp through the native layer of node-llama-cpp. Batches are put together here, as llama.cpp's own llama-batched-bench and server
 * do it: node-llama-cpp's scheduling over event loop turns would leave the sequence that was sampled last out of each batch (7 of 8
 * streams per step), which says nothing about llama.cpp.
 */
import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';

const PEERS = path.resolve(import.meta.dirname, '../peers/node_modules');
const BINARIES = path.join(PEERS, '@node-llama-cpp/linux-x64/bins/linux-x64');
/** llama.cpp's own batch and micro-batch. */
const BATCH = 512;

/** One context: sequences 0..n-1, each fed where it stands and sampled greedily. */
class LlamaContext {
  #native;
  #samplers;
  /** By sequence, how many tokens it holds. */
  #lengths;

  constructor(native, samplers) {
    this.#native = native;
    this.#samplers = samplers;
    this.#lengths = samplers.map(() => 0);
  }

  /** Forgets a sequence's tokens but for the first `count`; returns how many it holds then. */
  keep(sequence, count) {
    const kept = Math.min(count, this.#lengths[sequence]);
    if (kept === 0) this.#native.disposeSequence(sequence);
    else this.#native.removeTokenCellsFromSequence(sequence, kept, -1);
    this.#lengths[sequence] = kept;
    return kept;
  }

  /**
   * One batch: as many tokens of the pieces { sequence, position, ids } as it holds, in their order. Pieces lose what was fed. Returns
   * the token that was sampled after each piece that ended, by sequence.
   */
  async step(pieces) {
    const batch = [];
    let room = BATCH;
    for (const piece of pieces) {
      if (room === 0) break;
      const count = Math.min(room, piece.ids.length);
      batch.push({ piece, count });
      room -= count;
    }
    this.#native.initBatch(BATCH - room);
    const ready = batch.map((one) => this.#add(one)).filter((one) => one !== null);
    await this.#native.decodeBatch();
    const sample = ({ sequence, index }) => this.#native.sampleToken(index, this.#samplers[sequence]);
    const tokens = await Promise.all(ready.map(sample));
    return new Map(ready.map(({ sequence }, at) => [sequence, tokens[at]]));
  }

  #add({ piece, count }) {
    const ends = count === piece.ids.length;
    const tokens = Uint32Array.from(piece.ids.slice(0, count));
    const logits = Uint32Array.from(ends ? [count - 1] : []);
    const [index] = this.#native.addToBatch(piece.sequence, piece.position, tokens, logits);
    piece.ids = piece.ids.slice(count);
    piece.position += count;
    this.#lengths[piece.sequence] = piece.position;
    return ends ? { sequence: piece.sequence, index } : null;
  }
}

/** Loads one of llama.cpp's CPU back-ends (haswell: AVX2) before node-llama-cpp picks the best one that the machine can run. */
function forceBackend(name) {
  const folder = mkdtempSync(path.join(tmpdir(), 'llama-backend-'));
  const file = `libggml-cpu-${name}.so`;
  symlinkSync(path.join(BINARIES, file), path.join(folder, file));
  createRequire(import.meta.url)(path.join(BINARIES, 'llama-addon.node')).loadBackends(folder);
  rmSync(folder, { recursive: true });
}

/** { variant, tokenize, detokenize, createContext({ sequences, contextSize, flashAttention }) }; contextSize per sequence. */
export async function loadLlama({ gguf, threads, backend }) {
  if (backend) forceBackend(backend);
  const { getLlama } = await import(path.join(PEERS, 'node-llama-cpp/dist/index.js'));
  const samplerFile = path.join(PEERS, 'node-llama-cpp/dist/evaluator/LlamaContext/LlamaSampler.js');
  const { LlamaSampler } = await import(samplerFile);
  const options = { gpu: false, build: 'never', skipDownload: true, progressLogs: false, logLevel: 'error' };
  const llama = await getLlama({ ...options, maxThreads: threads });
  const model = await llama.loadModel({ modelPath: gguf });
  const features = llama.systemInfo.split('|').map((part) => part.replace('CPU :', '').trim());
  const used = features.filter((part) => part.endsWith('= 1')).map((part) => part.replace(' = 1', ''));
  return {
    variant: `llama.cpp ${llama.llamaCppRelease.release} ${used.join(' ')}`,
    tokenize: (text) => model.tokenize(text),
    detokenize: (ids) => model.detokenize(ids),
    async createContext({ sequences, contextSize, flashAttention }) {
      const size = { sequences, contextSize, batchSize: BATCH, flashAttention };
      const context = await model.createContext({ ...size, threads: { ideal: threads, min: threads } });
      context._ctx.setThreads(threads);
      const samplers = Array.from({ length: sequences }, () => {
        const sampler = new LlamaSampler(model);
        sampler.applyConfig({ temperature: 0 });
        return sampler._sampler;
      });
      return new LlamaContext(context._ctx, samplers);
    },
  };
}
