"""What an assistant thought, sent back as parts of its content, as Mistral's clients do it, or in a
field: prompts are what jinja2 makes of it in the form that the template knows."""

import jinja2.sandbox
import pytest

import checkpoint
from conftest import Starter

# As Mistral's templates are: thoughts are parts of contents, and nothing else.
PARTS = (
    "{%- for m in messages %}{{- '<' + m['role'] + '>' }}"
    "{%- if m['content'] is string %}{{- m['content'] }}"
    "{%- elif m['content'] is not none %}{%- for part in m['content'] %}"
    "{%- if part['type'] == 'thinking' %}{{- '[THINK]' + part['thinking'] + '[/THINK]' }}"
    "{%- else %}{{- part['text'] }}{%- endif %}{%- endfor %}{%- endif %}"
    "{%- for call in m.get('tool_calls') or [] %}{{- '[TOOL_CALLS]' + call['function']['name'] }}"
    "{%- endfor %}{%- endfor %}")
# As others are: contents are texts, and thoughts have a field.
FIELD = (
    "{%- for m in messages %}{{- '<' + m['role'] + '>' }}"
    "{%- if m.get('reasoning_content') %}{{- '[THINK]' + m['reasoning_content'] + '[/THINK]' }}"
    "{%- endif %}{{- m['content'] }}{%- endfor %}")
TAGS = FIELD.replace("[THINK]", "<think>").replace("[/THINK]", "</think>")
TEMPLATES = {"parts": PARTS, "field": FIELD, "tags": TAGS}

