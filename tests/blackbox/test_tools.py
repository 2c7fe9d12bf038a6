"""Calls of tools and reasoning, taken out of chat answers. What the model says is chosen by the
test (parrot.py) and written as models' templates write it, by jinja2; the official client reads it.
"""

import json

import jinja2
import jsonschema
import openai
import pytest
from tokenizers import AddedToken

import parrot
import tokenizer_json as oracle

# How templates of the families write calls, with JSON by `tojson`.
HERMES = ("{% for c in calls %}{{ '\n' if not loop.first or before }}<tool_call>\n"
          '{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>'
          "{% endfor %}")
LLAMA3 = ('{% for c in calls %}{{ "; " if not loop.first }}{"name": "{{ c.name }}", '
          '"parameters": {{ c.arguments | tojson }}}{% endfor %}')
MISTRAL = ('[TOOL_CALLS][{% for c in calls %}{{ ", " if not loop.first }}{"name": "{{ c.name }}", '
           '"arguments": {{ c.arguments | tojson }}}{% endfor %}]')
MISTRAL_ARGS = ("{% for c in calls %}[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}"
                "{% endfor %}")
# Of these, texts have no quotes.
VALUE = "{{ v if v is string else v | tojson }}"
GLM45 = ("{% for c in calls %}{{ '\n' if not loop.first or before }}<tool_call>{{ c.name }}\n"
         "{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
         f"<arg_value>{VALUE}</arg_value>\n{{% endfor %}}</tool_call>{{% endfor %}}")
CODER = ("{% for c in calls %}{{ '\n' if not loop.first or before }}<tool_call>\n"
         "<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}<parameter={{ k }}>\n"
         f"{VALUE}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>{{% endfor %}}")
MINIMAX = ("{{ '\n' if before }}<minimax:tool_call>\n{% for c in calls %}"
           '<invoke name="{{ c.name }}">\n{% for k, v in c.arguments.items() %}'
           f'<parameter name="{{{{ k }}}}">{VALUE}</parameter>\n{{% endfor %}}</invoke>\n'
           "{% endfor %}</minimax:tool_call>")
ALL, ALL_END, ONE, ONE_END, SEP = (f"<｜{name.replace(' ', '▁')}｜>" for name in (
    "tool calls begin", "tool calls end", "tool call begin", "tool call end", "tool sep"))
DEEPSEEK_V3 = (f"{ALL}{{% for c in calls %}}{{{{ '\n' if not loop.first }}}}{ONE}function{SEP}"
               "{{ c.name }}\n```json\n{{ c.arguments | tojson }}\n```"
               f"{ONE_END}{{% endfor %}}{ALL_END}")
DEEPSEEK_V31 = (f"{ALL}{{% for c in calls %}}{ONE}{{{{ c.name }}}}{SEP}"
                f"{{{{ c.arguments | tojson }}}}{ONE_END}{{% endfor %}}{ALL_END}")
