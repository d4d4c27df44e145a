/**
 * The only file that imports @huggingface/jinja. Its type declarations do not resolve under `nodenext` (they import
 * without file extensions), so the part that we use is declared here.
 */
import * as jinja from '@huggingface/jinja';
import type { Node, ProgramNode } from './ast.ts';

export interface Value {
  type: string;
  value: unknown;
  __bool__(): { value: boolean };
  readonly builtins: ReadonlyMap<string, Value>;
}

export interface Token {
  type: string;
  value: string;
  /** Ours (precedence.ts); operators come into the tree as they are. */
  chained?: boolean;
}

export interface Scope {
  variables: Map<string, Value>;
  /** Declares a JavaScript value; throws when the name is taken in this scope. */
  set(name: string, value: unknown): Value;
  setVariable(name: string, value: Value): Value;
}

interface BaseInterpreter {
  evaluate(statement: Node | undefined, scope: Scope): Value;
}

interface Library {
  Environment: new (parent?: Scope) => Scope;
  Interpreter: new (scope?: Scope) => BaseInterpreter;
  tokenize: (source: string) => Token[];
  parse: (tokens: readonly Token[]) => ProgramNode;
}

export const { Environment, Interpreter, tokenize, parse } = jinja as unknown as Library;
