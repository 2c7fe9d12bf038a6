"""Answers that have to be of a form, from a real server: they are, whatever is sampled; with the
same bits on any number of ranks, alone or among others, and through the loss of a rank."""

import concurrent.futures
import json
import pathlib
import re
import shutil

import jsonschema
import pytest

import checkpoint
from harness import eventually, is_sanitized
from test_recovery import answer, kill, lose_a_rank

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "born": {"type": "string", "format": "date"},
        "mood": {"anyOf": [{"enum": ["glad", "sad"]}, {"type": "null"}]},
        "pets": {"type": "array", "maxItems": 3, "items": {
            "type": "object",
            "properties": {"kind": {"enum": ["cat", "dog"]},
                           "weight": {"type": "number", "minimum": 0.5, "maximum": 80}},
            "required": ["kind", "weight"], "additionalProperties": False}}},
    "required": ["name", "age", "pets"], "additionalProperties": False}


def form(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {
        "name": "it", "schema": schema, "strict": True}}}


WORDS = {"structured_outputs": {"regex": "([a-z]{2,9} ){40}[a-z]{2,9}\\."}}
# what a sampler can do to a row, each with a form
REQUESTS = [
    {"prompt": "Once", "max_tokens": 400, "seed": 1, **form(PERSON)},
    {"prompt": "Once", "max_tokens": 400, "temperature": 0, "logprobs": 2, **form(PERSON)},
    {"prompt": "The", "max_tokens": 400, "seed": 2, "top_p": 0.8, "frequency_penalty": 0.7,
     "presence_penalty": 0.4, "repetition_penalty": 1.2, **form(PERSON)},
    {"prompt": "A", "max_tokens": 400, "seed": 3, "temperature": 1.8, "top_k": 40, "n": 3,
     "min_tokens": 20, **form(PERSON)},
    {"prompt": "One day", "max_tokens": 300, "seed": 4, "min_p": 0.02, **WORDS},
]
FREE = {"prompt": "Once upon a time", "max_tokens": 150, "seed": 5, "ignore_eos": True}


def check(requests, answers):
    for request, choices in zip(requests, answers):
        for choice in choices:
            assert choice["finish_reason"] == "stop", choice
            if "response_format" in request:
                jsonschema.validate(json.loads(choice["text"]), PERSON)
            else:
                assert re.fullmatch(WORDS["structured_outputs"]["regex"], choice["text"])


def choices_of(server, request):
    return server.complete(**request, return_token_ids=True)["choices"]


def test_same_bits_everywhere(serve):
    """On 1, 2 and 4 ranks, by both samplers, and beside others."""
    wanted = None
    for arguments in (("-tp", 1), ("-tp", 2, "--sampler", "distributed"), ("-tp", 4)):
        server = serve(checkpoint.DEMO, *arguments)
        alone = [choices_of(server, request) for request in [*REQUESTS, FREE]]
        check(REQUESTS, alone)
        wanted = wanted or alone
        assert alone == wanted
        with concurrent.futures.ThreadPoolExecutor(len(REQUESTS) + 1) as pool:
            assert list(pool.map(lambda r: choices_of(server, r), [*REQUESTS, FREE])) == wanted


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_rank_changes_nothing(serve, lost):
    server = serve(checkpoint.DEMO, "-tp", 2, "--max-model-len", 1024)
    long = {"prompt": "Once", "max_tokens": 900, "seed": 6, "ignore_eos": True,
            "structured_outputs": {"regex": "([a-z]{3,9} )*"}}
    requests = [long, *REQUESTS, {**long, "seed": 7, "frequency_penalty": 0.5}]
    wanted = [answer(server, request) for request in requests]
    assert lose_a_rank(server, requests, kill(lost)) == wanted
    assert server.metrics().sum("tessera:group_restarts_total") == 1


@pytest.mark.sanitized
def test_many_samples(demo):
    """Hot, so that nothing but the form holds them."""
    for seed in range(3 if is_sanitized() else 20):
        reply = demo.complete("Once", n=8, max_tokens=600, seed=seed, temperature=2, **form(PERSON))
        for choice in reply["choices"]:
            assert choice["finish_reason"] == "stop"
            jsonschema.validate(json.loads(choice["text"]), PERSON)


