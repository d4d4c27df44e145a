/**
 * @huggingface/jinja with jinja2's semantics where the two differ, and with limits: a template, whoever wrote it,
 * takes a bounded number of steps and makes bounded values. Differences that are mended here:
 * - assignments inside a loop or a block of text end with it; break and continue keep what was already written;
 * - a macro sees the names of where it stands, not of where it is called;
 * - values print as Python prints them (True, None, lists, floats), == compares by value;
 * - string methods take their arguments and count characters, `dict.items()` works when there is a key `items`, undefined iterates as empty;
 * - numbers are keys of dictionaries, what has no item for a key is undefined, and what is undefined has no items at all;
 * - comparisons in a row are those of Python, a tuple equals no list.
 */
import type {
  BinaryNode,
  CallNode,
  DictionaryNode,
  FilterBlockNode,
  FilterNode,
  ForNode,
  IdentifierNode,
  IfNode,
  KeywordNode,
  MacroNode,
  MemberNode,
  Node,
  ProgramNode,
  SelectNode,
  SetNode,
  SliceNode,
  TestNode,
  TupleNode,
} from './ast.ts';
import { walk } from './ast.ts';
import { TemplateError } from './errors.ts';
import type { Arguments } from './filter-parts.ts';
import { applyFilter, FILTERS, holds } from './filters.ts';
import { Environment, Interpreter, parse, type Scope, type Value } from './jinja.ts';
import { changedValue, loopValue } from './loop-value.ts';
import { contains, counted, nothingOf, operate, ownMethod, subscript } from './operators.ts';
import { COMPARISONS } from './precedence.ts';
import { WITH } from './with-blocks.ts';
import { STRING_METHODS, STRING_PARAMETERS } from './strings.ts';
import {
  asKey,
  bounded,
  box,
  boxFunction,
  boxKey,
  boxObject,
  boxTuple,
  isArray,
  isEqual,
  isObject,
  isString,
  isTuple,
  isUndefined,
  MAX_ITEMS,
  remainder,
  toText,
  type Key,
} from './values.ts';

/** Nodes evaluated and items made in one rendering: real templates need some thousand. */
const MAX_STEPS = 5_000_000;

/** What one turn of a loop costs besides its body, in steps: it makes a scope and the `loop` variable. */
const ITERATION_STEPS = 20;

class LoopControl extends Error {
  readonly kind: 'Break' | 'Continue';
  /** Written in the current iteration before the jump. */
  partial = '';
  constructor(kind: 'Break' | 'Continue') {
    super(kind);
    this.kind = kind;
  }
}

const STATEMENTS = new Set(['Program', 'Set', 'If', 'For', 'Macro', 'CallStatement', 'FilterStatement', 'Comment']);

/** Routes the bodies that the library evaluates itself through `Program`, so that they print by our rules. */
export function prepare(program: Node): Node {
  for (const node of [...walk(program)]) {
    const wraps = node.type === 'Macro' || node.type === 'CallStatement' || node.type === 'FilterStatement';
    if (!wraps && !(node.type === 'Set' && (node as SetNode).value === null)) continue;
    const owner = node as ProgramNode;
    owner.body = [Object.assign(parse([]), { body: owner.body })];
  }
  return program;
}

/** Where a loop stands in its template, and how deep in itself. */
interface LoopStart {
  scope: Scope;
  depth: number;
}

export class ChatInterpreter extends Interpreter {
  readonly #recursive: ReadonlySet<Node>;
  #steps = 0;

  /** `recursive`: the loops that may call themselves. */
  constructor(scope: Scope, recursive: ReadonlySet<Node>) {
    super(scope);
    this.#recursive = recursive;
  }

