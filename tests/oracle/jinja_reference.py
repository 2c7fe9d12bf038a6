"""Chat templates by the Jinja2 of Python, in the environment that transformers renders them in."""

import copy
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model itself says: its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    """Has no members that begin with an underscore."""

    def __init__(*arguments, **members):
        self, arguments = arguments[0], arguments[1:]
        members = dict(*arguments, **members)
        for name in members:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, members)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def make_environment():
    e = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    e.filters["tojson"] = tojson
    e.globals.update(raise_exception=raise_exception, namespace=Namespace,
                     dict=lambda *pairs, **members: dict(*pairs, **members),
                     strftime_now=lambda text: datetime.datetime.now().strftime(text))
    return e


ENVIRONMENT = make_environment()


def render(template, variables):
    """The text, or the exception that Jinja2 ends with. Its filters may change what they are given:
    indent() does it to lists."""
    try:
        return ENVIRONMENT.from_string(template).render(**copy.deepcopy(variables))
    except Exception as e:  # templates fail with whatever Python fails with
        return e
