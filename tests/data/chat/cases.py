"""What make.py asks: constructs one by one, conversations for every template, and templates that
are refused when they are opened."""

SYSTEM = {"role": "system", "content": "You answer briefly."}
USER = {"role": "user", "content": "What is 2 + 2?"}
ASSISTANT = {"role": "assistant", "content": "It is 4."}
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "its name"},
            "days": {"type": "integer", "default": 1}, "unit": {"enum": ["C", "F"], "type": "string"}},
        "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [{
    "id": "call12345", "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Bern", "days": 2}}}]}
ANSWER = {"role": "tool", "tool_call_id": "call12345", "name": "weather", "content": "{\"rain\": 3.5}"}

# The six that every chat template must stand, and some that few take.
CONVERSATIONS = {
    "system": {"messages": [SYSTEM, USER]},
    "no system": {"messages": [USER]},
    "turns": {"messages": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "And 3 + 3?"}]},
    "assistant last": {"messages": [USER, ASSISTANT], "add_generation_prompt": False},
    "unicode": {"messages": [{"role": "system", "content": "Réponds en français. 👍"},
                             {"role": "user", "content": "  Où est «l'été»?\n\u3000日本語 \\ \"x\"\t "}]},
    "empty": {"messages": [{"role": "user", "content": ""}]},
    "none": {"messages": []},
    "two users": {"messages": [USER, USER]},
    "parts": {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]}]},
    "thinking": {"messages": [USER, {"role": "assistant", "content":
                 "<think>\nTwo and two.\n</think>\n\nIt is 4."}, USER], "enable_thinking": False},
    "tools": {"messages": [SYSTEM, {"role": "user", "content": "Weather in Bern?"}], "tools": [TOOL]},
    "tool call": {"messages": [SYSTEM, USER, CALL, ANSWER], "tools": [TOOL]},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

VARIABLES = {
    "n": 7, "minus": -7, "f": 2.5, "zero": 0, "yes": True, "no": False, "nothing": None,
    "s": "Hello World", "e": "", "u": "日本 été", "sp": " \t\n pad\u3000 \x85",
    "l": [3, 1, 2], "empty": [], "ls": ["b", "A", "c"], "nested": [[1, 2], [3, 4]],
    "d": {"b": 1, "a": {"c": [1, {"x": "y"}]}, "items": "key", "C": None}, "ed": {},
    "m": [{"role": "system", "content": "S"}, {"role": "user", "content": "U", "k": 0},
          {"role": "assistant", "content": "A", "k": 2}],
    "text": "one\ntwo\r\nthree\n\nfive", "big": 9007199254740993, "q": "it's \"q\" \\ \n",
    "reals": [0.1, 1e16, 1e15, 1e-5, 0.0001, 100.0, -0.0, 1.5e300, 3.0],
}