  override evaluate(statement: Node | undefined, scope: Scope): Value {
    if (!statement) return super.evaluate(statement, scope);
    this.#spend(1);
    switch (statement.type) {
      case 'Held':
        return (statement as HeldNode).held;
      case 'Set':
        return this.#set(statement as SetNode, scope);
      case 'Macro':
        return this.#macro(statement as MacroNode, scope);
      case 'FilterStatement':
        return this.#filterBlock(statement as FilterBlockNode, scope);
      case 'ObjectLiteral':
        return this.#dictionary(statement as DictionaryNode, scope);
      case 'Program':
        return box(this.#block((statement as ProgramNode).body, scope));
      case 'If':
        return this.#if(statement as IfNode, scope);
      case 'For':
        return box(this.#for(statement as ForNode, scope));
      case 'Break':
      case 'Continue':
        throw new LoopControl(statement.type);
      case 'BinaryExpression':
        return this.#binary(statement as BinaryNode, scope);
      case 'CallExpression':
        return this.#call(statement as CallNode, scope);
      case 'MemberExpression':
        return this.#member(statement as MemberNode, scope);
      case 'FilterExpression':
        return this.#filter(statement as FilterNode, scope);
      case 'TestExpression':
        return this.#test(statement as TestNode, scope);
      default:
        return super.evaluate(statement, scope);
    }
  }

  #spend(steps: number): void {
    this.#steps += steps;
    if (this.#steps > MAX_STEPS) throw new TemplateError(`the chat template takes more than ${MAX_STEPS} steps.`);
  }

  /** Limits and accounts for what one operation of the library has made: one step per item or 64 characters. */
  #made(value: Value): Value {
    if (isString(value)) this.#spend(bounded(value.value).length >> 6);
    else if (isArray(value)) {
      if (value.value.length > MAX_ITEMS) throw new TemplateError(`a list has more than ${MAX_ITEMS} items.`);
      this.#spend(value.value.length);
    } else if (isObject(value)) this.#spend(value.value.size);
    return value;
  }

  #block(statements: Node[], scope: Scope): string {
    let text = '';
    for (const statement of statements) {
      try {
        const value = this.evaluate(statement, scope);
        text += STATEMENTS.has(statement.type) && !isString(value) ? '' : toText(value);
      } catch (error) {
        if (error instanceof LoopControl) error.partial = text + error.partial;
        throw error;
      }
      bounded(text);
    }
    return text;
  }

  #if(node: IfNode, scope: Scope): Value {
    const test = this.evaluate(node.test, scope).__bool__().value;
    return box(this.#block(test ? node.body : node.alternate, scope));
  }

