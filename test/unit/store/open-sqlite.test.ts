import { afterEach, expect, test, vi } from 'vitest';

afterEach(() => void vi.doUnmock('better-sqlite3'));

/** better-sqlite3 as it is where its own code does not load. */
async function openWith(error: Error): Promise<unknown> {
  vi.resetModules();
  vi.doMock('better-sqlite3', () => ({
    default: class {
      constructor() {
        throw error;
      }
    },
  }));
  const { openSqlite } = await import('../../../src/control/store/open-sqlite.ts');
  try {
    return openSqlite('/nowhere', 0);
  } catch (thrown) {
    return thrown;
  }
}

test.each([
  ['was built for another Node.js', Object.assign(new Error('NODE_MODULE_VERSION 1'), { code: 'ERR_DLOPEN_FAILED' })],
  ['was not built', new Error('Could not locate the bindings file. Tried:\n → /a/b.node')],
])('where better-sqlite3 %s it is said what to do', async (_, error) => {
  const thrown = (await openWith(error)) as Error;
  expect(thrown.message).toBe(
    `better-sqlite3 is not built for Node.js ${process.version}: with this Node.js, run \`npm run setup\`.`,
  );
  expect(thrown.cause).toBe(error);
});

test('what SQLite says is left as it is', async () => {
  const error = Object.assign(new Error('unable to open database file'), { code: 'SQLITE_CANTOPEN' });
  expect(await openWith(error)).toBe(error);
});
