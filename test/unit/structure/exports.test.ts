/** What a file exports, another one imports from it: what nobody imports is private to its file, or gone. */
import { describe, expect, it } from 'vitest';
import { namedImports, read, repositoryFiles, resolveImport } from './sources.ts';

const EXPORTED = /^export (?:async )?(?:function\*?|const|class) (\w+)/gm;
const CODE = /^(?:src|test|benchmarks|examples|scripts)\/.*\.(?:ts|mjs)$/;

/** What was built from a file is that file. */
function sourceOf(path: string): string {
  return path.replace(/^dist\/(.*)\.js$/, 'src/$1.ts');
}

/** Scripts are read by no compiler: what they import from the server must be there. */
function missing(texts: ReadonlyMap<string, string>): string[] {
  return [...texts]
    .filter(([file]) => file.endsWith('.mjs'))
    .flatMap(([file, text]) =>
      namedImports(file, text)
        .map(({ source, name }) => ({ name, exporter: texts.get(sourceOf(resolveImport(file, source))) }))
        .filter(({ name, exporter }) => name !== '*' && exporter !== undefined && !exported(exporter).includes(name))
        .map(({ name }) => `${file}: ${name}`),
    );
}

function exported(text: string): string[] {
  return [...text.matchAll(EXPORTED)].map(([, name = '']) => name);
}

/** Read by the server, from whatever module it is told to load. */
const BY_NAME = new Set(['extensions']);

function unused(texts: ReadonlyMap<string, string>): string[] {
  const imported = new Set<string>();
  for (const [file, text] of texts) {
    for (const { source, name } of namedImports(file, text)) {
      imported.add(`${sourceOf(resolveImport(file, source))}: ${name}`);
    }
  }
  return [...texts]
    .filter(([file]) => !imported.has(`${file}: *`))
    .flatMap(([file, text]) =>
      exported(text)
        .filter((name) => !BY_NAME.has(name))
        .map((name) => `${file}: ${name}`),
    )
    .filter((name) => !imported.has(name));
}

describe('exports', () => {
  const files = repositoryFiles().filter((file) => CODE.test(file));
  const repository = new Map(files.map((file) => [file, read(file)]));

  it('of functions, classes and constants are used by another file', () => {
    expect(unused(repository)).toEqual([]);
  });

  it('are there for the scripts that import them', () => {
    expect(missing(repository)).toEqual([]);
  });

  it('the rule finds what a script imports in vain', () => {
    const texts = new Map([
      ['src/own.ts', 'export const a = 1;\n'],
      ['benchmarks/run.mjs', 'import { a, b } from "../dist/own.js";\nimport path from "node:path";\n'],
    ]);
    expect(missing(texts)).toEqual(['benchmarks/run.mjs: b']);
  });

  it('the rule finds what only its own file uses, whatever others call theirs', () => {
    const own =
      'export const a = 1;\nexport async function b() { return a; }\nexport class C {}\nexport const d = 2;\n';
    const texts = new Map([
      ['src/own.ts', own],
      ['src/other.ts', 'const a = 3;\nexport { d } from "./own.ts";'],
      ['test/built.ts', 'import { C } from "../dist/own.js";\nexport const e = 1;'],
    ]);
    expect(unused(texts)).toEqual(['src/own.ts: a', 'src/own.ts: b', 'test/built.ts: e']);
  });

  it('the rule takes a file that is loaded whole as used', () => {
    const texts = new Map([
      ['src/own.ts', 'export const a = 1;\n'],
      ['src/other.ts', 'export const load = () => import("./own.ts");\n'],
    ]);
    expect(unused(texts)).toEqual(['src/other.ts: load']);
  });
});
