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
        assert line["finish"] == "error"
    assert [line["error"] for line in told[1:]] == ["invalid_request_error", "invalid_json"]
    assert "error" not in told[0] and told[0]["finish"] == "length"
    assert told[1]["param"] == "max_tokens" and "param" not in told[2]
    for line in told:
        assert line["path"] == "/v1/completions" and line["client"] == "127.0.0.1"
    assert server.stop() == 0
    assert all(set(line) >= {"time", "level", "message"} for line in lines(server))
    assert SECRET not in server.log


def test_text_lines(serve):
    server = serve(checkpoint.DEMO)
    reply = server.post("/v1/completions", {"prompt": SECRET, "max_tokens": 3})
    line = eventually(lambda: re.search(r"info +request (.*)", server.log), 5, "the line")[1]
    told = dict(word.split("=") for word in line.split())
    assert told["id"] == reply.headers["x-request-id"] and told["status"] == "200"
    assert told["path"] == "/v1/completions" and told["client"] == "127.0.0.1"
    assert told["finish"] in ("length", "stop") and "error" not in told
    assert SECRET not in server.log
    date = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (info|warning) "
    assert all(re.match(date, line) for line in server.log.splitlines())  # it is a file


def test_names_of_members_are_not_logged(serve):
    """The field at fault is told, but not a word that is the client's own."""
    server = serve(checkpoint.DEMO, "--log-format", "json", "--log-level", "debug")
    huge = b'{"prompt": "Once", "%s": 99999999999999999999}' % SECRET.encode()
    assert server.post("/v1/completions", huge).error["param"] == SECRET
    (line,) = eventually(lambda: requests(server), 5, "the line")
    assert line["status"] == 400 and "param" not in line
    assert SECRET not in server.log


def test_what_the_drain_cuts(serve, synthetic):
    """A stream that has begun has its status: the line says what became of it."""
    server = serve(synthetic, "--drain-timeout", 0.2, "--log-format", "json")
    events = iter(server.stream([5, 6], max_tokens=3000, ignore_eos=True))
    next(events)
    assert server.stop() == 0
    events.close()
    (line,) = requests(server)
    assert line["status"] == 200 and line["error"] == "draining" and line["finish"] == "error"


SMALL = [  # what is sent; status, code and path that are told
    ("GET /v1/models HTTP/1.1", 200, None, "/v1/models"),
    ("GET /nowhere HTTP/1.1", 404, "not_found", "/nowhere"),
    ("GET /a%0d%0Ab%20status=200%22?key=" + SECRET + " HTTP/1.1", 404, "not_found",
     "/a%0D%0Ab%20status%3D200%22"),
    ("GET /" + 500 * "x" + " HTTP/1.1", 404, "not_found", "/" + 127 * "x" + "..."),
    ("GET /v1/completions HTTP/1.1", 405, "method_not_allowed", "/v1/completions"),
    ("POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 0", 415,
     "not_json", "/v1/completions"),
    ("POST /v1/completions HTTP/1.1\r\nContent-Length: 999999999", 413, "body_too_large",
     "/v1/completions"),
    ("POST /v1/completions HTTP/1.1\r\nContent-Length: x", 400, "malformed_request",
     "/v1/completions"),
    ("GET /" + SECRET + " HTTP/7", None, None, None),  # malformed: of no known path
    ("GET /v1/models HTTP/1.1\r\nHost: evil.example", 421, "misdirected_request", "/v1/models"),
]


def ask(port, head):
    host = "" if "Host:" in head else "\r\nHost: a"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"{head}{host}\r\nConnection: close\r\n\r\n".encode())
        client.settimeout(10 * PATIENCE)
        return int(client.recv(4096).split()[1])


def test_small_answers(serve):
    """One line each at debug level, which nobody's text can forge."""
    server = serve(checkpoint.DEMO, "--log-format", "json", "--log-level", "debug")
    before = len(lines(server))
    for head, status, code, path in SMALL:
        got = ask(server.port, head)
        assert status in (got, None), head
        def lines_of(wanted=got):
            return [line for line in lines(server)[before:] if line["message"] == "answer"
                    and line["status"] == wanted]
        found = eventually(lines_of, 5, "the line")[-1]
        before = len(lines(server))
        assert found["level"] == "debug" and found["client"] == "127.0.0.1"
        assert found.get("path") == path, head
        assert status is None or found.get("error") == code, head
    assert SECRET not in server.log and not requests(server)


def test_small_answers_are_not_info(serve):
    server = serve(checkpoint.DEMO)
    before = server.log
    for head, *_ in SMALL:
        ask(server.port, head)
    assert server.log == before


def test_full_queue(serve, synthetic):
    """What finds the engine full is a small answer, too."""
    server = serve(synthetic, "--max-num-queued-reqs", 1, "--max-num-seqs", 1, "--log-format",
                   "json", "--log-level", "debug")
    body = {"prompt": [5, 6], "max_tokens": 3000, "ignore_eos": True}
    streams = []
    for state in ("running", "waiting"):
        streams.append(server.stream(body["prompt"], max_tokens=3000, ignore_eos=True))
        eventually(lambda name=state: server.requests(name) == 1)
    assert server.post("/v1/completions", body).status == 429
    found = eventually(lambda: [line for line in lines(server) if line.get("status") == 429], 5,
                       "the line")
    for stream in streams:
        stream.connection.close()
    assert [(line["message"], line["path"], line["error"]) for line in found] == [
        ("answer", "/v1/completions", "queue_full")]


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
    assert line["finish"] == "abort" and "error" not in line


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
        assert server.get(f"/v1/models?key={presented}").status == 401
    refused = [line for line in lines(server) if line.get("status") == 401]
    assert {line["error"] for line in refused} == {"invalid_api_key"} and len(refused) == 3
    assert server.stop() == 0
    assert requests(server) and SECRET not in server.log and key not in server.log


def test_failures_are_lines_too(tmp_path):
    done = run("serve", tmp_path / "nothing", "--log-format", "json")
    assert done.returncode == 3
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert told[-1]["level"] == "error" and str(tmp_path / "nothing") in told[-1]["message"]
