"""POST /v1/messages and /v1/messages/count_tokens, with Anthropic's own client: its types say what
an answer and an event have to be, its stream helper puts events together, and the same conversation
over /v1/chat/completions says what the model answers."""

import concurrent.futures
import contextlib
import json
import os
import signal

import anthropic
import jsonschema
import openai
import pydantic
import pytest
from anthropic import types

import checkpoint
import test_harmony
import test_tools
from harness import eventually, free_port
from test_tools import ANY, IN_FORM, RAIN, RAIN_ONLY, SAID, TIDE, WEATHER, Parrot, write_calls

EVENT = pydantic.TypeAdapter(types.RawMessageStreamEvent)
# Whatever a conversation has makes a difference to its text.
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
            "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
            "{{ c.function.arguments | tojson }}]{% endfor %}"
            "{% if m.tool_call_id %}<{{ m.tool_call_id }}>{% endif %}{{ eos_token }}{% endfor %}"
            "{% if tools %}{{ tools | tojson }}{% endif %}"
            "{% if reasoning_effort %}{{ reasoning_effort }}{% endif %}"
            "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}Once upon a time")

TALK = [{"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Tell me."},
        {"role": "assistant", "content": "I look.\nYes.", "reasoning_content": "Hm.",
         "tool_calls": [
            {"id": "call00001", "type": "function",
             "function": {"name": "rain", "arguments": '{"where": "here"}'}},
            {"id": "call00002", "type": "function",
             "function": {"name": "tide", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call00002", "content": "high"},
        {"role": "tool", "tool_call_id": "call00001", "content": "none\nat all"},
        {"role": "user", "content": "And then?\nWell?"},
        {"role": "system", "content": "Now rhyme."}]
SYSTEM = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
          {"type": "text", "text": "Be kind."}]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "Tell me."}]},
          {"role": "assistant", "content": [
              {"type": "thinking", "thinking": "Hm.", "signature": ""},
              {"type": "redacted_thinking", "data": "gAAA"},
              {"type": "text", "text": "I look.", "citations": None},
              {"type": "text", "text": "Yes."},
              {"type": "tool_use", "id": "toolu_call00001", "name": "rain",
               "input": {"where": "here"}}]},
          {"role": "assistant", "content": [
              {"type": "tool_use", "id": "call00002", "name": "tide", "input": {}}]},
          {"role": "user", "content": [
              {"type": "tool_result", "tool_use_id": "call00002", "content": "high"},
              {"type": "tool_result", "tool_use_id": "toolu_call00001", "is_error": True,
               "content": [{"type": "text", "text": "none"}, {"type": "text", "text": "at all"}]},
              {"type": "text", "text": "And then?", "cache_control": {"type": "ephemeral"}}]},
          {"role": "user", "content": "Well?"},
          {"role": "system", "content": [{"type": "text", "text": "Now rhyme."}]}]
ASKED = [{"role": "user", "content": "Once upon a time"}]


class Speaker:
    """A server, and both clients of it."""

    def __init__(self, server):
        self.server = server
        self.client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        self.chat = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.client.close()
        self.chat.close()

    def request(self, messages=None, **fields):
        extra = {"ignore_eos": True, "temperature": 0, **fields.pop("extra_body", {})}
        return {"model": "demo", "messages": messages or ASKED, "max_tokens": 12,
                "extra_body": extra, **fields}

    def answer(self, *args, **fields):
        return self.client.messages.create(**self.request(*args, **fields))

    def tokens(self, **fields):
        for name in "max_tokens", "stream", "stop_sequences":
            fields.pop(name, None)
        return self.client.messages.count_tokens(**fields).input_tokens

    def said(self, messages, **fields):
        """By the chat."""
        extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
        return self.chat.chat.completions.create(**{
            "model": "demo", "messages": messages, "max_tokens": 12, "temperature": 0,
            "extra_body": extra, **fields})


def shared(tmp_path_factory, cls, model, *arguments):
    from conftest import shared as start
    for server in start(tmp_path_factory, model, "-tp", 2, *arguments):
        with cls(server) as each:
            yield each


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    yield from shared(tmp_path_factory, Speaker, checkpoint.DEMO, "--served-model-name", "demo",
                      "--chat-template", template)


