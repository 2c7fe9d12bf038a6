"""POST /v1/responses, with the official client: its types say what an answer and an event have to
be, its stream helper puts events together, and the same conversation over /v1/chat/completions says
what the model answers."""

import concurrent.futures
import json
import os
import signal
import typing

import jsonschema
import openai
import pydantic
import pytest
from openai.types import responses

import checkpoint
import test_harmony
import test_tools
from harness import eventually
from test_tools import ANY, IN_FORM, RAIN, RAIN_ONLY, SAID, TIDE, WEATHER, Parrot, write_calls

EVENT = pydantic.TypeAdapter(responses.ResponseStreamEvent)
# Whatever a conversation has makes a difference to its text.
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
            "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
            "{{ c.function.arguments | tojson }}]{% endfor %}"
            "{% if m.tool_call_id %}<{{ m.tool_call_id }}>{% endif %}{{ eos_token }}{% endfor %}"
            "{% if tools %}{{ tools | tojson }}{% endif %}"
            "{% if reasoning_effort %}{{ reasoning_effort }}{% endif %}Once upon a time")

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
            {"id": "call00001", "type": "function",
             "function": {"name": "rain", "arguments": '{"where": "here"}'}},
            {"id": "call00002", "type": "function",
             "function": {"name": "tide", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call00002", "content": "high"},
        {"role": "tool", "tool_call_id": "call00001", "content": "none\nat all"},
        {"role": "user", "content": "And then?\nWell?"}]
ITEMS = [{"role": "user", "content": [{"type": "input_text", "text": "Tell me."}]},
         {"type": "reasoning", "id": "rs_1", "summary": [],
          "content": [{"type": "reasoning_text", "text": "Hm."}]},
         {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
          "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
         {"type": "function_call", "call_id": "call00001", "name": "rain",
          "arguments": '{"where": "here"}'},
         {"type": "function_call", "call_id": "call00002", "name": "tide", "arguments": "{}"},
         {"type": "function_call_output", "call_id": "call00002", "output": "high"},
         {"type": "function_call_output", "call_id": "call00001",
          "output": [{"type": "input_text", "text": "none"},
                     {"type": "input_text", "text": "at all"}]},
         {"role": "user", "content": [{"type": "input_text", "text": "And then?"},
                                      {"type": "input_text", "text": "Well?"}]}]


class Demo:
    """The demo model behind a template."""

    def __init__(self, server):
        self.server = server
        self.client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def respond(self, input="Once upon a time", **fields):
        extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
        return self.client.responses.create(model="demo", input=input, extra_body=extra,
                                            **{"max_output_tokens": 12, "temperature": 0, **fields})

    def refused(self, **fields):
        reply = self.server.post("/v1/responses", {"input": "a", **fields})
        assert reply.status == 400, reply.body
        return reply.error


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    from conftest import shared
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    for server in shared(tmp_path_factory, checkpoint.DEMO, "-tp", 2, "--served-model-name",
                         "demo", "--chat-template", template):
        each = Demo(server)
        with each.client:
            yield each


def flat(function):
    """A tool, or the choice of one, of a chat as /v1/responses has it."""
    if not isinstance(function, dict):
        return function
    return {"type": "function", **function["function"]}


class Talker(Parrot):
    """What the test wants the model to say, over /v1/responses."""

    def request(self, *args, **more):
        fields = self.fields(*args, **more)
        fields["input"] = fields.pop("messages")
        if "tools" in fields:
            fields["tools"] = [flat(tool) for tool in fields["tools"]]
        if "tool_choice" in fields:
            fields["tool_choice"] = flat(fields["tool_choice"])
        if "response_format" in fields:
            schema = fields.pop("response_format")["json_schema"]
            fields["text"] = {"format": {"type": "json_schema", **schema}}
        return fields

    def respond(self, *args, **more):
        return self.client.responses.create(**self.request(*args, **more))

    def events(self, *args, **more):
        return list(self.client.responses.create(**self.request(*args, **more), stream=True))

    def both(self, *args, **more):
        """What came whole, and what the events say at the end, which has to be the same."""
        whole = self.respond(*args, **more)
        events = self.events(*args, **more)
        check_events(events)
        last = events[-1].response
        assert what(last) == what(whole)
        assert last.usage.total_tokens == whole.usage.total_tokens
        return whole, last


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    from conftest import shared
    model = test_tools.write_model(tmp_path_factory.mktemp("parrot"), "hermes")
    for server in shared(tmp_path_factory, model, "--served-model-name", "m", "-tp", 2):
        each = Talker(server)
        with each.client:
            yield each


@pytest.fixture(scope="module", params=test_tools.THOUGHTS)
def thinker(request, tmp_path_factory):
    from conftest import shared
    if request.param == "hermes":
        yield request.getfixturevalue("qwen")
        return
    model = test_tools.write_model(tmp_path_factory.mktemp("parrot"), request.param)
    for server in shared(tmp_path_factory, model, "--served-model-name", "m"):
        each = Talker(server)
        with each.client:
            yield each


@pytest.fixture(scope="module")
def harmony(tmp_path_factory):
    from conftest import shared
    model = test_harmony.write_model(tmp_path_factory.mktemp("harmony"))
    for server in shared(tmp_path_factory, model, "--served-model-name", "m", "-tp", 2):
        each = Talker(server)
        with each.client:
            yield each


def what(response):
    """All of the output but the names of its items."""
    return [item.to_dict() | {"id": None, "call_id": None} for item in response.output]


def kinds(response):
    return [item.type for item in response.output]


def thought(response):
    return "".join(part.text for item in response.output if item.type == "reasoning"
                   for part in item.content)


def check_response(response):
    """By the client's own types, which it does not hold answers to by itself."""
    responses.Response.model_validate(response.to_dict())
    assert response.id.startswith("resp_") and response.object == "response"
    prefixes = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
    ids = [item.id for item in response.output]
    assert len(set(ids)) == len(ids)
    assert all(item.id.startswith(prefixes[item.type]) for item in response.output)
    assert response.status in ("completed", "incomplete")
    assert (response.incomplete_details is None) == (response.status == "completed")
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    return response


def check_events(events):
    """Each is of its type; items open and close in order; what they say adds up."""
    for event in events:
        EVENT.validate_python(event.to_dict())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response." + events[-1].response.status
    assert all(e.response.status == "in_progress" and e.response.output == [] for e in events[:2])
    assert len({e.response.id for e in (*events[:2], events[-1])}) == 1
    last = check_response(events[-1].response)
    said = {}
    for event in events[2:-1]:
        said.setdefault(event.output_index, []).append(event)
    assert [e.output_index for e in events[2:-1]] == sorted(e.output_index for e in events[2:-1])
    assert list(said) == list(range(len(last.output)))
    for item, own in zip(last.output, said.values()):
        check_item(item, own)


def check_item(item, events):
    first, *middle, end = events
    assert (first.type, end.type) == ("response.output_item.added", "response.output_item.done")
    assert first.item.status == "in_progress" and first.item.id == item.id
    assert end.item.to_dict() == item.to_dict()
    assert {event.item_id for event in middle} == {item.id}
    if item.type == "function_call":
        assert first.item.arguments == "" and first.item.call_id == item.call_id
        deltas, done = middle[:-1], middle[-1]
        assert {d.type for d in deltas} == {"response.function_call_arguments.delta"}
        assert done.type == "response.function_call_arguments.done"
        assert "".join(d.delta for d in deltas) == done.arguments == item.arguments
        return
    (part,) = item.content
    name = {"message": "output_text", "reasoning": "reasoning_text"}[item.type]
    added, *deltas, done, closed = middle
    assert first.item.content == [] and added.part.text == ""
    assert (added.type, closed.type) == ("response.content_part.added",
                                         "response.content_part.done")
    assert {d.type for d in deltas} <= {f"response.{name}.delta"}
    assert done.type == f"response.{name}.done"
    assert "".join(d.delta for d in deltas) == done.text == part.text
    assert closed.part.to_dict() == part.to_dict()
    if item.type == "message":
        scored = [p.to_dict() for d in deltas for p in d.logprobs]
        assert scored == [p.to_dict() for p in done.logprobs] == \
            [p.to_dict() for p in part.logprobs]


# ---- the same as a chat --------------------------------------------------------------------------


@pytest.mark.sanitized
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}])
def test_equal_to_a_chat(demo, sampling):
    """One conversation, both ways: the same prompt, and the same tokens."""
    tools = [{"type": "function", "function": {"name": "rain", "description": "Does it?"}}]
    seed = {"seed": sampling["seed"]} if "seed" in sampling else {}
    chat = demo.client.chat.completions.create(
        model="demo", messages=TALK, tools=tools, tool_choice="none", max_tokens=30,
        reasoning_effort="low", extra_body={"ignore_eos": True}, **sampling)
    for more in {}, {"stream": True}:
        answer = demo.respond(ITEMS, instructions="Be brief.", tools=[flat(t) for t in tools],
                              tool_choice="none", max_output_tokens=30,
                              reasoning={"effort": "low"}, temperature=sampling["temperature"],
                              extra_body=seed, **more)
        if more:
            answer = list(answer)[-1].response
        assert answer.output_text == chat.choices[0].message.content
        assert answer.usage.input_tokens == chat.usage.prompt_tokens
        assert answer.usage.output_tokens == chat.usage.completion_tokens == 30


