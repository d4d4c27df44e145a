/**
 * Arguments of tests: `is divisibleby(2)`, `is in [1, 2]`. The parser of @huggingface/jinja has none, so they are cut out of the tokens,
 * parsed as a call's and put into the tree.
 */
import { walk, type CallNode, type Node, type ProgramNode, type TestNode } from './ast.ts';
import { parse, type Token } from './jinja.ts';

const CLOSING: Readonly<Record<string, string>> = {
  OpenParen: 'CloseParen',
  OpenSquareBracket: 'CloseSquareBracket',
  OpenCurlyBracket: 'CloseCurlyBracket',
};
/** These go on behind a test without an argument. */
const OPERATORS: ReadonlySet<string> = new Set(['and', 'or', 'not', 'in', 'is', 'if', 'else']);

export function parseWithTests(tokens: readonly Token[]): ProgramNode {
  const cutter = new TestCutter(tokens);
  const program = parse(cutter.without(0, tokens.length));
  // Arguments are met below their test, with the tests in them.
  for (const node of walk(program)) {
    if (node.type !== 'TestExpression') continue;
    const test = node as TestNode;
    const [name = '', list] = test.test.value.split(' ');
    test.test.value = name;
    test.args = list === undefined ? [] : (cutter.lists[Number(list)] ?? []);
  }
  return program;
}

class TestCutter {
  readonly #tokens: readonly Token[];
  /** From an opening bracket to the one that closes it. */
  readonly #partner: ReadonlyMap<number, number>;
  readonly lists: Node[][] = [];

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
    this.#partner = partners(tokens);
  }

  /** The tokens; a test with arguments is named after its place in `lists`, behind a space, which no name has. */
  without(from: number, end: number): Token[] {
    const kept: Token[] = [];
    for (let at = from; at < end; at++) {
      const token = this.#tokens[at] as Token;
      const behind = this.#isTest(at) ? this.#behindArguments(at + 1) : at + 1;
      if (behind === at + 1) kept.push(token);
      else {
        const list = this.#arguments(at + 1, behind);
        kept.push({ ...token, value: `${token.value} ${this.lists.push(list) - 1}` });
      }
      at = behind - 1;
    }
    return kept;
  }

  #isTest(at: number): boolean {
    if (this.#type(at) !== 'Identifier' || this.#isWord(at, 'not')) return false;
    const is = this.#isWord(at - 1, 'not') ? at - 2 : at - 1;
    return this.#isWord(is, 'is') && this.#type(is - 1) !== 'Dot';
  }

  /** In parentheses, or one value with what is taken from it (`a.b[0]`). */
  #behindArguments(from: number): number {
    if (this.#type(from) === 'OpenParen') return this.#behind(from);
    if (!this.#beginsValue(from)) return from;
    let at = this.#behind(from);
    for (;;) {
      const type = this.#type(at);
      if (type === 'Dot') at += 2;
      else if (type === 'OpenParen' || type === 'OpenSquareBracket') at = this.#behind(at);
      else return at;
    }
  }

  #beginsValue(at: number): boolean {
    const type = this.#type(at);
    if (type === 'Identifier') return !OPERATORS.has(this.#tokens[at]?.value ?? '');
    return ['StringLiteral', 'NumericLiteral', 'OpenSquareBracket', 'OpenCurlyBracket'].includes(type);
  }

  #behind(at: number): number {
    return (this.#partner.get(at) ?? at) + 1;
  }

  #arguments(from: number, end: number): Node[] {
    const inParentheses = this.#type(from) === 'OpenParen';
    const call = [
      { type: 'OpenExpression', value: '{{' },
      { type: 'Identifier', value: 'test' },
      { type: 'OpenParen', value: '(' },
      ...(inParentheses ? this.without(from + 1, end - 1) : this.without(from, end)),
      { type: 'CloseParen', value: ')' },
      { type: 'CloseExpression', value: '}}' },
    ];
    return (parse(call).body[0] as CallNode).args;
  }

  #type(at: number): string {
    return this.#tokens[at]?.type ?? '';
  }

  #isWord(at: number, word: string): boolean {
    return this.#type(at) === 'Identifier' && this.#tokens[at]?.value === word;
  }
}

function partners(tokens: readonly Token[]): Map<number, number> {
  const found = new Map<number, number>();
  const open: number[] = [];
  for (const [at, { type }] of tokens.entries()) {
    const last = open.at(-1);
    if (Object.hasOwn(CLOSING, type)) open.push(at);
    else if (last !== undefined && type === CLOSING[tokens[last]?.type ?? '']) {
      found.set(last, at);
      open.pop();
    }
  }
  return found;
}