ASK, MORE = {"role": "user", "content": "Is it?"}, {"role": "user", "content": "And why?"}
CALL = [{"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


def thought(text, **more):
    return {"type": "thinking", "thinking": text, **more}


def says(text):
    return {"type": "text", "text": text}


def answer(content, **more):
    return {"role": "assistant", "content": content, **more}


def started(kind, factory):
    home = factory.mktemp("template")
    path = home / "template.jinja"
    path.write_text(TEMPLATES[kind])
    starter = Starter(home)
    yield starter(checkpoint.DEMO, "-tp", 1, "--chat-template", path, "--served-model-name", "m")
    starter.close()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    yield from started("parts", tmp_path_factory)


@pytest.fixture(scope="module", params=TEMPLATES)
def family(request, tmp_path_factory):
    """The kind of template, and a server with it."""
    for server in started(request.param, tmp_path_factory):
        yield request.param, server


def rendered(kind, messages):
    """The text of messages in the form that the template knows."""
    return jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(TEMPLATES[kind]).render(
        messages=messages)


def ids(server, **request):
    reply = server.post("/tokenize", {"add_special_tokens": False, **request})
    assert reply.status == 200, reply.json()
    return reply.json()["tokens"]


FORMS = {
    "parts": answer([thought("Hm."), says("Yes.")]),
    "closed": answer([thought("Hm.", closed=True), says("Yes.")]),
    "list": answer([thought([says("Hm.")]), says("Yes.")]),
    "field": answer("Yes.", reasoning="Hm."),
    "older field": answer([says("Yes.")], reasoning_content="Hm."),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(family, form):
    kind, server = family
    wanted = answer([thought("Hm."), says("Yes.")]) if kind == "parts" else \
        answer("Yes.", reasoning_content="Hm.")
    text = rendered(kind, [ASK, wanted, MORE])
    assert "Hm." in text and "Yes." in text
    assert ids(server, messages=[ASK, FORMS[form], MORE]) == ids(server, prompt=text)


@pytest.mark.parametrize("messages, wanted", [
    # several thoughts, and several texts, are a line each
    ([ASK, answer([thought("A"), thought([says("B"), says("C")]), says("D"), says("E")])],
     "<user>Is it?<assistant>[THINK]A\nB\nC[/THINK]D\nE"),
    ([ASK, answer([thought("A")])], "<user>Is it?<assistant>[THINK]A[/THINK]"),
    ([ASK, answer([thought(""), says("B")])], "<user>Is it?<assistant>B"),
    ([ASK, answer([says("A"), says("")])], "<user>Is it?<assistant>A\n"),
    ([ASK, answer([says(""), says("A")])], "<user>Is it?<assistant>\nA"),
    ([ASK, answer([thought("A")], tool_calls=CALL)],
     "<user>Is it?<assistant>[THINK]A[/THINK][TOOL_CALLS]look"),
    ([ASK, answer(None, reasoning="A", tool_calls=CALL)],
     "<user>Is it?<assistant>[THINK]A[/THINK][TOOL_CALLS]look"),
    ([{**ASK, "reasoning": "of nobody"}], "<user>Is it?"),
    # instructions have them in their order
    ([{"role": "system", "content": [says("A"), thought("B"), says("C")]}, ASK],
     "<system>A[THINK]B[/THINK]C<user>Is it?"),
    ([{"role": "developer", "content": [thought([says("B")], closed=True)]}, ASK],
     "<system>[THINK]B[/THINK]<user>Is it?"),
    ([{"role": "system", "content": [says("A"), says("B")]}, ASK], "<system>A\nB<user>Is it?"),
    ([{"role": "system", "content": [says("A"), says("B"), thought("C"), thought("D"), thought(""),
                                     says("E"), says("")]}, ASK],
     "<system>A\nB[THINK]C\nD\n[/THINK]E\n<user>Is it?")])
def test_parts(parts, messages, wanted):
    assert ids(parts, messages=messages) == ids(parts, prompt=wanted)


def test_continued(family):
    kind, server = family
    marks = ("<think>", "</think>") if kind == "tags" else ("[THINK]", "[/THINK]")
    found = ids(server, messages=[ASK, answer([thought("A"), says("B")])],
                continue_final_message=True, add_generation_prompt=False)
    assert found == ids(server, prompt=f"<user>Is it?<assistant>{marks[0]}A{marks[1]}B")


def test_continued_instructions(parts):
    system = {"role": "system", "content": [says("A"), thought("B"), says("C ")]}
    found = ids(parts, messages=[system], continue_final_message=True, add_generation_prompt=False)
    assert found == ids(parts, prompt="<system>A[THINK]B[/THINK]C ")


def test_no_text(family):
    """A call of tools behind a thought has no content, in whichever form it is said."""
    kind, server = family
    forms = [answer([thought("A")], tool_calls=CALL), answer(None, reasoning="A", tool_calls=CALL)]
    first, second = (server.post("/tokenize", {"messages": [ASK, form]}).json() for form in forms)
    assert first["tokens"] == second["tokens"]
    assert kind == "parts" or len(first["tokens"]) > len(ids(server, messages=[ASK]))


def test_other_apis(family):
    """Blocks and items of thoughts become the same."""
    _, server = family
    said, block = [says("Yes.")], {"type": "thinking", "thinking": "Hm.", "signature": ""}
    item = {"type": "reasoning", "summary": [], "content": [
        {"type": "reasoning_text", "text": "Hm."}]}
    message = {"type": "message", **answer([{"type": "output_text", "text": "Yes."}])}

    def of_messages(content):
        return server.post("/v1/messages/count_tokens", {"model": "m", "messages": [
            ASK, answer(content), MORE]}).json()["input_tokens"]

    def of_responses(*items):
        return server.post("/v1/responses", {"max_output_tokens": 1, "input": [
            ASK, *items, MORE]}).json()["usage"]["input_tokens"]

    added = (len(ids(server, messages=[ASK, FORMS["parts"], MORE]))
             - len(ids(server, messages=[ASK, answer("Yes."), MORE])))
    assert added > 2
    assert of_messages([block, *said]) - of_messages(said) == added
    assert of_responses(item, message) - of_responses(message) == added


@pytest.mark.parametrize("message, said", [
    (answer([says("A"), thought("B")]), "content[1].type must be \"text\", got \"thinking\""),
    (answer([thought("A", closed=False)]), "content[0].closed must be true: open thoughts are"),
    (answer([thought("A"), says("B")], reasoning="C"), "content has thoughts, and so has r"),
    (answer([thought("A")], reasoning_content="C"), "content has thoughts, and so has reasoning_"),
    (answer([thought(7)]), "content[0].thinking must be a string or a list of texts, got 7"),
    (answer([thought([7])]), "content[0].thinking[0] must be an object, got 7"),
    (answer([thought([thought("A")])]), 'content[0].thinking[0].type must be "text", got "thinki'),
    (answer([thought([{"type": "text"}])]), "content[0].thinking[0].text must be a string, got no"),
    (answer([{"type": "thinking"}]), "content[0].thinking is missing"),
    (answer([thought(1025 * [says("A")])]), "thinking may hold at most 1024 parts, got 1025"),
    ({"role": "user", "content": [thought("A")]}, 'content[0].type must be "text", got "thinking"'),
    ({"role": "tool", "content": [thought("A")]}, 'content[0].type must be "text", got "thinking')])
def test_refused(family, message, said):
    _, server = family
    for path in ("/v1/chat/completions", "/tokenize"):
        reply = server.post(path, {"messages": [ASK, message, MORE]})
        assert reply.status == 400
        assert said in reply.json()["error"]["message"]
    assert server.get("/health").status == 200


def test_instructions_of_others(family):
    """A template that knows texts alone would show a list as what it is."""
    kind, server = family
    reply = server.post("/tokenize", {"messages": [
        {"role": "system", "content": [says("A"), thought("B")]}, ASK]})
    assert reply.status == (200 if kind == "parts" else 400)
    if kind != "parts":
        said = reply.json()["error"]["message"]
        assert "thoughts are the assistant's, or of instructions where" in said
