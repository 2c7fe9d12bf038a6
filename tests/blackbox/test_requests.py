"""Requests at and beyond their limits: the answer names field, value and limit; the next works."""

import concurrent.futures
import http.client
import json
import time

import pytest

from harness import PATIENCE, eventually

pytestmark = pytest.mark.sanitized

GOOD = {"prompt": "Once upon a time", "max_tokens": 2}
BODY_BYTES_MAX = 4 << 20


def check_still_serves(server):
    assert server.post("/v1/completions", GOOD).status == 200


def refused(server, body, status=400):
    """The error object of a request that must be refused."""
    reply = server.post("/v1/completions", body)
    assert reply.status == status, reply.body
    assert reply.headers["content-type"].startswith("application/json")
    check_still_serves(server)
    return reply.error


@pytest.mark.parametrize("field, value, limit", [
    ("temperature", -0.1, "0"), ("temperature", 2.1, "2"), ("temperature", "hot", "number"),
    ("top_p", 0, "0"), ("top_p", 1.5, "1"), ("top_k", -2, "-1"), ("min_p", 1.1, "1"),
    ("n", 0, "1"), ("n", 129, "128"), ("n", 1.5, "whole"), ("max_tokens", -1, "0"),
    ("max_tokens", "many", "whole"), ("max_tokens", 2**63, ""), ("stream", "yes", "bool"),
    ("seed", "x", "whole"), ("stop", [str(i) for i in range(17)], "16"), ("stop", 5, "string"),
    ("logit_bias", [], "object"), ("ignore_eos", 1, "bool"), ("return_token_ids", "no", "bool"),
])
def test_field_out_of_range(demo, field, value, limit):
    error = refused(demo, {**GOOD, field: value})
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert field in error["message"]
    assert limit in error["message"]
    if isinstance(value, (int, float)) and abs(value) < 1000:
        assert str(value) in error["message"]


@pytest.mark.parametrize("prompt", [
    None, "", [], [[]], [-1], [2048], [1.5], ["a", 1], [1, "a"], {"a": 1}, 7, [2**40], [[1], "a"],
    ["a"] * 1025])
def test_bad_prompt(demo, prompt):
    error = refused(demo, {**GOOD, "prompt": prompt})
    assert error["param"] == "prompt"


def test_missing_prompt(demo):
    assert refused(demo, {"max_tokens": 2})["param"] == "prompt"


@pytest.mark.parametrize("prompt, choices", [
    ("one", 1), (["one"], 1), (["one", "two"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)])
def test_every_form_of_prompt(demo, prompt, choices):
    answer = demo.complete(prompt, max_tokens=3, temperature=0, ignore_eos=True)
    assert [choice["index"] for choice in answer["choices"]] == list(range(choices))
    assert answer["usage"]["completion_tokens"] == 3 * choices


def test_many_at_once(demo):
    """More than run together wait for their turn; each draws for itself, the same ones again."""
    fields = dict(max_tokens=6, temperature=2, seed=5, ignore_eos=True, return_token_ids=True)
    drawn = demo.complete("The", n=128, **fields)["choices"]
    assert [choice["index"] for choice in drawn] == list(range(128))
    assert len({tuple(choice["token_ids"]) for choice in drawn}) > 20
    assert demo.complete("The", n=128, **fields)["choices"] == drawn
    prompts = [[5 + i % 7, 300 + i] for i in range(200)]
    answers = demo.complete(prompts, **{**fields, "temperature": 0})["choices"]
    for i in (0, 77, 199):
        alone = demo.complete(prompts[i], **{**fields, "temperature": 0})["choices"][0]
        assert answers[i]["token_ids"] == alone["token_ids"]


def test_null_means_absent(demo):
    names = ["temperature", "top_p", "n", "stop", "seed", "stream", "suffix", "logprobs", "user",
             "stream_options", "logit_bias", "best_of", "echo", "presence_penalty"]
    demo.complete("Once", max_tokens=2, **dict.fromkeys(names))


def test_unknown_fields_are_ignored(demo):
    demo.complete("Once", max_tokens=2, frobnicate={"a": [1, 2]})


def test_defaults(demo):
    answer = demo.complete("Once upon a time", ignore_eos=True)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "demo"
    assert answer["id"].startswith("cmpl-")
    assert isinstance(answer["created"], int)
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_overlong_prompt(demo):
    error = refused(demo, {"prompt": [5] * 1020, "max_tokens": 100})
    assert error["message"].startswith("This model's maximum context length is 1024 tokens.")
    assert "1120" in error["message"]
    assert error["code"] == "context_length_exceeded"


def test_whole_context(demo):
    answer = demo.complete([5] * 1000, max_tokens=24, ignore_eos=True, temperature=0)
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 1000, "completion_tokens": 24,
                               "total_tokens": 1024}


def test_whole_context_scored(demo):
    """Without an answer the prompt may fill the context; one more is refused."""
    fields = {"max_tokens": 0, "echo": True, "logprobs": 0}
    answer = demo.complete([5] * 1024, **fields)
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 1024
    assert refused(demo, {"prompt": [5] * 1025, **fields})["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [
    b"", b"{", b"null", b"[]", b'{"prompt": "a"} x', b'{"prompt": "\xff"}', b"\0", b'{"a": 1e999}',
    b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "\\ud800"}', b"[" * 100000,
    b'{"prompt": [' + b"1," * 300000 + b"1]}"])
