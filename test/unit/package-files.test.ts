/** What npm would publish: all that the server needs to be built and to run where only the package is there, and no more. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { importsOf, read, repositoryFiles, resolveImport } from './structure/sources.ts';

const root = path.resolve(import.meta.dirname, '../..');
let packed: Set<string>;

beforeAll(() => {
  const args = ['pack', '--dry-run', '--json', '--ignore-scripts'];
  const { stdout, stderr } = spawnSync('npm', args, { cwd: root, encoding: 'utf8', maxBuffer: 16 << 20 });
  if (stdout === '') throw new Error(stderr);
  // A list, or from npm 12 on an object of packages by name.
  const [report] = Object.values(JSON.parse(stdout) as Record<string, { files: { path: string }[] }>);
  packed = new Set(report?.files.map((file) => file.path));
}, 120_000);

const missing = (files: Iterable<string>) => [...files].filter((file) => !packed.has(file));
const tracked = (...folders: string[]) =>
  repositoryFiles().filter((file) => folders.some((folder) => file.startsWith(`${folder}/`)));

/** A script and all files that it loads. */
function withImports(file: string, found = new Set<string>()): Set<string> {
  if (found.has(file)) return found;
  found.add(file);
  for (const specifier of importsOf(file, read(file))) {
    if (specifier.startsWith('.')) withImports(resolveImport(file, specifier), found);
  }
  return found;
}

test('the package holds what the server runs', () => {
  const compiled = tracked('src').map((file) => file.replace(/^src(.*)\.ts$/, 'dist$1.js'));
  expect(compiled.length).toBeGreaterThan(200);
  expect(missing(compiled)).toEqual([]);
  expect(missing(tracked('models/starter', 'docs'))).toEqual([]);
  expect(missing(['LICENSE', 'README.md', 'ARCHITECTURE.md', 'CHANGELOG.md', 'package.json'])).toEqual([]);
});

test('the package holds what its engines are built and installed from', () => {
  expect(missing(tracked('native/src', 'native/cuda'))).toEqual([]);
  expect(missing(['CMakeLists.txt', 'binding.gyp', 'llama-cpp/package.json', 'llama-cpp/package-lock.json'])).toEqual(
    [],
  );
  expect(missing(withImports('scripts/build-native.mjs'))).toEqual([]);
  expect(missing(withImports('scripts/setup-llama-cpp.mjs'))).toEqual([]);
});

test('the package holds nothing that only the repository needs', () => {
  const needless =
    /(^|\/)(tests?|benchmarks|examples|node_modules|native-build|src\/.*\.ts)(\/|$)|\.(map|node|tgz)$|stamp$/;
  expect([...packed].filter((file) => needless.test(file))).toEqual([]);
});

test('what the server imports is installed with it', () => {
  const { dependencies } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as {
    dependencies: Record<string, string>;
  };
  const name = (specifier: string) => /^(@[^/]+\/)?[^/]+/.exec(specifier)?.[0] ?? specifier;
  const imported = tracked('src').flatMap((file) => importsOf(file, read(file)));
  const packages = new Set(imported.filter((specifier) => !/^(\.|node:|<)/.test(specifier)).map(name));
  expect(packages.size).toBeGreaterThan(5);
  expect([...packages].filter((wanted) => !(wanted in dependencies))).toEqual([]);
});