# Texts stand between marks, and most names between none.
CALL, CALL_END, CHANNEL, CHANNEL_END, QUOTE = (
    "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>')
GEMMA4 = (f"{{% macro text(v) %}}{QUOTE}{{{{ v }}}}{QUOTE}{{% endmacro %}}"
          "{% macro write(v, top) %}{% if v is string %}{{ text(v) }}{% elif v is mapping %}"
          "{{ '{' }}{% for k, w in v.items() %}{{ ',' if not loop.first }}"
          "{{ k if top else text(k) }}:{{ write(w, false) }}{% endfor %}}{% elif v is iterable %}["
          "{% for w in v %}{{ ',' if not loop.first }}{{ write(w, false) }}{% endfor %}]"
          "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
          f"{{% for c in calls %}}{CALL}call:{{{{ c.name }}}}{{{{ write(c.arguments, true) }}}}"
          f"{CALL_END}{{% endfor %}}")
GEMMA4_JSON = (f"{{% for c in calls %}}{CALL}call:{{{{ c.name }}}}{{{{ c.arguments | tojson }}}}"
               f"{CALL_END}{{% endfor %}}")
# By parser: forms of calls, and text that may come before them.
FORMATS = {
    "hermes": {"hermes": (HERMES, "Let me see.")},
    "llama3_json": {"llama3_json": (LLAMA3, ""), "python_tag": ("<|python_tag|>" + LLAMA3, "")},
    "mistral": {"mistral": (MISTRAL, "Let me see.")},
    "mistral_args": {"mistral_args": (MISTRAL_ARGS, "Let me see.")},
    "glm45": {"glm45": (GLM45, "Let me see.")},
    "qwen3_coder": {"qwen3_coder": (CODER, "Let me see.")},
    "minimax_m2": {"minimax_m2": (MINIMAX, "Let me see.")},
    "deepseek_v3": {"deepseek_v3": (DEEPSEEK_V3, "Let me see.")},
    "deepseek_v31": {"deepseek_v31": (DEEPSEEK_V31, "Let me see.")},
    "gemma4": {"gemma4": (GEMMA4, "Let me see."), "json": (GEMMA4_JSON, "Let me see.")},
}
# What a call that has to be begins with, up to any name, and up to the arguments.
BEGINS = {"hermes": ('<tool_call>\n{"name": "', 'rain", "arguments":'),
          "llama3_json": ('{"name": "', 'rain", "parameters":'),
          "mistral": ('[TOOL_CALLS][{"name": "', 'rain", "arguments":'),
          "mistral_args": ("[TOOL_CALLS]", "rain[ARGS]"),
          "deepseek_v3": (f"{ALL}{ONE}function{SEP}", "rain\n```json\n"),
          "deepseek_v31": (ALL + ONE, "rain" + SEP), "gemma4": (f"{CALL}call:", "rain")}
# Which are held to another form.
TAGGED = {"glm45": HERMES, "qwen3_coder": HERMES,
          "minimax_m2": HERMES.replace("tool_call", "minimax:tool_call")}
HELD = {**TAGGED, "gemma4": GEMMA4_JSON}
for name, held in TAGGED.items():
    BEGINS[name] = (f'<{"minimax:" if held != HERMES else ""}tool_call>\n{{"name": "',
                    BEGINS["hermes"][1])
# What is around thoughts: in Mistral's templates, control tokens and no blanks; in Gemma's, a word.
THOUGHTS = {"hermes": ("<think>\n", "\n</think>\n\n"), "mistral_args": ("[THINK]", "[/THINK]"),
            "gemma4": (f"{CHANNEL}thought\n", CHANNEL_END)}
LLAMA3_SAYS = '{"name": function name, "parameters": dictionary of argument name and its value}'

RAIN = {"name": "rain",
        "arguments": {"where": "São Tomé \"north\"", "days": 2, "a": [1.10, {"}": "{"}]}}
TIDE = {"name": "tide", "arguments": {}}
CALLS = [[RAIN], [RAIN, TIDE, RAIN]]
LONG = "y" * 1000  # one token
TOOLS = [{"type": "function", "function": {
    "name": name, "strict": True, "parameters": {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False}}}
    for name in ("rain", "tide")]


def write_calls(form, calls):
    """What a model says before and with the calls."""
    text, before = form
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    return before + environment.from_string(text).render(calls=calls, before=before)


def held_form(name, form):
    """Of calls that are held to a grammar."""
    return HELD.get(name, form)


SCRIPTS = {parser: {f"{name}{i}": write_calls(form, calls)
                    for name, form in forms.items() for i, calls in enumerate(CALLS)}
           for parser, forms in FORMATS.items()}
for parser, forms in FORMATS.items():  # calls that have been begun
    (parser_form, _), *_ = forms.values()
    SCRIPTS[parser]["begun"] = write_calls((held_form(parser, parser_form), ""), [RAIN, TIDE])[
        len(BEGINS[parser][0]):]
for parser, (begin, end) in THOUGHTS.items():
    form, *_ = FORMATS[parser].values()
    SCRIPTS[parser] |= {
        "thought": f"{begin}The sea,\n\nperhaps.{end}It rains.\n",
        "thought_call": f"{begin}I must look.{end}{write_calls(form, [TIDE])}",
        "open": f"The sea.{end}It rains.",
        "only": f"{begin}For ever, and a day, and another day",
        "thought_form": f'{begin}The sea, perhaps.{end}{{"sky": "grey", "wind": 7.25}}',
        "open_form": f'The sea.{end.rstrip()}{{"sky": "grey", "wind": 7.25}}',
        "open_no": f"The sea.{end.rstrip()}No.",
    }
SCRIPTS["hermes"] |= {
    "broken": '<tool_call>\n{"name": "rain", "arguments": {where: 1}}\n</tool_call>',
    "mistral0": SCRIPTS["mistral"]["mistral0"],
}
SAID = SCRIPTS["hermes"]
for scripts in SCRIPTS.values():
    scripts["control"] = "One.<|im_start|> Two."


def template(parser):
    """One of the scripts, or what the client says, where the model will say it again."""
    def branch(condition, text):
        return f"{{% if {condition} %}}{text}{{% endif %}}"

    said = "".join(
        branch(f"script == {name!r}", f"{{{{ {json.dumps(text, ensure_ascii=False)} }}}}")
        for name, text in SCRIPTS[parser].items())
    said += branch("not script", "{{ messages[-1].content }}")
    says = LLAMA3_SAYS if parser == "llama3_json" else ""
    think = branch("think", THOUGHTS[parser][0]) if parser in THOUGHTS else ""
    return (f"{{# {says} #}}<|im_start|>{said}{{{{ eos_token }}}}"
            f"{{% for i in range(pad or 0) %}}<tool>{{% endfor %}}{think}")


class Parrot:
    def __init__(self, server):
        self.server = server
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def count(self, **request):
        return self.server.post("/tokenize", request).json()["count"]

    def fields(self, script=None, text="x", think=False, begin="", **more):
        """A request that is answered with a script, or with a text of the client's. begin: what
        the server will add to the prompt."""
        kwargs = {"script": script, "think": think}
        request = {"messages": [{"role": "user", "content": text}]}
        with_tools = {"tools": more["tools"]} if "tools" in more else {}
        count = self.count(**request, **with_tools, chat_template_kwargs=kwargs)
        count += self.count(prompt=begin, add_special_tokens=False) if begin else 0
        kwargs["pad"] = parrot.DISTANCE + 1 - count
        assert kwargs["pad"] >= 0
        extra = {"chat_template_kwargs": kwargs, **more.pop("extra_body", {})}
        return {"model": "m", "temperature": 0, **request, **more, "extra_body": extra}

    def ask(self, *args, **more):
        return self.client.chat.completions.create(**self.fields(*args, **more))

    def put_together(self, *args, **more):
        """The answer to a stream, as the client's own helper makes it of the pieces."""
        with self.client.chat.completions.stream(**self.fields(*args, **more)) as stream:
            return stream.get_final_completion()

    def both(self, *args, **more):
        """The first choices of an answer and of a stream, and what they must be equal in."""
        whole, pieces = self.ask(*args, **more), self.put_together(*args, **more)
        for each in whole, pieces:
            yield each.choices[0]


def write_model(directory, parser, special=False, chat_template=None):
    """special: tags are control tokens, too, as some models have it."""
    document = oracle.finish(oracle.qwen(), [
        *(AddedToken(name, special=special, normalized=False)
          for name in ("<tool_call>", "</tool_call>", "<think>", "</think>",
                       "<minimax:tool_call>", "</minimax:tool_call>")),
        AddedToken(LONG, special=False, normalized=False),
        *(AddedToken(name, special=True, normalized=False)
          for name in ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>",
                       "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", ALL, ALL_END, ONE,
                       ONE_END, SEP, CALL, CALL_END, CHANNEL, CHANNEL_END, QUOTE))])
    return parrot.write(directory / parser, document, "<|endoftext|>",
                        chat_template=chat_template or template(parser))


