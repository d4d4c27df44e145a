/**
 * A native addon without a model: the next token is a hash of every token so far, read back through the page table, so
 * that a wrong page, position, token or output index shows up as different text. It also checks each plan as strictly as
 * the contract in src/control/engine/native.ts allows. JavaScript, because child processes of the tests load it too.
 */
const PAGE_SIZE = 16;
const EMPTY = -1;

export class FakeNativeEngine {
  /** @param {{maxSequences: number, maxBatchTokens: number, pages: number, maxModelLen: number, samplableVocab: number}} options */
  constructor(options, { onStep, onCall, nanPrompt, queues = false } = {}) {
    this.options = options;
    this.onStep = onStep;
    this.onCall = onCall;
    /** A prompt that begins with this id makes the sequence fail with finish code 3. */
    this.nanPrompt = nanPrompt;
    this.keys = new Int32Array(options.pages * PAGE_SIZE).fill(EMPTY);
    this.slots = new Map();
    this.steps = 0;
    this.maxStepTokens = 0;
    this.maxOpen = 0;
    this.busy = false;
    this.closed = false;
    /** The step that waits for the running one. */
    this.waiting = null;
    this.rowsInVain = 0;
    this.joins = 0;
    if (queues) this.retract = () => this.takeBack();
  }

  async step(plan) {
    const waits = this.busy;
    this.waitsForStep = waits;
    if (waits && (this.waiting || !this.retract)) throw new Error('a step is running already');
    this.busy = true;
    this.onCall?.();
    const copy = copyOf(plan);
    if (waits) await new Promise((begin, reject) => (this.waiting = { begin, reject }));
    try {
      // Native steps end in a later turn of the event loop, in which messages are read as well.
      await new Promise((resolve) => setImmediate(resolve));
      await this.onStep?.(this.steps + 1);
      // What has come by then still finds the step that waits.
      if (this.retract) await new Promise((resolve) => setImmediate(resolve));
      return this.run(copy);
    } finally {
      this.busy = this.waiting !== null;
      this.waiting?.begin();
      this.waiting = null;
    }
  }

  takeBack() {
    if (!this.waiting) return false;
    this.waiting.reject(new Error('the step was taken back'));
    this.waiting = null;
    this.joins++;
    return true;
  }

  close() {
    this.closed = true;
  }

