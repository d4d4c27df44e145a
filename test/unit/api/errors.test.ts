import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { ApiError, ERRORS, toApiError, type ErrorCode } from '../../../src/api/errors.ts';
import { SchemaError } from '../../../src/schemas/validator.ts';

const documented = readFileSync(new URL('../../../docs/errors.md', import.meta.url), 'utf8')
  .split('\n')
  .map((line) => /^\| `(\w+)` \| (\d+) \| ([^|]+) \| ([^|]+) \|$/.exec(line))
  .filter((match) => match !== null)
  .map((match) => ({ code: match[1], status: Number(match[2]), type: match[3]?.trim() }));

test('the catalogue and the documentation agree', () => {
  const catalogue = Object.entries(ERRORS).map(([code, entry]) => ({ code, ...entry }));
  expect(documented).toEqual(catalogue);
  expect(documented).toHaveLength(24);
});

test.each(Object.keys(ERRORS) as ErrorCode[])('%s makes the one shape', (code) => {
  const error = new ApiError(code, 'why', 'field');
  expect(error.toErrorBody()).toEqual({
    error: { message: 'why', type: ERRORS[code].type, param: 'field', code: ERRORS[code].status },
  });
});

test('what is thrown by accident tells nothing', () => {
  for (const thrown of [new Error('/secret/path'), new TypeError('x at 0x7fff'), 'text', null, undefined, { a: 1 }]) {
    expect(toApiError(thrown).toErrorBody().error).toEqual({
      message: 'Internal server error',
      type: 'InternalServerError',
      param: null,
      code: 500,
    });
  }
});

test.each(['ENOSPC', 'EDQUOT', 'SQLITE_FULL'])('%s is a full disk, whichever request meets it', (code) => {
  const shown = toApiError(Object.assign(new Error('/secret/path: no space left'), { code }));
  expect(shown).toMatchObject({ code: 'storage_full', status: 507, message: 'The server has no storage left.' });
});

test('schema errors keep their field', () => {
  expect(toApiError(new SchemaError('shape', 'a.b', 'm'))).toMatchObject({ code: 'invalid_body', param: 'a.b' });
  expect(toApiError(new SchemaError('range', 'a', 'm'))).toMatchObject({ code: 'invalid_parameter', param: 'a' });
});