@pytest.mark.sanitized
def test_stream(demo):
    for request in REQUESTS[:3]:
        fields = {k: v for k, v in request.items() if k != "prompt"}
        whole = demo.complete(request["prompt"], **fields)
        stream = demo.stream(request["prompt"], **fields, stream_options={"include_usage": True})
        chunks = [chunk for _, chunk in stream]
        text = "".join(c["text"] for chunk in chunks for c in chunk["choices"])
        assert text == whole["choices"][0]["text"] and stream.done
        assert chunks[-1]["usage"] == {
            **whole["usage"], "prompt_tokens_details": chunks[-1]["usage"]["prompt_tokens_details"]
        }


def test_the_end(demo):
    """It is where nothing can follow: without a token more, and with one for the end where
    something could."""
    reply = demo.complete("Once", max_tokens=50, return_token_ids=True, logprobs=0,
                          structured_outputs={"choice": ["Yes", "No"]})
    choice = reply["choices"][0]
    assert choice["text"] in ("Yes", "No") and choice["finish_reason"] == "stop"
    tokens = choice["logprobs"]["tokens"]
    assert "".join(tokens) == choice["text"]
    assert len(choice["token_ids"]) == len(tokens) == reply["usage"]["completion_tokens"]
    for more in {}, {"ignore_eos": True}, {"stop": ["9"]}, {"min_tokens": 30}:
        choice = demo.complete("Once", max_tokens=30, seed=1, guided_regex="[0-9]+",
                               **more)["choices"][0]
        assert re.fullmatch("[0-8]*" if "stop" in more else "[0-9]+", choice["text"])
        ends = choice["finish_reason"] == "length"
        assert ends or (len(choice["text"]) < 30 and not {"ignore_eos", "min_tokens"} & set(more))
    # a limit is a limit
    choice = demo.complete("Once", max_tokens=3, **form(PERSON))["choices"][0]
    assert choice["finish_reason"] == "length"


def test_every_way_of_saying_it(demo):
    schema = {
        "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
        "additionalProperties": False
    }
    for fields in (form(schema), {"response_format": {"type": "json_object", "schema": schema}
                                  }, {"structured_outputs": {"json": schema}},
                   {"guided_json": schema}, {"structured_outputs": {"json": json.dumps(schema)}
                                             }, {"guided_json": json.dumps(schema)}):
        text = demo.complete("Once", max_tokens=40, seed=3, **fields)["choices"][0]["text"]
        jsonschema.validate(json.loads(text), schema)
    for fields in ({"guided_choice": ["b"]}, {"structured_outputs": {"regex": "b"}}):
        assert demo.complete("Once", **fields)["choices"][0]["text"] == "b"
    for fields in {"structured_outputs": {"json_object": True}
                   }, {"response_format": {"type": "json_object"}}:
        assert demo.complete("Once", max_tokens=5, **fields)["choices"][0]["text"].startswith("{")
    for fields in ({"response_format": {"type": "text"}
                    }, {"response_format": None}, {"structured_outputs": {}}, {"guided_json": None},
                   {"structured_outputs": {"json_object": False, "json": None}}):
        assert demo.complete("Once upon a time", max_tokens=8, temperature=0, **fields)["choices"] \
            == demo.complete("Once upon a time", max_tokens=8, temperature=0)["choices"]


@pytest.mark.parametrize("fields, param, words", [
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema is required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}
      }, "response_format", "schema is required"),
    ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}
      }, "response_format", "its type is not json_schema"),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    ({"response_format": {}}, "response_format", "missing"),
    (form({"type": "object", "properties": {"a": {"type": "int"}}
           }), "response_format", "schema at #/properties/a: type must be"),
    (form({"type": "string", "format": "password"}), "response_format",
     "schema at #: format password is not supported"),
    (form({"type": "string", "format": "datetime"}), "response_format",
     "format datetime is not supported; did you mean date-time?"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs", "structured_outputs"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "a ( without its )"),
    ({"structured_outputs": {"regex": "x" * 4097}}, "structured_outputs", "4096"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "1 to 1024"),
    ({"structured_outputs": {"choice": "a"}}, "structured_outputs", "array"),
    ({"structured_outputs": {"grammar": "root ::= a"}}, "structured_outputs", "not supported"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "cannot both"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}
      }, "guided_regex", "cannot both"),
    ({"guided_regex": "", "max_tokens": 2}, "guided_regex", "1 to 4096"),
    ({"guided_json": {"enum": ["x" * 300000]}}, "guided_json", "too large"),
    ({"guided_regex": "(a|b)*a(a|b){20}c" * 3}, None, None),
])
def test_refused(demo, fields, param, words):
    reply = demo.post("/v1/completions", {"prompt": "Once", "max_tokens": 4, **fields})
    if param is None:  # hard, but it ends
        assert reply.status in (200, 400, 500)
        return
    assert (reply.status, reply.error["param"]) == (400, param), reply.body
    assert words in reply.error["message"]


