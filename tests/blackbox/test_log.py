"""The log as machines and people read it: valid lines, one per request, and nothing private."""

import json
import re
import socket

import pytest

import checkpoint
from harness import PATIENCE, eventually, listening, run

pytestmark = pytest.mark.sanitized

SECRET = "mustardseed"  # a word of a prompt


def lines(server):
    """The log's lines as objects; each must be one."""
    return [json.loads(line) for line in server.log.splitlines()]


def requests(server):
    return [line for line in lines(server) if line["message"] == "request"]


def test_json_lines(serve):
    server = serve(checkpoint.DEMO, "--log-format", "json", "--served-model-name", 'a"b\\c')
    answers = [server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 7,
                                               "ignore_eos": True, "n": 2}),
               server.post("/v1/completions", {"prompt": SECRET, "max_tokens": -1}),
               server.post("/v1/completions", b"{" + SECRET.encode())]
    assert [answer.status for answer in answers] == [200, 400, 400]
    told = eventually(lambda: len(found := requests(server)) == 3 and found, 5, "three lines")
    ids = [answer.headers["x-request-id"] for answer in answers]
    told.sort(key=lambda line: ids.index(line["id"]))  # lines follow answers, and may pass another
    usage = answers[0].json()["usage"]
    for line, answer in zip(told, answers):
        assert line["status"] == answer.status and line["level"] == "info"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert 0 < line["total_s"] < 60 * PATIENCE
    assert told[0]["prompt_tokens"] == usage["prompt_tokens"]
    assert told[0]["completion_tokens"] == usage["completion_tokens"] == 14
    assert 0 <= told[0]["queue_s"] <= told[0]["first_token_s"] <= told[0]["total_s"]
    for line in told[1:]:
        assert line["completion_tokens"] == 0 and "first_token_s" not in line
    assert server.stop() == 0
    assert all(set(line) >= {"time", "level", "message"} for line in lines(server))
    assert SECRET not in server.log


def test_text_lines(serve):
    server = serve(checkpoint.DEMO)
    reply = server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 3})
    line = eventually(lambda: re.search(r"info +request (.*)", server.log), 5, "the line")[1]
    told = dict(word.split("=") for word in line.split())
    assert told["id"] == reply.headers["x-request-id"] and told["status"] == "200"
    assert SECRET not in server.log


def test_levels(serve):
    server = serve(checkpoint.DEMO, "--log-level", "error", wait=False)
    (server.port,) = eventually(lambda: listening(server.pid), 10, "the port")
    eventually(lambda: server.get("/health").status == 200, 10, "ready")
    server.complete("Once", max_tokens=2)
    assert server.stop() == 0 and server.log == ""


def test_client_that_left(serve, synthetic):
    server = serve(synthetic, "--log-format", "json")
    body = b'{"prompt": [5, 6], "max_tokens": 3000, "ignore_eos": true}'
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: "
                       b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") == 1, 5, "running")
    (line,) = eventually(lambda: requests(server), 5, "the line")
    assert line["status"] == 499 and line["prompt_tokens"] == 2


def test_keys_are_not_logged(serve, tmp_path):
    """Neither a key that fits nor one that does not, in any format."""
    key = "sk-0123456789abcdef"
    keys = tmp_path / "keys"
    keys.write_text(key + "\n")
    keys.chmod(0o600)
    server = serve(checkpoint.DEMO, "--api-key-file", keys, "--log-format", "json",
                   "--log-level", "debug")
    for presented, status in ((SECRET, 401), (key, 200)):
        headers = {"Authorization": f"Bearer {presented}", "Content-Type": "application/json"}
        body = json.dumps({"prompt": SECRET, "max_tokens": 1}).encode()
        assert server.request("POST", "/v1/completions", body, headers).status == status
    assert server.stop() == 0
    assert requests(server) and SECRET not in server.log and key not in server.log


def test_failures_are_lines_too(tmp_path):
    done = run("serve", tmp_path / "nothing", "--log-format", "json")
    assert done.returncode == 3
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert told[-1]["level"] == "error" and str(tmp_path / "nothing") in told[-1]["message"]
