/** Lengths only fall: nothing grows past the limits, and a listed exception may not grow past its own. */
import { describe, expect, it } from 'vitest';
import { type FunctionSpan, nativeFunctions, read, repositoryFiles, scriptFunctions } from './sources.ts';

const FILE_LINES_MAX = 500;
const FUNCTION_LINES_MAX = 70;
/** Characters, of what no formatter breaks. */
const COMMENT_LINE_MAX = 155;
const DOCUMENT_LINE_MAX = 175;

/** Files that may be longer, with their length now: lower it when they shrink, never raise it. */
const LONG_FILES: Record<string, number> = {};

/** Files with a longer function, with its length now: lower it when it shrinks, never raise it. */
const LONG_FUNCTIONS: Record<string, number> = {};

/** Tables of facts, as long as the facts are. */
const DATA_TABLES = new Set(['native/src/grammar/unicode_tables.cc', 'scripts/mutations/mutations.mjs']);

const files = repositoryFiles();
const isScript = (file: string) => /\.(ts|mjs|mts)$/.test(file) && !file.endsWith('.d.ts') && !file.endsWith('.d.mts');
const isNative = (file: string) => /\.(cc|cpp|h|hpp|cu|cuh)$/.test(file);
const inCode = (file: string) => /^(src|native|scripts|benchmarks|test)\//.test(file) || !file.includes('/');
const sources = files.filter((file) => inCode(file) && (isScript(file) || isNative(file)));

function lineCount(text: string): number {
  return text.split('\n').length - (text.endsWith('\n') ? 1 : 0);
}

function functionsOf(file: string): FunctionSpan[] {
  return isScript(file) ? scriptFunctions(file, read(file)) : nativeFunctions(read(file));
}

describe('lengths', () => {
  it(`no file is over ${FILE_LINES_MAX} lines unless listed`, () => {
    const long = sources
      .filter((file) => !DATA_TABLES.has(file))
      .map((file) => ({ file, lines: lineCount(read(file)) }))
      .filter(({ file, lines }) => lines > (LONG_FILES[file] ?? FILE_LINES_MAX));
    expect(sources.length).toBeGreaterThan(0);
    expect(long).toEqual([]);
  });

  // A test suite's describe block is as long as its cases; the code under test and its tools are held to the limit.
  it(`no function is over ${FUNCTION_LINES_MAX} lines unless listed`, () => {
    const long = sources
      .filter((file) => !file.startsWith('test/'))
      .flatMap((file) => functionsOf(file).map((span) => ({ file, ...span })))
      .filter(({ file, lines }) => lines > (LONG_FUNCTIONS[file] ?? FUNCTION_LINES_MAX));
    expect(long).toEqual([]);
  });

  it('a listed exception still exists and still needs its place', () => {
    const done = [
      ...Object.keys(LONG_FILES).filter((file) => !files.includes(file) || lineCount(read(file)) <= FILE_LINES_MAX),
      ...Object.keys(LONG_FUNCTIONS).filter(
        (file) => !files.includes(file) || functionsOf(file).every(({ lines }) => lines <= FUNCTION_LINES_MAX),
      ),
    ];
    expect(done).toEqual([]);
  });
});

const isComment = (line: string) => /^\s*(\/\/|\/?\*)/.test(line);

/** A table's row is one line however long it is, and code is as long as it must be. */
function proseOf(text: string): string[] {
  return text
    .replace(/^```[\s\S]*?^```/gm, '')
    .split('\n')
    .filter((line) => !line.startsWith('|'));
}

describe('lines', () => {
  const tooLong = (file: string, lines: string[], most: number) =>
    lines.filter((line) => line.length > most).map((line) => `${file}: ${line.slice(0, 60)}`);

  it(`of comments have ${COMMENT_LINE_MAX} characters at most`, () => {
    const found = sources.flatMap((file) => tooLong(file, read(file).split('\n').filter(isComment), COMMENT_LINE_MAX));
    expect(found).toEqual([]);
  });

  it(`of documents have ${DOCUMENT_LINE_MAX} characters at most`, () => {
    const documents = files.filter((file) => file.endsWith('.md'));
    expect(documents.length).toBeGreaterThan(0);
    expect(documents.flatMap((file) => tooLong(file, proseOf(read(file)), DOCUMENT_LINE_MAX))).toEqual([]);
  });
});

describe('measuring functions', () => {
  it('counts methods and arrows of TypeScript', () => {
    const text = 'class A {\n  f(): void {\n    return;\n  }\n}\nconst g = () => {\n  g();\n};\n';
    expect(scriptFunctions('a.ts', text)).toEqual([
      { line: 2, lines: 3 },
      { line: 6, lines: 3 },
    ]);
  });

  it('counts functions of C++, not classes, namespaces, initialisers or words in comments', () => {
    const text = [
      'namespace a {',
      'struct S {',
      '  int x[2] = {1, 2};',
      '  int get() const {',
      '    if (x[0]) {',
      "      return '{';",
      '    }',
      '    return 0;  // }',
      '  }',
      '};',
      'const char* kText = "void f() {";',
      'S::S(int v) : x{v, v} {',
      '  auto f = [&](int y) { return y; };',
      '  f(1);',
      '}',
      '}  // namespace a',
    ].join('\n');
    expect(nativeFunctions(text)).toEqual([
      { line: 4, lines: 6 },
      { line: 12, lines: 4 },
    ]);
  });
});