EXPRESSIONS = """
n + 1 ;; n - 10 ;; n * 3 ;; n / 2 ;; n // 2 ;; minus // 2 ;; n % 4 ;; minus % 4 ;; minus % -4 ;;
n % -4 ;; n ** 2 ;; 2 ** -1 ;; 2 ** 3 ** 2 ;; -n ** 2 ;; - 2 ** 2
f + 1 ;; f * 2 ;; f / 2 ;; f // 1 ;; -f % 2 ;; minus / 2 ;; 1 / 3 ;; 2.0 ;; 1e3 ;; 1.5e-7 ;;
1_000 ;; .5 ;; f ** 2 ;; 10 // 3.0 ;; -1 // 3.0 ;; 7.5 % -2 ;; 1e400
n / 0 ;; n // 0 ;; n % 0 ;; f / 0 ;; 9223372036854775807 ;; 9223372036854775807 + 0 ;; big + 0.5 ;;
big == 9007199254740992.0 ;; big > 9007199254740992.0
s + '!' ;; 'a' 'b' 'c' ;; 'x' ~ n ~ none ~ true ~ f ~ l ;; s * 2 ;; 2 * 'ab' ;; 'ab' * -1 ;;
l + [4] ;; [1] * 3 ;; (1, 2) + (3,) ;; s + n ;; n + s ;; none + 1
n == 7 ;; n == 7.0 ;; true == 1 ;; false == 0 ;; s == 'Hello World' ;; l == [3, 1, 2] ;;
[1, 2] == (1, 2) ;; d == d ;; none == none ;; undef == undef ;; undef == none ;; 1 != 2
n < 8 ;; n <= 7 ;; n > 8 ;; n >= 7 ;; 'a' < 'b' ;; 'a' < 'B' ;; 1 < 2 < 3 ;; 1 < 3 < 2 ;; n < s ;;
1 < none ;; 1 < true ;; f > 2 ;; undef < 1 ;; 1 == 1 == true ;; 'é' > 'z'
3 in l ;; 4 in l ;; 'World' in s ;; '' in s ;; 'b' in d ;; 'z' in d ;; 3 not in l ;; not 3 in l ;;
n in s ;; 'x' in undef ;; 1 in 2 ;; none in [none] ;; true in [1] ;; '日' in u
yes and no ;; yes or no ;; n and s ;; zero or s ;; e or 'empty' ;; not e ;; not n ;;
none or undef ;; no and undef.x ;; yes or undef.x ;; not not n ;; no or zero ;; '' and 1
'a' if yes else 'b' ;; 'a' if no else 'b' ;; 'a' if no ;; ('a' if no) is defined ;;
'a' if no else 'b' if no else 'c' ;; 1 + 2 if yes else 3
l[0] ;; l[-1] ;; l[5] ;; l[5] is defined ;; l[1:] ;; l[:2] ;; l[::-1] ;; l[::2] ;; l[-2:] ;;
l[5:] ;; s[0] ;; s[-1] ;; s[1:4] ;; s[::-1] ;; u[0] ;; u[1:4] ;; u[::-1] ;; u[-3:] ;; s[20] ;;
s[:-1]
l[none:] ;; l[1:none] ;; l[::0] ;; l['0'] ;; nested[1][0] ;; nested[0] ;; d['b'] ;; d.b ;;
d['a']['c'][1]['x'] ;; d.a.c.1.x ;; d.a.c[1].x ;; d.zz ;; d.zz is defined ;; d['zz']
d.zz.y ;; undef.x ;; undef['x'] ;; undef[0] ;; undef[1:] ;; none.x ;; none.x is defined ;;
none['x'] ;; n.x ;; n[0] ;; s.x ;; s['x'] ;; nothing.a.b ;; d.C ;; d.C.x ;; d[0] ;; d[none]
d.items is string ;; d['items'] ;; d.get('items') ;; d.get('b') ;; d.get('zz') ;; d.get('zz', 5) ;;
d.get('zz') is none ;; ed.get('a', {}).get('b') ;; d.items() ;; d.keys() ;; d.values()
d.keys()|list ;; d.items()|list ;; d.items()|length ;; d|items|list ;; d|length ;; ed|list ;;
s|list ;; n|list ;; none|list ;; undef|list ;; d|list ;; (1, 2)|list
[] ;; {} ;; () ;; (1,) ;; (1, 2) ;; [1, 'a', none, true, 2.5] ;; {'a': 1, 'b': [2]} ;; {'a': 1,} ;;
[1, 2,] ;; {'a': 1}.a ;; {'a': {'b': 2}}.a.b ;; [[], {}, ()] ;; {'a': 'it\\'s'} ;; ['"', "'"]
q ;; [q] ;; [u] ;; ['\\x00\\x1f\\x7f'] ;; ['\\u00ad\\u200b\\ufeff\\ue000'] ;; '\\n\\t\\\\\\'"' ;;
"\\x41\\u00e9\\101" ;; '\\d'
reals ;; reals|tojson ;; 1.0 ;; 100.0 ~ '' ;; f|string ;; 0.1 + 0.2 ;; 1e22 ;;
123456789012345680.0 ;; -0.0 ;; 3.14
n is defined ;; undef is defined ;; undef is undefined ;; none is none ;; nothing is none ;;
undef is none ;; s is string ;; n is string ;; undef is string ;; d is mapping ;; l is mapping ;;
ed is mapping
l is iterable ;; s is iterable ;; d is iterable ;; n is iterable ;; none is iterable ;;
undef is iterable ;; l is sequence ;; s is sequence ;; d is sequence ;; n is sequence ;;
undef is sequence ;; d.items() is sequence ;; range(3) is sequence
n is number ;; f is number ;; yes is number ;; s is number ;; n is integer ;; yes is integer ;;
f is float ;; yes is boolean ;; n is boolean ;; yes is true ;; 1 is true ;; no is false ;;
zero is false
n is odd ;; n is even ;; f is odd ;; s is odd ;; n is divisibleby 7 ;; n is divisibleby(2) ;;
n is eq 7 ;; n is equalto(7) ;; n is ne 7 ;; n is gt 3 ;; n is lt 3 ;; n is ge 7 ;; n is le 6
s is lower ;; s is upper ;; 'ab1' is lower ;; 'AB' is upper ;; '1' is lower ;; 3 is in l ;;
3 is in(l) ;; 9 is not in l ;; n is not none ;; n is not defined ;; none is sameas none ;;
true is sameas true ;; 1 is sameas true
s is defined and n is defined ;; not s is defined ;; n is defined or undef.x ;;
range is callable ;; s is callable ;; n is defined == true
s|length ;; u|length ;; l|length ;; n|length ;; undef|length ;; none|length ;; '  a '|trim ;;
sp|trim ;; [sp|trim] ;; n|trim ;; undef|trim ;; none|trim ;; 'xxaxx'|trim('x') ;;
'日本日'|trim('日')
s|upper ;; s|lower ;; s|title ;; 'hELLO wORLD-x (y)'|title ;; 'hELLO wORLD'|capitalize ;;
n|upper ;; none|lower ;; undef|upper ;; true|lower
s|replace('o', '0') ;; s|replace('o', '0', 1) ;; s|replace('', '-') ;; s|replace('l', '') ;;
n|replace(7, 8) ;; u|replace('日', 'X') ;; u|replace('', '|') ;; 'aaa'|replace('aa', 'b')
l|first ;; l|last ;; empty|first ;; empty|first is defined ;; empty|last ;; s|first ;; s|last ;;
u|last ;; d|first ;; undef|first ;; d.items()|first ;; d.items()|last ;; n|first
l|join ;; l|join(', ') ;; ls|join('-') ;; m|join(', ', attribute='role') ;; s|join('.') ;;
undef|join ;; [none, true, 1.5]|join(' ') ;; l|join(1) ;; d|join(',') ;; nested|join('|')
l|sort ;; ls|sort ;; ls|sort(case_sensitive=true) ;; l|sort(reverse=true) ;;
m|sort(attribute='role')|map(attribute='role')|list ;; [1, 'a']|sort ;; [2, 1.5, true]|sort ;;
u|sort
l|reverse|list ;; s|reverse ;; u|reverse ;; d|reverse|list ;; l|sum ;; [1, 2.5]|sum ;; empty|sum ;;
m|sum(attribute='k') ;; l|min ;; l|max ;; ls|max ;; empty|max ;; empty|max is defined
d|dictsort ;; {'b': 2, 'A': 1, 'c': 0}|dictsort ;; {'b': 2, 'A': 1}|dictsort(true) ;;
{'b': 2, 'A': 3}|dictsort(false, 'value') ;; {'b': 2, 'A': 3}|dictsort(reverse=true) ;;
l|dictsort
m|map(attribute='role')|list ;; m|map(attribute='k', default=9)|list ;;
m|map(attribute='zz')|list ;; m|map('length')|list ;; ls|map('upper')|join ;;
l|map('string')|list ;; ['a', 'b']|map('replace', 'a', 'x')|list
m|selectattr('role', 'equalto', 'user')|list ;; m|selectattr('k')|list ;;
m|selectattr('k', 'defined')|list|length ;; m|rejectattr('role', 'in', ['user', 'system'])|list ;;
m|rejectattr('k')|list|length
l|select('odd')|list ;; l|reject('odd')|list ;; [0, 1, '', 'a', none]|select|list ;;
[0, 1, none]|reject|list ;; l|select('>', 1)|list ;; l|select('zz')|list ;;
m|selectattr('role', '==', 'user')|first
none|select|list ;; none|map('upper')|list ;; zero|selectattr('x')|list ;; none|map(attribute='x')|list
(m|selectattr('role')) is true ;; m|selectattr('role')|length ;; empty|select|list ;;
undef|select|list ;; 'yes' if empty|select else 'no' ;; ls|unique|list ;;
['a', 'A', 'b']|unique|list ;; ['a', 'A']|unique(true)|list
undef|default('x') ;; none|default('x') ;; none|default('x', true) ;; e|default('x', true) ;;
e|default('x') ;; undef|d ;; undef|default ;; n|default('x') ;; d.zz|default('q') ;;
undef|default(none) ;; undef|default(boolean=true, default_value=3)
d|tojson ;; d|tojson(indent=2) ;; l|tojson ;; l|tojson(indent=4) ;; empty|tojson(indent=2) ;;
ed|tojson(indent=2) ;; u|tojson ;; u|tojson(ensure_ascii=true) ;; q|tojson ;; none|tojson ;;
true|tojson ;; n|tojson ;; f|tojson ;; '😀é'|tojson(ensure_ascii=true)
d|tojson(sort_keys=true) ;; d|tojson(separators=(',', ':')) ;;
d|tojson(indent=1, separators=(', ', ': ')) ;; d|tojson(false, 2) ;; undef|tojson ;;
(1, 2)|tojson ;; '</a>&\\''|tojson ;; '\\x7f\\x01\\u2028'|tojson ;; '\\x7f'|tojson(true) ;;
d|tojson(indent='  ') ;; range(2)|tojson ;; d|tojson(indent=0)
'42'|int ;; '42.7'|int ;; 'x'|int ;; 'x'|int(5) ;; f|int ;; -2.7|int ;; true|int ;; none|int ;;
' 12 '|int ;; '-3'|int ;; '+3'|int ;; '1e3'|int ;; '3.5'|float ;; 'x'|float ;; n|float ;;
'x'|float(1) ;; undef|int
minus|abs ;; -2.5|abs ;; s|abs ;; 2.567|round(2) ;; 2.5|round ;; 3.5|round ;; -2.5|round ;;
n|round ;; 2.1|round(method='ceil') ;; 2.9|round(0, 'floor') ;; 2.345|round(1, 'ceil') ;;
1234.5678|round(1)
text|indent ;; text|indent(2) ;; text|indent(2, true) ;; text|indent(2, false, true) ;;
text|indent('> ', true) ;; e|indent ;; n|indent ;; text|indent(first=true) ;; ''|indent(2, true) ;;
'a\\n'|indent(2) ;; ['\\n'|indent(2, true)]
n|string + 'x' ;; none|string ;; undef|string ;; l|string ;; s|safe ;; ('<b>'|safe) + '<\"q\">&\\'' ;; '<' ~ ('<'|safe) ~ n ~ '>' ;; '<b>'|safe ;;
('<b>'|safe) + 'x' ;; ('a'|safe) ~ n ;; d|tojson|safe ;; 'x' ~ (l|tojson|safe)
s.strip() ;; sp.strip() ;; [sp.strip()] ;; [sp.lstrip()] ;; [sp.rstrip()] ;; 'xxaxx'.strip('x') ;;
'xyaxy'.lstrip('yx') ;; 'abc'.rstrip('cb') ;; '日a日'.strip('日') ;; ''.strip() ;; s.strip(none) ;;
s.strip(1)
s.split() ;; s.split('o') ;; s.split('o', 1) ;; s.split(' ')[1] ;; ' a  b c '.split() ;;
' a  b c '.split(none, 1) ;; ' a  b c '.rsplit(none, 1) ;; 'a,b,c'.rsplit(',', 1) ;;
'a,b,c'.rsplit(',') ;; ''.split() ;; ''.split(',') ;; s.split('') ;;
s.split(sep='l', maxsplit=2) ;; u.split() ;; 'a\\u3000b'.split()
text.splitlines() ;; text.splitlines(true) ;; text.splitlines(keepends=true) ;; ''.splitlines() ;;
'\\n'.splitlines() ;; 'a\\u2028b\\x85c'.splitlines() ;; s.startswith('He') ;; s.startswith('x') ;;
s.endswith('ld') ;; s.startswith(('x', 'H')) ;; s.endswith('') ;; s.startswith(1) ;;
s.startswith()
s.upper() ;; s.lower() ;; s.title() ;; s.capitalize() ;; 'they\\'re bill\\'s'.title() ;;
s.replace('o', '0') ;; s.replace('o', '0', 1) ;; s.find('o') ;;
s.find('zz') ;; s.rfind('o') ;; u.find('本') ;; u.rfind('é') ;; s.count('l') ;; s.count('') ;;
u.count('') ;; 'aaa'.count('aa')
', '.join(ls) ;; ''.join(['a', 'b']) ;; '-'.join(s) ;; ','.join(l) ;; ','.join(d) ;;
'12'.isdigit() ;; ''.isdigit() ;; 'a1'.isalnum() ;; 'ab'.isalpha() ;; 'a b'.isalpha() ;;
'prefix-x'.removeprefix('prefix-') ;; 'x.y'.removesuffix('.y') ;; 'x'.removeprefix('y')
l.count(1) ;; l.index(2) ;; l.index(9) ;; (1, 2, 1).count(1) ;; l.append(4) ;;
d.update({'a': 1}) ;; d.pop('a') ;; l.copy() ;; d.copy()['b']
range(5) ;; range(5)|list ;; range(2, 8, 3)|list ;; range(5, 0, -2)|list ;; range(0)|list ;;
range(3)[1] ;; range(3)|length ;; 2 in range(3) ;; range(3) == range(3) ;; range(100001) ;;
range(1, 2, 0) ;; range('a') ;; range(10)[-1]
dict(a=1, b=2) ;; dict({'a': 1}, b=3) ;; dict() ;; namespace(a=1).a ;; namespace(a=1).b ;;
namespace({'a': 2}).a ;; namespace() is mapping ;; raise_exception('no') ;; raise_exception(n) ;;
strftime_now('%Y-%m-%d %H:%M:%S') ;; strftime_now('%d %b %Y') ;;
strftime_now('%-d. %B, %A %j %%')
foo() ;; n() ;; s() ;; undef() ;; d() ;; undef.foo() ;; d.b.c ;;
namespace(a=1)['a']
-l ;; +n ;; +f ;; -true ;; +s ;; -undef ;; undef + 1 ;; 1 + undef ;; undef ~ 'x' ;; undef * 2 ;;
undef in l ;; l[undef] ;; d[undef] ;; s[undef] ;; undef > undef ;; 'a' + undef
(n, s) ;; (n) ;; n, ;; n, s ;; (1, (2, 3))[1][0] ;; [1, 2][1] ;; 'abc'[1] ;; {'a': [1]}['a'][0] ;;
[x] ;; [n][0] ;; (s|upper)[0] ;; (s ~ 'x').upper() ;; s.upper().lower() ;; -n|abs ;; -(n|abs) ;;
n|string|length ;; 2|string * 3 ;; not n|string
true ;; True ;; false ;; False ;; none ;; None ;; true ~ True ~ none ~ None ;; null ;; undefined ;;
loop ;; loop is defined
"""

