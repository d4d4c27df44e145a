/**
 * `{% with a = 1, b = 2 %}...{% endwith %}`: the parser of @huggingface/jinja has no such block, so it is told to it by the tokens as a filter's
 * block, whose filter has a name that no template can write.
 */
import type { Token } from './jinja.ts';

export const WITH = 'with ';

/** Throws SyntaxError where the ends of such blocks do not fit. */
export function withBlocks(tokens: readonly Token[]): Token[] {
  const placed: Token[] = [];
  /** The blocks that are open, of those that end alike in the tokens that are made. */
  const open: string[] = [];
  let isHead = false;
  for (const [at, token] of tokens.entries()) {
    const opens = tokens[at - 1]?.type === 'OpenStatement' && token.type === 'Identifier';
    if (opens && (token.value === 'endwith' || token.value === 'endfilter')) {
      const block = open.pop();
      if (`end${block}` !== token.value)
        throw new SyntaxError(`a block ends with "${token.value}" that began otherwise`);
      placed.push({ ...token, value: 'endfilter' });
    } else if (opens && (token.value === 'with' || token.value === 'filter')) {
      open.push(token.value);
      placed.push({ ...token, value: 'filter' });
      isHead = token.value === 'with';
      if (isHead) placed.push({ ...token, value: WITH }, { type: 'OpenParen', value: '(' });
    } else {
      if (isHead && token.type === 'CloseStatement') {
        placed.push({ type: 'CloseParen', value: ')' });
        isHead = false;
      }
      placed.push(token);
    }
  }
  return placed;
}
