/** Imports point down only: ARCHITECTURE.md draws the rooms, this proves the arrows. */
import { describe, expect, it } from 'vitest';
import { importsOf, includesOf, read, repositoryFiles, resolveImport } from './sources.ts';

const files = repositoryFiles();

interface Room {
  folder: string;
  /** Folders it may import from, itself included. */
  may: string[];
}

const TYPESCRIPT_ROOMS: Room[] = [
  { folder: 'src/schemas/', may: ['src/schemas/'] },
  { folder: 'src/control/', may: ['src/schemas/', 'src/control/'] },
  { folder: 'src/api/', may: ['src/schemas/', 'src/control/', 'src/api/'] },
  { folder: 'src/cli/', may: ['src/'] },
];

/** What only one room may import, as a path prefix or a package. */
const TYPESCRIPT_RESERVED = [
  { target: 'src/control/store/', only: ['src/control/store/', 'src/control/training/', 'src/cli/'] },
  { target: 'koa', only: ['src/api/'] },
  { target: '@koa/router', only: ['src/api/'] },
  { target: 'kysely', only: ['src/control/store/'] },
  { target: 'better-sqlite3', only: ['src/control/store/'] },
];

const LOADS_ADDON = 'src/control/engine/native.ts';

function typescriptFaults(file: string, text: string): string[] {
  const room = TYPESCRIPT_ROOMS.find(({ folder }) => file.startsWith(folder));
  if (!room) return [`${file} lies in no room`];
  const faults: string[] = [];
  for (const specifier of importsOf(file, text)) {
    const target = resolveImport(file, specifier);
    const inside = specifier.startsWith('.');
    if (inside && !room.may.some((folder) => target.startsWith(folder))) faults.push(`${file} imports ${target}`);
    for (const reserved of TYPESCRIPT_RESERVED) {
      const hit = inside ? target.startsWith(reserved.target) : target === reserved.target;
      if (hit && !reserved.only.some((folder) => file.startsWith(folder))) faults.push(`${file} imports ${target}`);
    }
  }
  const loads = /\.node['"`]|\bdlopen\b|\bcreateRequire\b/.test(text.replace(/\/\/.*|\/\*[\s\S]*?\*\//g, ''));
  if (loads && file !== LOADS_ADDON) faults.push(`${file} loads a native module`);
  return faults;
}

const CONTROL_ROOM = /^src\/control\/(\w+)\//;

/** The rooms of src/control with those that each may import, as ARCHITECTURE.md's table has them. */
function controlRooms(text: string): Map<string, string[]> {
  const rows = text.matchAll(/^\| `src\/control\/(\w+)` \|.*\|([^|]*)\|$/gm);
  return new Map(
    [...rows].map(([, room = '', may = '']) => [
      room,
      [...may.matchAll(/`control\/(\w+)`/g)].map(([, name = '']) => name),
    ]),
  );
}

/** Files that lie in no room are everybody's. */
function controlFaults(rooms: ReadonlyMap<string, string[]>, file: string, text: string): string[] {
  const own = CONTROL_ROOM.exec(file)?.[1];
  if (own === undefined) return [];
  const may = [own, ...(rooms.get(own) ?? [])];
  return importsOf(file, text)
    .map((specifier) => resolveImport(file, specifier))
    .filter((target) => CONTROL_ROOM.test(target) && !may.includes(CONTROL_ROOM.exec(target)?.[1] ?? ''))
    .map((target) => `${file} imports ${target}`);
}

const NATIVE_ROOMS: Room[] = [
  { folder: 'base/', may: ['base/'] },
  { folder: 'simd/', may: ['simd/', 'base/'] },
  { folder: 'ops/', may: ['ops/', 'simd/', 'base/'] },
  { folder: 'model/', may: ['model/', 'ops/', 'base/'] },
  { folder: 'grammar/', may: ['grammar/', 'base/'] },
  { folder: 'engine/', may: ['engine/', 'grammar/', 'model/', 'ops/', 'base/'] },
  { folder: 'train/', may: ['train/', 'model/', 'ops/', 'base/'] },
  { folder: 'addon/', may: ['addon/', 'engine/', 'device/', 'grammar/', 'train/', 'model/', 'base/'] },
  { folder: 'cuda/', may: ['cuda/', 'base/'] },
  { folder: 'device/', may: ['device/', 'cuda/', 'engine/', 'train/', 'model/', 'ops/', 'base/'] },
  { folder: 'no_cuda/', may: ['device/', 'base/'] },
];

/** Each with its reason. */
const NATIVE_EXCEPTIONS: Record<string, string[]> = {
  // info() reports which kernels are built in and chosen.
  'addon/addon.cc': ['simd/isa.h'],
};

const PROJECT_FOLDERS = NATIVE_ROOMS.map(({ folder }) => folder);

/** `file` is relative to native/src, or to native for the CUDA folder. */
function nativeFaults(file: string, text: string): string[] {
  const room = NATIVE_ROOMS.find(({ folder }) => file.startsWith(folder));
  if (!room) return [`${file} lies in no room`];
  const faults: string[] = [];
  for (const include of includesOf(text)) {
    const isNodeApi = /^(napi|node_api|js_native_api|uv|v8|node)[\w-]*\.h$/.test(include);
    if (isNodeApi && !file.startsWith('addon/')) faults.push(`${file} includes ${include}`);
    if (include.startsWith('.')) faults.push(`${file} includes ${include}, a path that is not from the top`);
    if (!PROJECT_FOLDERS.some((folder) => include.startsWith(folder))) continue;
    const allowed = room.may.some((folder) => include.startsWith(folder)) || NATIVE_EXCEPTIONS[file]?.includes(include);
    if (!allowed) faults.push(`${file} includes ${include}`);
  }
  return faults;
}

function nativeName(file: string): string {
  return file.startsWith('native/cuda/') ? file.slice('native/'.length) : file.slice('native/src/'.length);
}

describe('imports of TypeScript', () => {
  const sources = files.filter((file) => file.startsWith('src/') && file.endsWith('.ts'));

  it('point down only', () => {
    expect(sources.length).toBeGreaterThan(0);
    expect(sources.flatMap((file) => typescriptFaults(file, read(file)))).toEqual([]);
  });

  it('keep to what ARCHITECTURE.md lets each room of src/control import', () => {
    const rooms = controlRooms(read('ARCHITECTURE.md'));
    const found = sources.map((file) => CONTROL_ROOM.exec(file)?.[1]).filter((room) => room !== undefined);
    expect([...rooms.keys()].sort()).toEqual([...new Set(found)].sort());
    expect(sources.flatMap((file) => controlFaults(rooms, file, read(file)))).toEqual([]);
  });

  it('the rule of src/control reads its table', () => {
    const rooms = controlRooms(
      '| `src/control/a` | it owns `control/c` | `control/b` (types) |\n| `src/control/b` | | nothing |',
    );
    const text =
      "import { x } from '../b/x.ts'; import type { Y } from '../c/y.ts'; import '../turns.ts'; import './z.ts';";
    expect(controlFaults(rooms, 'src/control/a/x.ts', text)).toEqual(['src/control/a/x.ts imports src/control/c/y.ts']);
    expect(controlFaults(rooms, 'src/control/b/x.ts', "import '../a/x.ts';")).toHaveLength(1);
  });

  it.each([
    ['src/schemas/a.ts', "import '../control/settings.ts';"],
    ['src/schemas/a.ts', "import type { A } from '../api/app.ts';"],
    ['src/control/a.ts', "export * from '../api/app.ts';"],
    ['src/api/routes/a.ts', "import '../../control/store/keys.ts';"],
    ['src/api/routes/a.ts', "type A = import('../../control/store/keys.ts').A;"],
    ['src/api/routes/a.ts', "import '../../cli/main.ts';"],
    ['src/control/sessions/a.ts', "import Koa from 'koa';"],
    ['src/control/sessions/a.ts', "await import('../../api/app.ts');"],
    ['src/control/scheduler/a.ts', "createRequire(import.meta.url)('../x.node');"],
    ['src/other/a.ts', ''],
  ])('the rule refuses %s with %s', (file, text) => {
    expect(typescriptFaults(file, text)).not.toEqual([]);
  });

  it('the rule accepts what points down', () => {
    const text =
      "import '../../control/engine/client.ts'; import '../app.ts'; import { x } from '../../schemas/x.ts'; import 'koa';";
    expect(typescriptFaults('src/api/routes/a.ts', text)).toEqual([]);
  });
});

describe('includes of native code', () => {
  const isNative = (file: string) => /^native\/(src|cuda)\/.*\.(cc|cpp|h|hpp|cu|cuh)$/.test(file);
  const sources = files.filter(isNative);

  it('point down only', () => {
    expect(sources.length).toBeGreaterThan(0);
    expect(sources.flatMap((file) => nativeFaults(nativeName(file), read(file)))).toEqual([]);
  });

  it.each([
    ['engine/a.cc', '#include <napi.h>'],
    ['base/a.h', '#include "node_api.h"'],
    ['base/a.h', '#include "simd/isa.h"'],
    ['simd/a.cc', '#include "ops/matmul.h"'],
    ['ops/a.cc', '#include "model/forward.h"'],
    ['model/a.cc', '#include "simd/kernels.h"'],
    ['model/a.cc', '#include "engine/engine.h"'],
    ['engine/a.cc', '  #  include "addon/read.h"'],
    ['engine/a.cc', '#include "train/loss.h"'],
    ['addon/a.cc', '#include "ops/matmul.h"'],
    ['addon/a.cc', '#include "../engine/engine.h"'],
    ['cuda/gemm/a.cu', '#include "engine/engine.h"'],
    ['elsewhere/a.cc', ''],
  ])('the rule refuses %s with %s', (file, text) => {
    expect(nativeFaults(file, text)).not.toEqual([]);
  });

  it('the rule accepts what points down', () => {
    expect(
      nativeFaults('addon/a.cc', '#include <vector>\n#include "addon/read.h"\n#include "engine/engine.h"'),
    ).toEqual([]);
    expect(nativeFaults('ops/a.cc', '#include "simd/kernels.h"\n#include "base/error.h"')).toEqual([]);
  });
});
