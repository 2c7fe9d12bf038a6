"""What the template engine is compared on: expressions and templates over one set of variables."""

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  What is 2+2? <|im_end|>\n"},
    {"role": "assistant", "content": None,
     "tool_calls": [{"id": "c1", "type": "function",
                     "function": {"name": "add", "arguments": {"a": 2, "b": [1.5, None, True]}}}]},
    {"role": "tool", "content": "4", "tool_call_id": "c1"},
    {"role": "assistant", "content": "<think>\nsum\n</think>\n\nIt is 4: \"vier\" \u2713"},
    {"role": "user", "content": [{"type": "text", "text": "And this?"},
                                 {"type": "image", "image": "x.png"}]},
]
TOOLS = [{"type": "function",
          "function": {"name": "add", "description": "Adds <b>two</b> & 'more' numbers",
                       "parameters": {"type": "object", "required": ["a"],
                                      "properties": {"a": {"type": "number",
                                                           "description": "f\u00fcr \u65e5"},
                                                     "b": {"type": "array",
                                                           "enum": [1, 2.0, "x"]}}}}}]
VARIABLES = {
    "n": 7, "z": 0, "m": -3, "f": 2.5, "t": True, "x": False, "no": None, "s": "Hello World",
    "e": "", "u": "h\u00e9llo \u2713 \u65e5\u672c", "q": "it's \"q\"\n\t\\",
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "empty": [],
    "d": {"b": 1, "a": "x", "items": 5, "C": None},
    "nested": {"a": {"b": [10, 20, {"c": "deep"}]}},
    "people": [{"name": "Bo", "age": 30, "tags": ["x", "y"]}, {"name": "al", "age": 25},
               {"name": "Cy", "age": 30, "tags": []}],
    "html": "<a href='x'>&\"</a>", "lines": "one\n\n  two\r\nthree\n",
    "messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True,
    "bos_token": "<s>", "eos_token": "</s>",
}