def tool(function):
    """A tool of a chat as Anthropic has it."""
    function = dict(function["function"])
    schema = function.pop("parameters", {"type": "object"})
    return {**function, "input_schema": schema}


class Talker(Speaker, Parrot):
    """What the test wants the model to say."""

    def __init__(self, server):
        Speaker.__init__(self, server)

    def request(self, *args, **more):
        fields = self.fields(*args, **more)
        fields["extra_body"]["temperature"] = fields.pop("temperature")
        if "tools" in fields:
            fields["tools"] = [tool(each) for each in fields["tools"]]
        return {"max_tokens": 800, **fields}

    def both(self, *args, **more):
        """What came whole, and what the helper makes of the events, which has to be the same."""
        request = self.request(*args, **more)
        whole = check_message(self.client.messages.create(**request))
        events = list(self.client.messages.create(**request, stream=True))
        check_events(events)
        with self.client.messages.stream(**request) as stream:
            pieces = stream.get_final_message()
        check_message(pieces)
        assert what(pieces) == what(whole)
        assert pieces.usage.output_tokens == whole.usage.output_tokens
        assert asked(pieces.usage) == asked(whole.usage)
        return whole, pieces


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    model = test_tools.write_model(tmp_path_factory.mktemp("parrot"), "hermes")
    yield from shared(tmp_path_factory, Talker, model, "--served-model-name", "m")


@pytest.fixture(scope="module", params=test_tools.THOUGHTS)
def thinker(request, tmp_path_factory):
    if request.param == "hermes":
        yield request.getfixturevalue("qwen")
        return
    model = test_tools.write_model(tmp_path_factory.mktemp("parrot"), request.param)
    yield from shared(tmp_path_factory, Talker, model, "--served-model-name", "m")


@pytest.fixture(scope="module")
def harmony(tmp_path_factory):
    model = test_harmony.write_model(tmp_path_factory.mktemp("harmony"))
    yield from shared(tmp_path_factory, Talker, model, "--served-model-name", "m")


def what(message):
    """All that a message says, but for the names of its calls."""
    blocks = [block.to_dict() | {"id": None, "parsed_output": None} for block in message.content]
    return blocks, message.stop_reason, message.stop_sequence


def kinds(message):
    return [block.type for block in message.content]


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


def thought(message):
    return "".join(block.thinking for block in message.content if block.type == "thinking")


def asked(usage):
    """All input tokens."""
    return (usage.input_tokens + usage.cache_creation_input_tokens +
            usage.cache_read_input_tokens)


def check_message(message):
    """By the client's own types, which it does not hold answers to by itself."""
    types.Message.model_validate(message.to_dict(), strict=True)
    assert message.id.startswith("msg_") and message.role == "assistant"
    assert message.content and message.usage.cache_creation_input_tokens == 0
    calls = [block for block in message.content if block.type == "tool_use"]
    assert (message.stop_reason == "tool_use") == (bool(calls) and
                                                   message.stop_reason != "max_tokens")
    assert (message.stop_sequence is not None) == (message.stop_reason == "stop_sequence")
    ids = [call.id for call in calls]
    assert len(set(ids)) == len(ids)
    assert all(i.startswith("toolu_") and len(i) == 15 and i.isascii() for i in ids)
    assert all(b.signature == "" for b in message.content if b.type == "thinking")
    return message


DELTAS = {"text": {"text_delta"}, "thinking": {"thinking_delta"}, "tool_use": {"input_json_delta"}}


