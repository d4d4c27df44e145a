/** A compiled chat template with the settings and globals that transformers gives one. */
import { Environment, tokenize, type Scope, type Value } from './jinja.ts';
import type { Node } from './ast.ts';
import { detectContentUse, type ContentUse } from './content-format.ts';
import { TemplateError, TemplateRefusal } from './errors.ts';
import { ChatInterpreter, prepare } from './interpreter.ts';
import { withNumbers } from './numbers.ts';
import { plainSource } from './plain-source.ts';
import { withChains, withConcatenations } from './precedence.ts';
import { recursiveLoops, withRecursion } from './recursive-loops.ts';
import { cycler, joiner } from './stateful.ts';
import { strftime } from './strftime.ts';
import { parseWithTests } from './test-arguments.ts';
import { TUPLE, withTuples } from './tuples.ts';
import { withBlocks } from './with-blocks.ts';
import {
  asKey,
  box,
  boxData,
  boxFunction,
  boxItems,
  boxObject,
  boxTuple,
  isArray,
  isObject,
  toText,
  type Key,
} from './values.ts';

/** jinja2's own bound for sandboxed templates. */
const MAX_RANGE = 100_000;

export class ChatTemplate {
  readonly source: string;
  readonly content: ContentUse;
  readonly #program: Node;
  readonly #recursive: ReadonlySet<Node>;
  readonly #now: () => Date;

  constructor(source: string, now: () => Date = () => new Date()) {
    this.source = source;
    this.#now = now;
    try {
      const program = parseWithTests(
        withConcatenations(
          withChains(withNumbers(withTuples(withRecursion(withBlocks(tokenize(plainSource(source))))))),
        ),
      );
      this.#recursive = recursiveLoops(program);
      this.content = detectContentUse(program);
      this.#program = prepare(program);
    } catch (error) {
      throw new TemplateError(`the chat template cannot be parsed: ${messageOf(error)}`);
    }
  }

  /** Throws TemplateError for everything that goes wrong inside, limits included. */
  render(variables: Record<string, unknown>): string {
    try {
      const scope = new Environment();
      setGlobals(scope, this.#now);
      for (const [name, value] of Object.entries(variables)) scope.setVariable(name, boxData(value));
      return toText(new ChatInterpreter(scope, this.#recursive).evaluate(this.#program, scope));
    } catch (error) {
      if (error instanceof TemplateError) throw error;
      throw new TemplateError(messageOf(error));
    }
  }
}

function messageOf(error: unknown): string {
  if (error instanceof RangeError && error.message.includes('call stack'))
    return 'the chat template is nested too deeply.';
  return error instanceof Error ? error.message : 'unknown error';
}

function setGlobals(scope: Scope, now: () => Date): void {
  for (const [name, value] of [
    ['true', true],
    ['false', false],
    ['none', null],
  ] as const) {
    scope.setVariable(name, box(value));
    scope.setVariable(name[0]?.toUpperCase() + name.slice(1), box(value));
  }
  scope.setVariable(
    'raise_exception',
    boxFunction(([message]) => {
      throw new TemplateRefusal(message ? toText(message) : 'the chat template raised an exception.');
    }),
  );
  scope.setVariable(
    'range',
    boxFunction((args) => box(range(args.map((arg) => Number(arg.value))))),
  );
  scope.setVariable('dict', boxFunction(dict));
  scope.setVariable('cycler', boxFunction(cycler));
  scope.setVariable('joiner', boxFunction(joiner));
  scope.setVariable(TUPLE, boxFunction(tuple));
  scope.setVariable(
    'strftime_now',
    boxFunction(([format]) => box(strftime(now(), format ? toText(format) : ''))),
  );
}

function range(args: number[]): number[] {
  const [start, stop, step = 1] = args.length === 1 ? [0, args[0] ?? 0] : [args[0] ?? 0, args[1] ?? 0, args[2]];
  if (![start, stop, step].every(Number.isInteger) || step === 0) throw new TemplateError('range() takes integers.');
  const count = Math.max(0, Math.ceil((stop - start) / step));
  if (count > MAX_RANGE) throw new TemplateError(`range() is limited to ${MAX_RANGE} items.`);
  return Array.from({ length: count }, (_, i) => start + i * step);
}

function tuple(items: Value[]): Value {
  if (items.some(({ type }) => type === 'KeywordArgumentsValue')) throw new TemplateError('a tuple has no names.');
  return boxTuple(items);
}

/** Of a dictionary or of pairs, and of what is given by name. */
function dict(args: Value[]): Value {
  const named = args.at(-1)?.type === 'KeywordArgumentsValue' ? args.at(-1) : undefined;
  const [source = boxObject(new Map()), ...others] = named ? args.slice(0, -1) : args;
  const pairs = isObject(source) ? boxItems(source.value) : source;
  if (others.length > 0 || !isArray(pairs))
    throw new TemplateError('dict() takes a dictionary or a list of pairs, and names.');
  const entries = new Map<Key, Value>();
  for (const pair of pairs.value) {
    const [key, item] = isArray(pair) && pair.value.length === 2 ? pair.value : [];
    if (!key || !item) throw new TemplateError('dict() takes a list of pairs.');
    entries.set(asKey(key), item);
  }
  if (named && isObject(named)) for (const [name, item] of named.value) entries.set(name, item);
  return boxObject(entries);
}