# Each is rendered as {{ expression }}.
EXPRESSIONS = r"""
1
-1
1_000
0x1F
0b101
0o17
00
1.5
1e3
1.5e-7
1E+20
123456789.125
0.1 + 0.2
1e16
1e15
123456789012345680.0
1.0
-0.0
9223372036854775807
'a'
"a'b"
'a\'b'
'\x41\u00e9\U0001F600\101\n|\t|\\|\q'
'a' 'b' "c"
'é' ~ "日"
true
True
false
none
None
[]
[1, 'a', none, true, 1.0]
[1,]
(1,)
()
(1, 2)
1, 2
{}
{'a': 1, 'b': [1, {'c': 2}]}
{'a': 1,}
{1: 'x', 1.5: 'y', none: 'z', (1, 2): 'w'}
{[1]: 2}
{'a': 1}['a']
n
missing
missing.x
missing['x']
missing()
missing + 1
1 + missing
missing ~ 'x'
missing == missing
missing == none
missing != 1
missing < 1
not missing
'a' in missing
missing in [1]
missing|length
missing is defined
missing is undefined
missing|default('q')
no|default('q')
no|default('q', true)
e|default('q', boolean=true)
z|d(5, true)
missing|d
1 + 2
1 - 2
2 * 3
7 / 2
6 / 3
7 // 2
-7 // 2
7 // -2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 // 2
7.5 % 2
-7.5 % 2
7.5 % -2
5.0 // 0.3
1 / 0
1 // 0
1 % 0
1.0 / 0
2 ** 10
2 ** 3 ** 2
2 ** -1
2 ** 0.5
0 ** -1
-2 ** 2
10.0 ** 400
1e308 * 10
-1e308 * 10
1e308 * 10 - 1e308 * 10
- n
+ n
+ t
-t
- s
--n
not t
not not t
not n == 7
1 + t
t + t
'a' + 'b'
'a' + 1
1 + 'a'
[1] + [2]
(1,) + (2,)
[1] + (2,)
'ab' * 3
3 * 'ab'
'ab' * 0
'ab' * -1
[1, 2] * 2
2 * (1,)
'a' * 1.5
'a' - 'b'
'a' ~ 1 ~ 2.0 ~ none ~ [1]
1 ~ 2 + 3 ~ 4
1 + 2 * 3
(1 + 2) * 3
1 == 1.0
1 == true
0 == false
'1' == 1
[1, 2] == [1, 2]
[1, 2] == (1, 2)
{'a': 1} == {'a': 1.0}
(1, 2) == (1, 2)
none == none
none == false
1 != 2
1 < 2
1 < 2 < 3
1 < 3 < 2
3 > 2 > 1 == 1
1 <= 1.0
'a' < 'b'
'a' < 'B'
'a' < 1
[1, 2] < [1, 3]
[1] < [1, 0]
(1, 'a') < (1, 'b')
[1] < (2,)
none < none
{} < {}
'日' > 'é'
9007199254740993 == 9007199254740992.0
1 in [1, 2]
1 not in [1, 2]
1.0 in [1]
'a' in 'abc'
'' in ''
'd' not in 'abc'
1 in 'abc'
'a' in d
'zz' in d
1 in 5
'x' in none
[1] in d
1 in range(3)
not 1 in [1]
t and n
z and n
z or n
e or no
no or missing
t and x or s
t or 1/0
x and 1/0
1 if t else 2
1 if x else 2
1 if x
(1 if x) is defined
'a' if x else 'b' if t else 'c'
[1 if t]
s.upper()
s['upper']()
s.missing
s[0]
s[-1]
s[100]
s[-100]
s[true]
s[1.0]
s['0']
s[1:4]
s[:4]
s[4:]
s[:]
s[::-1]
s[::2]
s[8:2:-2]
s[-3:]
s[:-3]
s[100:]
s[5:2]
s[::0]
s['a':]
s[none:2]
u[1]
u[-2]
u[1:9]
u[::-1]
u|length
u.find('✓')
l[0]
l[-1]
l[5]
l[5] is defined
l['a']
l[1:]
l[::-1]
l[:-1]
l[10:]
l[-10:2]
(1, 2, 3)[1:]
range(10)[2]
range(10)[2:5]|list
l.0
nested.a.b.2.c
nested['a'].b[2]['c']
nested.a.x
nested.a.x.y
d.a
d['a']
d['items']
d.b
d.keys()|list
d.values()|list
d.items()|list
d.keys()
d.values()
d.items()
d.get('a')
d.get('zz')
d.get('zz', 3)
d.get('zz', default=3)
d.get()
d.get([1])
d._x
d.__class__
s.__class__
s.__class__.x
d.pop('a')
l.append(1)
d.update({})
l.sort()
d.copy()
d[none]
d[[1]]
5.x
n.x
n['x']
no.x
no['x']
no.x.y
t.x
l.count(1)
l.index(2)
l.index(9)
(1, 1).count(1)
s.startswith('He')
s.startswith(('x', 'H'))
s.startswith(1)
s.endswith('ld')
s.endswith('')
' a '.strip()
'xxaxx'.strip('x')
'xyaxy'.strip('yx')
'xxaxx'.lstrip('x')
'xxaxx'.rstrip('x')
'\u00a0\u2003a\u3000'.strip() ~ '|'
'日a日'.strip('日')
'xx'.strip('x') ~ '|'
' a '.strip(none) ~ '|'
'a'.strip(1)
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.split(',', maxsplit=2)
'a,b,,c'.rsplit(',', 1)
'a,b,,c'.rsplit(',')
' a  b c '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
' a  b c '.rsplit()
' a  b '.split(' ')
''.split()
''.split(',')
'aaa'.split('aa')
'aaa'.rsplit('aa')
'abc'.split('')
'abc'.split('abc')
'<think>x</think>y'.split('</think>')[-1]
'<think>x</think>y'.split('</think>')[0].split('<think>')[-1]
'a\nb\r\nc\n\nd'.splitlines()
'a\x0bb\x1cc\u2028d'.splitlines()
'aXbX'.replace('X', '--')
'aXbX'.replace('X', '--', 1)
'abc'.replace('', '-')
'abc'.replace('', '-', 2)
'日本'.replace('', '-')
''.replace('', '-')
''.replace('', '-', 0)
'abc'.replace('b', 1)
'aaa'.replace('aa', 'b')
'hello world'.title()
"it's a dog's-life x2y".title()
'hELLO wORLD'.capitalize()
'Hello'.lower()
'Hello'.upper()
'hello'.find('l')
'hello'.find('z')
'hello'.find('')
'hello'.index('z')
'hello'.count('l')
'hello'.count('')
'aaaa'.count('aa')
', '.join(['a', 'b'])
', '.join([1])
', '.join('abc')
', '.join({'k': 1})
'12'.isdigit()
''.isdigit()
'1a'.isdigit()
'ab'.isalpha()
'a1'.isalnum()
' \n'.isspace()
s|upper
s|lower
n|upper
missing|upper
'hello wORLD-foo (bar) [baz'|title
'hELLO'|capitalize
'  x '|trim
'xxhxx'|trim('x')
n|trim
missing|trim
s|replace('l', 'L')
s|replace('l', 'L', 2)
s|replace('l', 'L', count=1)
n|replace(7, 8)
s|length
l|count
d|length
n|length
no|length
range(5)|length
l|map('string')|length
l|first
l|last
empty|first
empty|last
empty|first|default('none')
s|first
s|last
d|first
d|last
missing|first
missing|last
l|join
l|join(', ')
l|join(d='-')
s|join('.')
people|join('/', attribute='name')
people|map(attribute='name')|join(',')
empty|join(',')
no|join
n|join
[1, [2], none, 'x', 2.0]|join('|')
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
words|sort(true)
people|sort(attribute='age')|map(attribute='name')|list
people|sort(attribute='age', reverse=true)|map(attribute='name')|list
people|sort(attribute='age,name')|map(attribute='name')|list
people|sort
[1, 'a']|sort
d|sort
'cab'|sort
l|min
l|max
empty|max
empty|max is undefined
words|min
words|max
words|max(case_sensitive=true)
people|max(attribute='age')
l|sum
people|sum(attribute='age')
l|sum(start=10)
[1.5, 2]|sum
['a', 'b']|sum
[[1], [2]]|sum(start=[])
empty|sum
l|reverse|list
s|reverse
n|reverse
words|unique|list
['a', 'A', 'b', 'a']|unique|list
['a', 'A', 'b', 'a']|unique(case_sensitive=true)|list
[1, 1.0, true, 2]|unique|list
people|unique(attribute='age')|map(attribute='name')|list
[[1]]|unique|list
s|list
d|list
n|list
missing|list
l|list
(1, 2)|list
d|items|list
missing|items|list
l|items|list
d|dictsort
{'b': 1, 'A': 2, 'c': 0}|dictsort
{'b': 1, 'A': 2, 'c': 0}|dictsort(true)
{'b': 1, 'A': 2, 'c': 0}|dictsort(by='value')
{'b': 1, 'A': 2, 'c': 0}|dictsort(false, 'value', true)
{'b': 1, 'A': 2, 'c': 0}|dictsort(reverse=true)
{'b': 1}|dictsort(by='x')
l|dictsort
l|map('string')|list
words|map('upper')|list
words|map('replace', 'a', 'x')|list
people|map(attribute='tags')|list
people|map(attribute='tags', default='-')|list
people|map(attribute='tags.0')|list
people|map(attribute='missing')|list
people|map('nosuchfilter')|list
empty|map('nosuchfilter')|list
people|map|list
l|map('default', 3)|list
['a', 'b']|map('tojson')|join(', ')
[[1, 2], [3]]|map('join', '-')|list
[[1, 2], [3]]|map('sum')|list
[[1, 2], [3]]|map('first')|sum
l|select('odd')|list
l|select('>', 1)|list
l|select('in', [1, 2])|list
l|reject('odd')|list
[0, 1, '', 'a', none]|select|list
[0, 1, '', 'a', none]|reject|list
l|select('nosuchtest')|list
l|select('divisibleby', 3)|list
people|selectattr('tags')|map(attribute='name')|list
people|selectattr('tags', 'defined')|map(attribute='name')|list
people|selectattr('age', 'equalto', 30)|map(attribute='name')|list
people|selectattr('age', '==', 30)|map(attribute='name')|list
people|rejectattr('age', 'eq', 30)|map(attribute='name')|list
people|rejectattr('tags')|map(attribute='name')|list
people|selectattr|list
messages|selectattr('role', 'equalto', 'user')|list|length
messages|selectattr('role', 'equalto', 'user')|first
(messages|selectattr('role', 'equalto', 'nobody')|list) == []
messages|selectattr('role', 'equalto', 'nobody')|first is defined
1 if messages|selectattr('role', 'equalto', 'nobody')
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3, 4, 5]|batch(2, 'x')|list
n|string ~ 1
l|string
no|string
'42'|int
' 42 '|int
'4_2'|int
'42.9'|int
'x'|int
'x'|int(-1)
'x'|int(default=-1)
'0x1f'|int(0, 16)
'1f'|int(base=16)
'0X1F'|int(0, 16)
'-1_f'|int(0, 16)
'\u2003\xa0 12\u3000\n'|int
'\u2003\xa0 1.5\u3000\n'|float
'\u2003'|int(4)
'1\u20032'|int(4)
2.9|int
-2.9|int
true|int
none|int
none|int(3)
missing|int
[]|int
'1e3'|int
''|int
'2.5'|float
'x'|float
'x'|float(1.5)
' 1e3 '|float
3|float
none|float
'inf'|float
'nan'|float
'1_0.5'|float
[]|float(2.0)
2.5|round
3.5|round
2.675|round(2)
1234.5678|round(1)
1234.5678|round(-2)
2.1|round(method='ceil')
2.9|round(0, 'floor')
2.123|round(2, 'ceil')
5|round
2.5|round(method='x')
's'|round
-5|abs
-2.5|abs
true|abs
's'|abs
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'a\nb'|indent('> ')
lines|indent(1)
''|indent ~ '|'
n|indent
html|escape
html|e
[1, '<']|e
html|safe
'hello big  world x_y'|wordcount
''|wordcount
tools|tojson
tools|tojson(indent=2)
tools|tojson(indent=4)
tools|tojson(indent=0)
tools|tojson(indent='--')
tools|tojson(separators=(',', ':'))
tools|tojson(separators=(',', ':'), indent=1)
tools|tojson(ensure_ascii=true)
tools|tojson(sort_keys=true)
{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, indent=1)
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
[]|tojson
{}|tojson
[[], {}]|tojson(indent=2)
(1, 2)|tojson
u|tojson
u|tojson(ensure_ascii=true)
'😀'|tojson(true)
q|tojson
html|tojson
'\x00\x1f\x7f\x80'|tojson
1e100|tojson
1.0|tojson
none|tojson
true|tojson
missing|tojson
range(3)|tojson
d.items()|tojson
l|map('string')|tojson
('inf'|float)|tojson
messages[2].tool_calls[0].function.arguments|tojson
q
[q]
['it\'s']
['"']
['\'"']
['\n\t\r\\\x00\x7f\x80\xa0é日😀']
[u]
[1e100, 1e-5, 0.0001, 1.0, 100000.0]
{'a': none, 'b': [true]}
[missing]
t is true
n is true
x is false
n is boolean
t is boolean
n is integer
t is integer
f is float
n is number
t is number
s is number
s is string
l is string
d is mapping
l is mapping
l is sequence
s is sequence
d is sequence
n is sequence
range(3) is sequence
d.items() is sequence
missing is sequence
l is iterable
s is iterable
n is iterable
no is iterable
missing is iterable
l|map('string') is iterable
s.upper is callable
range is callable
n is callable
no is none
n is none
n is not none
n is odd
n is even
f is odd
s is odd
n is divisibleby 7
n is divisibleby(3)
n is divisibleby 0
n is eq 7
n is equalto 7
n is ne 7
n is lt 8
n is le 7
n is gt 8
n is ge 7
n is lessthan 8
n is greaterthan 8
n is in [7, 8]
n is not in [7, 8]
'a' is in 'abc'
'abc' is lower
'ABC' is upper
'aBC' is upper
'123' is lower
no is sameas none
t is sameas true
1 is sameas true
n is defined and s is defined
n is defined or missing.x
n is divisibleby 7 and t
n is nosuchtest
n|nosuchfilter
n is odd is even
s is string and s|length > 3
not n is odd
-n|abs
-1|abs
(-1)|abs
l|length - 1
l|length == 3
s|upper|lower|first
s.split(' ')|map('upper')|join('_')
range(3)|list
range(1, 4)|list
range(10, 0, -3)|list
range(0)|list
range(5, 0)|list
range(1, 2, 0)
range('a')
range(100001)
range()
range(3) == range(3)
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([('a', 1), ['b', 2]])
dict([1])
namespace(a=1).a
namespace(a=1).b
namespace({'a': 2}).a
namespace(_a=1)
namespace(a=1)['a']
raise_exception('stop')
raise_exception()
nosuchfunction(1)
n(1)
strftime_now('%Y')|length
s|upper()
s|default(value=1)
s|default('a', 'b', 'c')
s|replace('a')
s.replace('a')
s.upper(1)
d.get(key='a', nosuch=1)
'%d' % 'a'
'%s %s' % ('a',)
(1
[1, 2
{'a' 1}
1 +
* 2
a b
a..b
a.
'unended
1 = 2
not
x if
1 if 2 else
f(a=1, 2)
a[
a[]
a[1
)
}
]
@
a ? b
a | 
a is
""".strip("\n").split("\n")