def test_text(demo):
    answer = check_response(demo.respond(instructions="Be the water."))
    assert answer.output_text and answer.model == "demo"
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert answer.usage.output_tokens == 12
    plain = demo.client.responses.create(model="demo", input="Once upon a time", temperature=0,
                                         extra_body={"stop": [" "], "min_tokens": 1})
    assert check_response(plain).status == plain.output[0].status == "completed"


def test_repeats_the_request(demo):
    tool = {"type": "function", "name": "rain", "description": "Does it?", "strict": True,
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
    answer = check_response(demo.respond(
        instructions="i", metadata={"k": "v"}, tools=[tool], tool_choice="none", top_p=0.7,
        temperature=0.3, parallel_tool_calls=False, reasoning={"effort": "low"}, store=True,
        truncation="disabled", text={"format": {"type": "text"}, "verbosity": "low"}, user="u"))
    got = answer.to_dict()
    assert got["tools"] == [tool] and got["metadata"] == {"k": "v"}
    assert (answer.instructions, answer.tool_choice, answer.top_p, answer.temperature) == \
        ("i", "none", 0.7, 0.3)
    assert answer.parallel_tool_calls is False and answer.reasoning.effort == "low"
    assert answer.max_output_tokens == 12 and answer.text.format.type == "text"
    assert got["store"] is False and got["background"] is False
    assert got["previous_response_id"] is None and got["error"] is None
    assert (answer.truncation, answer.user) == ("disabled", None)


def test_stream(demo):
    """Of a text there is an event for each token, and the client's own helper reads them."""
    whole = demo.respond()
    events = list(demo.respond(stream=True))
    check_events(events)
    assert sum(e.type == "response.output_text.delta" for e in events) == 12
    assert events[-1].response.output_text == whole.output_text
    with demo.client.responses.stream(model="demo", input="Once upon a time", temperature=0,
                                      extra_body={"stop": ["."]}) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text and final.status == "completed"


def test_frames(demo):
    """As they are on the wire: every event has its name, and nothing else comes."""
    with demo.client.responses.with_streaming_response.create(
            model="demo", input="Once", max_output_tokens=3, stream=True) as response:
        text = "".join(response.iter_text())
    frames = text.split("\n\n")
    assert frames.pop() == ""
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        data = json.loads(data.removeprefix("data: "))
        assert name == "event: " + data["type"] and data["sequence_number"] == number


def test_logprobs(demo):
    """Those of a chat, token by token."""
    include = ["message.output_text.logprobs"]
    chat = demo.client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Once upon a time"}], max_tokens=12,
        temperature=0, logprobs=True, top_logprobs=3, extra_body={"ignore_eos": True})
    answer = check_response(demo.respond(include=include, top_logprobs=3))
    part = answer.output[0].content[0]
    wanted = [p.to_dict() for p in chat.choices[0].logprobs.content]
    assert [p.to_dict() for p in part.logprobs] == wanted and len(wanted) == 12
    assert answer.top_logprobs == 3
    events = list(demo.respond(include=include, top_logprobs=3, stream=True))
    check_events(events)
    assert events[-1].response.output[0].to_dict()["content"] == \
        answer.output[0].to_dict()["content"]
    bare = demo.respond(include=include).output[0].content[0].logprobs
    assert [p.token for p in bare] == [p["token"] for p in wanted]
    assert not any(p.top_logprobs for p in bare)
    assert demo.respond().output[0].content[0].logprobs == []


