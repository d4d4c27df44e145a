/**
 * Native calls whose outcome is fixed, in every state of a handle. Prints [[name, outcome], ...]; an outcome is `ok` or the
 * error's name and message.
 */
import { closeSync, constants, openSync, truncateSync, writeFileSync } from 'node:fs';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import {
  closePlan,
  createEngine,
  ENGINE,
  firstPlan,
  loadAddon,
  loadModel,
  nextPlan,
  readInput,
  specOf,
} from '../fixtures/native-model.mjs';

const input = await readInput();
const { description, scratch } = input;
const addon = loadAddon(description);
const model = await loadModel(addon, description);
const outcomes = [];
const PROMPT = [1, 2, 3, 4, 5];
const MODEL_LEN = ENGINE.maxModelLen;

async function outcome(call) {
  try {
    await call();
    return 'ok';
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
}

async function record(name, call) {
  outcomes.push([name, await outcome(call)]);
}

/**
 * A plan that must be refused, on an engine where slot 1 runs and has sampled. The refusal must leave the engine as it was:
 * slot 1 goes on, and slot 0 can still be opened on page 0.
 */
async function refused(name, plan) {
  const engine = createEngine(addon, model, description);
  const first = (await engine.step(firstPlan(1, 1, PROMPT))).tokens[0];
  await record(name, () => engine.step(typeof plan === 'function' ? plan(engine) : plan));
  if (outcomes.at(-1)[1] === 'ok') return engine.close();
  const second = (await engine.step(nextPlan(1, PROMPT.length))).tokens[0];
  const other = (await engine.step(firstPlan(0, 0, PROMPT))).tokens[0];
  engine.close();
  if (other !== first) throw new Error(`${name}: slot 0 differs`);
  reference ??= second;
  if (second !== reference) throw new Error(`${name}: slot 1 differs`);
}
let reference;

function detached(array) {
  structuredClone(array.buffer, { transfer: [array.buffer] });
  return array;
}

const open = (changes, sampling = {}) => {
  const plan = firstPlan(0, 0, PROMPT, sampling);
  Object.assign(plan.opens[0], changes);
  return plan;
};
const change = (changes) => ({ ...firstPlan(0, 0, PROMPT), ...changes });
const i32 = (...values) => Int32Array.from(values);

async function plans() {
  await refused('slot negative', open({ slot: -1 }));
  await refused('slot past the end', open({ slot: ENGINE.maxSequences }));
  await refused('slot in use', { ...firstPlan(1, 2, PROMPT) });
  await refused('slot opened twice', { ...change({}), opens: [...change({}).opens, ...change({}).opens] });
  await refused('close of a free slot', change({ closes: i32(5) }));
  await refused('close twice', change({ closes: i32(1, 1) }));
  await refused('close out of range', change({ closes: i32(-5) }));
  await refused('closed slot still used', { ...nextPlan(1, PROMPT.length), closes: i32(1) });
  await refused('page negative', change({ pages: i32(0, 0, -1) }));
  await refused('page past the pool', change({ pages: i32(0, 0, ENGINE.pages) }));
  await refused('page index skipped', change({ pages: i32(0, 1, 3) }));
  await refused('page of a free slot', change({ pages: i32(0, 0, 0, 6, 0, 3) }));
  await refused('page missing', change({ pages: i32() }));
  await refused('pages not triples', change({ pages: i32(0, 0) }));
  await refused('rows not quadruples', change({ rows: i32(0, 0, 5) }));
  await refused('row of a free slot', change({ rows: i32(4, 0, 5, 1) }));
  await refused('two rows of a slot', change({ rows: i32(0, 0, 2, 0, 0, 2, 3, 1) }));
  await refused('row count 0', change({ rows: i32(0, 0, 0, 1) }));
  await refused('row count negative', change({ rows: i32(0, 0, -5, 1) }));
  await refused('row count huge', change({ rows: i32(0, 0, 2 ** 31 - 1, 1) }));
  await refused('row position skips', change({ rows: i32(0, 1, 5, 1) }));
  await refused('row position repeats', nextPlan(1, PROMPT.length - 1));
  await refused('row flag', change({ rows: i32(0, 0, 5, 2) }));
  await refused('token past the vocabulary', change({ tokens: i32(1, 2, description.spec.vocabSize, 4, 5) }));
  await refused('token below -1', change({ tokens: i32(1, 2, -2, 4, 5) }));
  await refused('last token in a long row', change({ tokens: i32(1, 2, 3, 4, -1) }));
  await refused('last token of a new slot', change({ rows: i32(0, 0, 1, 1), tokens: i32(-1) }));
  await refused('too few tokens', change({ tokens: i32(1, 2) }));
  await refused('too many tokens', change({ tokens: i32(1, 2, 3, 4, 5, 6) }));
  await refused('prompt length 0', open({ promptLength: 0 }));
  await refused('prompt length past the context', open({ promptLength: MODEL_LEN + 1 }));
}

async function controls() {
  const { vocabSize } = description.spec;
  const cases = {
    frequencyPenalty: [2.1, NaN, '1'],
    presencePenalty: [-2.1, -Infinity],
    repetitionPenalty: [0, -1, NaN, Infinity],
    allowedIds: [i32(vocabSize), i32(-1), i32(5, 3)],
    badWords: [[i32()], [i32(vocabSize)], [i32(1), i32(-1)], ['word'], i32(1), [detached(i32(1))]],
    logprobsMode: ['cooked', '', 1],
  };
  for (const [field, values] of Object.entries(cases)) {
    for (const [index, value] of values.entries()) {
      const wrongType =
        typeof value === 'string' ? field === 'frequencyPenalty' : field === 'logprobsMode' && index === 2;
      const type = wrongType || (field === 'badWords' && index >= 3) ? ' of another type' : '';
      await refused(`sampling.${field} case ${index}${type}`, open({}, { [field]: value }));
    }
  }
  const biases = [
    [i32(1), Float32Array.of(100.5)],
    [i32(1), Float32Array.of(NaN)],
    [i32(vocabSize), Float32Array.of(1)],
    [i32(1, 2), Float32Array.of(1)],
  ];
  for (const [index, [biasIds, biasValues]] of biases.entries()) {
    await refused(`bias case ${index}`, open({}, { biasIds, biasValues }));
  }
  await refused('biasIds without values of another type', open({}, { biasIds: i32(1) }));
  await refused('cached past the context', open({ cached: new Int32Array(MODEL_LEN) }));
  await refused('cached id past the vocabulary', open({ cached: i32(vocabSize) }));
  await refused('cached without its row', open({ cached: i32(1, 2, 3) }));
  await refused('cached detached', open({ cached: detached(i32(1, 2, 3)) }));
}

async function stepControls() {
  const { vocabSize } = description.spec;
  const control = (changes) => change({ controls: [{ slot: 0, ...changes }] });
  const cases = [
    { slot: 1 },
    { slot: 0.5 },
    { biasIds: i32(vocabSize), biasValues: Float32Array.of(1) },
    { biasIds: i32(1), biasValues: Float32Array.of(101) },
    { biasIds: i32(1, 2), biasValues: Float32Array.of(1) },
    { allowedIds: i32(-1) },
    { allowedIds: i32(5, 3) },
  ];
  for (const [index, changes] of cases.entries()) await refused(`step control ${index}`, control(changes));
  await refused('two step controls of one slot', change({ controls: [{ slot: 0 }, { slot: 0 }] }));
  await refused('step controls of another type', change({ controls: i32(0) }));
  await refused('a step control of another type', change({ controls: [5] }));
  await refused('step allowedIds of another type', control({ allowedIds: [1] }));
}

async function samplings() {
  const { vocabSize } = description.spec;
  const cases = {
    temperature: [-1, NaN, Infinity],
    topP: [0, 1.5, NaN],
    topK: [-1, 0.5, 2 ** 31],
    minP: [-0.1, 1.1, NaN],
    seed: [2n ** 64n, -(2n ** 64n), 5],
    choice: [-1, 2 ** 31],
    maxTokens: [0, -1, MODEL_LEN + 1],
    minTokens: [-1, 101],
    stopIds: [i32(vocabSize), i32(-1), new Int32Array(1025), [1]],
    logprobs: [-2, ENGINE.maxLogprobs + 1],
  };
  for (const [field, values] of Object.entries(cases)) {
    for (const value of values) {
      const shown = ArrayBuffer.isView(value) ? `${value.length} ids from ${value[0]}` : String(value);
      await refused(`sampling.${field} ${shown}`, open({}, { [field]: value }));
    }
  }
}

async function arrays() {
  for (const field of ['closes', 'pages', 'rows', 'tokens']) {
    await refused(`${field} detached`, change({ [field]: detached(change({})[field].slice()) }));
    await refused(`${field} a plain array`, change({ [field]: [0, 0, 0] }));
    await refused(`${field} of another type`, change({ [field]: Float32Array.from(change({})[field]) }));
  }
  await refused('closes detached and not empty', change({ closes: detached(i32(1)) }));
  await refused('stopIds detached', open({}, { stopIds: detached(i32(1)) }));
  await refused('a getter that throws', () => ({
    ...change({}),
    get rows() {
      throw new Error('mine');
    },
  }));
  const tokens = i32(...PROMPT);
  await refused('a getter that detaches another field and lies about its own', () => ({
    ...change({ tokens }),
    get opens() {
      detached(tokens);
      return change({}).opens;
    },
  }));
}

async function options() {
  const valid = { ...ENGINE, samplableVocab: description.spec.vocabSize };
  const cases = {
    maxSequences: [0, 4097, 1.5],
    maxBatchTokens: [0, 65537],
    pages: [0, 2 ** 31, -1],
    maxModelLen: [0, description.spec.maxPosition + 1],
    samplableVocab: [0, description.spec.vocabSize + 1],
    maxLogprobs: [-1, description.spec.vocabSize + 1],
  };
  for (const [field, values] of Object.entries(cases)) {
    for (const value of values) {
      await record(`options.${field} ${value}`, () => addon.createEngine(model, { ...valid, [field]: value }));
    }
  }
  await record('engine of no model', () => addon.createEngine({}, valid));
  await record('engine of an engine', () => addon.createEngine(createEngine(addon, model, description), valid));
  await record('engine of a copy of the model', () => addon.createEngine({ ...model }, valid));
  await record('engine of a child of the model', () => addon.createEngine(Object.create(model), valid));
}

async function files() {
  const { tensors, dtype } = description;
  const settings = { dtype, threads: 1 };
  const load = (spec, names, table, more = settings) =>
    addon.loadModel({ ...specOf(description), ...spec }, names, table, more);
  const edit = (changes) => tensors.map((tensor, index) => (index === 3 ? { ...tensor, ...changes } : tensor));
  const good = description.files;
  await record('file missing', () => load({}, [join(scratch, 'absent')], tensors));
  await record('file is a directory', () => load({}, [scratch], tensors));
  await record('file is a device', () => load({}, ['/dev/zero'], tensors));
  await pipe((name) => load({}, [name], tensors));
  await record('no files', () => load({}, [], tensors));
  writeFileSync(join(scratch, 'empty'), '');
  await record('file is empty', () => load({}, [join(scratch, 'empty')], tensors));
  await record('file index', () => load({}, good, edit({ file: 1 })));
  await record('file index negative', () => load({}, good, edit({ file: -1 })));
  await record('offset negative', () => load({}, good, edit({ offset: -4 })));
  await record('offset past the end', () => load({}, good, edit({ offset: 2 ** 52 })));
  await record('offset with a fraction', () => load({}, good, edit({ offset: 0.5 })));
  await record('shape overflows', () => load({}, good, edit({ shape: [2 ** 40, 2 ** 40] })));
  await record('shape too long', () => load({}, good, edit({ shape: new Array(100).fill(1) })));
  await record('shape of another size', () => load({}, good, edit({ shape: [1, 1] })));
  await record('dtype unknown', () => load({}, good, edit({ dtype: 'I8' })));
  await record('name missing', () => load({}, good, edit({ name: 'other' })));
  await record('name twice', () => load({}, good, [...tensors, tensors[0]]));
  await record('layers that are not there', () =>
    load({ layers: 50, windowLayers: new Uint8Array(50) }, good, tensors),
  );
  await record('windowLayers too short', () => load({ windowLayers: new Uint8Array(1) }, good, tensors));
  await record('heads not a multiple', () => load({ kvHeads: 3 }, good, tensors));
  await record('headDim odd', () => load({ headDim: 15 }, good, tensors));
  await record('threads 0', () => load({}, good, tensors, { dtype, threads: 0 }));
  await record('threads 257', () => load({}, good, tensors, { dtype, threads: 257 }));
  await record('dtype of the computation', () => load({}, good, tensors, { dtype: 'int8', threads: 1 }));
  const quantized = { ...settings, quantize: 'int8' };
  await record('quantize unknown', () => load({}, good, tensors, { ...settings, quantize: 'int3' }));
  await record('quantize for a device', () => load({}, good, tensors, { ...settings, quantize: 'fp8' }));
  await record('kvCacheDtype unknown', () => load({}, good, tensors, { ...settings, kvCacheDtype: 'int4' }));
  await record('cache with a NUL', () =>
    load({}, good, tensors, { ...quantized, cache: { path: 'a\0b', key: 'key' } }),
  );
  await record('cache without a key: a plain array', () => load({}, good, tensors, { ...quantized, cache: ['path'] }));
  await record('cache in a folder that is not there', () =>
    load({}, good, tensors, { ...quantized, cache: { path: join(scratch, 'none', 'file'), key: 'key' } }),
  );
  await record('onProgress no function', () => load({}, good, tensors, { ...settings, onProgress: 1 }));
  await record('onProgress throws', async () => {
    const loaded = await load({}, good, tensors, {
      ...settings,
      onProgress: () => {
        throw new Error('mine');
      },
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    loaded.close();
  });
  const copy = join(scratch, 'truncated');
  execFileSync('cp', [good[0], copy]);
  truncateSync(copy, 1000);
  await record('file truncated', () => load({}, [copy], tensors));
}

async function pages() {
  const engine = createEngine(addon, model, description);
  const bytes = new Uint8Array(model.pageBytes);
  await record('pages read out of range', () => engine.readPages(i32(ENGINE.pages)));
  await record('pages read negative', () => engine.readPages(i32(-1)));
  await record('pages read more than there are', () => engine.readPages(new Int32Array(10_000_000)));
  await record('pages read of another type', () => engine.readPages([0]));
  await record('pages read detached', () => engine.readPages(detached(i32(0))));
  await record('pages written out of range', () => engine.writePages(i32(ENGINE.pages), bytes));
  await record('pages written with too few bytes', () => engine.writePages(i32(0, 1), bytes));
  await record('pages written from a buffer of another type', () => engine.writePages(i32(0), bytes.buffer));
  await record('pages written detached', () => engine.writePages(i32(0), detached(new Uint8Array(model.pageBytes))));
  const reading = engine.readPages(i32(1));
  engine.close();
  await outcome(() => reading);
  await record('pages read after close', () => engine.readPages(i32(0)));
  await record('pages written after close', () => engine.writePages(i32(0), bytes));
}

/** Opening a pipe that nobody writes must not block; where it does, a writer comes after a while so that the script ends. */
async function pipe(load) {
  const name = join(scratch, 'fifo');
  execFileSync('mkfifo', [name]);
  const writer = setTimeout(() => {
    outcomes.push(['file is a pipe', 'blocked']);
    closeSync(openSync(name, constants.O_WRONLY | constants.O_NONBLOCK));
  }, 20_000);
  await record('file is a pipe', () => load(name));
  clearTimeout(writer);
}

async function handles() {
  const closed = await loadModel(addon, description);
  closed.close();
  closed.close();
  await record('engine of a closed model', () => createEngine(addon, closed, description));

  const survivor = await loadModel(addon, description);
  const owner = createEngine(addon, survivor, description);
  survivor.close();
  await record('step after the model is closed', () => owner.step(firstPlan(0, 0, PROMPT)));
  owner.close();
  owner.close();
  await record('step after close', () => owner.step(nextPlan(0, PROMPT.length)));

  const engine = createEngine(addon, model, description);
  const running = engine.step(firstPlan(0, 0, PROMPT));
  const waiting = engine.step(firstPlan(2, 2, PROMPT));
  await record('a third step', () => engine.step(nextPlan(0, PROMPT.length)));
  await record('the step that ran', () => running);
  await record('the step that waited', () => waiting);
  await record('the next step', () => engine.step(nextPlan(0, PROMPT.length)));
  const last = engine.step(nextPlan(0, PROMPT.length + 1));
  engine.close();
  await record('a step that close overtook', () => last);
  await record('step without this', () =>
    createEngine(addon, model, description).step.call(undefined, firstPlan(0, 0, PROMPT)),
  );
  const reentrant = createEngine(addon, model, description);
  await record('a plan that closes its engine', () =>
    reentrant.step({
      ...change({}),
      get opens() {
        reentrant.close();
        return change({}).opens;
      },
    }),
  );
  const nested = createEngine(addon, model, description);
  let inner;
  await record('a plan that steps its engine', () =>
    nested.step({
      ...firstPlan(1, 1, PROMPT),
      get closes() {
        inner = nested.step(firstPlan(0, 0, PROMPT)).catch((error) => error);
        return i32();
      },
    }),
  );
  await inner;
  await record('close of an idle slot', async () => {
    await nested.step(closePlan(0));
    nested.close();
  });
}

async function vocabularies() {
  const bytes = new Uint8Array(5);
  const none = i32();
  await record('vocabulary without tokens', () => addon.createVocabulary(new Uint8Array(), i32(0), none));
  await record('vocabulary offsets past the bytes, then back', () =>
    addon.createVocabulary(bytes, i32(0, 2 ** 30, 5), none),
  );
  await record('vocabulary offsets that fall', () => addon.createVocabulary(bytes, i32(0, 4, 2, 5), none));
  await record('vocabulary offset negative', () => addon.createVocabulary(bytes, i32(0, -1, 5), none));
  await record('vocabulary offsets from 1', () => addon.createVocabulary(bytes, i32(1, 5), none));
  await record('vocabulary offsets that end early', () => addon.createVocabulary(bytes, i32(0, 4), none));
  await record('vocabulary with an end outside', () => addon.createVocabulary(bytes, i32(0, 5), i32(1)));
  await record('vocabulary with a token of 5,000 bytes', () =>
    addon.createVocabulary(new Uint8Array(5000), i32(0, 5000), none),
  );
}

/** Handles of one kind are not taken for those of another. */
async function grammars() {
  const vocabulary = await addon.createVocabulary(Uint8Array.of(97, 98), i32(0, 1, 2, 2), i32(2));
  const source = { kind: 'regex', text: '[ab]+' };
  const options = { mode: 'accept', space: '', seconds: 60 };
  for (const flag of ['assertFormats', 'draft7', 'anySpace', 'onlyDeclared']) options[flag] = false;
  const grammar = await addon.compileGrammar(source, options).result;
  const program = await addon.compileProgram(source, options, vocabulary).result;
  const settings = { maxTokens: 5, stopIds: i32(), jumps: false };
  await refused('adapter of another type', open({ adapter: model }));
  await refused('adapter: a constraint of another type', open({ adapter: program.constrain(settings) }));
  await refused('constraint of another type', open({ constraint: model }));
  await refused('constraint: a vocabulary of another type', open({ constraint: vocabulary }));
  await record('matcher over a model of another type', () => grammar.createMatcher(model));
  await record('program over a model of another type', () => addon.compileProgram(source, options, model));
  await record('engine of a vocabulary', () => createEngine(addon, vocabulary, description));
  await record('constraint of no tokens', () => program.constrain({ ...settings, maxTokens: 0 }));
  const matcher = grammar.createMatcher(vocabulary);
  for (const mask of [new Uint8Array(1), new Uint32Array(1), new Float64Array(1), [0]])
    await record(`mask ${mask.constructor.name} of another type`, () => matcher.fillMask(mask));
  await record('mask whose memory is gone', () => matcher.fillMask(detached(i32(0))));
  await record('mask too short', () => matcher.fillMask(i32()));
  await record('mask too long', () => matcher.fillMask(i32(0, 0)));
  await record('rollback past the start', () => matcher.rollback(1));
  await record('rollback negative', () => matcher.rollback(-1));
  await record('token of another type', () => matcher.advance('a'));
  await record('token with a fraction', () => matcher.advance(0.5));
  await record('token past 32 bits', () => matcher.advance(2 ** 31));
  for (const seconds of [0, -1, NaN, 601])
    await record(`seconds ${seconds}`, () => addon.compileGrammar(source, { ...options, seconds }));
  await record('mode unknown: of another type', () => addon.compileGrammar(source, { ...options, mode: 'both' }));
  await record('choices of another type', () => addon.compileGrammar({ kind: 'choice', choices: [1] }, options));
}

/** Engines of one model share its threads. */
async function together() {
  const engines = [0, 1, 2, 3].map(() => createEngine(addon, model, description));
  const seen = new Set();
  for (let round = 0; round < 100; round++) {
    const closes = round > 0 ? i32(0) : i32();
    const steps = engines.map((engine) => engine.step({ ...firstPlan(0, 0, PROMPT), closes }));
    for (const { tokens, logprobs } of await Promise.all(steps)) seen.add(`${tokens[0]} ${logprobs[0]}`);
  }
  for (const engine of engines) engine.close();
  await record('four engines of a model at once', () => {
    if (seen.size !== 1) throw new Error(`${seen.size} different results`);
  });
}

/** Handles dropped while work is under way: the collector must not pull anything from under it. */
async function collected() {
  const steps = [];
  for (let round = 0; round < 30; round++) {
    const engine = createEngine(addon, model, description);
    steps.push(engine.step(firstPlan(0, 0, PROMPT)));
    if (round % 3 === 0) globalThis.gc();
  }
  const loads = [1, 2, 3].map(() => loadModel(addon, description));
  globalThis.gc();
  const tokens = new Set((await Promise.all(steps)).map((result) => result.tokens[0]));
  await Promise.all(loads);
  globalThis.gc();
  await record('30 steps of engines that nobody holds', () => {
    if (tokens.size !== 1) throw new Error(`${tokens.size} different tokens`);
  });
}

for (const group of [
  plans,
  samplings,
  controls,
  stepControls,
  arrays,
  options,
  files,
  pages,
  handles,
  vocabularies,
  grammars,
  together,
  collected,
])
  await group();
model.close();
process.stdout.write(JSON.stringify(outcomes));