def test_not_the_json_we_want(demo, body):
    assert refused(demo, body)["type"] == "invalid_request_error"


def test_body_over_the_limit(demo):
    refused(demo, b'{"prompt": "' + b"a" * BODY_BYTES_MAX + b'"}', 413)


@pytest.mark.parametrize("kind, status", [
    ("application/json", 200), ("Application/JSON ; charset=utf-8", 200), (None, 200),
    ("application/vnd.api+json", 200), ("text/plain", 415), ("multipart/form-data", 415),
    ("application/x-www-form-urlencoded", 415), ("application/jsonx", 415), ("", 415)])
def test_content_type(demo, kind, status):
    """What a page of another site may send without asking first is not taken."""
    headers = {} if kind is None else {"Content-Type": kind}
    for path in ("/v1/completions", "/tokenize"):
        reply = demo.request("POST", path, json.dumps(GOOD).encode(), headers)
        assert reply.status == status
        if status == 415:
            assert reply.error["code"] == "not_json"
            assert "application/json" in reply.error["message"]
        reply = demo.request("POST", path, json.dumps(GOOD).encode(),
                             {**headers, "Origin": "https://a.example"})
        assert reply.status == (415 if kind is None else status)
    check_still_serves(demo)


def test_unknown_model(demo):
    error = refused(demo, {**GOOD, "model": "other"}, 404)
    assert error["code"] == "model_not_found"
    assert "other" in error["message"] and "demo" in error["message"]


@pytest.mark.parametrize("method, path, status", [
    ("GET", "/v1/completions", 405), ("DELETE", "/v1/models", 405), ("GET", "/nothing", 404),
    ("POST", "/v1/nothing", 404)])
def test_wrong_method_or_path(demo, method, path, status):
    reply = demo.request(method, path)
    assert reply.status == status
    assert reply.error["message"]
    if status == 405:
        assert reply.headers["allow"]
    check_still_serves(demo)


def test_read_only_routes(demo):
    for path in ("/health", "/livez", "/readyz"):
        assert demo.get(path).status == 200, path
    models = demo.get("/v1/models").json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == "demo"
    assert models["data"][0]["max_model_len"] == 1024
    assert demo.get("/version").json()["version"]
    assert demo.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_errors_name_nothing_of_the_machine(demo):
    for body in ({**GOOD, "temperature": 9}, b"{", {**GOOD, "model": "../../etc/passwd9"}):
        text = demo.post("/v1/completions", body).body.decode()
        for secret in ("/home/", "/root", "0x", "memfd", ".c:"):
            assert secret not in text


def test_full_queue(serve, synthetic):
    """More requests than places: some wait, the others are told to come back."""
    server = serve(synthetic, "-tp", 2, "--max-num-seqs", 1, "--max-num-queued-reqs", 2)
    body = {"prompt": [5, 6, 7], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        with server.halted():
            asked = [pool.submit(server.post, "/v1/completions", body) for _ in range(12)]
            eventually(lambda: sum(reply.done() for reply in asked) >= 6, what="refusals")
        replies = [reply.result() for reply in asked]
    statuses = [reply.status for reply in replies]
    assert set(statuses) == {200, 429}
    assert 2 <= statuses.count(200) <= 6
    refused_reply = replies[statuses.index(429)]
    assert refused_reply.error["code"] == "queue_full"
    assert int(refused_reply.headers["retry-after"]) >= 1
    check = server.post("/v1/completions", {**body, "max_tokens": 2})
    assert check.status == 200


def test_retry_after_is_what_others_waited(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--max-num-seqs", 1, "--max-num-queued-reqs", 1)
    short = {"prompt": [5, 6, 7], "max_tokens": 1}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        def fill():
            replies = [pool.submit(server.post, "/v1/completions", short) for _ in range(2)]
            eventually(lambda: server.requests("running") == server.requests("waiting") == 1)
            return replies, int(server.post("/v1/completions", b"").headers["retry-after"])
        least = most = 1
        for _ in range(2):
            begin = time.monotonic()
            with server.halted():
                replies, told = fill()
                assert least <= told <= most
                time.sleep(2.2)
            assert all(reply.result().status == 200 for reply in replies)
            least, most = 3, time.monotonic() - begin + 2


@pytest.mark.parametrize("head", [
    "Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: xchunked", "Content-Length: five", "Content-Length: -5"])
def test_ambiguous_framing(demo, head):
    """A body whose length is in doubt is refused, and the connection is closed."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=5 * PATIENCE)
    connection.connect()
    connection.sock.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n"
                            "5\r\nhello\r\n0\r\n\r\n".encode())
    answer = b""
    while part := connection.sock.recv(65536):
        answer += part
    assert answer.split(b" ", 2)[1] in (b"400", b"501"), answer
    connection.close()
    check_still_serves(demo)


def test_many_connections(demo):
    """Keep-alive connections that do nothing stop nobody."""
    idle = [http.client.HTTPConnection("127.0.0.1", demo.port) for _ in range(100)]
    for connection in idle:
        connection.connect()
    check_still_serves(demo)
    for connection in idle:
        connection.close()


def test_body_in_pieces(demo):
    """A chunked upload of one byte per chunk."""
    body = json.dumps(GOOD).encode()
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=10 * PATIENCE)
    connection.request("POST", "/v1/completions", (bytes([byte]) for byte in body),
                       {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
