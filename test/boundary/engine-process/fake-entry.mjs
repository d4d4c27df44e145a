/**
 * The engine process with the fake addon, loaded from dist/ like the real one. The model's file names carry what the fake
 * shall do: `step-ms=N` (time of a step), `load-ms=N`, `load-fails=TEXT`, `load-fails-beside=FILE` (while it is
 * there), `load-crashes`, `crash-on-prompt=ID` (the process ends itself in the step that a prompt beginning with ID starts in),
 * `crash-in-training` (in the first slice of a trainer's work), `hang-in-training` (there as well), `slices=N` (100 ms
 * each, of every call), `crash-on-adapter` (while one is loaded).
 */
import { existsSync } from 'node:fs';
import { serveParent } from '../../../dist/control/engine/process-port.js';
import { fakeAddon, FakeNativeEngine } from '../../unit/scheduler/fake-native.mjs';

function behaviour(files) {
  return Object.fromEntries(files.map((file) => file.split('=')));
}

serveParent(() => {
  const addon = fakeAddon();
  let told = {};
  return {
    ...addon,
    loadModel: async (spec, files, tensors, options) => {
      told = behaviour(files);
      if ('load-fails' in told) throw new Error(told['load-fails']);
      if (existsSync(told['load-fails-beside'] ?? '')) throw new Error('it lies beside');
      if ('load-crashes' in told) process.kill(process.pid, 'SIGKILL');
      if ('load-ms' in told) await new Promise((resolve) => setTimeout(resolve, Number(told['load-ms'])));
      return addon.loadModel(spec, files, tensors, options);
    },
    loadAdapter: async () => {
      if ('crash-on-adapter' in told) process.kill(process.pid, 'SIGKILL');
      return { bytes: 1, close() {} };
    },
    createTrainer: async () => faultyTrainer(told),
    createEngine: (model, options) => new CrashingEngine(options, told),
  };
});

/** Takes every row; its first slice may be the process's last, or last for ever. */
function faultyTrainer(told) {
  let left = Number(told['slices'] ?? 0);
  const slice = async () => {
    if ('crash-in-training' in told) process.kill(process.pid, 'SIGKILL');
    if ('hang-in-training' in told) await new Promise(() => {});
    if (left > 0) await new Promise((resolve) => setTimeout(resolve, 100));
    return --left < 0;
  };
  const nothing = () => {};
  const scores = () => ({ logprobs: new Float32Array(1) });
  return { rowBytes: (tokens) => tokens, forward: nothing, slice, scores, interrupt: nothing, close: nothing };
}

class CrashingEngine extends FakeNativeEngine {
  constructor(options, told) {
    super(options, { onStep: () => new Promise((resolve) => setTimeout(resolve, Number(told['step-ms'] ?? 0))) });
    this.fatalId = Number(told['crash-on-prompt'] ?? -1);
  }

  feed(slot, start, tokens) {
    if (start === 0 && tokens[0] === this.fatalId) process.kill(process.pid, 'SIGKILL');
    super.feed(slot, start, tokens);
  }
}