def start(tmp_path_factory, parser, *options):
    from conftest import shared
    model = write_model(tmp_path_factory.mktemp("parrot"), parser)
    for server in shared(tmp_path_factory, model, "--served-model-name", "m", *options):
        each = Parrot(server)
        each.forms, each.said = FORMATS[parser], SCRIPTS[parser]
        each.thought_begin, each.thought_end = THOUGHTS.get(parser, (None, None))
        with each.client:
            yield each


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    yield from start(tmp_path_factory, "hermes", "-tp", 2)


@pytest.fixture(scope="module", params=FORMATS)
def family(request, tmp_path_factory):
    yield from start(tmp_path_factory, request.param)


@pytest.fixture(scope="module", params=THOUGHTS)
def thinker(request, tmp_path_factory):
    """A model that reasons, between any marks."""
    if request.param == "hermes":
        yield request.getfixturevalue("qwen")
    else:
        yield from start(tmp_path_factory, request.param)


def check_calls(choice, before, calls):
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "") == before
    made = choice.message.tool_calls
    assert [(c.type, c.function.name, json.loads(c.function.arguments)) for c in made] == \
        [("function", c["name"], c["arguments"]) for c in calls]
    ids = [c.id for c in made]
    assert len(set(ids)) == len(ids) and all(len(i) == 9 and i.isalnum() for i in ids)


# ---- calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("i", range(len(CALLS)))
def test_calls(family, i):
    """What a template writes for calls is read as these calls."""
    for name, (_, before) in family.forms.items():
        for choice in family.both(f"{name}{i}", tools=TOOLS):
            check_calls(choice, before, CALLS[i])


def test_letters_make_calls_too(qwen):
    """Tags that are no tokens of their own, but came letter by letter."""
    for choice in qwen.both(text=SAID["hermes1"], tools=TOOLS, tool_choice="auto"):
        check_calls(choice, "Let me see.", CALLS[1])


def test_arguments_are_the_models_own_bytes(qwen):
    arguments = '{"n":  1.10, "e": 1E2,\n"u": "\\u00e9"}'
    text = f'<tool_call>{{"name": "rain", "arguments": {arguments}}}</tool_call>'
    message = qwen.ask(text=text, tools=TOOLS).choices[0].message
    (call,) = message.tool_calls
    assert message.content is None
    assert call.function.arguments == arguments


def test_calls_in_a_stream(qwen):
    """The first piece of a call has all that clients ask of it; content is not held for it."""
    chunks = [c.choices[0] for c in qwen.ask("hermes1", tools=TOOLS, stream=True)]
    assert chunks[0].delta.role == "assistant" and chunks[0].delta.tool_calls is None
    calls = [call for c in chunks for call in c.delta.tool_calls or []]
    assert [c.index for c in calls] == [0, 1, 2]
    assert all(c.id and c.type == "function" and c.function.name and
               c.function.arguments is not None for c in calls)
    first = next(i for i, c in enumerate(chunks) if c.delta.tool_calls)
    assert "".join(c.delta.content or "" for c in chunks[:first]) == "Let me see."
    assert sum(bool(c.delta.content) for c in chunks[:first]) > 2
    assert [c.finish_reason for c in chunks[first:]][-1] == "tool_calls"
    assert not any(c.delta.content for c in chunks[first:])