def test_structured(demo):
    """A form that the client makes of a class, and reads again."""
    class Hero(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=8)
        kind: typing.Literal["fox", "owl"]

    answer = demo.client.responses.parse(model="demo", input="Once upon a time", text_format=Hero,
                                         max_output_tokens=100, temperature=0)
    assert isinstance(answer.output_parsed, Hero) and check_response(answer)
    answer = demo.client.responses.create(
        model="demo", input="Once", max_output_tokens=100, temperature=0,
        extra_body={"structured_outputs": {"choice": ["the fox", "an owl"]}})
    assert answer.output_text in ("the fox", "an owl")


# ---- items ---------------------------------------------------------------------------------------


def test_calls(qwen):
    for answer in qwen.both("hermes1", tools=ANY):
        message, *calls = check_response(answer).output
        assert (message.type, message.content[0].text) == ("message", "Let me see.")
        assert [(c.name, json.loads(c.arguments)) for c in calls] == \
            [(c["name"], c["arguments"]) for c in (RAIN, TIDE, RAIN)]
        ids = [c.call_id for c in calls]
        assert len(set(ids)) == 3 and all(len(i) == 9 and i.isalnum() for i in ids)
        assert answer.status == "completed"
    (call,) = qwen.respond("hermes1", tools=ANY, parallel_tool_calls=False).output[1:]
    assert call.name == "rain"
    assert qwen.respond("hermes1", tools=ANY, tool_choice="none").output_text == SAID["hermes1"]


