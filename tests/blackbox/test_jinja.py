"""The engine for chat templates, against Jinja2 itself: the same text, or both refuse."""

import json
import random
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


def assert_same(templates, comparable=lambda wanted: True):
    """The same text or both fail; to say that something is not supported is no difference either
    (test_refused has what may). Returns how many were compared."""
    found, compared = [], 0
    for template, ours in zip(templates, render_all(templates)):
        wanted = reference(template)
        if isinstance(wanted, Exception):
            same = "error" in ours
        elif not comparable(wanted):
            continue
        else:
            same = ours.get("text") == wanted or "not supported" in ours.get("error", "")
        compared += 1
        if not same:
            found.append(f"{template!r}:\n   {ours.get('text', ours)!r}\n   {wanted!r}")
    assert not found, f"{len(found)} of {compared} differ:\n" + "\n".join(found[:20])
    return compared


def test_expressions():
    assert_same(["{{ " + e + " }}" for e in cases.EXPRESSIONS])


def test_templates():
    assert_same(cases.TEMPLATES)


def test_chat_templates():
    """Templates in the style of the models that people use."""
    files = sorted((harness.ROOT / "tests/corpus/chat_templates").glob("*.jinja"))
    assert len(files) > 5
    assert_same([path.read_text(encoding="utf-8") for path in files])


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
    assert assert_same(made, ascii_case) > RANDOM_EXPRESSIONS * 0.9


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
    assert assert_same(made, ascii_case) > RANDOM_TEMPLATES * 0.9
