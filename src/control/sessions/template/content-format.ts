/** Whether a template walks through the parts of a message's content itself, or wants one string. */
import {
  walk,
  type BinaryNode,
  type ForNode,
  type IdentifierNode,
  type MemberNode,
  type Node,
  type SelectNode,
  type SetNode,
  type TestNode,
} from './ast.ts';

/**
 * string: content is always one text. parts: a list of parts is passed as it came.
 * partsOnly: the template never asks `content is string`, so a text becomes a list of one part.
 */
export type ContentFormat = 'string' | 'parts' | 'partsOnly';

export interface ContentUse {
  format: ContentFormat;
  /** Calls are shown, or a turn is left out, where an assistant's content is none: an empty text would be another case. */
  knowsNone: boolean;
}

export function detectContentUse(program: Node): ContentUse {
  const nodes = [...walk(program)];
  const messages = closure(nodes, new Set(['messages']), (node) => node);
  const items = loopVariables(nodes, messages);
  const contents = closure(nodes, new Set(), (node) => (isContent(node, items, messages) ? 'content' : node));
  const asksForNone = (node: Node): boolean =>
    node.type === 'TestExpression' &&
    (node as TestNode).test.value === 'none' &&
    isContentValue((node as TestNode).operand, contents, items, messages);
  const knowsNone = nodes.some(
    (node) =>
      node.type === 'BinaryExpression' &&
      (node as BinaryNode).operator.value === 'and' &&
      [(node as BinaryNode).left, (node as BinaryNode).right].some(asksForNone),
  );
  return { format: formatOf(nodes, contents, items, messages), knowsNone };
}

function formatOf(nodes: Node[], contents: Set<string>, items: Set<string>, messages: Set<string>): ContentFormat {
  const loops = nodes.some(
    (node) => node.type === 'For' && isContentValue(iterable(node as ForNode), contents, items, messages),
  );
  if (!loops) return 'string';
  const asks = nodes.some(
    (node) =>
      node.type === 'TestExpression' &&
      (node as TestNode).test.value === 'string' &&
      isContentValue((node as TestNode).operand, contents, items, messages),
  );
  return asks ? 'parts' : 'partsOnly';
}

/** Names that some `set` gives a value which `reads` finds to be one of `names`, or 'content'. */
function closure(nodes: Node[], names: Set<string>, reads: (node: Node) => Node | 'content'): Set<string> {
  let size = -1;
  while (size !== names.size) {
    size = names.size;
    for (const node of nodes) {
      const { assignee, value } = node as SetNode;
      if (node.type !== 'Set' || !value || assignee.type !== 'Identifier') continue;
      const source = reads(unwrap(value));
      if (source === 'content' || names.has(identifier(source))) names.add((assignee as IdentifierNode).value);
    }
  }
  return names;
}

function loopVariables(nodes: Node[], messages: Set<string>): Set<string> {
  const names = new Set<string>();
  for (const node of nodes) {
    if (node.type !== 'For') continue;
    const { loopvar } = node as ForNode;
    if (loopvar.type === 'Identifier' && messages.has(identifier(iterable(node as ForNode)))) {
      names.add((loopvar as IdentifierNode).value);
    }
  }
  return names;
}

function iterable(node: ForNode): Node {
  return unwrap(node.iterable.type === 'SelectExpression' ? (node.iterable as SelectNode).lhs : node.iterable);
}

/** Through slices (`messages[1:]`), filters (`content | list`) and `a or b`. */
function unwrap(node: Node): Node {
  if (node.type === 'MemberExpression' && (node as MemberNode).property.type === 'SliceExpression') {
    return unwrap((node as MemberNode).object);
  }
  if (node.type === 'FilterExpression') return unwrap((node as Node & { operand: Node }).operand);
  if (node.type === 'BinaryExpression' && (node as BinaryNode).operator.value === 'or')
    return unwrap((node as BinaryNode).left);
  return node;
}

function identifier(node: Node): string {
  return node.type === 'Identifier' ? (node as IdentifierNode).value : '';
}

/** `message.content`, `message['content']` or `messages[0].content`. */
function isContent(node: Node, items: Set<string>, messages: Set<string>): boolean {
  if (node.type !== 'MemberExpression') return false;
  const { object, property } = node as MemberNode;
  if ((property as IdentifierNode).value !== 'content') return false;
  if (items.has(identifier(object))) return true;
  return object.type === 'MemberExpression' && messages.has(identifier((object as MemberNode).object));
}

function isContentValue(node: Node, contents: Set<string>, items: Set<string>, messages: Set<string>): boolean {
  const inner = unwrap(node);
  return contents.has(identifier(inner)) || isContent(inner, items, messages);
}