  async readPages(pages) {
    const blocks = Array.from(pages, (page) => this.keys.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE));
    return new Uint8Array(Int32Array.from(blocks.flatMap((block) => [...block])).buffer);
  }

  async writePages(pages, bytes) {
    const keys = new Int32Array(Uint8Array.from(bytes).buffer);
    pages.forEach((page, index) =>
      this.keys.set(keys.subarray(index * PAGE_SIZE, (index + 1) * PAGE_SIZE), page * PAGE_SIZE),
    );
  }

  run({ opens, closes, pages, rows, tokens, controls = [], scored = new Int32Array(rows.length / 4), ahead = false }) {
    this.steps++;
    const controlOf = new Map(controls.map((control) => [control.slot, control]));
    for (const slot of closes)
      if (!this.slots.delete(slot)) throw new Error(`close of slot ${slot}, which is not open`);
    for (const open of opens) this.open(open);
    for (let i = 0; i < pages.length; i += 3) this.assign(pages[i], pages[i + 1], pages[i + 2]);
    const results = [];
    const scores = [];
    const seen = new Set();
    let offset = 0;
    for (let i = 0; i < rows.length; i += 4) {
      const [slot, start, count, samples] = rows.subarray(i, i + 4);
      if (seen.has(slot)) throw new Error(`two rows of slot ${slot}`);
      seen.add(slot);
      const proposed = tokens.subarray(offset + count - Math.max(0, samples - 1), offset + count);
      const fed = count - proposed.length;
      if (this.state(slot).ended) {
        if (!ahead) throw new Error(`a row of slot ${slot}, whose sequence has ended`);
        this.spoil(slot, start);
        offset += count;
        continue;
      }
      this.feed(slot, start, tokens.subarray(offset, offset + fed));
      scores.push(...this.score(slot, start, start + fed), ...this.scoreForced(slot, start, fed, scored[i / 4]));
      offset += count;
      this.state(slot).sampledLast = samples > 0;
      if (samples > 0) results.push(this.sample(slot, controlOf.get(slot)));
      if (samples === 1) controlOf.delete(slot);
      if (samples > 1) results.push(...this.samplePast(slot, proposed, results.at(-1)));
    }
    if (controlOf.size > 0) throw new Error('controls of a slot that does not sample');
    if (offset !== tokens.length) throw new Error(`${tokens.length} tokens for rows of ${offset}`);
    if (offset > this.options.maxBatchTokens) throw new Error(`a step of ${offset} tokens`);
    this.maxStepTokens = Math.max(this.maxStepTokens, offset);
    for (const { slot, finish } of results) this.state(slot).ended = finish !== 0;
    return resultOf(results, scores);
  }

  /** A device computes a row in vain, too: nobody may read what it leaves. */
  spoil(slot, start) {
    const state = this.state(slot);
    if (start !== state.position) throw new Error(`slot ${slot} stands at ${state.position}, not at ${start}`);
    this.keys[this.cell(state, start)] = EMPTY;
    this.rowsInVain++;
  }

  open({ slot, promptLength, sampling, cached = new Int32Array(0), promptLogprobs = -1, constraint = null }) {
    if (slot < 0 || slot >= this.options.maxSequences) throw new Error(`slot ${slot} does not exist`);
    if (this.slots.has(slot)) throw new Error(`slot ${slot} is open already`);
    if (sampling.minTokens > sampling.maxTokens) throw new Error('minTokens is more than maxTokens');
    if (promptLogprobs >= 0 && cached.length > 0) throw new Error('promptLogprobs with cached tokens');
    if (cached.length % PAGE_SIZE !== 0) throw new Error(`${cached.length} cached tokens, which are not full pages`);
    const position = cached.length;
    const state = { promptLength, sampling, position, pages: [], last: EMPTY, cached, promptLogprobs, constraint };
    this.slots.set(slot, { ...state, sampledLast: true });
    this.maxOpen = Math.max(this.maxOpen, this.slots.size);
  }

  assign(slot, index, page) {
    const state = this.state(slot);
    if (index !== state.pages.length) throw new Error(`page ${index} of slot ${slot} after ${state.pages.length}`);
    if (page < 0 || page >= this.options.pages) throw new Error(`page ${page} does not exist`);
    state.pages.push(page);
    if (index * PAGE_SIZE < state.cached.length) return this.checkCached(state.cached, index, page);
    // What the last owner left must never be read.
    this.keys.fill(EMPTY, page * PAGE_SIZE, (page + 1) * PAGE_SIZE);
  }

  /** A page that is said to hold tokens must hold them, and these alone. */
  checkCached(cached, index, page) {
    for (let i = 0; i < PAGE_SIZE; i++) {
      if (this.keys[page * PAGE_SIZE + i] !== cached[index * PAGE_SIZE + i])
        throw new Error(`page ${page} does not hold the cached tokens of block ${index}`);
    }
  }

  /** The scores of the prompt tokens among these positions: any numbers that tell token and position. */
  score(slot, start, end) {
    const { promptLogprobs, promptLength } = this.state(slot);
    const scores = [];
    for (let position = Math.max(1, start); promptLogprobs >= 0 && position < Math.min(end, promptLength); position++) {
      const token = this.keys[this.cell(this.state(slot), position)];
      scores.push({ slot, position, token, count: promptLogprobs });
    }
    return scores;
  }

  /** The position before the first must have been fed by this slot, and no token sampled since. */
  scoreForced(slot, start, count, scored) {
    const state = this.state(slot);
    if (scored > count) throw new Error(`${scored} scores of ${count} tokens`);
    if (scored === count && (state.sampledLast || start === state.cached.length))
      throw new Error(`slot ${slot} scores a token after a position that it did not keep`);
    return Array.from({ length: scored }, (_, index) => {
      const position = start + count - scored + index;
      if (position < state.promptLength) throw new Error('a forced token in the prompt');
      return { slot, position, token: this.keys[this.cell(state, position)], count: state.sampling.logprobs };
    });
  }

  feed(slot, start, tokens) {
    const state = this.state(slot);
    if (start !== state.position) throw new Error(`slot ${slot} stands at ${state.position}, not at ${start}`);
    if (tokens.length < 1) throw new Error('an empty row');
    if (start + tokens.length >= this.options.maxModelLen) throw new Error(`slot ${slot} is too long`);
    for (const given of tokens) {
      if (given === EMPTY && state.last === EMPTY) throw new Error('-1 where nothing was sampled');
      this.keys[this.cell(state, state.position++)] = given === EMPTY ? state.last : given;
    }
  }

  /** With allowed ids it takes the first of them. */
  sample(slot, control) {
    const state = this.state(slot);
    const { sampling, promptLength } = state;
    const output = state.position - promptLength;
    if (output < 0) throw new Error(`slot ${slot} samples within its prompt`);
    if (output >= sampling.maxTokens) throw new Error(`slot ${slot} samples more than maxTokens`);
    const history = this.history(state);
    if (history.includes(EMPTY)) throw new Error(`slot ${slot} reads a position that was never written`);
    const token = control?.allowedIds?.[0] ?? nextToken(history, output, sampling, this.options.samplableVocab);
    state.last = token;
    if (history[0] === this.nanPrompt) return { slot, token: 0, finish: 3, sampling };
    const finish = finishOf(token, output, sampling);
    state.constraint?.take([...history.slice(promptLength), token]);
    const forced = finish === 0 && state.constraint !== null && state.constraint.forced().length > 0;
    return { slot, token, finish, sampling, forced };
  }

  /** Goes on while what is sampled was proposed. The engine has computed the other proposals too: they lie in the pages. */
  samplePast(slot, proposed, first) {
    const state = this.state(slot);
    const begin = state.position;
    proposed.forEach((token, index) => (this.keys[this.cell(state, begin + index)] = token));
    const results = [];
    let last = first;
    for (const token of proposed) {
      if (last.finish !== 0 || last.token !== token) break;
      state.position++;
      last = this.sample(slot);
      results.push(last);
    }
    return results;
  }

  /** What the pages hold up to the position. */
  history(state) {
    const history = new Int32Array(state.position);
    for (let start = 0; start < state.position; start += PAGE_SIZE) {
      const cell = this.cell(state, start);
      history.set(this.keys.subarray(cell, cell + Math.min(PAGE_SIZE, state.position - start)), start);
    }
    return history;
  }

  cell(state, position) {
    const page = state.pages[Math.floor(position / PAGE_SIZE)];
    if (page === undefined) throw new Error(`position ${position} has no page`);
    return page * PAGE_SIZE + (position % PAGE_SIZE);
  }

  state(slot) {
    const state = this.slots.get(slot);
    if (!state) throw new Error(`slot ${slot} is not open`);
    return state;
  }
}

