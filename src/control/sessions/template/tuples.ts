/**
 * `()`, `(a,)` and `(a, b,)`, of which the parser of @huggingface/jinja knows none: they are told to it by the tokens as calls of a function whose
 * name no template can write.
 */
import type { Token } from './jinja.ts';

export const TUPLE = 'tuple ';

/** A value may follow on these. */
const BEFORE = new Set([
  'OpenParen',
  'OpenSquareBracket',
  'OpenCurlyBracket',
  'OpenExpression',
  'Comma',
  'Colon',
  'Equals',
  'AdditiveBinaryOperator',
  'MultiplicativeBinaryOperator',
  'ComparisonBinaryOperator',
]);
const WORDS_BEFORE = new Set(['in', 'not', 'and', 'or', 'if', 'elif', 'else']);

export function withTuples(tokens: readonly Token[]): Token[] {
  const open: number[] = [];
  const tuples = new Set<number>();
  const dropped = new Set<number>();
  for (const [at, { type }] of tokens.entries()) {
    if (type === 'OpenParen') open.push(at);
    if (type !== 'CloseParen') continue;
    const from = open.pop();
    const hasComma = tokens[at - 1]?.type === 'Comma' && tokens[at - 2]?.type !== 'Comma';
    if (from === undefined || (from !== at - 1 && !(hasComma && from < at - 2)) || !beginsValue(tokens, from)) continue;
    tuples.add(from);
    if (hasComma) dropped.add(at - 1);
  }
  return tokens.flatMap((token, at) => {
    if (dropped.has(at)) return [];
    return tuples.has(at) ? [{ type: 'Identifier', value: TUPLE }, token] : [token];
  });
}

/** And no call, nor the arguments of a test. */
function beginsValue(tokens: readonly Token[], at: number): boolean {
  const [second, before] = [tokens[at - 2], tokens[at - 1]];
  if (!before || BEFORE.has(before.type)) return true;
  const isTest = second?.value === 'is' || (second?.value === 'not' && tokens[at - 3]?.value === 'is');
  return before.type === 'Identifier' && WORDS_BEFORE.has(before.value) && second?.type !== 'Dot' && !isTest;
}
