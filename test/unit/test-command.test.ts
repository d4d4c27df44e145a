/** The last line of `npm test` is only as true as these counts. */
import { describe, expect, it } from 'vitest';
import { countCtest } from '../../scripts/lib/native-tests.mjs';
import { countReport } from '../../scripts/lib/vitest.mjs';

describe('counts of ctest', () => {
  it('knows every outcome that ctest prints', () => {
    const output = [
      'Test project build',
      '    Start 1: native_scalar',
      '1/7 Test #2: native_avx2 ......................   Passed    7.87 sec',
      '2/7 Test #1: native_scalar ....................***Failed    0.01 sec',
      '3/7 Test #3: native_neon ......................***Skipped   0.00 sec',
      '4/7 Test #4: native_crash .....................***Exception: SegFault  0.10 sec',
      '5/7 Test #5: native_slow ......................***Timeout 300.01 sec',
      '6/7 Test #6: native_gone ......................***Not Run   0.00 sec',
      '7/7 Test #7: Passed_by_name ...................***Failed    0.00 sec',
      '14% tests passed, 5 tests failed out of 7',
    ].join('\n');
    expect(countCtest(output)).toEqual({ passed: 1, failed: 5, skipped: 1 });
  });

  it('counts nothing in other output', () => {
    expect(countCtest('No tests were found!!!\n1 Test passed\n')).toEqual({ passed: 0, failed: 0, skipped: 0 });
  });
});

describe('counts of vitest', () => {
  const counted = { numPassedTests: 3, numFailedTests: 1, numPendingTests: 2, numTodoTests: 1 };

  it('adds up tests', () => {
    const file = { status: 'failed', assertionResults: [{}] };
    expect(countReport({ ...counted, testResults: [file] })).toEqual({ passed: 3, failed: 1, skipped: 3 });
  });

  it('counts a file that could not be loaded as a failure', () => {
    const file = { status: 'failed', assertionResults: [] };
    expect(countReport({ ...counted, testResults: [file] }).failed).toBe(2);
  });
});
