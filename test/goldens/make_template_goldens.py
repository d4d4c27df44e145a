"""What jinja2's filters, tests, raw blocks and white space give: template-filters.json. Needs jinja2 3.1."""
import json
import pathlib

from jinja2.sandbox import ImmutableSandboxedEnvironment

VARIABLES = {
    "n": [3, 1, 2],
    "f": [0.5, 1, 2.25],
    "words": ["b", "A", "a", "C"],
    "chars": ["\U0001F600", "\uFFFD", "z"],
    "rows": [{"k": "x", "v": 2, "in": {"w": 1.5}}, {"k": "y", "v": 1, "in": {"w": 0.5}}],
    "d": {"b": 1, "A": 3, "a": 2},
    "mixed": ["", "a", 0, 1, None, True, [], [0], 1.5],
    "text": "Two  words, don't: naïve_x 3",
    "tiny": 2.5e-08,
    "wide": ["é🙂", ""],
}

TEXTS = [
    "{{ n | sum }}", "{{ f | sum }}", "{{ [] | sum }}", "{{ n | sum(start=10) }}", "{{ [true, 2] | sum }}", "{{ nothing | sum }}",
    "{{ rows | sum(attribute='v') }}", "{{ rows | sum('in.w') }}", "{{ [[1], [2, 3]] | sum(start=[]) }}",
    "{{ [9007199254740991, 2] | sum }}", "{{ [0.1, 0.2] | sum }}", "{{ [1, 2.0] | sum }}",
    "{{ n | max }} {{ n | min }}", "{{ words | max }} {{ words | min }}", "{{ words | max(case_sensitive=true) }}",
    "{{ words | min(true) }}", "[{{ [] | max }}]", "[{{ [] | min }}]", "{{ rows | max(attribute='v') }}", "{{ 'hello' | max }}",
    "{{ [1, true, 1.0] | max }}", "{{ ['B', 'b'] | max }} {{ ['b', 'B'] | min }}", "{{ chars | max == chars[0] }}", "{{ d | max }}",
    "{{ 2.5 | round }}", "{{ 3.5 | round }}", "{{ -2.5 | round }}", "{{ -0.4 | round }}", "{{ 2.675 | round(2) }}", "{{ 0.125 | round(2) }}",
    "{{ 0.375 | round(2) }}", "{{ 42 | round }}", "{{ 42 | round(2) }}", "{{ 42.55 | round(1, 'floor') }}", "{{ 42.51 | round(1, 'ceil') }}",
    "{{ 42 | round(0, 'ceil') }}", "{{ true | round }}", "{{ 42.55 | round | int }}", "{{ 1.005 | round(2) }}", "{{ tiny | round(3) }} {{ tiny | round(8) }}",
    "{{ 123456789.123456789 | round(precision=3) }}", "{{ ([9007199254740991, 2] | sum) | round }}", "{{ -1.5 | round }}",
    "{{ 0.15 | round(1) }} {{ 0.25 | round(1) }} {{ -0.35 | round(1) }} {{ 1.45 | round(1) }}", "{{ 3.7 | round(method='floor') }}",
    "{{ d | dictsort }}", "{{ d | dictsort(true) }}", "{{ d | dictsort(false, 'value') }}", "{{ d | dictsort(reverse=true) }}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", "{{ {} | dictsort }}", "{{ {'x': 'b', 'y': 'A'} | dictsort(by='value') }}",
    "{{ mixed | select | list }}", "{{ mixed | reject | list }}", "{{ mixed | select('string') | list }}", "{{ mixed | reject('none') | list }}",
    "{{ n | select('odd') | list }}", "{{ mixed | select('number') | list }}", "{{ mixed | reject('number') | list }}", "{{ mixed | select('boolean') | list }}",
    "{{ n | batch(2) | list }}", "{{ n | batch(2, 'x') | list }}", "{{ n | batch(3, 0) | list }}", "{{ [] | batch(2, 0) | list }}", "{{ 'abcde' | batch(2) | list }}",
    "[{{ 'ab' | center(5) }}]", "[{{ 'ab' | center(7) }}]", "[{{ 'abc' | center(6) }}]", "[{{ 'abc' | center(2) }}]", "[{{ wide[0] | center(5) }}]", "{{ 'x' | center | length }}",
    "{{ 4 is divisibleby(2) }} {{ 4 is divisibleby 3 }} {{ 4 is not divisibleby 3 }} {{ 4.5 is divisibleby 1.5 }}",
    "{{ 1 is sameas true }} {{ true is sameas true }} {{ none is sameas none }} {{ 'a' is sameas 'a' }} {{ [1] is sameas [1] }} {{ d is sameas d }}",
    "{{ 1.0 is sameas 1 }} {{ nothing is sameas nothing }} {{ nothing is sameas none }}", "{{ 3 is gt 2 }} {{ 3 is lessthan(2) }} {{ 3 is ge 3 }} {{ 'a' is le 'b' }}",
    "{{ 'a' is in ['a'] }} {{ 'a' is not in 'bc' }} {{ 1 is in([2]) }} {{ 'x' is in {'x': 1} }}", "{{ 4 is eq(4) and 5 is ne 4 or false }}", "{{ [1, 2] is eq [1, 2] }}",
    "{{ 4 is divisibleby rows[0].v }} {{ 4 is divisibleby rows[0]['v'] }} {{ 2 is in d.values() }}", "{{ 'y' if 4 is eq 4 else 'n' }}",
    "{{ 4 is eq(-4) }} {{ 4 is eq('a' is eq('a')) }} {{ (4 is divisibleby(2)) is sameas(3 is odd) }} {{ {'is': 1}.is }}", "{{ nothing is in [1] }}",
    "{% for r in rows if r.v is gt 1 %}{{ r.k }}{% endfor %}{% if n is defined and n is not none %}!{% endif %}", "{{ '' is lower }} {{ '1' is upper }} {{ 3.0 is odd }} {{ 'a' is lower }} {{ 'É' is upper }}",
    "{{ n | select('divisibleby', 3) | list }} {{ n | reject('gt', 2) | list }} {{ [1, true] | select('sameas', true) | list }} {{ n | select('<', 2) | list }} {{ rows | selectattr('v', 'ge', 2) | list }}",
    "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb", "a {% raw %}  {% if %} {% endraw %} b", "a  {%- raw -%}  x  {%- endraw -%}  b", "  {%+ raw %}x{% endraw +%}\nb", "{% raw %}{% endraw %}|",
    "{% raw %}   {% endraw %}|", "{% raw %}y   {% endraw %}|", "{# {% raw %} #}{{ 1 }}{# {% endraw %} #}", "a{% raw %}\n   {% endraw %}|", "  {% raw %}a{% endraw %}  {% raw %}b{% endraw %}\n  {% raw %}c{% endraw %}",
    "{% raw -%}\n  {% endraw %}|", "{% raw %}\n  {%+ endraw %}|", "{{ 1 }}  {% raw %}b{% endraw %}", "{%- raw %}x{% endraw %}\n\n y", "{%raw%}'\\'\\n{{\"}}{#é🙂{%endraw%}", "{% raw %} b{% endraw %}\n", "{% raw %}b{% endraw %}\n\n",
    "{% if true %}\n  {% raw %}{% endif %}{% endraw %}\n{% endif %}\n", "{% set s %}{% raw %}{{ s }}{% endraw %}{% endset %}{{ s | upper }}",
    "a\n  {%+ if true +%}\nx {%- endif %}\n y", "a\n  {#+ c +#}\n b {#- c -#} c\n  {# c #}\nd\n\n", "{{ 1 -}}\n {{- 2 }} {{+ 3 }}{{ 4 }}\nx", "{{--1}}{{- -1 }}{{ {'a': {'b': 1}} }}",
    "  {- a -}\nb %}\nc #}\nd", "{{ 'a\n  {% b %}\n{# c #}' }}{{ '{% raw %}' ~ \"{{'}}\" }}", "{ {%- if true %}%{% endif %}}{# c #}{ x }", "a \u2028{%- if true -%} \x1c\x85 b{% endif %}\ufeff{%- if true %}c{% endif %}",
    "\u00a0\n \u3000{% if true %}x{% endif %}", "it's \\n {{ 'it\\'s' }}", "{{ 1 }}\n  {% if true %}\n  {# c #}\n  {% endif %}\n",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 2 == 2 == true }} {{ (2 == 2) == true }} {{ 'a' in 'abc' == true }} {{ 1 not in n in [false] }} {{ (1 not in n) in [false] }} {{ 3 > 2 > 1 != 4 }} {{ 'a' < 'b' < 'c' }}",
    "{{ [1 < 2 < 3, 3 < 2 < 5] }} {{ {'a': 0 <= n | length < 3} }} {{ 1 == 1 if 2 == 2 else 3 == 3 }} {{ 1 == 1 and 1 == 1 }} {{ 'y' if 1 is not in n == false else 'n' }} {{ n[1 if 1 == 1 else 0:2] }} {{ 2 == 2 | default(3 == 3) == 2 }}",
    "{% for x in n if 0 < x < 3 %}{{ x }}{% endfor %}{% if 1 in n not in [[1]] %}!{% endif %}{% macro m(x) %}{{ 1 == 2 == x.y.z }}{% endmacro %}{{ m(4) }}",
    "{{ dict() }}{{ dict(a=1, b='x') }}{{ dict({'a': 1, 'c': 2}, a=3) }}{{ dict([('k', 1), ['l', 2]]) }}{{ dict(d.items(), **{'z': 0}) }}{% set o = dict(a=n) %}{{ o.a[0] }}{{ o | items | list }}", "{{ [1, 2] == (1, 2) }} {{ (1, 2) == (1, 2) }} {{ [1, 2] in [(1, 2)] }}",
    "{{ 'x' + 1 ~ 2 }} {{ 'a' ~ 1 + 'b' }} {{ 'a' + 1 ~ 'b' + 'c' ~ 2 ~ 'd' }} {{ ('a' + 'b') ~ 1 }} {{ 'a' + ('b' + 1 ~ 2) ~ n[1 - 1] ~ -1 }} {{ ['a' + 1 ~ 2, 1 + 2] }} {{ 'a' ~ 2 * 3 }} {{ 3 - 1 }}",
    "{{ 'x1' == 'x' + 1 ~ '' }} {{ 'y' + 1 ~ 2 if 1 + 1 == 2 else 'z' + 3 ~ 4 }} {% set s = '-' + n | length ~ '-' %}{{ s + 1 ~ 's' | upper }}{% if 'a' + 1 ~ 2 in ['a12'] %}!{% endif %}",
    r"""{{ 'a\
b\n\\n\'\"\/\d\ \{\$ \x41\u00e9\U0001F600\0\60\1011\777\a\8' }}{{ "\
'\"" }}""",
    "{{ 1 == rows[0].in }} {{ true == 1 is in [1] }} {{ true == 2 is not in [1] }} {{ 'a' + '' or 'c' ~ 'd' }} {{ 'a' + d.or ~ 'b' }} {{ {'a' + 'b': 'c' ~ 'd'} }}",
    "{% raw %}{% generation %}{% endraw %} {{ '{% generation %}' }}",
    "{{ 'aé🙂' | reverse }}", "{{ n | reverse | list }}", "{{ text | wordcount }}", "{{ '' | wordcount }}", "{{ 'a--b_c d' | wordcount }}",
    "{{ [1e3, 1_000, 2.5E-1, 1e+2] }} {{ 1e3 if 1e-1 else 2 }} {{ [1, 2e0][0] }}", "{{ words | unique | list }} {{ words | unique(true) | list }} {{ [1, true, 1.0, 'x'] | unique | list }}",
    "{{ rows | unique(attribute='in.w') | map(attribute='k') | list }}", "{{ words | sort }} {{ words | sort(true) }} {{ words | sort(case_sensitive=true) }} {{ d | sort }}",
    "{% set r = [{'a': 'y', 'b': 1}, {'a': 'x', 'b': 2}, {'a': 'Y', 'b': 0}] %}{{ r | sort(attribute='a,b') }}{{ r | sort(attribute='a', reverse=true) }}",
    "{{ 1 | float }} {{ '1' | float }} {{ '1,2' | float }} {{ 'x' | float(2) }} {{ none | float }} {{ true | float }} {{ ' 1.5 ' | float }} {{ 2.5 | float }}",
    "{{ '' | indent(2, true) }}|{{ 'a\n\nb\n' | indent }}|{{ 'a\n\nb' | indent(1, blank=true) }}|{{ 'a\u2028b' | indent('--', true) }}|{{ '' | indent }}|",
    "{{ n | count }} {{ d | count }} {{ (1, 2) | list }} {{ (1, 2)[1:] }} {{ (1, 2, 3)[::-1] }}", "{{ 1e20 | int }} {{ '7.9' | int }}",
    "{{ ' a b  c '.rsplit(none, 1) }} {{ ' a b  c '.rsplit() }} {{ 'a'.rsplit(none, 0) }}", "{% for x in n %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}",
    "{{ 'hello'.startswith('l', 2) }} {{ 'hello'.startswith(('x', 'he')) }} {{ 'hello'.endswith('l', 0, 4) }} {{ 'hello'.endswith('') }} {{ 'a'.startswith('', 2) }}",
    "{% with %}a{% set x = 1 %}{% endwith %}{{ x }}", "{% with a = 1, b = n[0] %}{{ a + b }}{% endwith %}{{ a }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% set a = 3 %}{{ a }}{% endwith %}{{ a }}",
    "{% for x in n %}{% with y = x * 2 %}{{ loop.index }}:{{ y }}{% if x == 1 %}!{% endif %}{% endwith %};{% endfor %}", "a\n  {% with a = 'x' -%}\n  {{ a }}\n  {% endwith %}\nb", "{% with d = {'a': [1, 2]} %}{% with n = d.a %}{{ n | sum }}{% endwith %}{{ n }}{% endwith %}",
    "{% with a = 1 == 1, b = 'x' + 1 | string ~ 2 %}{{ a }}{{ b }}{% endwith %}{{ {'with': 1}.with }}{{ {'endwith': 2}.endwith }}", "{% set x = 1 %}{% filter upper %}a{{ x }}{% set x = 2 %}{% endfilter %}{{ x }}", "{% filter truncate(5, true, leeway=0) %}abcdefgh{% endfilter %}{% filter e %}<{% endfilter %}{% filter replace('a', 'b') %}a{% with %}a{% endwith %}{% endfilter %}",
    "{% for g in rows | groupby('v') %}{{ g.grouper }}{{ g.list }}{{ g[0] }}{{ g['grouper'] }};{% endfor %}", "{% for k, list in words | map('string') | groupby(0) %}{{ k }}={{ list }};{% endfor %}", "{{ rows | groupby('in.w') }} {{ [] | groupby('x') }} {{ nothing | groupby('x') }}",
    "{{ [{'c': 'b'}, {'c': 'A'}, {'c': 'B'}, {}] | groupby('c', default='a') }} {{ [{'c': 'b'}, {'c': 'B'}, {'c': 'b'}] | groupby('c', case_sensitive=true) }} {{ [{'c': 1}, {'c': true}, {'c': 1.0}] | groupby(attribute='c') }}",
    "{{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, true) }}|{{ 'foo bar baz qux' | truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, false, '...', 0) }}|{{ 'éé🙂🙂éé' | truncate(4, true, '…', leeway=0) }}|{{ '' | truncate }}|{{ 'abcdefghij' | truncate(3, leeway=0) }}|{{ 'x' * 261 == ('x' * 261) | truncate }}|{{ ('x' * 261) | truncate | length }}",
    "{{ '<a href=\"x\">&\\'' | e }} {{ '<' | escape | e }} {{ '<' | e | forceescape }} {{ 1 | e }} {{ none | e }} {{ nothing | e }} {{ ['<'] | e }}", "{{ '<' | e + '>' }} {{ '<' + '>' | e }} {{ ('<' | e) ~ '>' }} {{ '<' | safe + '&' }} {{ '<' | safe | e }} {{ '<' | safe }} {{ '&' | e | length }}",
    "{% set x = '<' | e %}{{ x + '<' }}{{ x | upper + '<' }}{{ x | string + '<' }}{{ (x + '<') | e }}{{ [x, '<'] | join }}{{ x | e | replace('&', '<') + '>' }} {{ ('%s<' | safe) % '<' }} {{ '%s' | e | format('<') }} {{ '%s' % x + '<' }}",
    "{{ '%s is %d' % ('a', 3) }} {{ '%s' % 'a' }} {{ '%s' % n }} {{ '%s' % none }} [{{ '%s' % nothing }}] {{ '%r' % 'it' }} {{ '%5s|%-5s|%.1s' % ('a', 'b', 'éx') }} {{ '100%%' | format }} {{ 'x' % n }} {{ 'x' % d }} {{ '%c%c' % ('é', 128512) }}",
    "{{ '%d %i %u' % (1.9, true, -3) }} {{ '%05d|%+d|% d|%-4d|%.3d' % (42, 42, 42, 42, 4) }} {{ '%x %X %o %#x %#o' % (255, 255, 8, 255, 8) }} {{ '%d' % 9007199254740991 }} {{ '%x' % -255 }} {{ '%ld' % 4 }}",
    "{{ '%f %.2f %.0f %8.3f|%-8.1f|%08.2f|%+.1f' % (0.5, 2.675, 2.5, 3.14159, 2.25, -1.5, 0.05) }} {{ '%e %.0e %.2E' % (12345.678, 0.00025, 1e100) }} {{ '%g %g %g %g %.3g %G' % (0.0001, 0.00001, 123456, 1234567, 0.00012345, 1e-10) }} {{ '%.3f' % 1e22 }} {{ '%f' % tiny }} {{ '%.20f' % 0.1 }}",
    "{{ '%s' % true }} {{ '%r' % (1 == 2) }} {{ '%d' % true }} {{ '%c' % true }} {{ '%.1f' % true }} {{ '%.*f|%.*s|' % (-5, 3.5, -1, 'abc') }}",
    "{{ '%(a)s-%(b)05.1f' % {'a': 'x', 'b': 2.25} }} {{ '%(k)s' | format(k='v') }} {{ '%s, %s' | format('a', n) }} {{ '%.2f' | format(0.125) }} {{ '%*d|%-*d|%.*f' % (5, 42, 5, 42, 1, 2.25) }} {{ '%s %s' % (1, 2) }}",
    "{{ 'ab'.center(5) }}|{{ 'abc'.center(6, '*') }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '🙂') }}|{{ '-7'.zfill(4) }}|{{ '7'.zfill(3) }}|{{ 'abc'.zfill(2) }}|{{ ''.zfill(2) }}|{{ 'é'.isascii() }}{{ ''.isascii() }}", "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }} {{ 'k: v'.partition(': ')[2] }}",
    "{{ n | slice(2) | list }} {{ n | slice(2, 'x') | list }} {{ n | slice(4) | list }} {{ n | slice(4, 0) | list }} {{ [] | slice(2, 0) | list }} {{ 'abcde' | slice(2) | list }} {{ n | slice(1, fill_with='x') | list }} {{ [1, 2, 3, 4] | slice(2, 'x') | list }}",
    "{{ () }} {{ (1,) }} {{ (1, 2,) }} {{ ((),) }} {{ [(), (1,),] }} {{ {'a': (1,),} }} {{ () | length }} {{ (n,)[0] | sum }} {{ ((1)) }} {{ (1, 2) }} {{ (1,) + () }} {{ (1,) == (1,) }} {{ 1 in (1,) }} {{ 1 not in () }} {{ 'a' ~ (1,) }}",
    "{{ 'ab'.startswith(('x', 'a',)) }} {{ 'ab'.endswith(('b',)) }} {% for x in (1, 2,) %}{{ x }}{% endfor %}{% if () %}a{% elif (0,) %}b{% endif %}{% set t = (n,) %}{{ t }} {{ dict(a=(1,)) }} {{ range(3,) | list }} {{ n | join(',',) }} {{ 3 is divisibleby(3,) }} {{ 1 is in([1],) }} {{ 1 if not () else (2,) }} {{ '%s' % (n,) }}{{ '%%' % () }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1,) }}{{ m((1,),) }}{% with t = (1,), u = () %}{{ t }}{{ u }}{% endwith %}{{ d.keys() | list }} {{ n * 2 }} {{ 2 * [0] }} {{ (1, 2) * 2 }} {{ n * 0 }} {{ n * -1 }} {{ [] * 100000000 }} {{ n + [[1]] }} {{ (1, 2) + (3, 4) }}",
    "{{ d | first }} {{ d | last }} [{{ nothing | first }}] [{{ {} | first }}] {{ d | join('-') }} {{ n | truncate }} {{ [n, '<' | e, (1 is string) | e] }} {{ true + 1 }} {{ 2 * true }} {{ n * true }} {{ true % 2 }} {{ 1 < true }} {{ 7 // true }} {{ true - 1.5 }} {{ ('a' is string) + ('b' is string) }}",
    "{{ [1, 2] < [1, 3] }} {{ (1,) <= (1, 0) }} {{ ['b'] > ['a', 'z'] }} {{ () < (1,) }} {{ d.items() | sort }} {{ rows | map(attribute='in') | map('list') | sort }} {{ [(2, 'b'), (1, 'z'), (2, 'a')] | sort }} {{ [(2, 1), (1, 5)] | max }} {{ [[1, [2]], [1, [1]]] | min }}",
    "{{ '{a}-{b_1}-{}-{0}'.replace('{0}', '').format('x', a=1, b_1=n) }} {{ 'é{e}{{a}}'.format(e='y') }} {{ '{1}{0}{k}'.format('a', 'b', k='{}') }} {{ '{format}'.format(format=1) }} {{ 'a b c'.split(sep=' ', maxsplit=1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ 'a\n'.splitlines(keepends=true) }}",
    "{{ 2 | replace(2, 'x') }} {{ none | replace('o', '0') }} {{ n | replace(', ', ';') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'aaa' | replace('a', 'b', count=1) }} {{ 'aé🙂' | replace('', '-') }} {{ 'abc' | replace('', '-', 2) }} {{ '' | replace('', 'x') }} {{ nothing | replace('a', 'b') }}",
    "{{ words | map('replace', 'A', 'x') | list }} {{ [-1, -2.5, true, -9007199254740991] | map('abs') | list }} {{ -3 | abs }} {{ ('<' | e) | replace('&', '<') }} {{ 'a' | replace('a', 'b', 0) }}",
    "{{ d | join('-', attribute='k') }} {{ 'ab' | join('-', attribute='k') }} {{ rows | join('-', attribute='k') }} {{ 0.5 is odd }} {{ 0.5 is even }} {{ -3 is odd }} {{ d is lower }} {{ true is upper }} {{ none is lower }} {{ 1 is lower }}",
    "{% set t = [{'n': 'a', 'c': [{'n': 'b', 'c': []}, {'n': 'd', 'c': [{'n': 'e', 'c': []}]}]}, {'n': 'f', 'c': []}] %}{% for i in t recursive %}[{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}/{{ loop.length }}{{ loop.first }} {{ i.n }}{{ loop(i.c) if i.c }}]{% endfor %}",
    "{% set t = [{'n': 'a', 'c': [{'n': 'b', 'c': []}, {'n': 'd', 'c': [{'n': 'e', 'c': []}]}]}, {'n': 'f', 'c': []}] %}{% for i in t if i.n != 'b' recursive %}{{ i.n }}({{ loop(i.c) }}){% else %}-{% endfor %}",
    "{% set t = [{'n': 'a', 'c': [{'n': 'b', 'c': []}, {'n': 'd', 'c': [{'n': 'e', 'c': []}]}]}, {'n': 'f', 'c': []}] %}{% set x = 0 %}{% for i in t recursive %}{{ x }}{% set x = 5 %}{% set s = loop(i.c) %}{% set outer = loop %}{% for j in [1] %}{{ i.n }}<{{ outer(i.c) | upper }}>{{ s }}{% endfor %}{% endfor %}{{ x }}",
    "{% for k, v in {'a': {'b': {}}}.items() recursive %}{{ k }}{{ loop(v.items()) }}{% endfor %}{% for (k, v) in {'a': {}}.items() recursive %}{{ k }}{{ loop(v.items()) }}{{ loop(v.missing) }}{% endfor %}",
    "{% for recursive in n %}{{ recursive }}{% endfor %}{% set recursive = n %}{% for i in recursive %}{{ i }}{% endfor %}{% for i in [[1, [2]]] recursive %}{{ i if i is number else loop(i) }},{% endfor %}{% for i in n if recursive %}{{ i }}{% endfor %}{% for i in n if not recursive %}{{ i }}{% endfor %}{% for i in {'recursive': n}.recursive %}{{ i }}{% endfor %}{% for i in recursive recursive %}{{ i }}{{ loop['index'] }}{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}{% for i in n %}{{ c.next() }}{% endfor %}[{{ c.x }}]",
    "{% set j = joiner() %}{% set k = joiner('|') %}{% set l = joiner(sep='; ') %}{% for i in n %}{{ j() }}{{ i }}{{ k() if i != 1 }}{{ l() }}{% endfor %}",
    "{{ 'upper' is filter }} {{ 'nonsense' is filter }} {{ 3 is filter }} {{ nothing is filter }} {{ 'tojson' is not filter }} {{ 'toString' is filter }} {{ ['upper', 'x'] | select('filter') | list }}{% if 'trim' is filter %}!{% endif %}",
    "{{ 'even' is test }} {{ 'filter' is test }} {{ '==' is test }} {{ 'nonsense' is test }} {{ 'toString' is test }} {{ 'a' is escaped }} {{ ('a' | e) is escaped }} {{ 3 is escaped }}",
    "{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }};{% endfor %}{% for i in n %}{{ loop.changed() }}{% endfor %}{% for i in n %}{{ loop.changed(i > 1, [nothing]) }}{% endfor %}{% for i in [[1], [1]] recursive %}{{ loop.changed(i) }}{{ loop(i) if i is iterable }}{% endfor %}",
    "{{ d | map('upper') | list }} {{ 'ab' | map('upper') | list }} {{ nothing | map('upper') | list }} {{ none | map('upper') | list }} {{ (1, 2) | map('string') | list }}",
    "{{ true is odd }} {{ false is even }} {{ 4 is divisibleby true }} {{ true is divisibleby(2) }} {{ [true, false, 3] | select('odd') | list }}",
    "{{ n.length }}{{ text.length }}{{ n['length'] }}{{ d.length }}{{ {'length': 5}.length }}{{ 'yes' if n.length }}{% for i in n recursive %}{{ loop.length }}{% endfor %}",
    "{{ {1: 'a'}.get(1) }} {{ d.get(nothing) }} {{ d.get(none, 'x') }} {{ d.get(2.5, 3) }} {{ {1: 'a'}.get(true) }} {{ {1: 'a'}.get(1.0) }} {{ d.get((1, 2)) }} {{ d.get('b') }} {{ d['get']('q', n) }} {{ {'get': 1}['get'] }}",
    "{{ nothing | reverse | list }}{{ ', '.join(nothing) }}{% for i in nothing | reverse %}x{% endfor %}",
    "{% for p in d['items']() %}{{ p }}{% endfor %}{{ d['items']() | list }}{{ {1: 2}['keys']() | list }}{{ d['values']() | list }}{{ {'items': 1}['items'] }}{{ {'copy': 1}['copy'] }}{{ {1: 'a'}.values() | list }}",
    "{{ d.copy() }}{{ n.copy() }}{{ n.index(1) }}{{ n.count(1.0) }}{{ n.count('x') }}{{ (1, 1).count(true) }}{{ n['index'](2) }}{{ text.index('words') }}{{ wide[0].index('🙂') }}",
    "{% set t | upper %}a{{ n[0] }}{% endset %}{{ t }}{% set t | trim | replace('b', 'c') %} b {% endset %}[{{ t }}]{% for x in n %}{% set t | upper %}x{% endset %}{% endfor %}{{ t }}",
    "{{ n[0:none] }}{{ n[none:2] }}{{ n[::none] }}{{ text[none:3] }}{{ (1, 2)[:none] }}",
]