@pytest.mark.parametrize("choice", ["required", RAIN_ONLY])
def test_a_call_that_has_to_be(qwen, choice):
    (form, _), = test_tools.FORMATS["hermes"].values()
    whole = write_calls((form, ""), [RAIN])
    begin = "".join(test_tools.BEGINS["hermes"][:1 if choice == "required" else 2])
    for answer in qwen.both(text=whole[len(begin):], begin=begin, tools=ANY, tool_choice=choice):
        (call,) = check_response(answer).output
        assert (call.name, json.loads(call.arguments)) == (RAIN["name"], RAIN["arguments"])
        assert answer.to_dict()["tool_choice"] == flat(choice)


def test_reasoning(thinker):
    for answer in thinker.both("thought"):
        assert kinds(check_response(answer)) == ["reasoning", "message"]
        assert (thought(answer), answer.output_text) == ("The sea,\n\nperhaps.", "It rains.\n")
        assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    for answer in thinker.both("thought_call", tools=ANY):
        assert kinds(answer) == ["reasoning", "message", "function_call"]
    for answer in thinker.both("open", think=True):
        assert (thought(answer), answer.output_text) == ("The sea.", "It rains.")
    for answer in thinker.both("only", max_output_tokens=12):
        assert kinds(answer) == ["reasoning"] and answer.output[0].status == "incomplete"
        assert answer.status == "incomplete"
    for answer in thinker.both("thought", extra_body={"include_reasoning": False}):
        assert kinds(answer) == ["message"]


