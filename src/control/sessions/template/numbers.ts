/**
 * Numbers as jinja2 writes them (`1e3`, `2.5E-7`, `1_000`). The lexer of @huggingface/jinja ends them at the first letter or underscore, and
 * its parser takes `[1 e3]` for two items.
 */
import type { Token } from './jinja.ts';

const GOES_ON = /^(_\d+)*(?:([eE])(\d+(?:_\d+)*)?)?$/;

/** No valid template has a name right behind a number, so what can be the rest of one is. */
export function withNumbers(tokens: readonly Token[]): Token[] {
  const kept: Token[] = [];
  for (let at = 0; at < tokens.length; at++) {
    const token = tokens[at] as Token;
    const next = tokens[at + 1];
    const rest = token.type === 'NumericLiteral' && next?.type === 'Identifier' ? GOES_ON.exec(next.value) : null;
    if (!next || !rest) {
      kept.push(token);
      continue;
    }
    at++;
    const digits = token.value + next.value;
    const [, , mark, exponent] = rest;
    const [sign, power] = [tokens[at + 1]?.value ?? '', tokens[at + 2]];
    const isSigned = mark !== undefined && exponent === undefined;
    if (isSigned && (!/^[-+]$/.test(sign) || power?.type !== 'NumericLiteral'))
      throw new SyntaxError(`${digits} is no number`);
    if (isSigned) at += 2;
    kept.push({ type: 'NumericLiteral', value: written(isSigned ? digits + sign + power?.value : digits) });
  }
  return kept;
}

/** The parser takes what has a point for a float. */
function written(number: string): string {
  const plain = number.replaceAll('_', '');
  return plain.includes('.') ? plain : plain.replace(/[eE]/, '.0e');
}