STATEMENTS = [
    # white space
    "a {{ n }} b", "a {{- n -}} b", "a\n{{ n }}\nb", "a\n  {{- n -}}\n  b", "a\n{% if yes %}\nb\n{% endif %}\nc",
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc", "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\nc",
    "a\n  {%+ if yes %}\n  b\n  {%+ endif %}\nc", "a {% if yes %} b {% endif %} c", "a\n\n{% if yes +%}\nb{% endif +%}\nc",
    "  {% if yes %}x{% endif %}\n", "\t{% set a = 1 %}\n{{ a }}\n\n", "x\n", "x\n\n", "x\r\ny\rz\r\n", "{# c #}x", "a\n  {# c #}\nb",
    "a\n  {#- c -#}\n  b", "a {# c #} b", "{# {{ n }} {% x #}y", "{#+ c +#}\nx", "a{# c\nd #}\nb{{ n }}", "{{ n }}\n{{ n }}\n", "  {{ n }}",
    "{% raw %}{{ n }} {% if %}{% endraw %}x", "a\n  {%- raw -%}\n {{ }} \n  {%- endraw -%}\n b", "a\n  {% raw %}\n x\n  {% endraw %}\n b",
    "{{ '{{' }}{{ '}}' }}{{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': 1}}}", "a{{ n }}{{ n }}b", "{% if yes -%}   x   {%- endif %}",
    "x {%- if yes %} y{% endif %}", "é\u3000{%- if yes -%}\u3000é{% endif %}", "{%if yes%}x{%endif%}", "{%-if yes-%} x {%-endif-%}", "{ { n } } {n} {%", "{{n}}{", "{", "",
    "a\n  {{ n }}\n  {% if yes %}x{% endif %}\n  y", "a\n \t {% if no %}x{% endif %} \n b", "{{ 'a\nb' }}", "{{ 'a\r\nb' }}", "a\x0b {%- if yes %}b{% endif %}",
    # if, set, scopes
    "{% if no %}a{% elif zero %}b{% elif n %}c{% else %}d{% endif %}", "{% if no %}a{% elif zero %}b{% else %}d{% endif %}", "{% if no %}a{% endif %}x",
    "{% if yes %}{% if no %}a{% else %}b{% endif %}c{% endif %}", "{% if no %}a{% else %}{% if yes %}b{% endif %}{% endif %}", "{% if n == 7 and s %}y{% endif %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1, 2, 3] %}{{ a }}", "{% set (a, b) = l[:2] %}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set n = n + 1 %}{{ n }}", "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}", "{% if no %}{% set n = 1 %}{% endif %}{{ n }}",
    "{% for x in l %}{% set n = x %}{% endfor %}{{ n }}", "{% for x in l %}{{ n }}{% set n = x %}{{ n }} {% endfor %}", "{% for x in l %}{% set a = x %}{% endfor %}{{ a }}",
    "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.a = [1] %}{{ ns.a }}{{ ns.b }}",
    "{% set ns.a = 1 %}", "{% set d.b = 1 %}", "{% set ns = namespace(a=1) %}{% set ns.b, c = 5, 6 %}{{ ns.b }}{{ c }}",
    "{% set a %}x{{ n }}y{% endset %}{{ a }}|{{ a|length }}", "{% set a | upper %}x{% endset %}{{ a }}", "{% set a | replace('x', 'z') | upper %}axb{% endset %}{{ a }}",
    "{% set a %}{% set b = 2 %}{{ b }}{% endset %}{{ a }}{{ b }}", "{% set x = 'a' if no else 'b' %}{{ x }}", "{% set messages = m[1:] %}{{ messages|length }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q|length }}", "{% with a = 1 %}{% with b = a + 1 %}{{ b }}{% endwith %}{% endwith %}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% generation %}{% set zz = 1 %}x{{ zz }}{% endgeneration %}{{ zz }}",
    "{% for x in m %}{% if x.role == 'assistant' %}{% generation %}{{ x.content }}{% endgeneration %}{% else %}{{ x.content }}{% endif %}{% endfor %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in empty %}{{ x }}{% else %}none{% endfor %}", "{% for x in undef %}{{ x }}{% else %}none{% endfor %}", "{% for x in n %}{{ x }}{% endfor %}",
    "{% for x in none %}{% endfor %}", "{% for x in s %}{{ x }}.{% endfor %}", "{% for x in u %}{{ x }}.{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }} {% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }} {% endfor %}", "{% for a, b in nested %}{{ a + b }} {% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}", "{% for x in m if x.role != 'system' %}{{ loop.first }}{{ loop.last }}{{ x.content }} {% endfor %}",
    "{% for x in ls %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}|{% endfor %}",
    "{% for x in ls %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in ls %}{{ loop.previtem is defined }}{{ loop.nextitem.x }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{% for y in ls %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for x in l %}{% set o = loop %}{% for y in ls %}{{ o.index }}{% endfor %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{{ x }}{% break %}{% else %}e{% endfor %}",
    "{% for x in l %}{% continue %}{% else %}e{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{% else %}e{% endfor %}", "{% for x in l %}{% for y in l %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){{ loop.depth }}{% endif %}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in l|reverse %}{{ x }}{% endfor %}",
    "{% for x in m|selectattr('k', 'defined') %}{{ x.content }}{{ loop.last }}{% endfor %}", "{% set it = l|select %}{% for x in it %}{{ x }}{% endfor %}{% for x in it %}{{ x }}{% else %}gone{% endfor %}",
    "{% set it = l|select %}{{ it|first }}{{ it|list }}", "{% for x in m[1:] %}{{ x.role }} {% endfor %}", "{% for x in m[::-1] %}{{ x.role }} {% endfor %}", "{% for i in range(m|length - 1, -1, -1) %}{{ m[i].role }} {% endfor %}",
    "{% for x in 'ab' ~ 'c' %}{{ x }}-{% endfor %}", "{% for x in l, ls %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for loop in l %}{{ loop }}{% endfor %}", 
    "{% for m in m %}{{ m.role }}{% endfor %}{{ m|length }}", "{% for x in l %}{% if loop.index0 % 2 %}odd{% else %}even{% endif %}{% endfor %}", "{% for x in m %}{% if (x['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ loop.index }}{% endif %}{% endfor %}",
    # macros
    "{% macro f(a, b=2) %}{{ a }}-{{ b }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}", "{% macro f(a, b=a) %}{{ b }}{% endmacro %}{{ f(1) }}", "{% macro f(a) %}{% if a %}{{ a }}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ n }}{{ z }}{% endmacro %}{% set z = 1 %}{{ f() }}", "{% macro f(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ f(1) }}{{ x }}", "{% macro f() %} a {% endmacro %}{{ f()|trim ~ '.' }}", "{{ f(1) }}{% macro f(a) %}{{ a }}{% endmacro %}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f() %}x{% endmacro %}{{ f is callable }}{{ f is defined }}",
    "{%- macro f(a) -%}\n  x {{ a }}\n{%- endmacro -%}\n[{{ f(1) }}]", "{% macro f(d, p='x') %}{% for k in d %}{{ p }}{{ k }}{% if d[k] is mapping %}{{ f(d[k], p ~ '.') }}{% endif %}{% endfor %}{% endmacro %}{{ f(d) }}", "{% for x in l %}{% macro g() %}{{ x }}{% endmacro %}{{ g() }}{% endfor %}",
    "{% macro f(a) %}{% for x in a %}{{ x }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}!{% endmacro %}{{ f(l) }}", "{% set ns = namespace(v='') %}{% macro add(x) %}{% set ns.v = ns.v ~ x %}{% endmacro %}{{ add(1) }}{{ add(2) }}{{ ns.v }}",
    "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro f(x) %}{{ x.role }}{% endmacro %}{% for x in m %}{{ f(x) }}{% endfor %}", "{% macro f(a, b=none) %}{{ b }}{{ b is none }}{% endmacro %}{{ f(1) }}",
    # failing
    "{{ undef.x }}", "a\nb\n{{ undef.x }}", "{% if undef.x %}{% endif %}", "{{ raise_exception('bad: ' ~ n) }}", "{% if no %}{{ raise_exception('x') }}{% endif %}ok", "{{ f(1) }}", "{{ 1 if }}", "{% if %}", "{% for %}", "{{ }}", "{{ n", "{% if n %}",
    "{% endif %}", "{% foo %}", "{{ n|foo }}", "{{ n is foo }}", "{# x", "{% raw %}x", "{{ 'x }}", "{{ (1 }}", "{{ 1) }}", "{{ [1, }}", "{% set %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{{ n n }}", "{{ n. }}", "{{ a b }}", "{{ 1 +}}", "{{ * }}", "{% break %}", "{{ n is }}", "{{ $ }}", "{{ n ? }}",
    "{% macro %}{% endmacro %}", "{% macro f(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{% if yes %}{% else %}{% elif %}{% endif %}", "{% for x in l %}", "{% else %}", "{{ {1 2} }}",
]


