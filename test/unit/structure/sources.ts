/** The repository's own files, and what the rules about them need to know: imports, includes, functions. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { parseAst } from 'vitest/node';

const root = path.resolve(import.meta.dirname, '../../..');

/** Tracked files and new ones that git does not ignore, relative to the root, with forward slashes. */
export function repositoryFiles(): string[] {
  const args = ['ls-files', '--cached', '--others', '--exclude-standard', '-z'];
  const output = execFileSync('git', args, { cwd: root, encoding: 'utf8', maxBuffer: 64 << 20 });
  return output.split('\0').filter((file) => file !== '' && existsSync(path.join(root, file)));
}

export function read(file: string): string {
  return readFileSync(path.join(root, file), 'utf8');
}

export function isSmallText(file: string, bytesMax: number): boolean {
  const full = path.join(root, file);
  return statSync(full).isFile() && statSync(full).size <= bytesMax && !readFileSync(full).includes(0);
}

interface Node {
  type: string;
  start: number;
  end: number;
  [key: string]: unknown;
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && typeof (value as { type?: unknown }).type === 'string';
}

function* nodes(node: Node): Generator<Node> {
  yield node;
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) yield* nodes(child);
  }
}

function* nodesOf(file: string, text: string): Generator<Node> {
  const program: unknown = parseAst(text, { lang: file.endsWith('.ts') ? 'ts' : 'js' });
  if (!isNode(program)) throw new Error(`${file} was not parsed`);
  yield* nodes(program);
}

const IMPORTING = new Set([
  'ImportDeclaration',
  'ExportNamedDeclaration',
  'ExportAllDeclaration',
  'ImportExpression',
  'TSImportType',
]);

/** Every module specifier that a TypeScript or JavaScript file names, type imports included. */
export function importsOf(file: string, text: string): string[] {
  const found: string[] = [];
  for (const node of nodesOf(file, text)) {
    if (!IMPORTING.has(node.type)) continue;
    const source = node['source'];
    if (isNode(source) && typeof source['value'] === 'string') found.push(source['value']);
    else if (node.type === 'ImportExpression') found.push('<computed>');
  }
  return found;
}

/** What a file takes from each module that it names; `*` is all of it. */
export function namedImports(file: string, text: string): { source: string; name: string }[] {
  const found: { source: string; name: string }[] = [];
  for (const node of nodesOf(file, text)) {
    const source = node['source'];
    if (!IMPORTING.has(node.type) || !isNode(source) || typeof source['value'] !== 'string') continue;
    const names = Array.isArray(node['specifiers']) ? node['specifiers'].filter(isNode).map(importedName) : ['*'];
    found.push(...names.map((name) => ({ source: String(source['value']), name })));
  }
  return found;
}

/** Of `a as b` the a; what has none is a whole module. */
function importedName(specifier: Node): string {
  const name = specifier.type === 'ExportSpecifier' ? specifier['local'] : specifier['imported'];
  return isNode(name) ? String(name['name']) : '*';
}

/** A relative specifier as a path from the root; a package's stays as it is. */
export function resolveImport(file: string, specifier: string): string {
  return specifier.startsWith('.') ? path.posix.join(path.posix.dirname(file), specifier) : specifier;
}

export function includesOf(text: string): string[] {
  return [...text.matchAll(/^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]/gm)].map((match) => match[1] ?? '');
}

export interface FunctionSpan {
  /** 1-based. */
  line: number;
  lines: number;
}

function lineOf(text: string, offset: number): number {
  return text.slice(0, offset).split('\n').length;
}

const FUNCTIONS = new Set(['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression']);

export function scriptFunctions(file: string, text: string): FunctionSpan[] {
  const spans: FunctionSpan[] = [];
  for (const node of nodesOf(file, text)) {
    if (!FUNCTIONS.has(node.type)) continue;
    const line = lineOf(text, node.start);
    spans.push({ line, lines: lineOf(text, node.end) - line + 1 });
  }
  return spans;
}

/** Comments, strings and character literals become spaces; line breaks stay. */
function blank(text: string): string {
  const pattern =
    /\/\/[^\n]*|\/\*[\s\S]*?\*\/|R"([^(\n]*)\([\s\S]*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'/g;
  return text.replace(pattern, (match) => match.replace(/[^\n]/g, ' '));
}

/** A brace opens a body when what stands before it, back to the last `;`, `{` or `}`, ends like a function's head. */
function opensFunction(head: string): boolean {
  const bare = head.replace(/^\s*#.*$/gm, '').trim();
  if (/\b(namespace|class|struct|union|enum)\b[^()]*$/.test(bare)) return false;
  return /\)\s*(const|noexcept|override|final|mutable|try|requires\b.*|->[^;]*|:[^;]*)*\s*$/s.test(bare);
}

/** The brace of `x{1}` in a constructor's list of initialisers. */
function initialisesMember(head: string): boolean {
  return /\)\s*(noexcept\s*)?:(?!:)[^;]*[\w>]\s*$/.test(head);
}

/** Outermost function bodies of C++ (lambdas and control blocks inside them belong to them). */
export function nativeFunctions(text: string): FunctionSpan[] {
  const code = blank(text);
  const spans: FunctionSpan[] = [];
  let depth = 0;
  let inside: { depth: number; start: number } | null = null;
  let headStart = 0;
  for (let i = 0; i < code.length; i++) {
    const c = code[i];
    if (c === '{') {
      const head = code.slice(headStart, i);
      if (!inside && initialisesMember(head)) {
        i = code.indexOf('}', i);
        continue;
      }
      if (!inside && opensFunction(head)) inside = { depth, start: i - head.trimStart().length };
      depth++;
    } else if (c === '}') {
      depth--;
      if (inside && depth === inside.depth) {
        const line = lineOf(code, inside.start);
        spans.push({ line, lines: lineOf(code, i) - line + 1 });
        inside = null;
      }
    }
    if (c === '{' || c === '}' || c === ';') headStart = i + 1;
  }
  return spans;
}
