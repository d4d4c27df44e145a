import { describe, expect, it } from 'vitest';
import { parseJsonNumbers } from '../../../src/control/json-numbers.ts';
import { ChatTemplate } from '../../../src/control/sessions/template/chat-template.ts';
import { TemplateError } from '../../../src/control/sessions/template/errors.ts';

function render(source: string, variables: Record<string, unknown> = {}): string {
  return new ChatTemplate(source, () => new Date(2024, 1, 3, 9, 5, 7)).render(variables);
}

/** Expected values are what Python's jinja2 with the settings of transformers gives. */
const semantics: [string, string, Record<string, unknown>, string][] = [
  [
    'a set inside a loop ends with the iteration',
    '{% for i in [1,2] %}{{ x is defined }}{% set x = i %}{% endfor %}',
    {},
    'FalseFalse',
  ],
  [
    'line ends of Windows in the source are line feeds, those of the data stay',
    "{% for m in ms %}\r\n  {{ m }}:\r\n{% endfor %}\r\n{{ 'a\r\nb' }}{{ 'c\\r\\nd' }}\rend\r\n",
    { ms: ['x\r\ny'] },
    '  x\r\ny:\na\nbc\r\nd\nend',
  ],
  [
    'namespace survives',
    '{% set ns = namespace(n=0) %}{% for i in [1,2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}',
    {},
    '3',
  ],
  [
    'break keeps what was written',
    '{% for i in [1,2,3] %}a{{ i }}{% if i == 2 %}!{% break %}{% endif %}b{% endfor %}',
    {},
    'a1ba2!',
  ],
  [
    'continue keeps what was written',
    '{% for i in [1,2] %}a{% if i == 1 %}{% continue %}{% endif %}b{% else %}none{% endfor %}',
    {},
    'aab',
  ],
  ['else of an empty loop', '{% for i in [] %}a{% else %}none{% endfor %}', {}, 'none'],
  [
    'else of a loop that never came to an end of its body',
    '{% for i in [1,2] %}{{ i }}{% continue %}{% else %}none{% endfor %}{% for i in [1] %}{% break %}{% else %}!{% endfor %}',
    {},
    '12none!',
  ],
  [
    'a filtered loop counts what is left',
    '{% for i in [1,2,3] if i > 1 %}{{ loop.index }}/{{ loop.length }} {% endfor %}',
    {},
    '1/2 2/2 ',
  ],
  ['neighbours', '{% for i in [1,2] %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}', {}, '-2;1-;'],
  ['undefined iterates as empty', '{% for i in nothing %}a{% endfor %}.', {}, '.'],
  ['a string iterates by character', "{% for c in 'a🙂' %}[{{ c }}]{% endfor %}", {}, '[a][🙂]'],
  [
    'constants print as in Python',
    '{{ true }} {{ none }} {{ 1.0 }} {{ small }} {{ nothing }}',
    { small: 1e-5 },
    'True None 1.0 1e-05 ',
  ],
  [
    'lists and dictionaries print as in Python',
    '{{ x }}',
    { x: { a: [1, 'b', null, true, "it's"] } },
    `{'a': [1, 'b', None, True, "it's"]}`,
  ],
  [
    'equality is by value',
    '{{ [1,[2]] == [1,[2]] }} {{ 1 == "1" }} {{ none == nothing }} {{ 1 == 1.0 }} {{ "" == false }}',
    {},
    'True False False True False',
  ],
  [
    'in',
    '{{ "b" in "abc" }} {{ none in [none] }} {{ "k" in {"k": 1} }} {{ 1 in nothing }} {{ 2 not in [1] }}',
    {},
    'True True True False True',
  ],
  [
    'strip takes characters',
    `{{ '\\n\\n x \\n'.strip('\\n') }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'xxaxx'.rstrip('x') }}`,
    {},
    ' x |axx|xxa',
  ],
  ['strip keeps what Python keeps', '{{ "\ufeffa\u2003".strip() }}', {}, '\ufeffa'],
  [
    'split',
    `{{ 'a</t>b</t>c'.split('</t>')[-1] }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }}`,
    {},
    `c ['a', 'b'] ['a', 'b,c'] ['a,b', 'c']`,
  ],
  [
    'more string methods',
    `{{ 'hELLO'.capitalize() }} {{ ', '.join(['a','b']) }} {{ 'abcb'.count('b') }} {{ 'ab'.find('c') }} {{ '12'.isdigit() }}`,
    {},
    'Hello a, b 2 -1 True',
  ],
  [
    'a key named items does not hide the method',
    '{% for k, v in d.items() %}{{ k }}{% endfor %}',
    { d: { items: 1, b: 2 } },
    'itemsb',
  ],
  ['an item is reached by subscript', "{{ d['items'] }}", { d: { items: 1 } }, '1'],
  ['get with default', "{{ d.get('x', 'y') }} {{ d.get('x') }}", { d: {} }, 'y None'],
  [
    'tojson as json.dumps',
    '{{ x | tojson }}',
    { x: { é: [1, 2.5, null, true, 'a"<>&\u2028'], e: {} } },
    '{"é": [1, 2.5, null, true, "a\\"<>&\u2028"], "e": {}}',
  ],
  [
    'tojson with indent',
    '{{ x | tojson(indent=2) }}',
    { x: { a: [1], b: [] } },
    '{\n  "a": [\n    1\n  ],\n  "b": []\n}',
  ],
  [
    'tojson with options',
    "{{ x | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
    { x: { b: 'é', a: 1 } },
    '{"a":1,"b":"\\u00e9"}',
  ],
  [
    'tojson keeps the digits of large integers',
    '{{ x | tojson }}',
    { x: 12345678901234567890n },
    '12345678901234567890',
  ],
  [
    'filters',
    "{{ ' a ' | trim }}|{{ 'a🙂' | length }}|{{ [1,2] | join('-') }}|{{ x | default('d') }}|{{ '' | default('e', true) }}|{{ 'abc' | list }}",
    {},
    "a|2|1-2|d|e|['a', 'b', 'c']",
  ],
  [
    'map and select',
    "{{ ['a','b'] | map('upper') | join }} {{ m | selectattr('r', 'equalto', 'x') | list | length }}",
    { m: [{ r: 'x' }, { r: 'y' }] },
    'AB 1',
  ],
  [
    'numbers',
    "{{ -7 % 3 }} {{ 7 % -3 }} {{ 6 % 3 }} {{ -7.5 % 2 }} {{ 5 % 2.5 }} {{ -3.7 | int }} {{ '5x' | int }} {{ ' -5.9 ' | int }} {{ 'x' | int(7) }} {{ none | int }} {{ true is number }}",
    {},
    '2 -2 0 0.5 0.0 -3 0 -5 7 0 True',
  ],
  [
    'words',
    `{{ "hELLO wORLD-foo (bar don't" | title }} {{ m | join(',', attribute='k.v') }} {{ [{'a': 1}] | join('', 'a') }}`,
    { m: [{ k: { v: 'b' } }, { k: {} }, { k: { v: 2 } }] },
    "Hello World-Foo (Bar Don't b,,2 1",
  ],
  [
    'macros',
    "{% macro f(x, y='d') %}{{ x }}{{ y }}{{ true }}{% endmacro %}{{ f(1) }}{{ f(1, y=2) }}",
    {},
    '1dTrue12True',
  ],
  ['a set block', '{% set x %}a{{ true }}{% endset %}{{ x }}', {}, 'aTrue'],
  ['concatenation', '{{ 1 ~ none ~ "a" }}', {}, '1Nonea'],
  [
    'strftime_now',
    "{{ strftime_now('%Y-%m-%d %-d %b %B %H:%M:%S %A %p %%') }}",
    {},
    '2024-02-03 3 Feb February 09:05:07 Saturday AM %',
  ],
  [
    'strftime_now knows what a C library does',
    "{{ strftime_now('%e|%-e|%h|%j|%-j|%w|%u|%f|%C|%F|%D|%x|%T|%X|%R|%r|%c|%Z|%z|%%') }}",
    {},
    ' 3|3|Feb|034|34|6|6|000000|20|2024-02-03|02/03/24|02/03/24|09:05:07|09:05:07|09:05|09:05:07 AM|Sat Feb  3 09:05:07 2024|||%',
  ],
  ['slices', '{{ [1,2,3][1:] }} {{ "abc"[::-1] }} {{ [1,2,3][-1] }}', {}, '[2, 3] cba 3'],
  [
    'a character beyond 16 bits is one',
    `{{ '🙂ab'[1] }} {{ '🙂ab'[0] }} {{ '🙂ab'[-3] }} {{ '🙂a🙂'.strip('🙂') }}`,
    {},
    'a 🙂 🙂 a',
  ],
  [
    'find counts the characters that slices count',
    `{% set i = t.find('</t>') %}{{ i }} {{ t[i + 4:] }} {{ t.rfind('</t>') }} {{ t.find('z') }} {{ t.find('a', -2) }}`,
    { t: '🙂🙂</t>ab' },
    '2 ab 2 -1 6',
  ],
  [
    'find and count look where they are told',
    `{{ 'abab'.find('a', 1) }} {{ 'abab'.rfind('a', 0, 2) }} {{ 'abab'.count('a', 1) }} {{ 'ab'.count('') }} {{ ''.find('', 3) }}`,
    {},
    '2 0 1 3 -1',
  ],
  [
    'split by the names of its arguments',
    `{{ 'a,b,c'.split(',', maxsplit=1) }} {{ 'a b'.split(sep=' ') }} {{ 'a,b,c'.rsplit(sep=',', maxsplit=1) }} {{ ' a b '.split(maxsplit=1) }}`,
    {},
    "['a', 'b,c'] ['a', 'b'] ['a,b', 'c'] ['a', 'b ']",
  ],
  [
    'splitlines ends lines where Python does',
    '{{ t.splitlines() }} {{ t.splitlines(true) }} {{ "".splitlines() }} {{ "\n".splitlines(keepends=true) }}',
    { t: 'a\r\nb\x0b\u2028c\n' },
    "['a', 'b', '', 'c'] ['a\\r\\n', 'b\\x0b', '\\u2028', 'c\\n'] [] ['\\n']",
  ],
  [
    'what cannot be seen is escaped in lists, private-use characters are not',
    '{{ [t] }}',
    { t: '\xa0\ufeff\u{e0001}\ue000é' },
    "['\\xa0\\ufeff\\U000e0001\ue000é']",
  ],
  [
    'an item that is not there is undefined, whatever the key',
    `{{ d[missing] is defined }} {{ d[1] is defined }} {{ d[none]|upper }}{{ [1][9] is defined }} {{ 'a'['upper']() }} {{ d.keys()|list }}`,
    { d: { a: 1 } },
    "False False False A ['a']",
  ],
  [
    'numbers are keys of dictionaries',
    `{% set d = {512: 'b', 0: 'a', '0': 'c'} %}{{ d[0] }}{{ d['0'] }}{{ 512 in d }}{{ d|tojson }}{% for k, v in {2: 'x', 1: 'y'}|dictsort %}{{ k + 1 }}{{ v }}{% endfor %}{{ d }}`,
    {},
    `acTrue{"512": "b", "0": "a", "0": "c"}2y3x{512: 'b', 0: 'a', '0': 'c'}`,
  ],
  [
    'entries of dictionaries are tuples',
    `{{ d.items()|list }} {{ d|items|list }} {{ d|dictsort(reverse=true) }} {{ {'a': 2, 'b': 1}|dictsort(by='value') }} {{ missing|items|list }}`,
    { d: { B: 1, a: 2 } },
    "[('B', 1), ('a', 2)] [('B', 1), ('a', 2)] [('B', 1), ('a', 2)] [('b', 1), ('a', 2)] []",
  ],
  [
    'a macro sees the names of where it stands, not of where it is called',
    '{% set y = 0 %}{% macro f() %}[{{ x }}{{ y }}{{ loop is defined }}]{% endmacro %}{% for x in [1] %}{% set y = 2 %}{{ f() }}{% endfor %}{% set y = 3 %}{{ f() }}',
    {},
    '[0False][3False]',
  ],
  [
    'a caller is that of its own call',
    '{% macro inner() %}{{ caller is defined }}{% endmacro %}{% macro outer(x) %}<{{ caller() }}{{ inner() }}>{% endmacro %}{% set x = 5 %}{% call outer(1) %}{{ x }}{% endcall %}',
    {},
    '<5False>',
  ],
  [
    'what is set in a block of text ends with it',
    '{% set a %}{% set b = 1 %}t{% endset %}{{ a }}{{ b is defined }}{% filter upper %}{% set c = 1 %}c{% endfilter %}{{ c is defined }}',
    {},
    'tFalseCFalse',
  ],
  [
    'undefined can be looped over',
    '{{ missing is iterable }} {{ missing is sequence }} {{ none is iterable }} {{ 1 is sequence }} {{ {} is sequence }}',
    {},
    'True True False False True',
  ],
  [
    'select and its kin',
    `{{ ['a', 'b']|reject('equalto', 'b')|join }} {{ [0, 1, '']|select|list }} {{ m|selectattr('f.n', 'equalto', 'x')|list|length }} {{ m|selectattr('g', 'undefined')|list|length }} {{ m|rejectattr('g')|list|length }} {{ m|selectattr('f.n', 'in', ['x', 'y'])|list|length }} {{ none|selectattr('a')|list }} {{ [1]|selectattr('a', 'defined')|list }} {{ m|selectattr('f.n', 'ne', 'x')|list|length }}`,
    { m: [{ f: { n: 'x' } }, { f: { n: 'y' }, g: 1 }] },
    'a [1] 1 1 1 2 [] [] 1',
  ],
  [
    'the least and the greatest',
    `{{ [3, 1, 2]|min }} {{ ['b', 'A']|min }} {{ ['b', 'A', 'B']|max }} {{ [{'a': 1}, {'a': 2}]|max(attribute='a') }} {{ []|min is defined }}`,
    {},
    "1 A b {'a': 2} False",
  ],
  [
    'texts are repeated and ordered',
    `{{ 'ab' * 2 }}{{ 3 * '-' }}{{ 'x' * -1 }} {{ 'a' < 'b' }} {{ 'ab' <= 'a' }} {{ '\uffee' < '🙂' }} {{ 'b' > 'a' }} {{ 'a' >= 'a' }}`,
    {},
    'abab--- True False True True True',
  ],
  ['format', `{{ '{}-{}{{}}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }}`, {}, 'a-1{} ba'],
  ['upper and lower write any value', `{{ missing|upper }}|{{ 1|upper }}|{{ none|lower }}`, {}, '|1|none'],
  ['blocks take their line', '  {% if true %}\na\n  {% endif %}\nb\n', {}, 'a\nb'],
  [
    'floats have an exponent where those of Python have one',
    '{{ floats }}',
    { floats: parseJsonNumbers('[1e16, 9999999999999998.0, 0.0001, 0.00001, 1.5e300]') },
    '[1e+16, 9999999999999998.0, 0.0001, 1e-05, 1.5e+300]',
  ],
  [
    'arithmetic keeps the digits of large integers',
    '{{ n + 1 }} {{ 1 - n }} {{ n * n }} {{ n // 10 }} {{ -7 - n }} {{ (1 - n) // 10 }} {{ n % 10 }} {{ n / n }} {{ n * 1.0 }} {{ n > 1 }}',
    { n: parseJsonNumbers('12345678901234567890') },
    '12345678901234567891 -12345678901234567889 152415787532388367501905199875019052100 1234567890123456789 ' +
      '-12345678901234567897 -1234567890123456789 0 1.0 1.2345678901234567e+19 True',
  ],
  [
    'texts in lists are quoted as Python quotes them',
    '{{ texts }}',
    { texts: ["it's", '"a"', 'it\'s "a"'] },
    `["it's", '"a"', 'it\\'s "a"']`,
  ],
  [
    'what is undefined is asked for nothing',
    `{{ missing }}{{ d.x }}{{ d.n.x }}{{ d.get('x').y }}{{ missing is defined and missing.x }}{{ missing and missing.x }}{{ (missing or d).n }}{{ (missing|default({})).x }}{{ missing.x if missing else '-' }}{% for i in [1, 2] %}{{ loop.previtem and loop.previtem.x }}{% endfor %}`,
    { d: { n: null } },
    'FalseNone-',
  ],
  [
    'attributes of items',
    `{{ l|map(attribute='a.b', default=0)|list }} {{ l|map(attribute='a')|list|length }} {{ missing|map(attribute='a.b')|list }} {{ [[1, 2]]|map(attribute=1)|list }}`,
    { l: [{ a: { b: 1 } }, { a: {} }] },
    '[1, 0] 2 [] [2]',
  ],
  [
    'a method of a dictionary hides a key of its name',
    '{% for v in d.values() %}{{ v }},{% endfor %}{{ d.get("a") }}{{ d["get"] }}',
    { d: { values: 1, get: 2, a: 3 } },
    '1,2,3,32',
  ],
];

