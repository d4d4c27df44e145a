/** The repository's texts stand on their own: no path of the machine that they were written on. */
import { describe, expect, it } from 'vitest';
import { isSmallText, read, repositoryFiles } from './sources.ts';

const MACHINE_PATH = /(?<![\w.$}/-])\/(?:(?:work|root|farm)\/|tmp\/[a-z]|home\/[a-z])/;
const TEXT_BYTES_MAX = 4 << 20;

function faults(file: string, text: string): string[] {
  return text
    .split('\n')
    .map((line, index) => ({ line, at: `${file}:${index + 1}` }))
    .filter(({ line }) => MACHINE_PATH.test(line))
    .map(({ at }) => at);
}

describe('texts', () => {
  it('name no path of a machine', () => {
    const texts = repositoryFiles().filter((file) => isSmallText(file, TEXT_BYTES_MAX));
    expect(texts.length).toBeGreaterThan(0);
    expect(texts.flatMap((file) => faults(file, read(file)))).toEqual([]);
  });

  it.each(['work/x', 'root/x', 'tmp/job', 'home/me'])('the rule finds a slash before %s', (rest) => {
    expect(faults('a', `see ${'/'}${rest}`)).toEqual(['a:1']);
    expect(faults('a', `https://example.com/${rest}`)).toEqual([]);
  });
});
