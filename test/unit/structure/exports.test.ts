/** What a file exports, another one uses: what nobody names is private to its file, or gone. */
import { describe, expect, it } from 'vitest';
import { read, repositoryFiles } from './sources.ts';

const EXPORTED = /^export (?:async )?(?:function\*?|const|class) (\w+)/gm;
const CODE = /^(?:src|test|benchmarks|examples|scripts)\/.*\.(?:ts|mjs)$/;

function unused(texts: ReadonlyMap<string, string>): string[] {
  const words = [...texts].map(([file, text]) => ({ file, names: new Set(text.match(/\w+/g)) }));
  return [...texts]
    .filter(([file]) => file.startsWith('src/'))
    .flatMap(([file, text]) =>
      [...text.matchAll(EXPORTED)]
        .map(([, name = '']) => name)
        .filter((name) => !words.some((other) => other.file !== file && other.names.has(name)))
        .map((name) => `${file}: ${name}`),
    );
}

describe('exports', () => {
  it('of functions, classes and constants are used by another file', () => {
    const files = repositoryFiles().filter((file) => CODE.test(file));
    expect(unused(new Map(files.map((file) => [file, read(file)])))).toEqual([]);
  });

  it('the rule finds what only its own file names', () => {
    const own = 'export const a = 1;\nexport async function b() { return a; }\nexport class C {}\nconst d = 2;\n';
    const texts = new Map([
      ['src/own.ts', own],
      ['test/other.ts', 'const x = new C();'],
    ]);
    expect(unused(texts)).toEqual(['src/own.ts: a', 'src/own.ts: b']);
  });
});