it('nothing of one rendering is in another', () => {
  const loops = '{% for i in l recursive %}{{ i }}{{ loop([]) }}{{ loop.previtem }}{% endfor %}';
  expect(render(loops, { l: ['secret', 'more'] })).toBe('secretmoresecret');
  const names = ['previtem', 'nextitem', 'first', 'length', 'cycle'];
  for (const value of ['1', 'true', 'none', 'raise_exception']) {
    expect(render(names.map((name) => `{{ ${value}.${name} }}`).join(''))).toBe('');
  }
});

describe('templates render as jinja2 with the settings of transformers', () => {
  it.each(semantics)('%s', (_, source, variables, expected) => {
    expect(render(source, variables)).toBe(expected);
  });

  it('says what raise_exception says', () => {
    expect(() => render("{{ raise_exception('Only user and assistant roles!') }}")).toThrow(
      'Only user and assistant roles!',
    );
  });
});

/** None of these may take long, use much memory, end the process or reach JavaScript. */
const hostile: [string, string][] = [
  ['a huge range', '{% for i in range(1000000000) %}a{% endfor %}'],
  ['nested loops', '{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}'],
  [
    'a doubled string',
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
  ],
  [
    'a doubled string by +',
    "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
  ],
  ['a doubled list', '{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}'],
  [
    'growth by replace',
    "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', 'aaaaaaaaaa') %}{% endfor %}",
  ],
  [
    'growth by join',
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
  ],
  ['a text so many times', "{{ 'ab' * 1000000000 }}"],
  ['a long output', "{% for i in range(99999) %}{{ 'a' * 0 }}{{ x }}{% endfor %}"],
  [
    'shared lists as JSON',
    '{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}',
  ],
  [
    'shared lists compared',
    '{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}',
  ],
  ['a list that holds itself', '{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns | tojson }}'],
  ['a loop in itself without end', '{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}'],
  [
    'a loop in itself that multiplies',
    '{% for i in [1] recursive %}{{ loop([1, 1, 1, 1]) if loop.depth < 99 }}{% endfor %}',
  ],
  ['a macro without end', '{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}'],
  ['wide indentation', '{{ [1] | tojson(indent=1000000000) }}'],
  ['deep parentheses', `{{ ${'('.repeat(100_000)}1${')'.repeat(100_000)} }}`],
  ['deep tests', `{{ ${'1 is eq('.repeat(30_000)}1${')'.repeat(30_000)} }}`],
  ['white space without end', `{{ 1 ${' '.repeat(1_000_000)}`],
  ['quotes without end', `{{ ${"'\\".repeat(500_000)}`],
  ['deep lists', `{{ ${'['.repeat(100_000)}${']'.repeat(100_000)} }}`],
  ['not a template', '{% for %}'],
  ['a format with very many wide numbers', "{% set f = '%(a)9999d' * 800000 %}{{ f % {'a': 1} }}"],
  ['a format with very many values', "{{ ('%(a)s' * 1000000) % {'a': x} }}"],
  ['a text that is escaped again and again', "{% set ns = namespace(x='&' * 4000000) %}{{ ns.x | e }}"],
  ['very long lists', '{{ ([0, 1] * 1000000) | length }}'],
  ['very wide texts', "{{ 'a'.ljust(10001) }}"],
  ['a with block without an end', '{% with %}' + '{% with %}'],
  ['a constructor', "{{ ''.constructor.constructor('return process')() }}"],
  ['a constructor by subscript', "{{ x['constructor']['constructor']('return process')() }}"],
  ['a prototype', "{{ {}['__proto__']['polluted']('x') }}"],
  ['a Python escape', "{{ ''.__class__.__mro__[1].__subclasses__() }}"],
  ['the constructor of a function', "{{ range.constructor('return process')() }}"],
  ['the constructor of a method', "{{ 'a'.upper.constructor('return process')() }}"],
  ['cycler', "{{ cycler.__init__.__globals__.os.popen('id').read() }}"],
];

