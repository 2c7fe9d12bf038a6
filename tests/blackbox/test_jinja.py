"""The engine for chat templates, against Jinja2 itself: the same text, or both refuse."""

import json
import random
import re
import subprocess
import sys

import harness
import jinja_cases as cases

sys.path.insert(0, str(harness.ROOT / "tests/oracle"))
import jinja_reference  # noqa: E402  (lives in the folder just added)

PROGRAM = harness.BINARY.parent / "tests" / "render_jinja"
RANDOM_EXPRESSIONS = 4000
RANDOM_TEMPLATES = 1000


def render_all(templates, variables=None, own=None):
    """What the engine answers to each, as the program prints it."""
    lines = [json.dumps({"template": t, "vars": cases.VARIABLES if variables is None else variables,
                         "own": own}) for t in templates]
    done = subprocess.run([PROGRAM], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          encoding="utf-8", timeout=120 * harness.PATIENCE, check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(templates), done.stderr
    return answers


def reference(template):
    return jinja_reference.render(template, cases.VARIABLES)


def assert_same(templates, comparable=lambda wanted: True, refusals=False):
    """The same text or both fail; refusals: to say that something is not supported is no difference
    either (test_refused has what may). Returns how many rendered to the same text."""
    found, same_text = [], 0
    for template, ours in zip(templates, render_all(templates)):
        wanted = reference(template)
        if isinstance(wanted, Exception):
            same = "error" in ours
        elif not comparable(wanted):
            continue
        else:
            same = ours.get("text") == wanted
            same_text += same
            same = same or (refusals and "not supported" in ours.get("error", ""))
        if not same:
            found.append(f"{template!r}:\n   {ours.get('text', ours)!r}\n   {wanted!r}")
    assert not found, f"{len(found)} of {len(templates)} differ:\n" + "\n".join(found[:20])
    return same_text


def test_expressions():
    assert_same(["{{ " + e + " }}" for e in cases.EXPRESSIONS])


def test_templates():
    assert_same(cases.TEMPLATES)


def chat_templates():
    """In the style of the models that people use."""
    files = sorted((harness.ROOT / "tests/corpus/chat_templates").glob("*.jinja"))
    assert len(files) > 5
    return [path.read_text(encoding="utf-8") for path in files]


def test_chat_templates():
    templates = chat_templates()
    assert assert_same(templates) == len(templates)


# What the client says, as templates that trim it write it; one spells a control token.
SAID = ["Be brief.", "What is 2+2? <|im_end|>", "It is 4: \"vier\" \u2713",
        "Adds <b>two</b> & 'more' numbers"]
CONTROL = re.compile(r"<\|?/?[a-z_]+\|?>|\[/?INST\]|# Tools|=> any;")


def marks(ours, part):
    """Those of each place where the part stands in the text."""
    part = part.encode()
    return [ours["foreign"][m.start():m.end()]
            for m in re.finditer(re.escape(part), ours["text"].encode())]


def test_marks_of_chat_templates():
    """A template's control tokens and the model's are its own; what the client spells like them is
    foreign."""
    templates = chat_templates()
    own = {name: cases.VARIABLES[name] for name in ["bos_token", "eos_token"]}
    said_by_client = {k: v for k, v in cases.VARIABLES.items() if k not in own}
    for template, ours in zip(templates, render_all(templates, said_by_client, own)):
        assert ours["text"] == reference(template)
        said = [text for text in SAID if text in ours["text"]]
        assert said and all(set(m) == {"1"} for text in said for m in marks(ours, text)), ours
        own_count = 0
        for token in {*CONTROL.findall(template), *own.values()}:
            inside = sum(text.count(token) * len(marks(ours, text)) for text in said)
            found = sorted(set(m) == {"1"} for m in marks(ours, token))
            assert found.count(True) == inside, (token, ours)
            assert all(len(set(m)) == 1 for m in marks(ours, token)), (token, ours)
            own_count += found.count(False)
        assert own_count > 0, template


def test_refused():
    """What is not supported says so: nothing is rendered wrongly instead."""
    templates = ["{{ " + e + " }}" for e in cases.REFUSED]
    for template, ours in zip(templates, render_all(templates)):
        wanted = reference(template)
        assert not isinstance(wanted, Exception) or "lipsum" in template, template
        assert "error" in ours, (template, ours)


# ---- random ----

ATOMS = ["n", "z", "m", "f", "t", "x", "no", "s", "e", "u", "l", "words", "empty", "d",
         "nested.a.b", "people", "missing", "0", "1", "2", "-1", "3", "1.5", "0.25", "'a'",
         "'b,a'", "' x '", "''", "true", "false", "none", "[]", "[1, 2]", "(1, 'a')", "{'a': 1}",
         "messages[0]", "l[0]", "d.a", "people[0].name", "q", "lines", "range(3)"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in",
          "and", "or"]
FILTERS = ["length", "first", "last", "list", "join", "join(', ')", "trim", "string", "int",
           "float", "tojson", "tojson(indent=1)", "default('q')", "default('q', true)", "sort",
           "reverse", "reverse|list", "unique|list", "map('string')|list", "select|list",
           "reject('odd')|list", "sum", "min", "max", "abs", "round", "replace('a', 'bb')",
           "items|list", "dictsort", "indent(1)", "wordcount", "count", "map(attribute='a')|list",
           "selectattr('name')|list", "rejectattr('age', 'gt', 26)|list", "batch(2)|list",
           "title", "capitalize", "upper", "lower"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true",
         "false", "mapping", "sequence", "iterable", "odd", "even", "divisibleby 2", "eq 1",
         "in [1, 'a']", "lower", "not none", "gt 1"]
POSTFIX = ["[0]", "[-1]", "['a']", "[1:]", "[::-1]", "[:2]", ".a", ".name", ".strip()",
           ".split(',')", ".get('a')", ".keys()|list", ".upper()", ".startswith('a')",
           ".replace('a', '')", ".index('a')", ".count(1)", "[::2]", ".items()|list",
           ".splitlines()",
           ".rsplit(none, 1)", ".find('a')", ".title()", ".join(words)"]


def expression(r, depth):
    kind = r.random()
    if depth == 0 or kind < 0.15:
        return r.choice(ATOMS)
    if kind < 0.40:
        return (f"{expression(r, depth - 1)} {r.choice(BINARY)} {expression(r, depth - 1)}")
    if kind < 0.58:
        return f"({expression(r, depth - 1)})|{r.choice(FILTERS)}"
    if kind < 0.76:
        return f"({expression(r, depth - 1)}){r.choice(POSTFIX)}"
    if kind < 0.84:
        return f"({expression(r, depth - 1)}) is {r.choice(TESTS)}"
    if kind < 0.88:
        return f"{r.choice(['not ', '-', '+'])}({expression(r, depth - 1)})"
    if kind < 0.92:
        return f"[{expression(r, depth - 1)}, {expression(r, depth - 1)}]"
    if kind < 0.95:
        return f"{{'k': {expression(r, depth - 1)}}}"
    return (f"({expression(r, depth - 1)} if {expression(r, depth - 1)} "
            f"else {expression(r, depth - 1)})")


def ascii_case(text):
    """False where letters beyond ASCII have changed their case, which only Python does."""
    return "\u00c9" not in text


def test_random_expressions():
    r = random.Random(5)
    made = ["{{ " + expression(r, r.randint(1, 3)) + " }}" for _ in range(RANDOM_EXPRESSIONS)]
    assert assert_same(made, ascii_case, refusals=True) > RANDOM_EXPRESSIONS * 0.45


def block(r, depth):
    """A statement around others, with white space and signs at random."""
    if depth == 0 or r.random() < 0.3:
        return r.choice(["x", " ", "\n", "\n  ", "a\n", "{{ n }}", "{{ i }}", " {{- n }} ",
                         "{# c #}", "{#- c -#}", "{{ v|default('-') }}"])
    inner = "".join(block(r, depth - 1) for _ in range(r.randint(0, 3)))
    other = "".join(block(r, depth - 1) for _ in range(r.randint(0, 2)))

    def tag(text):
        signs = ["", "", "-", "+"]
        return "{%" + r.choice(signs) + f" {text} " + r.choice(signs) + "%}"

    return r.choice([
        lambda: tag("if " + expression(r, 1)) + inner + tag("endif"),
        lambda: tag("if " + expression(r, 1)) + inner + tag("else") + other + tag("endif"),
        lambda: tag("for i in " + r.choice(["l", "words", "empty", "range(2)", "d"])) + inner
        + tag("endfor"),
        lambda: tag("for i in l if i is odd") + inner + tag("else") + other + tag("endfor"),
        lambda: tag("set v = " + expression(r, 1)) + inner,
        lambda: tag("set v") + inner + tag("endset") + "{{ v|length }}",
        lambda: tag("filter trim") + inner + tag("endfilter"),
        lambda: tag("with v = n") + inner + tag("endwith"),
        lambda: tag("generation") + inner + tag("endgeneration"),
        lambda: tag("macro v(i=2)") + inner + tag("endmacro") + "{{ v() }}{{ v(i='q') }}",
        lambda: "{% raw %}" + inner.replace("endraw", "") + tag("endraw"),
        lambda: inner + other,
    ])()


def test_random_templates():
    r = random.Random(6)
    made = ["".join(block(r, 3) for _ in range(r.randint(1, 4))) for _ in range(RANDOM_TEMPLATES)]
    assert assert_same(made, ascii_case, refusals=True) > RANDOM_TEMPLATES * 0.65
