/**
 * How operators bind in jinja2 where the parser of @huggingface/jinja has it otherwise, told to it by the tokens:
 * - `a < b < c` is `a < b and b < c`, as in Python, and not `(a < b) < c`: operators that go on with a comparison are marked;
 * - `a + b ~ c` is `a + (b ~ c)`: parentheses are put in.
 */
import type { Token } from './jinja.ts';

const OPENING = new Set(['OpenParen', 'OpenSquareBracket', 'OpenCurlyBracket']);
const CLOSING = new Set(['CloseParen', 'CloseSquareBracket', 'CloseCurlyBracket']);
/** What binds looser than a comparison ends it. */
const ENDING = new Set([
  'Comma',
  'Colon',
  'Equals',
  'OpenStatement',
  'CloseStatement',
  'OpenExpression',
  'CloseExpression',
]);
const ENDING_WORDS = new Set(['and', 'or', 'if', 'else']);

export const COMPARISONS: ReadonlySet<string> = new Set(['<', '<=', '>', '>=', '==', '!=', 'in', 'not in']);

export function withChains(tokens: readonly Token[]): Token[] {
  const marked: Token[] = [];
  /** For each open bracket, and the tag: whether a comparison stands before. */
  const levels = [false];
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at] as Token;
    const operator = operatorAt(tokens, at);
    if (OPENING.has(token.type)) levels.push(false);
    else if (CLOSING.has(token.type)) levels.pop();
    else if (ends(tokens, at)) levels[levels.length - 1] = false;
    if (operator === null || levels.at(-1) !== true) {
      if (operator !== null) levels[levels.length - 1] = true;
      marked.push(token);
    } else {
      marked.push({ type: 'ComparisonBinaryOperator', value: operator, chained: true });
    }
    if (operator === 'not in') {
      at++;
      if (marked.at(-1) === token) marked.push(tokens[at] as Token);
    }
  }
  return marked;
}

const PLUS = new Set(['+', '-']);
const OPEN: Token = { type: 'OpenParen', value: '(' };
const CLOSE: Token = { type: 'CloseParen', value: ')' };

/** What has been read of a sum: where a parenthesis may open behind its last + or -, and whether a `~` has come since. */
interface Sum {
  place: number;
  joins: boolean;
}

export function withConcatenations(tokens: readonly Token[]): Token[] {
  const placed: (Token | null)[] = [];
  const levels: Sum[] = [{ place: -1, joins: false }];
  const endOperand = (): void => {
    const sum = levels.at(-1);
    if (!sum) return;
    if (sum.joins) {
      placed[sum.place] = OPEN;
      placed.push(CLOSE);
    }
    Object.assign(sum, { place: -1, joins: false });
  };
  for (const [at, token] of tokens.entries()) {
    const adds = token.type === 'AdditiveBinaryOperator';
    const opens = OPENING.has(token.type);
    if (CLOSING.has(token.type)) {
      endOperand();
      levels.pop();
    } else if ((adds && PLUS.has(token.value)) || ends(tokens, at) || operatorAt(tokens, at) !== null) endOperand();
    placed.push(token);
    const sum = levels.at(-1);
    if (opens) levels.push({ place: -1, joins: false });
    else if (sum && adds && PLUS.has(token.value)) sum.place = placed.push(null) - 1;
    else if (sum && adds) sum.joins = sum.place !== -1;
  }
  return placed.filter((token) => token !== null);
}

function isWord(token: Token | undefined, word: string): boolean {
  return token?.type === 'Identifier' && token.value === word;
}

/** null: no comparison, such as the test in `is not in`. */
function operatorAt(tokens: readonly Token[], at: number): string | null {
  const [before, token, behind] = [tokens[at - 1], tokens[at], tokens[at + 1]];
  if (token?.type === 'ComparisonBinaryOperator') return token.value;
  if (before?.type === 'Dot' || isWord(before, 'is') || isWord(before, 'not')) return null;
  if (isWord(token, 'in')) return 'in';
  return isWord(token, 'not') && isWord(behind, 'in') ? 'not in' : null;
}

function ends(tokens: readonly Token[], at: number): boolean {
  const token = tokens[at] as Token;
  return (
    ENDING.has(token.type) ||
    (token.type === 'Identifier' && ENDING_WORDS.has(token.value) && tokens[at - 1]?.type !== 'Dot')
  );
}
