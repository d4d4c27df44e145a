/**
 * `{% for x in y recursive %}`: the parser of @huggingface/jinja does not know the word. It is taken from the tokens, which tell of it by a loop
 * variable's name that no template can write.
 */
import { walk, type ForNode, type IdentifierNode, type Node } from './ast.ts';
import type { Token } from './jinja.ts';

const MARK = ' recursive';

/** Behind these `recursive` is the name of a variable. */
const WORDS_BEFORE = new Set(['in', 'if', 'else', 'and', 'or', 'not', 'is']);
const ENDS_VALUE = new Set([
  'Identifier',
  'StringLiteral',
  'NumericLiteral',
  'CloseParen',
  'CloseSquareBracket',
  'CloseCurlyBracket',
]);

export function withRecursion(tokens: readonly Token[]): Token[] {
  const kept: Token[] = [];
  /** Where the loop variable of the tag stands that is being read; null: it is no loop's. */
  let variable: number | null = null;
  for (const [at, token] of tokens.entries()) {
    const before = tokens[at - 1];
    if (token.type === 'OpenStatement') variable = null;
    else if (before && isWord(before, 'for') && tokens[at - 2]?.type === 'OpenStatement') {
      // Only parentheses may come first.
      let first = at;
      while (tokens[first]?.type === 'OpenParen') first++;
      variable = tokens[first]?.type === 'Identifier' ? kept.length + first - at : null;
    }
    const isMark = variable !== null && isWord(token, 'recursive') && tokens[at + 1]?.type === 'CloseStatement';
    const marked = isMark && before && endsValue(before, tokens[at - 2]) ? kept[variable ?? -1] : undefined;
    if (marked && variable !== null) kept[variable] = { ...marked, value: marked.value + MARK };
    else kept.push(token);
  }
  return kept;
}

/** The loops that are recursive; their variables have their names again. */
export function recursiveLoops(program: Node): ReadonlySet<Node> {
  const loops = new Set<Node>();
  for (const node of walk(program)) {
    if (node.type !== 'For') continue;
    for (const inner of walk((node as ForNode).loopvar)) {
      const name = inner as IdentifierNode;
      if (inner.type !== 'Identifier' || !name.value.endsWith(MARK)) continue;
      name.value = name.value.slice(0, -MARK.length);
      loops.add(node);
    }
  }
  return loops;
}

function isWord(token: Token, word: string): boolean {
  return token.type === 'Identifier' && token.value === word;
}

function endsValue(token: Token, before: Token | undefined): boolean {
  if (!ENDS_VALUE.has(token.type)) return false;
  return token.type !== 'Identifier' || before?.type === 'Dot' || !WORDS_BEFORE.has(token.value);
}
