import { expect, test } from 'vitest';
import { truncatePrompt } from '../../../src/control/sessions/truncate.ts';
import { input } from './inputs.ts';

const IDS = Int32Array.of(1, 2, 3, 4, 5, 6);
const cut = (truncatePromptTokens: number | null, maxTokens: number | null, maxModelLen = 10) => [
  ...truncatePrompt(IDS, { ...input({ maxTokens }), truncatePromptTokens }, maxModelLen),
];

test('the last tokens of a prompt stay: as many as were asked for, or as the wished output leaves room for', () => {
  expect(cut(null, 8)).toEqual([...IDS]);
  expect(cut(2, 8)).toEqual([5, 6]);
  expect(cut(9, 1)).toEqual([...IDS]);
  expect(cut(-1, 7)).toEqual([4, 5, 6]);
  // Without a wish one token of output must fit.
  expect(cut(-1, null, 4)).toEqual([4, 5, 6]);
  expect(cut(3, null, 4)).toEqual([4, 5, 6]);
});

test('where no prompt leaves room for the output nothing is cut: the output is refused', () => {
  expect(cut(-1, 10)).toEqual([...IDS]);
  expect(cut(-1, 20)).toEqual([...IDS]);
});

test('more than leaves room for the output is refused', () => {
  expect(() => cut(3, 8)).toThrow('truncate_prompt_tokens=3 cannot be greater than max_model_len - max_tokens = 2.');
  expect(() => cut(4, null, 4)).toThrow('truncate_prompt_tokens=4 cannot be greater than max_model_len - 1 = 3.');
});

test('a length that is held to what there is room for leaves it where the prompt is asked for, and refuses no other', () => {
  const cutBefore = (truncatePromptTokens: number, maxTokens: number) => [
    ...truncatePrompt(IDS, { ...input({ maxTokens, fitsMaxTokens: true }), truncatePromptTokens }, 6),
  ];
  expect(cutBefore(-1, 4)).toEqual([5, 6]);
  expect(cutBefore(-1, 16)).toEqual([6]);
  expect(cutBefore(5, 16)).toEqual([2, 3, 4, 5, 6]);
  expect(() => cutBefore(6, 16)).toThrow('cannot be greater than max_model_len - 1 = 5.');
});

test('what leaves nothing of a prompt is refused by its own name', () => {
  expect(() => cut(0, 8)).toThrow(
    expect.objectContaining({
      message: expect.stringMatching(/cannot be empty/) as string,
      param: 'truncate_prompt_tokens',
    }) as Error,
  );
});
