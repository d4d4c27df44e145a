import { expect, test } from 'vitest';
import { completionLogprobs } from '../../../src/api/responses/logprobs.ts';
import { codePoints } from '../../../src/control/sessions/code-points.ts';

test('lengths are those of code points', () => {
  for (const text of ['', 'abc', 'é', '😀', 'a😀b😀', '\ud83d', '\ude00\ud83d', '👩‍👧'])
    expect(codePoints(text)).toBe([...text].length);
});

test.each([false, true])(
  'offsets of text completions follow the text, however tokens are shown (as ids: %j)',
  (asIds) => {
    const first = { tokenId: 1, token: '<s>', chars: 0, logprob: null };
    const scored = (token: string, chars: number) => ({ tokenId: 2, token, chars, logprob: -1, bytes: [], top: [] });
    const shown = completionLogprobs([first, scored('é', 1), scored('�', 0), scored('x', 2), scored('!', 1)], asIds, 2);
    expect(shown.text_offset).toEqual([2, 2, 3, 3, 5]);
    expect(shown.tokens[0]).toBe(asIds ? 'token_id:1' : '<s>');
    expect(shown.token_logprobs).toEqual([null, -1, -1, -1, -1]);
  },
);