it('says what it does not have instead of writing something else', () => {
  const render = (source: string) => new ChatTemplate(source).render({ m: [{ f: { n: 'x' } }] });
  expect(() => render("{{ m | selectattr('f.n', 'nonsense') | list }}")).toThrow('"nonsense" is not supported');
  expect(() => render('{{ m | rejectattr }}')).toThrow('the attribute is missing');
  expect(() => render('{{ 5 | select | list }}')).toThrow('has no items');
  expect(() => render('{{ {1.5: 2} }}')).toThrow('cannot be a key');
  expect(() => render("{{ '{x}'.format('a') }}")).toThrow('no value for');
  expect(() => render("{{ '{:>3} {a.b}'.format(1) }}")).toThrow('the field "{:>3}" is not supported');
  expect(() => render("{{ '{} {}'.format('a') }}")).toThrow('no value for');
  expect(() => render('{{ [1, "a"] | max }}')).toThrow('no order');
  expect(() => render('{{ 1 / 0 }}')).toThrow('division by zero');
  for (const other of ['1', 'true', '[1]', 'none', '1.5']) {
    expect(() => render(`{{ 'a' + ${other} }}`)).toThrow('"+" does not work between');
    expect(() => render(`{{ ${other} + 'a' }}`)).toThrow('"+" does not work between');
  }
  expect(() => render('{{ m % 2 }}')).toThrow('does not work between');
  expect(() => render('{{ 1 % 0 }}')).toThrow('modulo by zero');
  expect(() => render('{{ nothing | int }}')).toThrow('int');
});

