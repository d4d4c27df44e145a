/**
 * Comparisons in a row: `a < b < c` is `a < b and b < c`, as in Python. The parser of @huggingface/jinja makes the tree of `(a < b) < c` of it,
 * so the tokens of operators that go on with a comparison are marked.
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