def test_one_call_where_one_is_wanted(qwen):
    for choice in qwen.both("hermes1", tools=TOOLS, parallel_tool_calls=False):
        check_calls(choice, "Let me see.", [RAIN])


def test_ids_differ_between_answers(qwen):
    ids = {qwen.ask("hermes0", tools=TOOLS).choices[0].message.tool_calls[0].id for _ in range(8)}
    choices = qwen.ask("hermes0", tools=TOOLS, n=4).choices
    ids |= {c.message.tool_calls[0].id for c in choices}
    assert len(ids) == 12


@pytest.mark.parametrize("name", ["hermes1", "broken"])
def test_nothing_is_a_call_without_tools(qwen, name):
    for fields in {}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}:
        choice = qwen.ask(name, **fields).choices[0]
        assert (choice.message.content, choice.finish_reason) == (SAID[name], "stop")
        assert choice.message.tool_calls is None


def test_what_is_no_call_is_content(qwen):
    for choice in qwen.both("broken", tools=TOOLS):
        assert (choice.message.content, choice.finish_reason) == (SAID["broken"], "stop")
    text = '<tool_call>{"name": "rain", "arguments": [1]}</tool_call>'
    assert qwen.ask(text=text, tools=TOOLS).choices[0].message.content == text


def test_a_call_that_is_cut_off_is_content(qwen):
    whole = qwen.ask("hermes0", extra_body={"return_token_ids": True}).choices[0]
    for limit in 14, len(whole.token_ids) - 4:
        cut, plain = (qwen.ask("hermes0", max_tokens=limit, **more).choices[0]
                      for more in ({"tools": TOOLS}, {}))
        assert cut.finish_reason == "length" and cut.message.tool_calls is None
        assert cut.message.content == plain.message.content


def test_a_limit_after_a_call(qwen):
    first = qwen.ask("hermes0", extra_body={"return_token_ids": True}).choices[0]
    choice = qwen.ask("hermes1", tools=TOOLS, max_tokens=len(first.token_ids)).choices[0]
    assert choice.finish_reason == "length"
    assert [c.function.name for c in choice.message.tool_calls] == ["rain"]


RAIN_ONLY = {"type": "function", "function": {"name": "rain"}}
ANY = [{"type": "function", "function": {"name": name}} for name in ("rain", "tide")]


@pytest.mark.parametrize("choice", ["required", RAIN_ONLY])
def test_a_call_that_has_to_be(family, choice):
    """The prompt ends with its beginning, as the family writes it, and the model goes on."""
    (name, (form, _)), *_ = family.forms.items()
    whole = write_calls((held_form(name, form), ""), [RAIN])
    begin = BEGINS[name][0] + ("" if choice == "required" else BEGINS[name][1])
    assert whole.startswith(begin)
    for each in family.both(text=whole[len(begin):], begin=begin, tools=ANY, tool_choice=choice):
        check_calls(each, "", [RAIN])
    ids = family.ask(text="x", tools=ANY, tool_choice=choice, max_tokens=1,
                     extra_body={"return_token_ids": True}).prompt_token_ids
    end = family.server.post("/detokenize", {"tokens": ids[-40:]}).json()["prompt"]
    assert end.endswith(begin)


@pytest.mark.parametrize("choice", ["required", RAIN_ONLY])
def test_a_call_that_has_to_be_and_is_cut_off(family, choice):
    """It is a call as far as it goes, since the prompt has begun it, and never content."""
    (name, (form, _)), *_ = family.forms.items()
    whole = write_calls((held_form(name, form), ""), [RAIN, TIDE])
    begin = BEGINS[name][0] + ("" if choice == "required" else BEGINS[name][1])
    arguments = json.dumps(RAIN["arguments"], ensure_ascii=False)  # as the template writes it
    asked = {"text": whole[len(begin):], "begin": begin, "tools": ANY, "tool_choice": choice}
    ends = set()
    for limit in range(1, 500, 3):
        each = family.ask(**asked, max_tokens=limit).choices[0]
        assert not each.message.content
        if each.finish_reason != "length":
            break
        calls = each.message.tool_calls or []
        ends.add((len(calls), len(calls[0].function.arguments) if calls else 0))
        for call, (tool, text) in zip(calls, (("rain", arguments), ("tide", "{}"))):
            said = call.function.arguments.rstrip("\ufffd")  # of a character that is cut, too
            assert call.function.name == tool and text.startswith(said)
    assert len(ends) > 10 and ((0, 0) in ends) == (choice == "required")
    chunks = [c.choices[0] for c in family.ask(**asked, max_tokens=20, stream=True)]
    assert chunks[-1].finish_reason == "length" and not any(c.delta.content for c in chunks)
    call, = (call for c in chunks for call in c.delta.tool_calls or [])
    assert call.function.name == "rain"
    assert call.function.arguments.rstrip("\ufffd") in arguments
    for each in family.both(**asked, stop=["days"]):
        call, = each.message.tool_calls
        assert (each.finish_reason, each.message.content or "") == ("stop", "")
        assert call.function.arguments == arguments[:arguments.index("days")]