def test_logprobs_of_a_message_only(qwen):
    """Not those of what was thought before it, or of calls behind it."""
    include = {"include": ["message.output_text.logprobs"]}
    for answer in qwen.both("thought", **include):
        scored = answer.output[1].content[0].logprobs
        assert len(scored) == answer.usage.output_tokens - \
            answer.usage.output_tokens_details.reasoning_tokens
        assert answer.output_text.strip() in "".join(p.token for p in scored)
    for answer in qwen.both("hermes1", tools=ANY, **include):
        said = "".join(p.token for p in answer.output[0].content[0].logprobs)
        assert said.rstrip("\n") == "Let me see."


def test_items_are_in_order(qwen):
    """Also where a stop string that is none in the end has held a call and more text back;
    no message has the log-probabilities of that call."""
    said = 'A\n<tool_call>\n{"name": "rain", "arguments": {"a": 1}}\n</tool_call>\nBcd ef'
    for stop in {}, {"extra_body": {"stop": ["}}\n</tool_call>\nBcd eX"]}}:
        for answer in qwen.both(text=said, tools=ANY, **stop,
                                include=["message.output_text.logprobs"]):
            first, call, last = check_response(answer).output
            assert (first.content[0].text, last.content[0].text) == ("A", "Bcd ef")
            assert json.loads(call.arguments) == {"a": 1}
            for message in first, last:
                assert "rain" not in "".join(p.token for p in message.content[0].logprobs)


def test_logprobs_of_harmony(harmony):
    """Neither headers nor thoughts are of a message, and no item begins with a line break."""
    for text in "preamble", "twice":
        tools = {"tools": ANY} if text == "preamble" else {}
        for answer in harmony.both(text, include=["message.output_text.logprobs"], **tools):
            for item in check_response(answer).output:
                if item.type != "function_call":
                    assert not item.content[0].text.startswith("\n")
                if item.type == "message":
                    said = "".join(p.token for p in item.content[0].logprobs)
                    assert item.content[0].text in said
                    assert not any(mark in said for mark in ("channel", "analysis", "The sea"))


def test_json_schema(qwen):
    for text in '{"sky": "grey", "wind": 7.25}', "It is grey.":
        for answer in qwen.both(text=text, **IN_FORM,
                                extra_body={"logit_bias": test_tools.no_thought(qwen)}):
            jsonschema.validate(json.loads(answer.output_text), WEATHER)


def test_a_limit_within_a_call(qwen):
    """What is cut off is no call, but text; a call before the limit is one."""
    for answer in qwen.both("hermes0", tools=ANY, max_output_tokens=12):
        assert kinds(answer) == ["message"] and answer.status == "incomplete"
        assert answer.output_text in SAID["hermes0"]


def test_turns(demo, qwen):
    """What came out goes back in, and is what a chat would have been given."""
    first = qwen.respond("thought_call", tools=ANY)
    call = first.output[-1]
    history = [*first.output, {"type": "function_call_output", "call_id": call.call_id,
                               "output": "low"}]
    items = [{"role": "user", "content": "x"},
             *(i if isinstance(i, dict) else i.to_dict() for i in history)]
    messages = [{"role": "user", "content": "x"},
                {"role": "assistant", "content": "Let me see.",
                 "reasoning_content": "I must look.",
                 "tool_calls": [{"id": call.call_id, "type": "function", "function": {
                     "name": "tide", "arguments": call.arguments}}]},
                {"role": "tool", "tool_call_id": call.call_id, "content": "low"}]
    chat = demo.client.chat.completions.create(model="demo", messages=messages, max_tokens=20,
                                               temperature=0, extra_body={"ignore_eos": True})
    again = check_response(demo.respond(items, max_output_tokens=20))
    assert again.output_text == chat.choices[0].message.content
    assert again.usage.input_tokens == chat.usage.prompt_tokens
    second = demo.respond([*items, *again.output, {"role": "user", "content": "more"}])
    chat = demo.client.chat.completions.create(
        model="demo", messages=[*messages, chat.choices[0].message,
                                {"role": "user", "content": "more"}],
        max_tokens=12, temperature=0, extra_body={"ignore_eos": True})
    assert second.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens == chat.usage.prompt_tokens


