import { expect, test } from 'vitest';
import { completionLogprobs, lengthOf } from '../../../src/api/responses/logprobs.ts';

test('lengths are those of code points', () => {
  for (const text of ['', 'abc', 'é', '😀', 'a😀b😀', '\ud83d', '\ude00\ud83d', '👩‍👧'])
    expect(lengthOf(text)).toBe([...text].length);
});

test('offsets of text completions count code points', () => {
  const score = (token: string) => ({ tokenId: 1, token, logprob: -1, bytes: [], rank: 1, top: [] });
  const { text_offset: offsets } = completionLogprobs(['😀', score('é'), score('😀x'), score('!')], false, 2);
  expect(offsets).toEqual([2, 3, 4, 6]);
});