def test_a_call_that_has_to_be_ends_reasoning(thinker):
    (name, (form, _)), *_ = thinker.forms.items()
    call = {"name": "rain", "arguments": {}}
    whole, begin = write_calls((form, ""), [call]), "".join(BEGINS[name])
    text = whole[len(begin):]
    begin = thinker.thought_end + begin
    fields = {"think": True, "begin": begin, "tools": TOOLS, "tool_choice": RAIN_ONLY}
    for each in thinker.both(text=text, **fields):
        check_calls(each, "", [call])
        assert not each.message.model_extra
    ids = thinker.ask(text="x", **fields, max_tokens=1,
                      extra_body={"return_token_ids": True}).prompt_token_ids
    end = thinker.server.post("/detokenize", {"tokens": ids[-40:]}).json()["prompt"]
    assert end.endswith(thinker.thought_begin + begin)


def test_a_call_that_has_to_be_is_one(family):
    """Whatever the model would say: the name is that of a tool, the arguments are what it takes."""
    (name, _), *_ = family.forms.items()
    parameters = {
        "type": "object", "properties": {
            "where": {"enum": ["here", "there"]},
            "days": {"type": "integer", "maximum": 9, "minimum": 1}
        }, "required": ["where", "days"], "additionalProperties": False
    }
    others = {"type": "object", "properties": {"moon": {"const": "full"}}, "required": ["moon"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": taken}}
             for name, taken in (("tide", others), ("rain", parameters))]
    for choice in "required", RAIN_ONLY:
        begin = BEGINS[name][0] + ("" if choice == "required" else BEGINS[name][1])
        for each in family.both(text="I'd rather not",
                                begin=begin,
                                tools=tools,
                                tool_choice=choice,
                                parallel_tool_calls=False):
            call, = each.message.tool_calls
            assert each.finish_reason == "tool_calls" and not each.message.content
            assert call.function.name in (["rain", "tide"] if choice == "required" else ["rain"])
            jsonschema.validate(json.loads(call.function.arguments),
                                parameters if call.function.name == "rain" else others)


def test_arguments_are_those_of_the_tool(qwen):
    """And not another's, whatever the model says."""
    def tool(name, member):
        return {"type": "function", "function": {"name": name, "parameters": {
            "type": "object", "properties": {member: {"const": 1}}, "required": [member]}}}

    begin = '<tool_call>\n{"name": "rain", "arguments":'
    choice = qwen.ask(text=' {"moon": 1}}', begin=begin, tool_choice=RAIN_ONLY,
                      tools=[tool("tide", "moon"), tool("rain", "sky")]).choices[0]
    call, = choice.message.tool_calls
    assert json.loads(call.function.arguments) == {"sky": 1}


def test_a_member_twice(qwen):
    """Which a form cannot forbid is a call all the same; the last one counts."""
    call, = qwen.ask(text='{"name": "rain", "arguments": {"a": 1, "a": 2}}\n</tool_call>',
                     begin="<tool_call>\n", tool_choice="required", tools=[
                         {"type": "function", "function": {"name": "rain", "parameters": {}}}]
                     ).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"a": 2}


def test_several_calls_that_have_to_be(family):
    (name, (form, _)), *_ = family.forms.items()
    whole, begin = write_calls((held_form(name, form), ""), [RAIN, TIDE, RAIN]), BEGINS[name][0]
    for parallel in True, False:
        wanted = [RAIN, TIDE, RAIN] if parallel and name != "llama3_json" else [RAIN]
        for each in family.both(text=whole[len(begin):], begin=begin, tools=ANY,
                                tool_choice="required", parallel_tool_calls=parallel):
            check_calls(each, "", wanted)


def test_calls_that_have_to_be_in_control_tokens(family):
    """Between calls and behind the last one there may be such tokens, and there the answer ends."""
    (name, _), *_ = family.forms.items()
    calls = [RAIN] if name == "llama3_json" else [RAIN, TIDE]
    for each in family.both("begun", begin=BEGINS[name][0], tools=ANY, tool_choice="required"):
        check_calls(each, "", calls)


