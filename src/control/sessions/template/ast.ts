/** The nodes of @huggingface/jinja's syntax tree that we look into. */

export interface Node {
  type: string;
}

export interface ProgramNode extends Node {
  body: Node[];
}
export interface IfNode extends Node {
  test: Node;
  body: Node[];
  alternate: Node[];
}
export interface ForNode extends Node {
  loopvar: Node;
  iterable: Node;
  body: Node[];
  defaultBlock: Node[];
}
/** `lhs if test`: also the condition of a for loop. */
export interface SelectNode extends Node {
  lhs: Node;
  test: Node;
}
export interface TupleNode extends Node {
  value: Node[];
}
export interface IdentifierNode extends Node {
  value: string;
}
export interface MemberNode extends Node {
  object: Node;
  property: Node;
  computed: boolean;
}
export interface SliceNode extends Node {
  start: Node | undefined;
  stop: Node | undefined;
  step: Node | undefined;
}
export interface CallNode extends Node {
  callee: Node;
  args: Node[];
}
export interface KeywordNode extends Node {
  key: IdentifierNode;
  value: Node;
}
export interface BinaryNode extends Node {
  operator: { value: string; chained?: boolean };
  left: Node;
  right: Node;
}
export interface FilterNode extends Node {
  operand: Node;
  filter: IdentifierNode | CallNode;
}
/** A filter around a block of text. */
export interface FilterBlockNode extends Node {
  filter: IdentifierNode | CallNode;
  body: Node[];
}
export interface TestNode extends Node {
  operand: Node;
  negate: boolean;
  test: IdentifierNode;
  args: Node[];
}
export interface MacroNode extends Node {
  name: IdentifierNode;
}
export interface DictionaryNode extends Node {
  value: Map<Node, Node>;
}
export interface SetNode extends Node {
  assignee: Node;
  value: Node | null;
  body: Node[];
}

/** Every node below `node`, itself first, in no promised order and without recursion. */
export function* walk(root: Node): Generator<Node> {
  const pending: unknown[] = [root];
  while (pending.length > 0) {
    const item = pending.pop();
    if (Array.isArray(item)) for (const child of item) pending.push(child);
    else if (item instanceof Map) for (const [key, value] of item) pending.push(key, value);
    else if (isNode(item)) {
      yield item;
      for (const child of Object.values(item)) if (typeof child === 'object' && child !== null) pending.push(child);
    }
  }
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}