  #for(node: ForNode, scope: Scope): string {
    const filtered = node.iterable.type === 'SelectExpression' ? (node.iterable as SelectNode) : null;
    return this.#loop(node, filtered, this.evaluate(filtered ? filtered.lhs : node.iterable, scope), {
      scope,
      depth: 1,
    });
  }

  #loop(node: ForNode, filtered: SelectNode | null, over: Value, { scope, depth }: LoopStart): string {
    const all = this.#items(over);
    const items = filtered ? all.filter((item) => this.#passes(node, filtered, item, scope)) : all;
    this.#spend(all.length * ITERATION_STEPS);
    const seesLoop = readsLoop(node);
    const again = (args: Value[]): Value => {
      const [inner, ...others] = args;
      if (!inner || others.length > 0) throw new TemplateError('loop() takes what to loop over.');
      return box(this.#loop(node, filtered, inner, { scope, depth: depth + 1 }));
    };
    const recursion = this.#recursive.has(node) ? again : null;
    const changed = changedValue();
    let text = '';
    let isDone = false;
    for (const [index, item] of items.entries()) {
      const inner = new Environment(scope);
      if (seesLoop) inner.setVariable('loop', loopValue({ items, index, depth, changed }, recursion));
      bind(node.loopvar, item, inner);
      try {
        text += this.#block(node.body, inner);
        isDone = true;
      } catch (error) {
        if (!(error instanceof LoopControl)) throw error;
        text += error.partial;
        if (error.kind === 'Break') break;
      }
      bounded(text);
    }
    // As jinja2 has it: also where no item came to the end of the body.
    return isDone ? text : bounded(text + this.#block(node.defaultBlock, new Environment(scope)));
  }

  #passes(node: ForNode, filtered: SelectNode, item: Value, scope: Scope): boolean {
    const inner = new Environment(scope);
    bind(node.loopvar, item, inner);
    return this.evaluate(filtered.test, inner).__bool__().value;
  }

  #items(value: Value): Value[] {
    if (isArray(value)) return value.value;
    if (isObject(value)) return [...value.value.keys()].map(boxKey);
    if (isString(value)) return [...value.value].map(box);
    if (isUndefined(value)) return [];
    throw new TemplateError(`cannot loop over ${toText(value)}.`);
  }

  #binary(node: BinaryNode, scope: Scope): Value {
    if (node.operator.chained && isComparison(node.left)) return box(this.#chain(node, scope).holds);
    switch (node.operator.value) {
      case '==':
        return box(isEqual(this.evaluate(node.left, scope), this.evaluate(node.right, scope)));
      case '!=':
        return box(!isEqual(this.evaluate(node.left, scope), this.evaluate(node.right, scope)));
      case '~':
        return this.#made(box(toText(this.evaluate(node.left, scope)) + toText(this.evaluate(node.right, scope))));
      case 'in':
        return box(contains(this.evaluate(node.right, scope), this.evaluate(node.left, scope)));
      case 'not in':
        return box(!contains(this.evaluate(node.right, scope), this.evaluate(node.left, scope)));
      case '%': {
        const [left, right] = this.#operands(node, scope);
        return this.#made(operate('%', left, right) ?? remainder(left, right));
      }
      case 'and':
      case 'or':
        return this.#made(super.evaluate(node, scope));
      default: {
        const [left, right] = this.#operands(node, scope);
        const own = operate(node.operator.value, left, right);
        return this.#made(
          own ?? super.evaluate({ ...node, left: hold(left), right: hold(right) } as BinaryNode, scope),
        );
      }
    }
  }

  #operands({ operator, left, right }: BinaryNode, scope: Scope): [Value, Value] {
    const [first, second] = [this.evaluate(left, scope), this.evaluate(right, scope)];
    // A format writes a boolean by its name.
    if (operator.value === '%' && isString(first)) return [first, second];
    return [counted(operator.value, first), counted(operator.value, second)];
  }

  /** Each operand of comparisons in a row is evaluated once, and none behind the first that does not hold. */
  #chain(node: BinaryNode, scope: Scope): { holds: boolean; right: Value } {
    const before = node.operator.chained && isComparison(node.left) ? this.#chain(node.left, scope) : null;
    if (before?.holds === false) return before;
    const left = before?.right ?? this.evaluate(node.left, scope);
    const right = this.evaluate(node.right, scope);
    const single = { ...node, left: hold(left), right: hold(right) } as BinaryNode;
    return { holds: this.#binary(single, scope).__bool__().value, right };
  }

  /** What a block sets ends with it; the library would let it stay. */
  #set(node: SetNode, scope: Scope): Value {
    if (node.value !== null) return super.evaluate(node, scope);
    const text = box(this.#block(node.body, new Environment(scope)));
    return super.evaluate({ ...node, ...throughFilters(node.assignee, hold(text)) } as SetNode, scope);
  }

  /** A macro sees the names of where it stands; the library would give it those of where it is called. */
  #macro(node: MacroNode, scope: Scope): Value {
    const done = super.evaluate(node, scope);
    const call = scope.variables.get(node.name.value)?.value as (args: Value[], scope: Scope) => Value;
    const own = boxFunction((args, from) => {
      const inner = new Environment(scope);
      const caller = from.variables.get('caller');
      if (caller) inner.setVariable('caller', caller);
      return call(args, inner);
    });
    scope.setVariable(node.name.value, own);
    return done;
  }

  #dictionary(node: DictionaryNode, scope: Scope): Value {
    const entries = new Map<Key, Value>();
    for (const [name, item] of node.value) {
      const key = asKey(this.evaluate(name, scope));
      entries.set(key, this.evaluate(item, scope));
    }
    return boxObject(entries);
  }

  #call(node: CallNode, scope: Scope): Value {
    const method = node.callee.type === 'MemberExpression' ? (node.callee as MemberNode) : null;
    const name = method && !method.computed ? (method.property as IdentifierNode).value : '';
    const own = Object.hasOwn(STRING_METHODS, name) ? STRING_METHODS[name] : undefined;
    const names = STRING_PARAMETERS[name] ?? [];
    let callee = node.callee;
    if (
      method &&
      own &&
      node.args.every(
        (arg) => isPositional(arg) || (isKeyword(arg) && (name === 'format' || names.includes(arg.key.value))),
      )
    ) {
      const self = this.evaluate(method.object, scope);
      if (isUndefined(self)) throw nothingOf(nameOf(method.object), name);
      if (isString(self)) {
        const { positional, keyword } = this.#arguments(node.args, scope);
        for (const [key, value] of keyword) if (names.includes(key)) positional[names.indexOf(key)] = value;
        return this.#made(own(self.value, positional, keyword));
      }
      callee = { ...method, object: hold(self) } as MemberNode;
    }
    const called = this.evaluate(callee, scope);
    if (isUndefined(called))
      throw new TemplateError(`the chat template calls ${nameOf(node.callee)}(), which is undefined.`);
    return this.#made(super.evaluate({ ...node, callee: hold(called) } as CallNode, scope));
  }

  /** As in Python, a method hides a key of the same name in `a.b`; `a['b']` is always the key. */
  #member(node: MemberNode, scope: Scope): Value {
    const object = this.evaluate(node.object, scope);
    if (node.computed && node.property.type !== 'SliceExpression') {
      return subscript(object, this.evaluate(node.property, scope), nameOf(node.object));
    }
    const name = node.computed ? '' : (node.property as IdentifierNode).value;
    if (isUndefined(object)) throw nothingOf(nameOf(node.object), name || 'a slice');
    const method = ownMethod(object, name);
    if (method) return method;
    if (name === 'length' && (isArray(object) || isString(object))) return box(undefined);
    const property = node.computed ? this.#slice(node.property as SliceNode, scope) : node.property;
    const found = super.evaluate({ ...node, object: hold(object), property } as MemberNode, scope);
    return node.computed && isTuple(object) && isArray(found) ? boxTuple(found.value) : found;
  }

  /** An end that is none is as one that is left out. */
  #slice(node: SliceNode, scope: Scope): Node {
    const end = (part: Node | undefined): Node | undefined => {
      const value = part && this.evaluate(part, scope);
      return value && hold(value.type === 'NullValue' ? box(undefined) : value);
    };
    return Object.assign({ ...node }, { start: end(node.start), stop: end(node.stop), step: end(node.step) });
  }

  #filter(node: FilterNode, scope: Scope): Value {
    const call = node.filter.type === 'CallExpression' ? (node.filter as CallNode) : null;
    const name = ((call ? call.callee : node.filter) as IdentifierNode).value;
    const args = call?.args ?? [];
    if (!Object.hasOwn(FILTERS, name) || !args.every((arg) => isPositional(arg) || isKeyword(arg))) {
      return this.#made(super.evaluate(node, scope));
    }
    const operand = this.evaluate(node.operand, scope);
    const own = applyFilter(name, operand, this.#arguments(args, scope));
    return this.#made(own ?? super.evaluate({ ...node, operand: hold(operand) } as FilterNode, scope));
  }

  #filterBlock(node: FilterBlockNode, scope: Scope): Value {
    const call = node.filter.type === 'CallExpression' ? (node.filter as CallNode) : null;
    const isWith = (call?.callee as IdentifierNode | undefined)?.value === WITH;
    const inner = new Environment(scope);
    if (!isWith) {
      const text = box(this.#block(node.body, inner));
      return this.#filter({ type: 'FilterExpression', operand: hold(text), filter: node.filter } as FilterNode, scope);
    }
    // The values are those outside of the block.
    for (const arg of call?.args ?? []) {
      if (!isKeyword(arg)) throw new TemplateError('"with" takes names and their values.');
      inner.setVariable(arg.key.value, this.evaluate(arg.value, scope));
    }
    return box(this.#block(node.body, inner));
  }

  #arguments(nodes: Node[], scope: Scope): Arguments {
    const keyword = nodes
      .filter(isKeyword)
      .map((node): [string, Value] => [node.key.value, this.evaluate(node.value, scope)]);
    return {
      positional: nodes.filter(isPositional).map((node) => this.evaluate(node, scope)),
      keyword: new Map(keyword),
    };
  }

  #test(node: TestNode, scope: Scope): Value {
    const name = node.test.value;
    if (!node.args.every(isPositional)) throw new TemplateError(`the test "${name}" takes no named arguments.`);
    const value = this.evaluate(node.operand, scope);
    return box(holds(name, value, this.#arguments(node.args, scope).positional) !== node.negate);
  }
}