REFUSED = [
    "{{ ['a'] | sum }}", "{{ 5 | sum }}", "{{ [1, 'a'] | max }}", "{{ [none, 1] | min }}", "{{ 5 | max }}", "{{ 'a' | round }}", "{{ 1 | round(0, 'up') }}",
    "{{ n | dictsort }}", "{{ {'a': 1, 'b': 'x'} | dictsort(by='value') }}", "{{ d | dictsort(by='other') }}", "{{ [1] | select('nonsense') | list }}", "{{ [[1], 2] | sum }}",
    "{{ 4 is divisibleby }}", "{{ 4 is defined(1) }}", "{{ 4 is divisibleby 0 }}", "{{ 'a' is gt 1 }}", "{{ n | select('divisibleby') | list }}", "{{ 4 is eq -4 }}", "{{ 4 is eq(1, 2) }}",
    "{{ 4 is nonsense(1) }}", "{% raw %}x", "{% endraw %}", "{% raw %}{% raw %}{% endraw %}{% endraw %}", "{{ 4 is eq( }}", "{{ 4 is eq) }}",
    "{{ 1 == 2 < }}", r"{{ '\x4' }}", r"{{ '\u00e' }}", r"{{ '\U0001F60' }}", r"{{ '\UFFFFFFFF' }}", r"{{ '\N{nonsense}' }}", "{{ dict(1) }}", "{{ dict('ab') }}", "{{ dict([1]) }}", "{{ dict({}, {}) }}", "{{ dict([([], 1)]) }}",
    "{{ 1e }}", "{{ 1e- }}", "{{ [[1]] | unique | list }}", "{{ [1, 'a'] | sort }}", "{{ nothing | float }}", "{{ 'a' | indent(1.5) }}",
    "{% with %}x", "{% endwith %}", "{% with %}{% endfilter %}", "{% filter upper %}{% endwith %}", "{% with a %}{% endwith %}", "{% with 1 = a %}{% endwith %}", "{% for x in n %}{% with %}{% endfor %}{% endwith %}",
    "{{ rows | groupby }}", "{{ [{'c': 1}, {}] | groupby('c') }}", "{{ [{'c': 1}, {'c': 'x'}] | groupby('c') }}", "{{ 'abc' | truncate(2) }}", "{{ 'abc' | truncate(5, leeway=-1) }}", "{{ '%s %s' % 'a' }}", "{{ 'x' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ '%s' % () }}", "{{ '%d' % 'a' }}", "{{ '%x' % 1.5 }}", "{{ '%' % 1 }}", "{{ '%q' % 1 }}", "{{ '%(a)s' % 1 }}", "{{ '%(a)s' % {'b': 1} }}", "{{ '%c' % 'ab' }}", "{{ '%c' % -1 }}", "{{ '%s' | format(1, a=2) }}", "{{ '%d' % none }}", "{{ '%f' % 'a' }}", "{{ '%*d' % ('a', 1) }}", "{{ 'x' % 1 }}", "{{ 1 % 'x' }}",
    "{{ 'a'.center('b') }}", "{{ 'a'.ljust(3, 'xy') }}", "{{ 'a'.partition('') }}", "{{ n | slice(0) | list }}", "{{ n | slice | list }}",
    "{{ (,) }}", "{{ (1,,) }}", "{{ (a=1,) }}", "{{ f(,) }}",
    "{{ n + (1,) }}", "{{ (1,) + n }}", "{{ n * n }}", "{{ n * 1.5 }}", "{{ n + 1 }}",
    "{{ [1] < (1,) }}", "{{ [1] < ['a'] }}", "{{ [none] < [1] }}", "{{ {} < {} }}", "{{ ['a', 'b'] | truncate(1, leeway=0, end='') }}",
    "{{ '{a}'.format(1) }}", "{{ '{'.format(1) }}",
    "{% for i in n %}{{ loop(n) }}{% endfor %}", "{% for i in n recursive %}{{ loop() }}{% endfor %}", "{% for i in n recursive %}{{ loop(3) }}{% endfor %}", "{% for i in n recursive recursive %}{% endfor %}",
    "{{ cycler() }}", "{{ joiner('a', 'b') }}", "{{ joiner(x='a') }}", "{{ 'upper' is filter(1) }}",
    "{{ 5 | map('upper') | list }}", "{{ 'a' is odd }}", "{% for i in n %}{{ loop.changed(x=i) }}{% endfor %}",
    "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ 1 < 'a' }}", "{{ 'a' > 1 }}", "{{ none.x() }}", "{{ none + 1 }}", "{{ none < 1 }}", "{{ nothing + 1 }}", "{{ 'a' + none }}", "{{ 'a' + nothing }}", "{{ 'a' + true }}", "{{ 'a' + n }}", "{{ n + 'a' }}",
    "{{ 'a' * 'b' }}", "{{ 'a' - 'b' }}", "{{ -'a' }}", "{{ -none }}", "{{ d + d }}", "{{ d < d }}", "{{ none | length }}", "{{ 1 | length }}", "{{ 'a' in none }}", "{{ 1 in 'abc' }}", "{% for x in none %}{% endfor %}", "{{ n.strip() }}", "{{ 'a'.items() }}",
    "{{ n[:'a'] }}", "{{ n.index('x') }}", "{{ 'a'.index('x') }}", "{{ (1,).copy() }}", "{% set t | nonsense %}a{% endset %}",
    "{{ n.length + 1 }}", "{{ n.length.x }}", "{{ d.get() }}", "{{ d.get([]) }}", "{{ d.get({}) }}", "{{ d.get('b', 1, 2) }}", "{{ d.get('b', default=1) }}",
]

environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)


def gives(source):
    return environment.from_string(source).render(**VARIABLES)


for refused in REFUSED:
    try:
        print("not refused:", refused, gives(refused))
    except Exception:
        pass
made = {"variables": VARIABLES, "texts": [[text, gives(text)] for text in TEXTS], "refused": REFUSED}
target = pathlib.Path(__file__).with_name("template-filters.json")
target.write_text(json.dumps(made, ensure_ascii=False, indent=2) + "\n")