# Jinja2 renders these and the engine does not: by design, each with a message of its own.
REFUSED = r"""
(-8) ** 0.5
d.items
s.upper
"%5.2f|%-5s|%05d|%x|%%" % (1.234, 'ab', 42, 255)
'%s' % 'a'
'%s and %d' % ('a', 3)
'{}'.format(1)
'{a}'.format(a=1)
'%s'|format(1)
s|truncate(3)
s|center(20)
s|urlencode
s|striptags
s|wordwrap(3)
l|random
d|xmlattr
people|groupby('age')
l|pprint
n|filesizeformat
n is escaped
'upper' is filter
s.swapcase()
s.center(20)
s.partition(' ')
s.removeprefix('H')
s.rfind('l')
2 ** 64
9223372036854775807 + 1
9223372036854775808
dict(*[[['a', 1]]])
range(*[3])
lipsum()
cycler(1, 2)
joiner()
l|map('string')
range
range(3)
range(3)[1:]
l.copy()
'\N{BULLET}'
'101'|int(0, 2)
'0o17'|int(0, 8)
'010'|int(0, 0)
'0z'|int(0, 36)
""".strip("\n").split("\n")

TEMPLATES = [
    # ---- white space ----
    "a\n",
    "a\n\n",
    "\n",
    "",
    " ",
    "a\r\nb\rc\r\n",
    "{{ 'a\r\nb' }}",
    "  {% if t %}  \n  x\n  {% endif %}  \n  y",
    "a {% if t %} b {% endif %} c",
    "a\n  {%- if t %}\n b\n {%- endif -%}  \n c",
    "a\n  {%+ if t %}\n b\n {%+ endif +%}\n c",
    "x{% if t +%}\n y{% endif %}",
    "x\n\n  {%- if t -%}\n\n  y\n  {%- endif %}\n\nz",
    "  {{ n }}  \n  {{- n }}\n {{ n -}} \n z",
    "{{- n -}}",
    "{{-5}}",
    "{{+5}}",
    "a  {{-5-}}  b",
    "a {# b #} c",
    "a\n  {# b #}\n c",
    "a  {#- b -#}  \n c",
    "a {#+ b +#}\n c",
    "{#-#}x",
    "a{#-",
    "{% raw %}",
    "a{% raw -%}\n",
    "{##}x",
    "{# {{ n }} {% if %} #}x",
    "a{# x\ny #}\nb",
    "{#- a -#}",
    "  {# x #}  y",
    "{# a",
    "{#",
    "\n{% if t %}\n\n{% endif %}\n",
    "\t{% if t %}\tx\t{% endif %}\t",
    "x {% set a = 1 %} y",
    "  {% set a = 1 %}\n  {% set b = 2 %}\n{{ a + b }}\n",
    "{% set a = 1 %}{{ a }}\n\n",
    "a\xa0\n {%- if t %}x{% endif %}",
    "\u2003{% if t %}x{% endif %}",
    "\u2003{%- if t -%}\xa0x{% endif %}",
    "\x0b {% if t %}x{% endif %}",
    "{% raw %}{{ n }} {% if %}{% endraw %}",
    "a\n  {% raw %}\n  x\n  {% endraw %}\n b",
    "a  {%- raw -%}  x  {%- endraw -%}  b",
    "{% raw %}x",
    "{%raw%}{%endraw%}",
    "{%- raw %} a",
    "{% raw -%}\n  {% endraw %}x",
    "{% raw %}\n  {% endraw %}\nx",
    "{% raw +%}{% endraw %}",
    "{%+ raw %} a {%+ endraw +%}\n b",
    "  {%+ raw %}a{% endraw %}",
    "{% raw %}{% raw %}{% endraw %}",
    "{{ '}}' }}",
    "{{ '%}' }}{% if '%}' %}x{% endif %}",
    "{{ {'a': {'b': 1}} }}",
    "{{ {} }}",
    "{ { n } }",
    "{n}",
    "}} %} #}",
    "{",
    "{{",
    "{%",
    "{{ n",
    "{% if n",
    "{{ }}",
    "{% %}",
    "{{ n }",
    "{{ n %}",
    "{% if n }}x{% endif %}",
    "{{\nn\n}}",
    "{%\nif t\n%}x{%\nendif\n%}",
    # ---- if ----
    "{% if n %}a{% elif t %}b{% else %}c{% endif %}",
    "{% if z %}a{% elif t %}b{% else %}c{% endif %}",
    "{% if z %}a{% elif x %}b{% else %}c{% endif %}",
    "{% if z %}a{% elif x %}b{% endif %}",
    "{% if n == 7: %}a{% endif %}",
    "{% if n, %}a{% endif %}",
    "{% if %}a{% endif %}",
    "{% if t %}",
    "{% if t %}{% else %}{% else %}{% endif %}",
    "{% endif %}",
    "{% else %}",
    "{% if t %}{% endfor %}",
    "{% if t %}{% if x %}a{% else %}b{% endif %}{% endif %}",
    "{% if x %}{% set a = 1 %}{% endif %}{{ a is defined }}",
    "{% if t %}{% set a = 1 %}{% endif %}{{ a }}",
    "{% if missing.x %}{% endif %}",
    "{% if z %}1{% elif z %}2{% elif z %}3{% elif t %}4{% elif t %}5{% else %}6{% endif %}",
    # ---- for ----
    "{% for i in l %}{{ i }},{% endfor %}",
    "{% for i in empty %}x{% else %}none{% endfor %}",
    "{% for i in l %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in missing %}x{% else %}e{% endfor %}",
    "{% for i in none %}x{% endfor %}",
    "{% for i in 5 %}x{% endfor %}",
    "{% for c in s %}{{ c }}.{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }};{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for a, b in [(1,)] %}{{ a }}{% endfor %}",
    "{% for a, b in ['xy', 'zw'] %}{{ a }}-{{ b }};{% endfor %}",
    "{% for a, in [[1], [2]] %}{{ a }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{% endfor %}",
    "{% for i in l if i > 9 %}{{ i }}{% else %}no{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}"
    "{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}|"
    "{% endfor %}",
    "{% for i in l if i != 1 %}{{ loop.index }}{{ loop.revindex }}{{ loop.last }}"
    "{{ loop.length }}|{% endfor %}",
    "{% for i in l|map('string') %}{{ loop.index }}{{ loop.last }}{{ loop.length }}|{% endfor %}",
    "{% for i in l|map('string') %}{{ loop.length }}{{ loop.last }}{{ i }}|{% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}<{{ loop.nextitem }}|{% endfor %}",
    "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}|{% endfor %}",
    "{% for i in l if i > 1 %}{{ loop.previtem|default('-') }}{{ i }}"
    "{{ loop.nextitem|default('-') }}|{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in l %}{{ loop.cycle() }}{% endfor %}",
    "{% for i in l %}{{ loop['index'] }}{{ loop.nothing }}{% endfor %}",
    "{{ loop }}",
    "{{ loop.index }}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for i in l %}{% set o = loop %}{% for j in l %}{{ o.index }}{{ loop.index }} "
    "{% endfor %}{% endfor %}",
    "{% for i in l if loop is defined %}x{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}!",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}!",
    "{% for i in l %}{% break %}{% else %}e{% endfor %}",
    "{% for i in l %}{% continue %}{% else %}e{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{% else %}e{% endfor %}",
    "{% for i in l %}{% for j in l %}{% break %}{% endfor %}{{ i }}{% endfor %}",
    "{% break %}",
    "{% if t %}{% continue %}{% endif %}",
    "{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for i in l %}{% set a %}{{ i }}{% if i == 1 %}{% break %}{% endif %}{% endset %}{{ a }}"
    "{% endfor %}.",
    "{% set a = 0 %}{% for i in l %}{% set a = a + i %}{{ a }},{% endfor %}{{ a }}",
    "{% for i in l %}{{ a }}{% set a = i %}{{ a }},{% endfor %}",
    "{% for i in l %}{% endfor %}{{ i }}",
    "{% set i = 9 %}{% for i in l %}{{ i }}{% endfor %}{{ i }}",
    "{% for n in l %}{{ n }}{% endfor %}{{ n }}",
    "{% for i in l %}{% if i == 3 %}{% set b = 1 %}{% endif %}{{ b is defined }}{% endfor %}",
    "{% set ns = namespace(a=0) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(f=false) %}{% for i in l if not ns.f %}{{ i }}{% set ns.f = true %}"
    "{% endfor %}",
    "{% set ns = namespace(f=false) %}{% for i in l if not ns.f %}{{ loop.last }}"
    "{% set ns.f = true %}{% endfor %}",
    "{% set ns = namespace(f=false) %}{% for i in l if not ns.f %}{{ loop.length }}"
    "{% set ns.f = true %}{% endfor %}",
    "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}",
    "{% set g = l|select %}{{ g|first }}{{ g|list }}",
    "{% for i in range(3) %}{{ i }}{% endfor %}",
    "{% for i in l[::-1] %}{{ i }}{% endfor %}",
    "{% for i in l|reverse %}{{ i }}{{ loop.length }}{% endfor %}",
    "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}",
    "{% for i in l %}",
    "{% for %}{% endfor %}",
    "{% for i l %}{% endfor %}",
    "{% for i in %}{% endfor %}",
    "{% for 1 in l %}{% endfor %}",
    "{% for i in l %}{% endif %}",
    "{% for true in l %}{% endfor %}",
    "{% for i in l: %}{{ i }}{% endfor %}",
    "{% for i in (l if t else empty) %}{{ i }}{% endfor %}",
    "{% for i in l if i is odd and loop is not defined %}{{ i }}{% endfor %}",
    "{% for i in l %}{{ loop(l) }}{% endfor %}",
    "{% for x in l %}{% for x in 'ab' %}{{ x }}{% endfor %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in l %}{% else %}{{ i is defined }}{% endfor %}",
    "{% for a.b in l %}{% endfor %}",
    # ---- set, namespace, with ----
    "{% set a = 1 %}{{ a }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set a, b = b, a %}",
    "{% set n = n + 1 %}{{ n }}",
    "{% set a %}x{{ n }}\n{% endset %}[{{ a }}]",
    "{% set a | upper %}x{{ n }}{% endset %}{{ a }}",
    "{% set a | replace('x', 'y') | upper %}xz{% endset %}{{ a }}",
    "{% set a %}{% set b = 1 %}{% endset %}{{ b }}",
    "{% set a %}{% endset %}{{ a is string }}{{ a|length }}",
    "{% set s.a = 1 %}",
    "{% set missing.a = 1 %}",
    "{% set d.a = 1 %}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set ns = namespace() %}{{ ns.a is defined }}{{ ns.a }}",
    "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i] %}{% endfor %}"
    "{{ ns.l }}",
    "{% set ns = namespace(a=1) %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}",
    "{% set true = 1 %}",
    "{% set ns = namespace(x=1) %}{% set ns.x %}block{% endset %}{{ ns.x }}",
    "{% set a %}x",
    "{% set %}",
    "{% set 1 = 2 %}",
    "{% set a == 1 %}",
    "{% set a = %}",
    "{% set a.b.c = 1 %}",
    "{% set a[0] = 1 %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with %}{{ n }}{% endwith %}",
    "{% with a = n, n = 3 %}{{ a }}{{ n }}{% endwith %}{{ n }}",
    "{% with a = 1 %}{% set b = 2 %}{% endwith %}{{ b }}",
    "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}",
    "{% set range = 3 %}{{ range }}",
    "{% set x = x or 3 %}{{ x }}",
    "{{ x }}{% set x = 4 %}{{ x }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% filter replace('a', 'b')|upper %}aa{% endfilter %}",
    "{% filter trim %}  {% set a = 1 %}x {% endfilter %}{{ a is defined }}",
    "{% filter %}{% endfilter %}",
    "{% generation %}x{{ n }}{% set a = 1 %}{% endgeneration %}{{ a is defined }}",
    "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "a\n{% generation %}\nb\n{% endgeneration %}\nc",
    "{% generation %}",
    # ---- macros ----
    "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}",
    "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(1) }}{{ m(a=2) }}{{ m() }}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=5) }}|"
    "{{ m(b=3, a=4) }}",
    "{% macro m(a=b, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m(b=5) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}",
    "{% macro m(a) %}{{ a }}{{ varargs|join('-') }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ a }}{% endmacro %}{% set a = 1 %}{{ m() }}",
    "{% set a = 1 %}{% macro m() %}{{ a }}{% set a = 2 %}{{ a }}{% endmacro %}{{ m() }}{{ a }}",
    "{% macro f(n) %}{% if n > 1 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% for i in l %}{{ m(i) }}{% endfor %}{% macro m(a) %}{{ a }}{% endmacro %}",
    "{% macro m(a) %}\n  {{ a }}\n{% endmacro %}\n[{{ m(1) }}]",
    "{% macro m(a) -%}\n {{ a }}\n{%- endmacro %}[{{ m(1)|upper }}]",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m('x') ~ m('y') }}{{ m('q') == 'q' }}"
    "{{ m is callable }}{{ m(m(1)) }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}in{{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}"
    "{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}in{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% call n %}x{% endcall %}",
    "{% macro m() %}",
    "{% macro %}{% endmacro %}",
    "{% macro m %}{% endmacro %}",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% macro m(1) %}{% endmacro %}",
    "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% if t %}{% macro m() %}1{% endmacro %}{% endif %}{{ m() }}",
    # ---- failing ----
    "{% if x %}{{ raise_exception('no') }}{% endif %}fine",
    "{{ raise_exception('no') }}",
    "{% nosuch %}",
    "{% endnosuch %}",
    "{% if t %}{{ n is nosuch }}{% endif %}",
    "{% set a = n|nosuch %}",
    "{{ missing.a.b }}",
    "{{ messages[0].x.y }}",
    "{% for m in messages %}{{ m.content.x }}{% endfor %}",
    "{{ messages[99].role }}",
    "{% do 1 %}",
    "{{ 1 }}{{",
    "{% 1 %}",
]