def test_parameters_that_cannot_be_kept_to(qwen):
    """They are an object at least, unless the tool is strict."""
    function = {"name": "rain", "parameters": {"not": {"type": "string"}}}
    begin = '<tool_call>\n{"name": "rain", "arguments":'
    call, = qwen.ask(text="no", begin=begin, tool_choice=RAIN_ONLY, max_tokens=200, tools=[
                     {"type": "function", "function": function}]).choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments), dict)
    for parameters in ({}, True, {"type": "string"}, {"type": ["object", "null"]},
                       {"anyOf": [{"type": "object"}, {"type": "integer"}]},
                       {"anyOf": [{"$ref": "#"}, {"type": "object"}]},
                       {"properties": {"x": {"type": "string", "maxLength": 100000}}}):
        some = {"name": "rain", "parameters": parameters}
        call, = qwen.ask(text=" 9.5}", begin=begin, tool_choice=RAIN_ONLY, max_tokens=200, tools=[
                         {"type": "function", "function": some}]).choices[0].message.tool_calls
        assert isinstance(json.loads(call.function.arguments), dict)
    other = {"name": "tide", "strict": True, "parameters": {"not": {}}}  # which is not called
    choice = qwen.ask(text=" {}}", begin=begin, tool_choice=RAIN_ONLY,
                      tools=[*TOOLS[:1], {"type": "function", "function": other}]).choices[0]
    assert choice.message.tool_calls[0].function.arguments == "{}"
    error = qwen.server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "tool_choice": RAIN_ONLY,
        "tools": [{"type": "function", "function": {**function, "strict": True}}]})
    assert error.status == 400 and error.error["param"] == "tool_choice"
    assert "tool rain: schema at #: not is not supported" in error.error["message"]


# ---- answers that have to be of a form ----

WEATHER = {
    "type": "object", "properties": {
        "sky": {"enum": ["clear", "grey"]}, "wind": {"type": "number", "minimum": 0, "maximum": 99}
    }, "required": ["sky", "wind"], "additionalProperties": False
}
IN_FORM = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "weather", "strict": True, "schema": WEATHER}
    }
}


def test_a_form_leaves_alone_what_is_in_it(family):
    for text in '{"sky": "grey", "wind": 7.25}', '{"sky":"clear","wind":0}', \
            '{\n  "sky": "clear",\n  "wind": 98.5\n}':
        for choice in family.both(text=text, **IN_FORM):
            assert (choice.message.content, choice.finish_reason) == (text, "stop")


def no_thought(family):
    """Whoever may reason may choose to where nothing else is likely."""
    begins = (family.server.post("/tokenize", {
        "prompt": begin.split("thought")[0].strip(),
        "add_special_tokens": False}).json()["tokens"] for begin, _ in THOUGHTS.values())
    return {ids[0]: -100 for ids in begins if len(ids) == 1}


def test_a_form_is_kept_to(family):
    for text in "It is grey.", '{"sky": "blue", "wind": 7}', '{"wind": 7, "sky": "grey"}', "":
        for choice in family.both(text=text, logit_bias=no_thought(family), **IN_FORM):
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content), WEATHER)


def test_calls_or_a_form(family):
    """With tools the answer may be calls of them, too."""
    (name, (form, _)), *_ = family.forms.items()
    if "|python_tag|" in form:
        return  # is written without the mark where the form is to be kept to
    text = write_calls((held_form(name, form), ""), [RAIN])
    for choice in family.both(text=text, tools=ANY, **IN_FORM):
        check_calls(choice, "", [RAIN])
    text = '{"sky": "grey", "wind": 7.25}'
    for choice in family.both(text=text, tools=ANY, **IN_FORM):
        assert (choice.message.content, choice.message.tool_calls) == (text, None)


def test_reasoning_before_a_form(thinker):
    """It is free, whether the prompt has begun it or the model does."""
    for script, think in ("thought_form", False), ("open_form", True):
        for choice in thinker.both(script, think=think, **IN_FORM):
            assert choice.message.content == '{"sky": "grey", "wind": 7.25}'
            assert choice.message.reasoning.startswith("The sea")
    for choice in thinker.both("open_no", think=True, **IN_FORM):
        assert choice.message.reasoning == "The sea."
        jsonschema.validate(json.loads(choice.message.content), WEATHER)


def test_a_form_and_a_call_that_has_to_be(qwen):
    error = qwen.server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "tools": ANY, "tool_choice": "required",
        **IN_FORM})
    assert error.status == 400 and "cannot both say" in error.error["message"]


def test_stop_strings_come_first(qwen):
    choice = qwen.ask("hermes0", tools=TOOLS, stop=["\"arguments\""]).choices[0]
    assert choice.message.tool_calls is None
    assert choice.message.content == SAID["hermes0"].split('"arguments"')[0]


def test_tokens_are_all_told(thinker):
    """With logprobs and ids each token is in one chunk, whatever its text became."""
    more = {"tools": TOOLS, "logprobs": True, "extra_body": {"return_token_ids": True}}
    whole = thinker.ask("thought_call", **more).choices[0]
    chunks = [c.choices[0] for c in thinker.ask("thought_call", stream=True, **more)]
    assert [i for c in chunks for i in getattr(c, "token_ids", None) or []] == whole.token_ids
    assert [t.token for c in chunks if c.logprobs for t in c.logprobs.content] == \
        [t.token for t in whole.logprobs.content]
    assert whole.message.tool_calls[0].function.name == "tide"


def test_only_marks_are_shown(family):
    """Of control tokens those of calls and reasoning are seen in the text; others stay hidden."""
    for more in {}, {"tools": TOOLS}:
        assert family.ask("control", **more).choices[0].message.content == "One. Two."


