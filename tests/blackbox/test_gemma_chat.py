"""Conversations in the form of Gemma 4's templates: what the server makes of messages, tools and
`enable_thinking` is what transformers' environment makes of them."""

import json
import sys

import pytest

import checkpoint
from conftest import Starter
from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/oracle"))
import jinja_reference  # noqa: E402  (lives in the folder just added)

TEMPLATE = ROOT / "tests/corpus/chat_templates/gemma4.jinja"


def tool(name, **properties):
    return {"type": "function", "function": {
        "name": name, "description": f"Tells <the> {name}", "parameters": {
            "type": "object", "properties": properties, "required": list(properties)[:1]}}}


TOOLS = [
    tool("rain", where={"type": "string", "description": "A \"place\"", "enum": ["a", "b"]},
         days={"type": ["integer", "null"]}),
    tool("tide", at={"type": "object", "properties": {"moon": {"type": "boolean"}}})]
ARGUMENTS = {"where": "São Tomé \"north\" {<|turn>}", "days": 2, "f": 1.5, "on": True,
             "no": None, "l": [1, ["b"], {"k": False}], "o": {"Z": "z", "a": {}}}


def call(name, arguments, key):
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


ASK, MORE = {"role": "user", "content": " Is it? \n"}, {"role": "user", "content": "And then?"}
SYSTEM = {"role": "system", "content": "Be brief. <turn|>"}
CALLS = {"role": "assistant", "content": None, "reasoning_content": "I must look.",
         "tool_calls": [call("rain", ARGUMENTS, "a"), call("tide", {}, "b")]}
TOLD = [{"role": "tool", "tool_call_id": "b", "content": "high"},
        {"role": "tool", "tool_call_id": "a", "content": "{\"mm\": 3}"}]
SAYS = {"role": "assistant", "content": "It <|channel>thought\nHm.<channel|>rains."}
CHATS = {
    "plain": [ASK],
    "system": [SYSTEM, ASK],
    "developer": [{**SYSTEM, "role": "developer"}, ASK],
    "turns": [SYSTEM, ASK, SAYS, MORE],
    "thoughts": [ASK, {**SAYS, "reasoning_content": "Hm."}, MORE],
    "calls": [ASK, CALLS],
    "told": [SYSTEM, ASK, CALLS, *TOLD],
    "told with words": [ASK, {**CALLS, "content": "Let me see."}, *TOLD],
    "twice": [ASK, CALLS, *TOLD, {**CALLS, "reasoning_content": "Again."}, *TOLD[::-1]],
    "answered": [ASK, CALLS, *TOLD, SAYS, MORE],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    starter = Starter(tmp_path_factory.mktemp("template"))
    yield starter(checkpoint.DEMO, "-tp", 1, "--chat-template", TEMPLATE,
                  "--served-model-name", "m")
    starter.close()


def sent(message):
    """As clients send it: arguments are a text."""
    calls = [{**c, "function": {**c["function"], "arguments": json.dumps(
        c["function"]["arguments"])}} for c in message.get("tool_calls", [])]
    return {**message, **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
def test_prompts(server, chat, tools):
    def ids(**request):
        reply = server.post("/tokenize", {"add_special_tokens": False, **request})
        assert reply.status == 200, reply.json()
        return reply.json()["tokens"]

    template = TEMPLATE.read_text(encoding="utf-8")
    seen = set()
    for think in None, False, True:
        for prompt in False, True:
            fields = {"messages": CHATS[chat], "add_generation_prompt": prompt, "bos_token": "<s>",
                      **({"tools": tools} if tools else {}),
                      **({"enable_thinking": think} if think is not None else {})}
            text = jinja_reference.render(template, fields)
            kwargs = {} if think is None else {"enable_thinking": think}
            request = {"messages": [sent(m) for m in CHATS[chat]],
                       "add_generation_prompt": prompt, "chat_template_kwargs": kwargs,
                       **({"tools": tools} if tools else {})}
            assert ids(**request) == ids(prompt=text), (think, prompt, text)
            seen.add(text)
    assert len(seen) >= (2 if chat == "calls" else 3)


def test_form(server):
    """The template shows how the model writes calls and thoughts."""
    assert "calls of tools: gemma4; reasoning: <|channel>" in server.log