def constructs():
    for line in EXPRESSIONS.strip().split("\n"):
        for expression in line.removesuffix(" ;;").split(" ;; "):
            yield "{{ " + expression + " }}"
    yield from STATEMENTS


# Templates that jinja2 may take and this reader does not: refused at open, with this line and word.
REFUSED = [
    ("{% include 'x' %}", 1, "include"), ("a\n{% extends 'x' %}", 2, "extends"), ("\n\n{% block x %}{% endblock %}", 3, "block"), ("{% import 'x' as y %}", 1, "import"), ("{% call f() %}{% endcall %}", 1, "call"), ("{% do x %}", 1, "do"),
    ("{% autoescape true %}{% endautoescape %}", 1, "autoescape"), ("{{ a }}\n{{ a|urlize }}", 2, "urlize"), ("{{ a is escaped }}", 1, "escaped"), ("{{ a.format(1) }}", 1, "format"), ("\n{{ a.zfill(2) }}", 2, "zfill"), ("{{ a.__class__ }}", 1, "__class__"),
    ("{{ f(*a) }}", 1, "'*'"), ("{{ f(**a) }}", 1, "'*'"), ("{{ cycler(1) }}", 1, "cycler"), ("{{ lipsum() }}", 1, "lipsum"), ("{% macro f() %}{{ varargs }}{% endmacro %}", 1, "varargs"), ("{{ a[1, 2] }}", 1, "keys"), ("{{ '\\N{BULLET}' }}", 1, "escape"), ("{{ 99999999999999999999 }}", 1, "64 bits"),
    ("{{ 0x10 }}", 1, "number"), ("{{ a|escape }}", 1, "escape"), ("{{ a|format }}", 1, "format"), ("{% if a %}\n{% elif b|xx %}{% endif %}", 2, "xx"),
]