/** Output `index` after `history` (prompt and outputs). */
export function nextToken(history, index, sampling, vocabulary) {
  let hash = mix(Number(BigInt.asUintN(32, sampling.seed)) ^ mix(sampling.choice + 1) ^ mix(index + 77));
  for (let at = 0; at < history.length; at++) hash = mix(hash ^ (history[at] + 1));
  const token = hash % vocabulary;
  return index < sampling.minTokens && sampling.stopIds.includes(token) ? (token + 1) % vocabulary : token;
}

/** The outputs of a sequence that runs alone. */
export function expectedOutputs({ promptIds, sampling }, vocabulary, maxModelLen = Infinity) {
  const history = [...promptIds];
  const outputs = [];
  const maxTokens = Math.min(sampling.maxTokens, maxModelLen - promptIds.length);
  for (;;) {
    const token = nextToken(history, outputs.length, sampling, vocabulary);
    const finish = finishOf(token, outputs.length, { ...sampling, maxTokens });
    outputs.push(token);
    history.push(token);
    if (finish !== 0) return { tokens: outputs, finish: finish === 1 ? 'stop' : 'length' };
  }
}

function finishOf(token, index, { stopIds, minTokens, maxTokens }) {
  if (index >= minTokens && stopIds.includes(token)) return 1;
  return index + 1 >= maxTokens ? 2 : 0;
}