def check_events(events):
    """Each is of its type; blocks open and close in order, one at a time."""
    for event in events:
        EVENT.validate_python(event.to_dict(), strict=True)
    first, *middle, delta, last = events
    assert (first.type, delta.type, last.type) == ("message_start", "message_delta", "message_stop")
    assert first.message.content == [] and first.message.stop_reason is None
    assert first.message.usage.output_tokens == 0
    assert asked(first.message.usage) == asked(delta.usage)
    assert delta.delta.stop_reason and delta.usage.output_tokens > 0
    blocks = []
    for event in middle:
        if event.type == "content_block_start":
            assert not blocks or blocks[-1][-1].type == "content_block_stop"
            blocks.append([])
        blocks[-1].append(event)
        assert event.index == len(blocks) - 1
    for start, *deltas, stop in blocks:
        kind = start.content_block.type
        assert stop.type == "content_block_stop"
        assert {event.type for event in deltas} <= {"content_block_delta"}
        if kind == "thinking":
            assert deltas.pop().delta.to_dict() == {"type": "signature_delta", "signature": ""}
            assert start.content_block.thinking == start.content_block.signature == ""
        if kind == "tool_use":
            assert start.content_block.input == {}
            assert isinstance(json.loads("".join(e.delta.partial_json for e in deltas)), dict)
        if kind == "text":
            assert start.content_block.text == ""
        assert {event.delta.type for event in deltas} <= DELTAS[kind]


# ---- the same as a chat --------------------------------------------------------------------------


@pytest.mark.sanitized
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}])
def test_equal_to_a_chat(demo, sampling):
    """One conversation, both ways: the same prompt, and the same tokens."""
    tools = [{"type": "function", "function": {
        "name": "rain", "description": "Does it?", "parameters": {"type": "object"}}}]
    more = {"extra_body": {"seed": sampling["seed"]}} if "seed" in sampling else {}
    chat = demo.said(TALK, tools=tools, tool_choice="none", max_tokens=30, reasoning_effort="low",
                     **{**more, "temperature": sampling["temperature"]})
    request = demo.request(
        BLOCKS, system=SYSTEM, tools=[tool(t) for t in tools], tool_choice={"type": "none"},
        max_tokens=30, output_config={"effort": "low"}, extra_body=sampling)
    whole = check_message(demo.client.messages.create(**request))
    with demo.client.messages.stream(**request) as stream:
        pieces = stream.get_final_message()
    for answer in whole, pieces:
        assert text(answer) == chat.choices[0].message.content
        assert asked(answer.usage) == chat.usage.prompt_tokens
        assert answer.usage.output_tokens == chat.usage.completion_tokens == 30
    assert demo.tokens(**request) == chat.usage.prompt_tokens


def test_text(demo):
    answer = check_message(demo.answer(system="Be the water."))
    assert kinds(answer) == ["text"] and text(answer) and answer.model == "demo"
    assert answer._request_id
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 12)
    whole = text(demo.answer(max_tokens=40))
    end = check_message(demo.answer(max_tokens=40, stop_sequences=["zzz", "."]))
    assert (end.stop_reason, end.stop_sequence) == ("stop_sequence", ".")
    assert text(end) == whole[:whole.index(".")]