def test_tags_that_are_control_tokens(serve, tmp_path):
    each = Parrot(serve(write_model(tmp_path, "hermes", True), "--served-model-name", "m"))
    check_calls(each.ask("hermes1", tools=TOOLS).choices[0], "Let me see.", CALLS[1])
    message = each.ask("thought").choices[0].message
    assert (message.content, message.model_extra["reasoning"]) == \
        ("It rains.\n", "The sea,\n\nperhaps.")


def test_a_template_for_tools(serve, tmp_path):
    """Of a list transformers takes `tool_use` where there are tools."""
    plain = template("hermes").replace("<tool_call>", "").replace("<|im_start|>", "<|im_start|>No ")
    templates = [{"name": "default", "template": plain},
                 {"name": "tool_use", "template": template("hermes")}]
    model = write_model(tmp_path, "hermes", chat_template=templates)
    each = Parrot(serve(model, "--served-model-name", "m"))
    check_calls(each.ask("hermes0", tools=TOOLS).choices[0], "Let me see.", [RAIN])
    talk = {"messages": [{"role": "user", "content": "x"}]}
    assert each.count(**talk) > each.count(**talk, tools=TOOLS)
    templates[1]["template"] = template("mistral_args")
    templates[0]["template"] = plain.replace("think>", "")  # what only one knows counts
    model = write_model(tmp_path / "thinks", "mistral_args", chat_template=templates)
    server = serve(model, "--served-model-name", "m")
    assert "calls of tools: mistral; reasoning: [THINK]" in server.log
    templates[0]["template"], templates[1]["template"] = plain, "{% nothing %}"
    model = write_model(tmp_path / "broken", "hermes", chat_template=templates)
    each = Parrot(serve(model, "--served-model-name", "m", "--tool-call-parser", "hermes"))
    assert each.ask(text="x").choices[0].message.content == "No x"
    with pytest.raises(openai.BadRequestError, match="template for tools cannot be used"):
        each.client.chat.completions.create(model="m", messages=talk["messages"], tools=TOOLS)


def test_a_call_larger_than_what_may_be_unsent(serve, tmp_path):
    """It is one piece, and a reader who has read all before is not slow."""
    model = write_model(tmp_path, "hermes")
    each = Parrot(serve(model, "--served-model-name", "m", "--http-max-unsent-bytes", 4096))
    text = f'<tool_call>{{"name": "rain", "arguments": {{"a": "{6 * LONG}"}}}}</tool_call>'
    (call,) = each.put_together(text=text, tools=TOOLS).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"a": 6 * LONG}


def test_texts_between_tags_are_what_the_schema_says(serve, tmp_path):
    """A value has no quotes: 5 is a number or a text."""
    types = {"zip": {"type": "string"}, "days": {"type": "integer"}, "on": {"type": "boolean"},
             "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
             "sky": {"enum": ["1", "2"]}, "free": {}, "list": {"type": "array"}}
    values = {"zip": "0815", "days": 5, "on": True, "note": None, "sky": "2", "free": "a < b",
              "list": ["</x>"]}
    tools = [{"type": "function", "function": {
        "name": "rain", "parameters": {"type": "object", "properties": types}}}]
    for parser in HELD:
        each = Parrot(serve(write_model(tmp_path, parser), "--served-model-name", "m"))
        form, *_ = FORMATS[parser].values()
        for given in values, {**values, "note": "12", "zip": " true\n"}:
            text = write_calls(form, [{"name": "rain", "arguments": given}])
            for choice in each.both(text=text, tools=tools):
                check_calls(choice, "Let me see.", [{"name": "rain", "arguments": given}])


# ---- reasoning ----------------------------------------------------------------------------------


def test_reasoning(thinker):
    for choice in thinker.both("thought"):
        assert choice.message.content == "It rains.\n" and choice.finish_reason == "stop"
        extra = choice.message.model_extra
        assert extra["reasoning"] == extra["reasoning_content"] == "The sea,\n\nperhaps."


def test_reasoning_that_the_prompt_has_opened(thinker):
    for choice in thinker.both("open", think=True):
        assert choice.message.content == "It rains."
        assert choice.message.model_extra["reasoning"] == "The sea."
    for choice in thinker.both("open"):  # else the text is what it is
        assert choice.message.content == thinker.said["open"]


def test_reasoning_without_end(thinker):
    choice = thinker.ask("only").choices[0]
    assert choice.message.content is None and choice.finish_reason == "stop"
    assert choice.message.model_extra["reasoning"] == "For ever, and a day, and another day"


def test_reasoning_before_calls(thinker):
    for choice in thinker.both("thought_call", tools=TOOLS):
        check_calls(choice, "Let me see.", [TIDE])
        assert choice.message.model_extra["reasoning"] == "I must look."


def test_reasoning_where_control_tokens_are_shown(thinker):
    """Marks are marks, whether a client wants to see others or not."""
    for skip in True, False:
        for choice in thinker.both("thought_call", tools=TOOLS,
                                   extra_body={"skip_special_tokens": skip}):
            check_calls(choice, "Let me see.", [TIDE])
            assert choice.message.model_extra["reasoning"] == "I must look."


