/**
 * Every field of every native entry replaced by every hostile value. Each call must return or throw a plain JavaScript error;
 * afterwards the addon works as before. Prints how the calls ended: {"TypeError": n, "RangeError": n, "Error": n, "accepted": n}.
 */
import {
  createEngine,
  ENGINE,
  firstPlan,
  loadAddon,
  loadModel,
  nextPlan,
  readInput,
  specOf,
} from '../fixtures/native-model.mjs';

const description = await readInput();
const addon = loadAddon(description);
const model = await loadModel(addon, description);
const PROMPT = [1, 2, 3, 4, 5];

function detached(length) {
  const array = new Int32Array(length);
  structuredClone(array.buffer, { transfer: [array.buffer] });
  return array;
}

const throwing = () => {
  throw new SyntaxError('from a getter');
};

/** Fresh each time: some of these carry state. */
const hostile = () => [
  undefined,
  null,
  true,
  false,
  '',
  'x'.repeat(100_000),
  '\u0000',
  '\ud800',
  -1,
  0.5,
  NaN,
  Infinity,
  -Infinity,
  2 ** 31,
  2 ** 32 + 1,
  -(2 ** 31) - 1,
  2 ** 53,
  2 ** 63,
  1e308,
  10n,
  2n ** 64n,
  -(2n ** 200n),
  Symbol('s'),
  {},
  Object.create(null),
  [],
  [[]],
  [undefined],
  new Array(5000).fill({}),
  () => 1,
  new Date(),
  /x/,
  new Map(),
  new ArrayBuffer(8),
  new DataView(new ArrayBuffer(8)),
  new Int32Array(3).fill(-1),
  new Int32Array(4).fill(2 ** 31 - 1),
  new Int32Array(12).fill(-(2 ** 31)),
  new Uint32Array(4),
  new Float64Array(4),
  new BigInt64Array(4),
  new Uint8Array(7),
  new Int32Array(new SharedArrayBuffer(16)),
  detached(4),
  new Proxy({}, { get: throwing, has: throwing, ownKeys: throwing, getPrototypeOf: throwing }),
  new Proxy([], { get: throwing }),
  { valueOf: throwing, toString: throwing, [Symbol.toPrimitive]: throwing },
  Promise.resolve(1),
  addon,
  model,
];

/** Every path of a value: keys of plain objects, first and last index of plain arrays. */
function paths(value, prefix = []) {
  const own = [prefix];
  if (Array.isArray(value)) {
    for (const index of new Set([0, value.length - 1])) {
      if (index >= 0 && index < value.length) own.push(...paths(value[index], [...prefix, index]));
    }
  } else if (value && Object.getPrototypeOf(value) === Object.prototype && !('close' in value)) {
    for (const key of Object.keys(value)) own.push(...paths(value[key], [...prefix, key]));
  }
  return own;
}

function replaced(value, path, by) {
  if (path.length === 0) return by;
  const [key, ...rest] = path;
  const copy = Array.isArray(value) ? [...value] : { ...value };
  copy[key] = replaced(value[key], rest, by);
  return copy;
}

const ends = { accepted: 0 };

function judge(error, where) {
  const plain = error instanceof Error && typeof error.message === 'string' && error.message.length > 0;
  if (!plain) throw new Error(`${where}: not an error: ${String(error)}`);
  const { name, message } = error;
  // The getter's own exception passes through as it is.
  const known = ['TypeError', 'RangeError', 'Error'].includes(name) || message === 'from a getter';
  const clean = !message.includes('/') && !/0x[0-9a-f]{6}/.test(message) && message.length < 1000;
  if (!known || !clean) throw new Error(`${where}: ${name}: ${message.slice(0, 200)}`);
  ends[name] = (ends[name] ?? 0) + 1;
}

/** `call` gets the arguments; what it returns may be cleaned up. */
async function fuzz(name, args, call, cleanUp = () => {}) {
  for (const path of paths(args)) {
    if (path.length === 0) continue;
    for (const value of hostile()) {
      try {
        cleanUp(await call(...replaced(args, path, value)));
        ends.accepted += 1;
      } catch (error) {
        judge(error, `${name} ${path.join('.')}`);
      }
    }
  }
}

async function continuation() {
  const engine = createEngine(addon, model, description);
  const tokens = [(await engine.step(firstPlan(2, 9, PROMPT))).tokens[0]];
  for (let step = 0; step < 8; step++) tokens.push((await engine.step(nextPlan(2, PROMPT.length + step))).tokens[0]);
  engine.close();
  return tokens.join(',');
}

const before = await continuation();
const shortFiles = [
  specOf(description),
  description.files,
  description.tensors,
  { dtype: description.dtype, threads: 1 },
];
await fuzz('info', [1], (...args) => addon.info(...args));
await fuzz(
  'loadModel',
  shortFiles,
  (...args) => addon.loadModel(...args),
  (loaded) => loaded.close(),
);
const options = { ...ENGINE, samplableVocab: description.spec.vocabSize };
await fuzz(
  'createEngine',
  [model, options],
  (...args) => addon.createEngine(...args),
  (engine) => engine.close(),
);
await fuzz('step', [firstPlan(0, 0, PROMPT, { stopIds: Int32Array.of(1, 2) })], async (...args) => {
  const engine = createEngine(addon, model, description);
  try {
    return await engine.step(...args);
  } finally {
    engine.close();
  }
});
const holder = createEngine(addon, model, description);
await fuzz('readPages', [Int32Array.of(0, 1)], (...args) => holder.readPages(...args));
const page = [Int32Array.of(5), await holder.readPages(Int32Array.of(5))];
await fuzz('writePages', page, (...args) => holder.writePages(...args));
holder.close();
for (const method of ['loadModel', 'createEngine', 'info']) {
  for (const self of [undefined, null, {}, model]) {
    try {
      await addon[method].call(self);
    } catch (error) {
      judge(error, method);
    }
    try {
      new addon[method]();
    } catch (error) {
      judge(error, method);
    }
  }
}
if ((await continuation()) !== before) throw new Error('the engine changed');
model.close();
process.stdout.write(JSON.stringify(ends));