def test_of_a_beta(demo):
    """Whose requests say so in the query and in a header."""
    answer = demo.client.beta.messages.create(
        betas=["interleaved-thinking-2025-05-14"], **demo.request(), context_management={
            "edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
    assert answer.content[0].text == text(demo.answer())


def test_an_end(qwen):
    for answer in qwen.both(text="It rains."):
        assert (text(answer), answer.stop_reason) == ("It rains.", "end_turn")
    for answer in qwen.both(text=""):  # of nothing
        assert (what(answer)[0][0]["text"], answer.stop_reason) == ("", "end_turn")


def test_stream(demo):
    """Of a text there is an event for each token."""
    events = list(demo.answer(stream=True))
    check_events(events)
    deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert len(deltas) == 12 and "".join(deltas) == text(demo.answer())
    (start,) = (event for event in events if event.type == "content_block_start")
    assert start.content_block.to_dict() == {"type": "text", "text": ""}
    assert events[-2].usage.output_tokens == 12


def test_frames(demo):
    """As they are on the wire: every event has its name, and nothing else comes."""
    with demo.client.messages.with_streaming_response.create(
            model="demo", messages=ASKED, max_tokens=3, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        wire = "".join(response.iter_text())
    frames = wire.split("\n\n")
    assert frames.pop() == "" and "[DONE]" not in wire
    for frame in frames:
        name, data = frame.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


@pytest.mark.parametrize("end", ["Once upon", "", [{"type": "text", "text": "Once"},
                                                   {"type": "text", "text": "upon "}]])
def test_prefill(demo, end):
    """An assistant's message at the end is continued, as a chat continues one."""
    joined = end if isinstance(end, str) else "\n".join(block["text"] for block in end)
    chat = demo.said([*ASKED, {"role": "assistant", "content": joined}], extra_body={
        "continue_final_message": True, "add_generation_prompt": False})
    request = demo.request([*ASKED, {"role": "assistant", "content": end}])
    answer = check_message(demo.client.messages.create(**request))
    assert text(answer) == chat.choices[0].message.content
    assert asked(answer.usage) == chat.usage.prompt_tokens == demo.tokens(**request)


@pytest.mark.parametrize("thinking, said", [
    ({"type": "enabled", "budget_tokens": 1024}, True), ({"type": "adaptive"}, True),
    ({"type": "disabled"}, False)])
def test_thinking_is_the_templates(demo, thinking, said):
    chat = demo.said(ASKED, extra_body={"chat_template_kwargs": {"enable_thinking": said}})
    plain = demo.said(ASKED)
    request = demo.request(thinking=thinking)
    answer = demo.client.messages.create(**request)
    assert text(answer) == chat.choices[0].message.content
    assert asked(answer.usage) == chat.usage.prompt_tokens == demo.tokens(**request)
    assert chat.usage.prompt_tokens != plain.usage.prompt_tokens
    request["extra_body"]["chat_template_kwargs"] = {"enable_thinking": "x"}  # counts before
    assert demo.tokens(**request) == demo.said(ASKED, extra_body={
        "chat_template_kwargs": {"enable_thinking": "x"}}).usage.prompt_tokens


def test_attribution_is_no_part_of_a_prompt(demo):
    """What Claude Code says of itself is another text in each request."""
    def blocks(*texts):
        return [{"type": "text", "text": each} for each in texts]
    first = "x-anthropic-billing-header: cc_version=2; cch=1"
    plain = demo.tokens(**demo.request(system=blocks("Be.", "So.")))
    assert demo.tokens(**demo.request(system=blocks(first, "Be.", "So."))) == plain
    alone = demo.tokens(**demo.request())
    assert demo.tokens(**demo.request(system=blocks(first))) == alone
    assert demo.tokens(**demo.request(system=blocks(f"{first}\nBe.", "So."))) == plain
    assert demo.tokens(**demo.request(system=f"{first}\nBe.\nSo.")) == plain
    assert demo.tokens(**demo.request([{"role": "user", "content": blocks(first)}])) > alone


# ---- usage ---------------------------------------------------------------------------------------


def test_cached_input(demo):
    """What was found is counted apart, and is no longer input."""
    request = demo.request([{"role": "user", "content": "The tide comes in. " * 20}], system="One.")
    total = demo.tokens(**request)
    first = demo.client.messages.create(**request).usage
    assert (first.input_tokens, first.cache_read_input_tokens) == (total, 0)
    again = demo.client.messages.create(**request).usage
    assert again.cache_read_input_tokens > total / 2 and again.input_tokens > 0
    assert again.input_tokens + again.cache_read_input_tokens == total
    events = list(demo.client.messages.create(**request, stream=True))
    assert events[0].message.usage.input_tokens == total  # it is not known yet
    assert events[-2].usage.input_tokens == again.input_tokens
    assert events[-2].usage.cache_read_input_tokens == again.cache_read_input_tokens


def test_count(qwen, demo):
    """What an answer would say of its prompt, with the beginning of a call that has to be."""
    counted = types.MessageTokensCount.model_validate(
        demo.client.messages.count_tokens(model="demo", messages=ASKED).to_dict(), strict=True)
    assert counted.input_tokens == asked(demo.answer().usage)
    counts = set()
    for more in {}, {"tools": ANY}, {"tools": ANY, "tool_choice": {"type": "any"}}, \
            {"tools": ANY, "tool_choice": {"type": "tool", "name": "tide"}}:
        request = qwen.request(max_tokens=3, **more)
        counts.add(qwen.tokens(**request))
        assert qwen.tokens(**request) == asked(qwen.client.messages.create(**request).usage)
    assert len(counts) == 3
    plain, tools = (demo.tokens(**demo.request(**more))
                    for more in ({}, {"tools": [tool(each) for each in ANY],
                                      "tool_choice": {"type": "none"}}))
    assert plain < tools
    long = [{"role": "user", "content": "a " * 9000}]  # than the context
    assert demo.tokens(**demo.request(long)) > 9000
    assert demo.tokens(**demo.request(long, extra_body={"truncate_prompt_tokens": 50})) == 50


def test_unknown_members_are_logged(demo):
    """Of requests, tools, messages and blocks, wherever they come."""
    odd = [{"role": "user", "odd_m": 1, "content": [{"type": "text", "text": "a", "odd_b": 1}]}]
    for path, names in ("/v1/messages/count_tokens", ("odd_r", "odd_t", "odd_m", "odd_b")), \
            ("/v1/messages", ("odd_s",)):
        body = {"max_tokens": 1, "messages": odd, names[0]: 1, "tool_choice": {"type": "none"},
                "tools": [{"name": "f", "input_schema": {}, "odd_t": 1}]}
        assert demo.server.post(path, body).status == 200
        assert all(name in demo.server.log for name in names)
    assert "cache_control" not in demo.server.log


# ---- blocks --------------------------------------------------------------------------------------


def test_calls(qwen):
    for answer in qwen.both("hermes1", tools=ANY):
        first, *calls = answer.content
        assert (first.type, first.text) == ("text", "Let me see.")
        assert [(c.name, c.input) for c in calls] == \
            [(c["name"], c["arguments"]) for c in (RAIN, TIDE, RAIN)]
        assert answer.stop_reason == "tool_use"
    one = {"type": "auto", "disable_parallel_tool_use": True}
    for answer in qwen.both("hermes1", tools=ANY, tool_choice=one):
        assert kinds(answer) == ["text", "tool_use"]
    (answer, _) = qwen.both("hermes1", tools=ANY, tool_choice={"type": "none"})
    assert text(answer) == SAID["hermes1"]


@pytest.mark.parametrize("choice", ["any", "tool"])
def test_a_call_that_has_to_be(qwen, choice):
    (form, _), = test_tools.FORMATS["hermes"].values()
    whole = write_calls((form, ""), [RAIN])
    begin = "".join(test_tools.BEGINS["hermes"][:1 if choice == "any" else 2])
    named = {"name": RAIN_ONLY["function"]["name"]} if choice == "tool" else {}
    for answer in qwen.both(text=whole[len(begin):], begin=begin, tools=ANY,
                            tool_choice={"type": choice, **named}):
        (call,) = answer.content
        assert (call.name, call.input) == (RAIN["name"], RAIN["arguments"])


def test_reasoning(thinker):
    for answer in thinker.both("thought"):
        assert kinds(answer) == ["thinking", "text"]
        assert (thought(answer), text(answer)) == ("The sea,\n\nperhaps.", "It rains.\n")
        details = answer.usage.output_tokens_details
        assert details is None or 0 < details.thinking_tokens < answer.usage.output_tokens
    assert thinker.both("thought")[0].usage.output_tokens_details.thinking_tokens > 0
    for answer in thinker.both("thought_call", tools=ANY):
        assert kinds(answer) == ["thinking", "text", "tool_use"]
    for answer in thinker.both("open", think=True):
        assert (thought(answer), text(answer)) == ("The sea.", "It rains.")
    for answer in thinker.both("only", max_tokens=12):
        assert (kinds(answer), answer.stop_reason) == (["thinking"], "max_tokens")
    for omitted in {"thinking": {"type": "adaptive", "display": "omitted"}}, \
            {"extra_body": {"include_reasoning": False}}:
        request = thinker.request("thought")
        extra = {**request.pop("extra_body"), **omitted.pop("extra_body", {})}
        assert kinds(thinker.client.messages.create(**request, **omitted,
                                                 extra_body=extra)) == ["text"]


def test_a_limit_within_a_call(qwen):
    """What is cut off is no call, but text."""
    for answer in qwen.both("hermes0", tools=ANY, max_tokens=12):
        assert (kinds(answer), answer.stop_reason) == (["text"], "max_tokens")
        assert text(answer) in SAID["hermes0"]


def test_output_format(qwen):
    schema = IN_FORM["response_format"]["json_schema"]["schema"]
    for said in '{"sky": "grey", "wind": 7.25}', "It is grey.":
        for answer in qwen.both(text=said, extra_body={"logit_bias": test_tools.no_thought(qwen)},
                                output_config={"format": {"type": "json_schema",
                                                          "schema": schema}}):
            jsonschema.validate(json.loads(text(answer)), WEATHER)


@pytest.mark.sanitized
def test_blocks_are_in_order(qwen):
    """Also where a stop string that is none in the end has held a call and more text back."""
    said = 'A\n<tool_call>\n{"name": "rain", "arguments": {"a": 1}}\n</tool_call>\nBcd ef'
    for stop in {}, {"stop_sequences": ["}}\n</tool_call>\nBcd eX"]}:
        for answer in qwen.both(text=said, tools=ANY, **stop):
            first, call, last = answer.content
            assert (first.text, call.input, last.text) == ("A", {"a": 1}, "Bcd ef")
            assert answer.stop_reason == "tool_use"


@pytest.mark.sanitized
def test_blocks_of_harmony(harmony):
    """Each message of the format is a block where the kind of it changes."""
    for answer in harmony.both("preamble", tools=ANY):
        assert kinds(answer) == ["thinking", "text", "tool_use"]
        assert (thought(answer), text(answer)) == ("The sea,\n\nperhaps.", "Let me see.")
    for answer in harmony.both("twice"):
        assert kinds(answer) == ["thinking", "text"]
        assert not any(block.text.startswith("\n") for block in answer.content[1:])
    late = harmony.server.post("/v1/messages", {"max_tokens": 1, "system": "i", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"},
                                     {"type": "tool_result", "tool_use_id": "b"}]},
        {"role": "user", "content": "a"}, {"role": "system", "content": "late"}]})
    assert late.status == 400
    assert late.json()["error"]["message"].startswith("messages[2].role must not be system here")


