import { NOTHING_ALLOWED, type SequenceRequest } from '../engine/protocol.ts';
import type { Advice, Adviser, AdviceQuestion, SequenceAdviser } from '../scheduler/advice.ts';
import { addDirective, refusePromise, type StepWishes } from './directive.ts';
import type { EngineExtension, ExtensionArguments, SequenceExtension } from './extension.ts';
import { TimeGuard } from './time-guard.ts';

/**
 * Choices asked under one time guard, which lasts as long as their limits together: one that hangs is stopped then. Behind it each has
 * a guard of its own, so that many that hang take little more than their limits together.
 */
const BATCH = 8;

/** Thrown by `check`; the message is the client's. */
export class ExtensionArgumentError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'ExtensionArgumentError';
  }
}

/** The extensions of the server's modules: checks arguments in the server's process, steers choices in the engine's. */
export class Extensions implements Adviser {
  readonly #byName: ReadonlyMap<string, EngineExtension>;
  readonly #timeoutMs: number;
  readonly #vocabSize: number;
  readonly #guard = new TimeGuard();

  /** Ids below `vocabSize` may be generated. */
  constructor(byName: ReadonlyMap<string, EngineExtension>, timeoutMs: number, vocabSize: number) {
    this.#byName = byName;
    this.#timeoutMs = timeoutMs;
    this.#vocabSize = vocabSize;
  }

  get names(): string[] {
    return [...this.#byName.keys()];
  }

  /** Throws ExtensionArgumentError: unknown names, or what an extension says of its value. */
  check(values: ExtensionArguments): void {
    const unknown = Object.keys(values).filter((name) => !this.#byName.has(name));
    if (unknown.length > 0) {
      const shown = unknown.slice(0, 10).map((name) => JSON.stringify(name.slice(0, 40)));
      throw new ExtensionArgumentError(`No extension of this server takes these arguments: ${shown.join(', ')}.`);
    }
    freeze(values);
    for (const [name, value] of Object.entries(values)) {
      try {
        this.#guard.run(() => refusePromise(this.#byName.get(name)?.check?.(value)), this.#timeoutMs);
      } catch (error) {
        throw new ExtensionArgumentError(`${name}: ${textOf(error)}`);
      }
    }
  }

  open(request: SequenceRequest): SequenceAdviser | null {
    const values = request.extensionArguments ?? {};
    const names = Object.keys(values);
    if (names.length === 0) return null;
    const missing = names.find((name) => !this.#byName.has(name));
    if (missing !== undefined) throw new Error(`There is no extension '${missing}'.`);
    freeze(values);
    return new SteeredChoice(this.#byName, values, request);
  }

  /** Parallel to `questions`. Who throws or takes too long fails alone. */
  advise(questions: readonly AdviceQuestion[]): Advice[] {
    const advice: Advice[] = [];
    let batch = BATCH;
    while (advice.length < questions.length) {
      const count = Math.min(batch, questions.length - advice.length);
      const end = advice.length + count;
      let begun = 0;
      try {
        this.#guard.run(() => {
          for (let next = questions[advice.length]; next && advice.length < end; next = questions[advice.length]) {
            begun = performance.now();
            advice.push(this.#ask(next));
          }
        }, this.#timeoutMs * count);
      } catch {
        // Only the end of time comes here: #ask catches what is thrown.
        batch = 1;
        // Where others have left it less than its own limit it is asked again, alone.
        if (count > 1 && performance.now() - begun < this.#timeoutMs) continue;
        advice.push({ error: this.#tooSlow() });
      }
    }
    return advice;
  }

  #ask({ adviser, outputs }: AdviceQuestion): Advice {
    if (!(adviser instanceof SteeredChoice)) throw new Error('A choice of another adviser.');
    return adviser.ask(outputs, this.#vocabSize);
  }

  #tooSlow(): string {
    return `An extension took longer than ${this.#timeoutMs} ms (--engine-extension-timeout-ms) for a step.`;
  }
}

/** One choice and what its extensions wish. */
class SteeredChoice implements SequenceAdviser {
  readonly #byName: ReadonlyMap<string, EngineExtension>;
  readonly #values: ExtensionArguments;
  readonly #request: SequenceRequest;
  #instances: { name: string; extension: SequenceExtension }[] | null = null;

  constructor(byName: ReadonlyMap<string, EngineExtension>, values: ExtensionArguments, request: SequenceRequest) {
    this.#byName = byName;
    this.#values = values;
    this.#request = request;
  }

  ask(outputs: Int32Array, vocabSize: number): Advice {
    const wishes: StepWishes = { bias: new Map(), allowed: null };
    let current = '';
    try {
      this.#instances ??= this.#create(vocabSize, (name) => (current = name));
      for (const { name, extension } of this.#instances) {
        current = name;
        addDirective(wishes, extension.step(outputs.slice()), name, vocabSize);
      }
    } catch (error) {
      return { error: `The extension '${current}' failed: ${textOf(error)}` };
    }
    return adviceOf(wishes, this.#request.sampling.allowedIds);
  }

  #create(vocabSize: number, begin: (name: string) => void): { name: string; extension: SequenceExtension }[] {
    const { promptIds, sampling } = this.#request;
    return Object.entries(this.#values).map(([name, value]) => {
      begin(name);
      const context = { promptTokens: promptIds.slice(), vocabSize, choice: sampling.choice };
      const extension = this.#byName.get(name)?.create(value, context);
      refusePromise(extension);
      if (typeof extension?.step !== 'function') throw new Error("what 'create' returned has no function 'step'.");
      return { name, extension };
    });
  }
}

function adviceOf(wishes: StepWishes, allowedByRequest: Int32Array | undefined): Advice {
  if (wishes.stop) return { stop: wishes.stop.reason };
  const { bias, allowed } = wishes;
  if (allowed && !hasSome(allowed, allowedByRequest)) return { stop: NOTHING_ALLOWED };
  if (bias.size === 0 && !allowed) return { control: null };
  const control = {
    ...(bias.size === 0 ? {} : { biasIds: Int32Array.from(bias.keys()), biasValues: Float32Array.from(bias.values()) }),
    ...(allowed ? { allowedIds: Int32Array.from(allowed).sort() } : {}),
  };
  return { control };
}

/** Nobody changes what the other choices of a request, and the one after a restart, are given too. */
function freeze(values: ExtensionArguments): void {
  for (const value of Object.values(values)) Object.freeze(value);
}

/** `byRequest`: undefined = all. */
function hasSome(allowed: ReadonlySet<number>, byRequest: Int32Array | undefined): boolean {
  return byRequest ? byRequest.some((id) => allowed.has(id)) : allowed.size > 0;
}

/** Never throws, whatever was thrown: an object without a text, or a message that is none. */
function textOf(error: unknown): string {
  try {
    return String(error instanceof Error ? error.message : error).slice(0, 500);
  } catch {
    return 'it threw something that has no text.';
  }
}
