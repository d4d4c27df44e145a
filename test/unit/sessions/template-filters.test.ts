import { describe, expect, it } from 'vitest';
import { ChatTemplate } from '../../../src/control/sessions/template/chat-template.ts';
import goldens from '../../goldens/template-filters.json' with { type: 'json' };

const render = (source: string): string => new ChatTemplate(source).render(goldens.variables);

/** Expected values are what jinja2 gives (test/goldens/make_template_goldens.py). */
describe('filters, tests, raw blocks and white space of jinja2', () => {
  it.each(goldens.texts)('%s', (source, expected) => {
    expect(render(source as string)).toBe(expected);
  });

  it.each(goldens.refused)('%s is refused', (source) => {
    expect(() => render(source)).toThrow();
  });

  it.each([
    ['{{ 1 | round(-1) }}', 'precision must be from 0 to 20'],
    ["{{ 'x' | center(10001) }}", 'width must be at most 10000'],
    ["{{ 'x' is nonsense }}", 'the test "nonsense" is not supported'],
    ['{{ 4 is divisibleby }}', 'the test "divisibleby" takes one argument'],
    ["{{ [1] | select('odd', 2) | list }}", 'the test "odd" takes no argument'],
    ['{{ 4 is divisibleby(num=2) }}', 'the test "divisibleby" takes no named arguments'],
    ["{{ '%.101f' % 1 }}", 'at most 100 digits'],
    ["{{ '%10001d' % 1 }}", 'width must be at most 10000'],
    ["{{ '%*d' % (10001, 1) }}", 'width must be at most 10000'],
    ["{{ '%a' % 1 }}", 'the format "%a" is not supported'],
    ["{{ '%#g' % 1 }}", 'the format "%#g" is not supported'],
    ["{{ 'x'.zfill(10001) }}", 'width must be at most 10000'],
    ['{{ [1] | slice(500001) }}', 'slices must be from 1 to 500000'],
    ['{% with a %}{% endwith %}', 'takes names and their values'],
    ['{{ [1] | batch(500001) }}', 'linecount must be from 1 to 500000'],
  ])('%s says what it does not do', (source, message) => {
    expect(() => render(source)).toThrow(message);
  });

  it('is bounded in what it sums up', () => {
    const doubling =
      '{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] | sum(start=[]) %}';
    expect(() => render(`${doubling}{% endfor %}`)).toThrow('more than');
  });
});