def test_arguments_of_any_size_go_back(demo, qwen):
    huge = 12345678901234567890123
    said = f'<tool_call>{{"name": "rain", "arguments": {{"n": {huge}}}}}</tool_call>'
    for answer in qwen.both(text=said, tools=ANY):
        (call,) = answer.content
        assert call.input == {"n": huge}
        assert demo.answer([{"role": "user", "content": "x"},
                            {"role": "assistant", "content": [call.to_dict()]},
                            {"role": "user", "content": [{"type": "tool_result",
                                                          "tool_use_id": call.id}]}])


def test_integers_stay_integers(demo):
    """Beside one that is too large for one."""
    big = [{"role": "assistant", "content": [
        {"type": "tool_use", "id": "1", "name": "f", "input": {"n": 10 ** 30}}]}, *ASKED]
    form = {"format": {"type": "json_schema", "schema": {"enum": [1, 2]}}}
    for messages in ASKED, big:
        answer = demo.answer(messages, output_config=form, extra_body={"ignore_eos": False})
        assert text(answer) in ("1", "2")


def test_full_context(demo):
    """max_tokens may be more than there is room for, as Claude Code's is: an answer that ends with
    the context says so."""
    context = demo.client.get("/v1/models", cast_to=object)["data"][0]["max_model_len"]
    messages = [{"role": "user", "content": "a " * (context // 2 - 40)}]
    left = context - demo.tokens(**demo.request(messages))
    assert left > 1
    for room, reason in (left, "max_tokens"), (left + 1, "model_context_window_exceeded"), \
            (20000, "model_context_window_exceeded"):
        request = demo.request(messages, max_tokens=room)
        answer = check_message(demo.client.messages.create(**request))
        assert (answer.stop_reason, answer.usage.output_tokens) == (reason, left)
        *_, delta, _ = demo.client.messages.create(**request, stream=True)
        assert (delta.delta.stop_reason, delta.usage.output_tokens) == (reason, left)


def test_turns(demo, qwen):
    """What came out goes back in, and is what a chat would have been given."""
    first = qwen.both("thought_call", tools=ANY)[0]
    call = first.content[-1]
    result = {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": call.id, "content": "low"}]}
    back = [{"role": "user", "content": "x"},
            {"role": "assistant", "content": [block.to_dict() for block in first.content]}, result]
    bare = call.id.removeprefix("toolu_")
    messages = [{"role": "user", "content": "x"},
                {"role": "assistant", "content": "Let me see.",
                 "reasoning_content": "I must look.",
                 "tool_calls": [{"id": bare, "type": "function", "function": {
                     "name": "tide", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": bare, "content": "low"}]
    chat = demo.said(messages)
    again = check_message(demo.answer(back))
    assert text(again) == chat.choices[0].message.content
    assert asked(again.usage) == chat.usage.prompt_tokens


def test_text_cannot_be_a_control_token(qwen):
    """Marks that a block spells out are letters in it, as in a chat."""
    mark = "<|endoftext|>"
    for field in {}, {"system": mark}, {"system": [{"type": "text", "text": mark}]}:
        reply = qwen.server.post("/v1/messages", {
            "max_tokens": 1, **field, "messages": [{"role": "user", "content": mark}]})
        assert reply.status == 200, reply.body
    said = "One.<|im_start|> Two.<|endoftext|>"
    assert text(qwen.both(text=said)[0]) == said


# ---- errors --------------------------------------------------------------------------------------


def check_error(reply, status, kind, word=""):
    """In the form of this API alone."""
    assert reply.status == status, reply.body
    body = reply.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert (body["error"]["type"], word in body["error"]["message"]) == (kind, True), body
    assert body["request_id"] == reply.headers["x-request-id"] == reply.headers["request-id"]
    if kind != "request_too_large":  # which the client's types do not know
        types.ErrorResponse.model_validate(body, strict=True)
    return body


@pytest.mark.parametrize("fields, word", [
    ({"messages": None}, "messages is missing"),
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": 0}, "max_tokens must be between 1"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     'messages[0].content[0].type must be "text" or "tool_result", got "image"'),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
     'tools[0].type must be "custom" or missing, got "web_search_20250305"'),
    ({"container": "c"}, "container is not supported"),
    ({"logprobs": True}, "logprobs is not supported"),
    ({"stop": "a", "stop_sequences": ["b"]}, "give only one"),
    ({"tools": [{"name": "f", "input_schema": {}}]}, "how this model writes calls is not known"),
    ({"messages": [{"role": "user", "content": "a " * 5000}]}, "prompt is too long: "),
    ({"thread": {"type": "continue", "previous_message_id": "m"}}, "send the whole conversation"),
    ({"compaction": {}}, "this server makes no summaries"),
])
def test_refused(demo, fields, word):
    body = {"messages": ASKED, "max_tokens": 4, **fields}
    check_error(demo.server.post("/v1/messages", body), 400, "invalid_request_error", word)
    with pytest.raises(anthropic.BadRequestError) as caught:
        demo.client.messages.create(model="demo", messages=ASKED, max_tokens=4, stream=True,
                                    extra_body=fields)
    assert caught.value.type == "invalid_request_error" and word in caught.value.api_message


def test_a_template_that_cannot_be_continued(serve, tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[0].content }}")
    server = serve(checkpoint.DEMO, "--chat-template", template)
    body = {"messages": [*ASKED, {"role": "assistant", "content": "there"}], "max_tokens": 1}
    for path in "/v1/messages", "/v1/messages/count_tokens":
        check_error(server.post(path, body), 400, "invalid_request_error",
                    "messages must not end with one of the assistant")


def test_errors_before_a_request_is_read(demo):
    for path in "/v1/messages", "/v1/messages/count_tokens":
        check_error(demo.server.get(path), 405, "invalid_request_error", "method")
        check_error(demo.server.post(path, b"{"), 400, "invalid_request_error")
        check_error(demo.server.request("POST", path, b"{}", {"Content-Type": "text/plain"}), 415,
                    "invalid_request_error", "JSON")
        check_error(demo.server.post(path, {"model": "other", "max_tokens": 1, "messages": ASKED}),
                    404, "not_found_error", "other")
        check_error(demo.server.post(path, b" " * (5 << 20)), 413, "request_too_large")
    assert "param" in demo.server.post("/v1/chat/completions", b"{").error
    assert "param" in demo.server.get("/v1/messages/batches").error


def test_errors_of_overload(serve, tmp_path):
    """Keys; a server that loads; one that is full."""
    keys = tmp_path / "keys"
    keys.write_text("sk-first-0123456789\n")
    keys.chmod(0o600)
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[-1].content }}")
    server = serve(checkpoint.DEMO, "--api-key-file", keys, "--max-num-seqs", 1,
                   "--max-num-queued-reqs", 1, "--served-model-name", "demo",
                   "--chat-template", template)
    body = {"messages": ASKED, "max_tokens": 200}
    check_error(server.post("/v1/messages", body), 401, "authentication_error", "X-Api-Key")
    check_error(server.post("/v1/messages/count_tokens", body), 401, "authentication_error")
    headers = {"x-api-key": "sk-first-0123456789", "anthropic-version": "2023-06-01",
               "anthropic-beta": "tools-2024-04-04", "Content-Type": "application/json"}

    def post(more):
        return server.request("POST", "/v1/messages", json.dumps({**body, **more}), headers)
    assert post({}).status == 200
    for key in {"api_key": "sk-first-0123456789"}, {"auth_token": "sk-first-0123456789"}:
        with anthropic.Anthropic(base_url=server.url, max_retries=0, **key) as client:
            assert client.messages.create(model="demo", messages=ASKED, max_tokens=1)
    with anthropic.Anthropic(base_url=server.url, api_key="wrong-key", max_retries=0) as client, \
            pytest.raises(anthropic.AuthenticationError):
        client.messages.create(model="demo", messages=ASKED, max_tokens=1)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        with server.halted():
            futures = [pool.submit(post, {"ignore_eos": True}) for _ in range(12)]
            full = next(concurrent.futures.as_completed(futures)).result()
        assert 200 in [future.result().status for future in futures]
    check_error(full, 429, "rate_limit_error")
    assert full.headers["retry-after"]


@pytest.mark.usefixtures("hanging_disk")
def test_while_loading(serve, synthetic, tmp_path):
    """Tokens are counted, and nothing is answered."""
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[-1].content }}")
    server = serve(synthetic, "-tp", 2, "--chat-template", template, "--port", free_port(),
                   wait=False)
    server.port = int(server.arguments[-1])
    ranks = eventually(server.ranks, 5, "the ranks")
    reply = server.post("/v1/messages", {"messages": ASKED, "max_tokens": 1})
    check_error(reply, 503, "overloaded_error", "loaded")
    assert server.post("/v1/messages/count_tokens", {"messages": ASKED}).json()["input_tokens"] > 0
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    server.wait(10)


@pytest.mark.sanitized
def test_error_in_a_stream(serve, synthetic, tmp_path):
    """A lost rank is an event that says so, and no end."""
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[-1].content }}")
    server = serve(synthetic, "-tp", 2, "--chat-template", template, "--max-group-restarts", 0)
    events = []
    with Speaker(server) as speaker, pytest.raises(anthropic.APIStatusError) as caught:
        for event in speaker.client.messages.create(
                model=os.path.basename(synthetic), messages=ASKED, stream=True, max_tokens=3000,
                extra_body={"ignore_eos": True}):
            events.append(event)
            if len(events) == 6:
                os.kill(server.ranks()[0], signal.SIGKILL)
    types.ErrorResponse.model_validate(caught.value.body, strict=True)
    assert caught.value.type == "overloaded_error" and "rank" in caught.value.api_message
    assert all(event.type == "content_block_delta" for event in events[2:])
    server.wait(10)


# ---- the server ----------------------------------------------------------------------------------


@pytest.mark.sanitized
def test_many_at_once(demo):
    def ask(i):
        request = demo.request([{"role": "user", "content": f"Once {i}"}], max_tokens=20)
        with demo.client.messages.stream(**request) as stream:
            return text(check_message(stream.get_final_message()))
    alone = [text(demo.answer([{"role": "user", "content": f"Once {i}"}], max_tokens=20))
             for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone


def test_a_stream_begins_at_once(demo):
    """Before there is a token, so that a client knows that it has been heard."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(demo.server.halted())
        events = iter(demo.answer(max_tokens=2, stream=True))
        assert next(events).type == "message_start"
        stack.close()
        assert [event.type for event in events][-1] == "message_stop"