def test_text_behind_calls_goes_back(demo):
    """An answer that goes on behind its calls is one message, with their results behind it."""
    call = {"type": "function_call", "call_id": "1", "name": "rain",
            "arguments": '{"n": 0, "n": 1' + "0" * 30 + "}"}
    items = [{"role": "user", "content": "x"}, call, {"role": "assistant", "content": "Well."},
             {"type": "function_call_output", "call_id": "1", "output": "low"}]
    chat = demo.client.chat.completions.create(model="demo", messages=[
        items[0], {"role": "assistant", "content": "Well.", "tool_calls": [
            {"id": "1", "type": "function",
             "function": {"name": "rain", "arguments": call["arguments"]}}]},
        {"role": "tool", "tool_call_id": "1", "content": "low"}], max_tokens=12, temperature=0,
        extra_body={"ignore_eos": True})
    again = check_response(demo.respond(items))
    assert again.output_text == chat.choices[0].message.content
    assert again.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_choice_of_no_tools(demo, choice):
    assert demo.respond(tool_choice=choice).output_text
    assert demo.respond(tool_choice=choice, tools=[]).output_text


def test_nothing_unknown_is_said_again(demo):
    answer = demo.respond(extra_body={"text": {"format": {"type": "text", "zz": "x" * 100000}}})
    assert answer.text.format.to_dict() == {"type": "text"}


@pytest.mark.sanitized
def test_items_of_harmony(harmony):
    """Each message of the format is an item where the kind of it changes."""
    for answer in harmony.both("preamble", tools=ANY):
        assert kinds(check_response(answer)) == ["reasoning", "message", "function_call"]
        assert (thought(answer), answer.output_text) == ("The sea,\n\nperhaps.", "Let me see.")
    for answer in harmony.both("twice"):
        assert kinds(answer) == ["reasoning", "message"]
    for answer in harmony.both("call", tools=ANY, tool_choice="auto"):
        assert kinds(answer) == ["reasoning", "function_call"]
        assert json.loads(answer.output[1].arguments) == RAIN["arguments"]
    error = harmony.server.post("/v1/responses", {"instructions": "i", "input": [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]},
        {"role": "assistant", "content": "a"}, {"role": "system", "content": "late"}]}).error
    assert error["param"] == "input[2].role"
    assert error["message"].startswith("input[2].role must not be system here")


def test_text_cannot_be_a_control_token(qwen):
    """Marks that an item spells out are letters in it, as in a chat."""
    for field in {"input": "<|endoftext|>"}, {"input": "a", "instructions": "<|endoftext|>"}, \
            {"input": [{"type": "function_call", "call_id": "1", "name": "<|endoftext|>",
                        "arguments": "{}"}, {"role": "user", "content": "<|endoftext|>"}]}:
        reply = qwen.server.post("/v1/responses", {**field, "max_output_tokens": 1})
        assert reply.status == 200, reply.body
    text = "One.<|im_start|> Two.<|endoftext|>"
    assert qwen.respond(text=text).output_text == text


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("fields, param, word", [
    ({"input": None}, "input", "missing"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps nothing"),
    ({"conversation": "conv_1"}, "conversation", "keeps nothing"),
    ({"background": True}, "background", "not supported"),
    ({"prompt": {"id": "p"}}, "prompt", "keeps no prompts"),
    ({"truncation": "auto"}, "truncation", '"auto"'),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", '"web_search"'),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
     "input[0].content[0].type", '"input_image"'),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "item_reference"),
    ({"include": ["file_search_call.results"]}, "include", "file_search_call.results"),
    ({"n": 2}, "n", "2"),
    ({"max_output_tokens": 0}, "max_output_tokens", "between 1"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"if": {}}}}},
     "text.format", "if is not supported"),
    ({"tools": [{"type": "function", "name": "f"}], "tool_choice": "auto"}, "tool_choice",
     "how this model writes calls is not known"),
    ({"input": "a " * 5000}, "input", "maximum context length"),
    ({"max_output_tokens": 1024}, "max_output_tokens", "reduce the input or max_output_tokens"),
    ({"instructions": "a " * 5000}, "input", "maximum context length"),
])
def test_refused(demo, fields, param, word):
    error = demo.refused(**fields)
    assert error["param"] == param and word in error["message"], error
    with pytest.raises(openai.BadRequestError) as caught:
        demo.client.responses.create(model="demo", input="a", stream=True, extra_body=fields)
    assert caught.value.param == param