describe('a hostile template', () => {
  it.each(hostile)('%s is an error', (_, source) => {
    expect(() => render(source, { x: 'a'.repeat(1000) })).toThrow(TemplateError);
  });

  it.each(['__proto__', 'constructor', 'prototype', 'toString', 'hasOwnProperty', '__class__'])(
    'does not see %s',
    (name) => {
      expect(render(`{{ x.${name} is defined }}{{ x['${name}'] is defined }}{{ ${name} is defined }}`, { x: {} })).toBe(
        'FalseFalseFalse',
      );
      expect(render(`{{ 'text'.${name} is defined }}{{ [1].${name} is defined }}`)).toBe('FalseFalse');
    },
  );

  it('takes no longer for its white space than for other characters', () => {
    const space = ' \n'.repeat(200_000);
    expect(render(`${space}{{ 'a${space}b' ${space}}}${space}.`)).toBe(`${space}a${space}b${space}.`);
  });

  it('cannot change what the next rendering sees', () => {
    const template = new ChatTemplate('{{ x is defined }}{% set x = 1 %}{% set range = 2 %}');
    expect(template.render({})).toBe('False');
    expect(template.render({})).toBe('False');
  });
});

describe('content formats', () => {
  it.each([
    ["{% for m in messages %}{{ m['content'] }}{% endfor %}", 'string'],
    ["{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", 'partsOnly'],
    [
      '{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}',
      'parts',
    ],
    [
      '{% set all = messages[1:] %}{% for m in all %}{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}{% endfor %}',
      'partsOnly',
    ],
    ['{% for t in messages[0].content %}{{ t.text }}{% endfor %}', 'partsOnly'],
    ['{% for m in messages %}{% for c in m.tool_calls %}{{ c.content }}{% endfor %}{% endfor %}', 'string'],
  ])('%s', (source, format) => {
    expect(new ChatTemplate(source).content.format).toBe(format);
  });
});

it.each([
  [0, 0, '12 AM 0 00'],
  [12, 5, '12 PM 5 05'],
  [13, 30, '01 PM 30 30'],
])('strftime_now at %d:%d', (hours, minutes, text) => {
  const template = new ChatTemplate("{{ strftime_now('%I %p %-M %M') }}", () => new Date(2024, 1, 3, hours, minutes));
  expect(template.render({})).toBe(text);
});