def test_reasoning_tokens_are_counted(thinker):
    """As many as there are up to the token of the closing tag, which is one."""
    answer = thinker.ask("thought", extra_body={"return_token_ids": True})
    pieces = list(thinker.ask("thought", stream=True, stream_options={"include_usage": True}))
    ids = answer.choices[0].token_ids
    end = thinker.server.post("/tokenize", {"prompt": thinker.thought_end.strip(),
                                            "add_special_tokens": False})
    (end,) = end.json()["tokens"]
    for usage in answer.usage, pieces[-1].usage:
        assert usage.completion_tokens_details.reasoning_tokens == ids.index(end) + 1
    assert thinker.ask(text="plain").usage.completion_tokens_details.reasoning_tokens == 0


def test_reasoning_that_nobody_wants(thinker):
    choice = thinker.ask("thought", extra_body={"include_reasoning": False}).choices[0]
    assert choice.message.content == "It rains.\n" and not choice.message.model_extra
    chunks = list(thinker.ask("thought", stream=True, extra_body={"include_reasoning": False}))
    assert not any("reasoning" in c.choices[0].delta.model_extra for c in chunks)


# ---- options ------------------------------------------------------------------------------------


def test_options_against_the_template(serve, tmp_path):
    """They count, not what the template looks like."""
    model = write_model(tmp_path, "hermes")
    each = Parrot(serve(model, "--served-model-name", "m", "--tool-call-parser", "mistral",
                        "--reasoning-parser", "none"))
    check_calls(each.ask("mistral0", tools=TOOLS).choices[0], "Let me see.", [RAIN])
    assert each.ask("thought").choices[0].message.content == SAID["thought"]
    assert each.ask("thought").usage.completion_tokens_details is None
    each = Parrot(serve(model, "--served-model-name", "m", "--tool-call-parser", "none"))
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
        each.ask("hermes0", tools=TOOLS)
    each = Parrot(serve(model, "--served-model-name", "m", "--no-enable-auto-tool-choice",
                        "--reasoning-parser", "qwen3"))
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser"):
        each.ask("hermes0", tools=TOOLS)
    assert each.ask("thought").choices[0].message.content == "It rains.\n"


def test_marks_of_thoughts_by_name(serve, tmp_path):
    """Those of Mistral's models, where the template has others, and others where it has them."""
    said = "[THINK]The sea.[/THINK]<think>It rains."
    each = Parrot(serve(write_model(tmp_path, "hermes"), "--served-model-name", "m",
                        "--reasoning-parser", "mistral"))
    assert "reasoning: [THINK]" in each.server.log
    for choice in each.both(text=said):
        assert choice.message.model_extra["reasoning"] == "The sea."
        assert choice.message.content == "<think>It rains."
    model = write_model(tmp_path, "mistral_args")
    for name in "think", "none":
        each = Parrot(serve(model, "--served-model-name", "m", "--reasoning-parser", name))
        for choice in each.both("thought"):  # without control tokens
            assert choice.message.content == "The sea,\n\nperhaps.It rains.\n"
        assert each.ask(text=said).choices[0].message.content == said


def test_gemma4_by_name(serve, tmp_path):
    """Where the template shows something else; the marks are letters here."""
    each = Parrot(serve(write_model(tmp_path, "hermes"), "--served-model-name", "m",
                        "--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4"))
    assert "calls of tools: gemma4; reasoning: <|channel>" in each.server.log
    begin, end = THOUGHTS["gemma4"]
    said = f"{begin}{end}{begin}The sea.\n{end}Let me see.{write_calls((GEMMA4, ''), [RAIN, TIDE])}"
    for choice in each.both(text=said, tools=TOOLS):
        check_calls(choice, "Let me see.", [RAIN, TIDE])
        assert choice.message.model_extra["reasoning"] == "The sea."
    broken = f"{CALL}call:rain{{where:{QUOTE}here}}{CALL_END}"
    for choice in each.both(text=f"{begin}{end}{broken}", tools=TOOLS):
        assert (choice.message.content, choice.finish_reason) == (broken, "stop")
        assert not choice.message.model_extra


@pytest.mark.parametrize("choice, wanted", [
    ("any", "must be none, auto, required or a function"),
    ({"type": "function", "function": {"name": "wind"}}, "is none of the tools"),
    ({"type": "function", "function": {"name": ""}}, "must be {"),
    ({"type": "function"}, "must be {"), ({"type": "function", "function": 1}, "must be {"),
    ({"type": "custom", "function": {"name": "rain"}}, "must be {"),
    ({"type": "function", "function": {"name": "ra\"in"}}, "1 to 256 letters, digits"),
    (3, "a string or an object"), ([], "a string or an object")])
def test_choices_that_are_none(qwen, choice, wanted):
    error = qwen.server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "tool_choice": choice,
        "tools": [*TOOLS, {"type": "function", "function": {"name": "ra\"in"}}]})
    assert error.status == 400 and wanted in error.error["message"]
    assert error.error["param"] == "tool_choice"