def test_another_model(demo):
    with pytest.raises(openai.NotFoundError):
        demo.client.responses.create(model="other", input="a")


def test_without_a_template(serve):
    server = serve(checkpoint.DEMO)
    reply = server.post("/v1/responses", {"input": "a"})
    assert reply.status == 400 and "no chat template" in reply.error["message"]
    assert reply.error["param"] == "input"


# ---- the server ----------------------------------------------------------------------------------


def test_counted_and_logged(demo):
    before = demo.server.metrics()
    demo.respond(max_output_tokens=5, extra_body={"ignore_eos": True})
    list(demo.respond(max_output_tokens=6, stream=True))
    after = demo.server.metrics()
    for name, count in ("vllm:generation_tokens_total", 11), ("vllm:request_success_total", 2):
        assert after.sum(name) - before.sum(name) == count
    eventually(lambda: "completion_tokens=6" in demo.server.log, what="the line of the request")


@pytest.mark.sanitized
def test_many_at_once(demo):
    alone = [demo.respond(f"Once {i}", max_output_tokens=20).output_text for i in range(6)]

    def ask(i):
        events = list(demo.respond(f"Once {i}", max_output_tokens=20, stream=True))
        check_events(events)
        return events[-1].response.output_text
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone


def test_a_stream_begins_at_once(demo):
    """Before there is a token, so that a client knows that it has been heard."""
    with demo.server.halted():
        events = iter(demo.respond(max_output_tokens=2, stream=True))
        first = [next(events).type, next(events).type]
    assert first == ["response.created", "response.in_progress"]
    assert [event.type for event in events][-1] == "response.incomplete"


@pytest.mark.sanitized
def test_early_exit_from_a_stream(demo):
    stream = demo.respond(max_output_tokens=900, stream=True)
    next(iter(stream))
    stream.close()
    eventually(lambda: demo.server.requests("running") == 0, what="the end of the work")
    assert demo.respond(max_output_tokens=2).output_text


def test_what_is_said_again_is_no_slow_reader(serve, tmp_path):
    """The first events and the last repeat the request: more than a reader may be behind."""
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[-1].content }}")
    server = serve(checkpoint.DEMO, "--chat-template", template, "--http-max-unsent-bytes", 4096,
                   "--served-model-name", "demo")
    demo = Demo(server)
    with demo.client:
        for size in 500, 1000, 3000, 100000:
            for _ in range(10):
                events = list(demo.respond(instructions="x" * size, max_output_tokens=4,
                                           metadata={"k": "v" * 512}, stream=True))
                check_events(events)


@pytest.mark.sanitized
def test_error_in_a_stream(serve, synthetic, tmp_path):
    """A lost rank is an event that says so, and no end."""
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages[-1].content }}")
    server = serve(synthetic, "-tp", 2, "--chat-template", template, "--max-group-restarts", 0)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    events = []
    with client, pytest.raises(openai.APIConnectionError):  # it is cut after the event
        for event in client.responses.create(input="Once", stream=True, max_output_tokens=3000,
                                             extra_body={"ignore_eos": True}):
            events.append(event)
            if len(events) == 6:
                os.kill(server.ranks()[0], signal.SIGKILL)
    assert events[-1].type == "error" and events[-1].code == "rank_lost"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    EVENT.validate_python(events[-1].to_dict())
    server.wait(10)