function mix(value) {
  let hash = value | 0;
  hash = Math.imul(hash ^ (hash >>> 16), 0x7feb352d);
  hash = Math.imul(hash ^ (hash >>> 15), 0x846ca68b);
  return (hash ^ (hash >>> 16)) >>> 0;
}

/** A plan of one's own: the scheduler writes the next one into the same buffers. Handles of adapters have functions, and no part in the text. */
function copyOf(plan) {
  const opens = plan.opens.map((open) => ({
    ...structuredClone({ ...open, adapter: undefined, constraint: undefined }),
    constraint: open.constraint,
  }));
  const arrays = Object.entries(plan).filter(([, value]) => ArrayBuffer.isView(value));
  return { ...plan, ...Object.fromEntries(arrays.map(([name, array]) => [name, array.slice()])), opens };
}

/** `of` each row, in a typed array. */
function column(Type, rows, of) {
  const values = new Type(rows.length);
  for (let row = 0; row < rows.length; row++) values[row] = of(rows[row]);
  return values;
}

/** With logprobs: the sampled token's is -token/8, and the best are its followers. */
function resultOf(results, scores) {
  const topIds = [];
  const rangesOf = (rows, countOf) => {
    const ranges = new Int32Array(2 * rows.length);
    rows.forEach((row, index) => {
      ranges.set([topIds.length, countOf(row)], 2 * index);
      for (let i = 0; i < countOf(row); i++) topIds.push(row.token + i);
    });
    return ranges;
  };
  const topRanges = rangesOf(results, ({ sampling }) => Math.max(0, sampling.logprobs));
  const promptTopRanges = rangesOf(scores, ({ count }) => Math.max(0, count));
  return {
    slots: column(Int32Array, results, ({ slot }) => slot),
    tokens: column(Int32Array, results, ({ token }) => token),
    finish: column(Uint8Array, results, ({ finish }) => finish),
    forced: column(Uint8Array, results, ({ forced }) => Number(forced === true)),
    logprobs: column(Float32Array, results, ({ token, sampling }) => (sampling.logprobs < 0 ? NaN : -token / 8)),
    ranks: column(Int32Array, results, ({ sampling }) => (sampling.logprobs < 0 ? 0 : 1)),
    topRanges,
    topIds: Int32Array.from(topIds),
    topLogprobs: column(Float32Array, topIds, (id) => -id / 8),
    promptSlots: column(Int32Array, scores, ({ slot }) => slot),
    promptPositions: column(Int32Array, scores, ({ position }) => position),
    promptLogprobs: column(Float32Array, scores, ({ token }) => -token / 8),
    promptRanks: column(Int32Array, scores, ({ position }) => position + 1),
    promptTopRanges,
    micros: 5,
  };
}

/** A NativeAddon. `weightBytes` and `pageBytes` are those of a toy. `gpu`: what models on cuda have. */
export function fakeAddon({ onStep, onCall, nanPrompt, queues = true, onLoad, gpu } = {}) {
  return {
    info: () => ({ version: 'fake', isa: 'fake', isas: ['fake'], cuda: { built: false, devices: 0, message: '' } }),
    loadModel: async (spec, files, tensors, options) => {
      await onLoad?.();
      options.onProgress?.(1000, 1000);
      const own = options.device === 'cuda' ? (gpu ?? null) : null;
      return { weightBytes: 1000, weightCache: 'unused', pageBytes: 1024, gpu: own, close() {} };
    },
    liveAdapters: () => 0,
    createEngine: (model, options) => new FakeNativeEngine(options, { onStep, onCall, nanPrompt, queues }),
  };
}