/** A value that is known already, for the library to go on with. */
interface HeldNode extends Node {
  held: Value;
}

function hold(held: Value): HeldNode {
  return { type: 'Held', held };
}

/** `{% set name | filter %}`: the name, and the value after its filters. */
function throughFilters(target: Node, text: Node): { assignee: Node; value: Node } {
  if (target.type !== 'FilterExpression') return { assignee: target, value: text };
  const { assignee, value } = throughFilters((target as FilterNode).operand, text);
  return { assignee, value: { ...target, operand: value } as FilterNode };
}

/** For people: what an expression is called in its template. */
function nameOf(node: Node): string {
  if (node.type === 'Identifier') return (node as IdentifierNode).value;
  if (node.type === 'CallExpression') return `${nameOf((node as CallNode).callee)}()`;
  if (node.type !== 'MemberExpression') return 'a value';
  const { object, property, computed } = node as MemberNode;
  return computed ? `${nameOf(object)}[...]` : `${nameOf(object)}.${(property as IdentifierNode).value}`;
}

function isComparison(node: Node): node is BinaryNode {
  return node.type === 'BinaryExpression' && COMPARISONS.has((node as BinaryNode).operator.value);
}

function isKeyword(node: Node): node is KeywordNode {
  return node.type === 'KeywordArgumentExpression';
}

function isPositional(node: Node): boolean {
  return !isKeyword(node) && node.type !== 'SpreadExpression' && node.type !== 'KeywordSpreadExpression';
}

function bind(target: Node, item: Value, scope: Scope): void {
  if (target.type === 'Identifier') {
    scope.setVariable((target as IdentifierNode).value, item);
    return;
  }
  const names = (target as TupleNode).value;
  if (!isArray(item) || item.value.length !== names.length) {
    throw new TemplateError(`cannot unpack a loop item into ${names.length} names.`);
  }
  for (const [i, name] of names.entries()) bind(name, item.value[i] ?? box(undefined), scope);
}

const loopReaders = new WeakMap<Node, boolean>();

function readsLoop(node: ForNode): boolean {
  const known = loopReaders.get(node);
  if (known !== undefined) return known;
  const reads = [...walk(node)].some(
    (inner) => inner.type === 'Identifier' && (inner as IdentifierNode).value === 'loop',
  );
  loopReaders.set(node, reads);
  return reads;
}