@pytest.mark.parametrize("fields", [
    {"guided_regex": "\u00f9\u00bb", "bad_words": ["\u00f9\u00bb"]},
    {"guided_choice": ["\u4e2d"], "bad_words": ["\u4e2d"], "n": 3},
    {"guided_regex": "[0-9]{4}\u00f9+", "bad_words": ["\u00f9"], "temperature": 0},
])
def test_nothing_left(demo, fields):
    """A form of which the same request forbids every token is no fault of the server."""
    for seed in range(3):
        body = {"prompt": "Once", "max_tokens": 20, "seed": seed, **fields}
        reply = demo.post("/v1/completions", body)
        assert (reply.status, reply.error["code"]) == (400, "no_token_left"), reply.body
        assert reply.error["type"] == "invalid_request_error"
        *_, (_, last) = demo.stream("Once", **{k: v for k, v in body.items() if k != "prompt"})
        assert last["error"]["code"] == "no_token_left"
    assert demo.complete("Once", max_tokens=1)["choices"]


def test_nothing_left_by_the_model(serve, tmp_path):
    """Where the form leaves tokens and the model has no numbers for them, the model is to blame."""
    model = tmp_path / "model"
    shutil.copytree(checkpoint.DEMO, model)
    checkpoint.fill_tensor(model / "model.safetensors", "model.norm.weight", b"\xc0\x7f")
    server = serve(model)
    for fields in {"bad_words": ["1"]}, {"min_tokens": 3}, {}:
        reply = server.post("/v1/completions",
                            {"prompt": "Once", "guided_regex": "[0-9]+", **fields})
        assert (reply.status, reply.error["code"]) == (500, "not_finite"), reply.body


def test_needs_a_tokenizer(serve):
    server = serve(checkpoint.DEMO, "--skip-tokenizer-init")
    reply = server.post("/v1/completions", {"prompt": [1, 2], **form(PERSON)})
    assert reply.status == 400 and "came without a tokenizer" in reply.error["message"]


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB",
                         pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10


def test_what_is_kept_is_bounded(serve):
    """Many different forms after one another, then more at once than may be kept."""
    server = serve(checkpoint.DEMO, "--max-num-seqs", 8)
    ask = lambda i: server.post(
        "/v1/completions",
        {  # noqa: E731
            "prompt": "Once", "max_tokens": 2, "guided_regex": f"{i:05d}[a-z]*"
        })
    for i in range(300):
        assert ask(i).status == 200
    before = resident(server.pid)
    for i in range(300, 900):
        assert ask(i).status == 200
    if not is_sanitized():
        assert resident(server.pid) - before < 16 << 20
    with concurrent.futures.ThreadPoolExecutor(80) as pool:
        with server.halted():
            futures = [pool.submit(ask, i) for i in range(80)]
            eventually(lambda: sum(f.done() for f in futures) == 16, what="refusals")
        replies = [f.result() for f in futures]
    refused = [r for r in replies if r.status != 200]
    assert len(refused) == 16 and {r.status for r in refused} == {429}
    assert "different structures are in use" in refused[0].error["message"]
    assert ask(5000).status == 200


def test_reasoning_that_no_token_ends(serve, tmp_path):
    """The form begins with the answer, which is no reasoning then, though the prompt begins it."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
    (tmp_path / "template").write_text(template)
    server = serve(checkpoint.DEMO, "--chat-template", tmp_path / "template",
                   "--reasoning-parser", "think")
    message = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, **form(PERSON)}
    ).json()["choices"][0]["message"]
    jsonschema.validate(json.loads(message["content"]), PERSON)
    assert not message.get("reasoning")
