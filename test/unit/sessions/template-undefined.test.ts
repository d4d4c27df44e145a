/** What a template reads or calls of what is undefined is refused by its name. */
import { expect, it } from 'vitest';
import { ChatTemplate } from '../../../src/control/sessions/template/chat-template.ts';
import { TemplateError } from '../../../src/control/sessions/template/errors.ts';

const render = (source: string, variables: Record<string, unknown>) => new ChatTemplate(source).render(variables);

/** What is printed before it is what jinja2 prints; it raises UndefinedError for the rest. */
const nothing: [string, string][] = [
  ['{{ missing }}{{ missing.x }}', 'x of missing'],
  ["{{ missing['x'] }}", "'x' of missing"],
  ['{{ missing[0] }}', '0 of missing'],
  ['{{ missing[1:] }}', 'a slice of missing'],
  ['{{ missing.strip() }}', 'strip of missing'],
  ["{{ missing.get('x') }}", 'get of missing'],
  ['{{ missing.x is defined }}', 'x of missing'],
  ["{{ missing.x | default('d') }}", 'x of missing'],
  ['{{ d.x }}{{ d.n.x }}{{ d.x.y }}', 'y of d.x'],
  ["{{ d['x'].y.z }}", 'y of d[...]'],
  ['{{ d.n.x.y }}', 'y of d.n.x'],
  ['{{ (missing or other).c }}', 'c of a value'],
  ['{% for i in [1] %}{{ loop.previtem.role }}{% endfor %}', 'role of loop.previtem'],
  ['{% macro f(x) %}{{ x.y }}{% endmacro %}{{ f() }}', 'y of x'],
  ["{{ [d]|map(attribute='a.b')|list }}", "'b' of a"],
  ["{{ [d]|selectattr('a.b')|list }}", "'b' of a"],
];

it.each(nothing)('what is undefined has no items: %s', (source, what) => {
  const message = `the chat template reads ${what}, which is undefined.`;
  expect(() => render(source, { d: { n: null } })).toThrow(new TemplateError(message));
});

it.each([
  ['{{ missing() }}', 'missing'],
  ["{{ d.f('x') }}", 'd.f'],
  ['{{ [1].insert(1) }}', 'a value.insert'],
  ["{{ 'a'.casefold() }}", 'a value.casefold'],
  ['{{ d.n.f()() }}', 'd.n.f'],
])('what is undefined is not called: %s', (source, what) => {
  const message = `the chat template calls ${what}(), which is undefined.`;
  expect(() => render(source, { d: { n: {} } })).toThrow(new TemplateError(message));
});
