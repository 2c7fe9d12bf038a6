"""`tessera batch`: a line of the output for each request of the input, the same as over HTTP."""

import http.server
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time

import pytest

import checkpoint
import harness
from conftest import shared

pytestmark = pytest.mark.sanitized

COMMAND = harness.Command("batch")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
# Names, times, and what of a prompt was in the cache.
CHANGING = {"id", "created", "created_at", "completed_at", "prompt_tokens_details",
            "input_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens"}
ANSWER = json.dumps({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}).encode()


class Peer(http.server.ThreadingHTTPServer):
    """A server by a script: script(number) -> (status, fields, bytes), or None: hangs up."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.lock, self.asked, self.keys = script, threading.Lock(), [], set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}).start()

    def handle_error(self, *_):
        """A client that has left is part of the tests."""

    def names(self):
        return [body["prompt"] for body, _ in self.asked]


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(200, {}, b'{"data": [{"id": "scripted"}]}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append((body, time.monotonic()))
            self.server.keys.add(self.headers["Authorization"])
        answer = self.server.script(number)
        if answer:
            self.answer(*answer)

    def answer(self, status, fields, body):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **fields}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def peer():
    peers = []

    def start(script=lambda _: (200, {}, ANSWER)):
        peers.append(Peer(script))
        return peers[-1]
    yield start
    for each in peers:
        each.shutdown()
        each.server_close()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A server of texts with all its routes."""
    template = tmp_path_factory.mktemp("template") / "template"
    template.write_text(TEMPLATE)
    yield from shared(tmp_path_factory, checkpoint.DEMO, "--chat-template", template,
                      "--served-model-name", "demo")


class Files:
    def __init__(self, directory):
        self.input, self.output = directory / "in.jsonl", directory / "out.jsonl"
        self.words = ("-i", self.input, "-o", self.output)

    def write(self, *lines):
        """Requests as objects, anything else as it is."""
        with open(self.input, "wb") as file:
            for line in lines:
                file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")

    def results(self):
        text = self.output.read_bytes()
        assert not text or text.endswith(b"\n")
        found = [json.loads(line) for line in text.splitlines()]
        assert all(set(one) == {"id", "custom_id", "response", "error"} for one in found)
        assert len({one["id"] for one in found}) == len(found)
        return found

    def by_name(self):
        found = self.results()
        assert len({one["custom_id"] for one in found}) == len(found)
        return {one["custom_id"]: one for one in found}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def request(name, url="/v1/completions", **body):
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def prompts(count):
    return [request(f"r{i}", prompt=f"r{i}") for i in range(count)]


def lasting(document):
    """Without what is another one each time."""
    if isinstance(document, dict):
        return {key: lasting(value) for key, value in document.items() if key not in CHANGING}
    return [lasting(one) for one in document] if isinstance(document, list) else document


# ---- the same answers as over HTTP --------------------------------------------------------------


def test_every_url(texts, files):
    said = {"temperature": 0, "max_tokens": 12}
    chat = [{"role": "user", "content": "Once upon a time"}]
    lines = [request("chat", "/v1/chat/completions", messages=chat, **said),
             request("responses", "/v1/responses", input="One day", temperature=0,
                     max_output_tokens=12),
             request("messages", "/v1/messages", messages=chat, **said),
             request("drawn", prompt="The sun", seed=2**53 + 1, temperature=1.1, max_tokens=12)]
    lines += [request(f"é\u2028{i}", prompt=f"{i} cats", model="demo", logprobs=2, **said)
              for i in range(20)]
    files.write(*lines)
    done = COMMAND.run(texts.url, *files.words, "--max-concurrency", 5)
    assert done.returncode == 0, done.stderr
    assert b"24 answered, 0 refused, 0 failed, 0 answered before; " in done.stderr
    found = files.by_name()
    assert set(found) == {line["custom_id"] for line in lines}
    asked = set()
    for line in lines:
        one = found[line["custom_id"]]
        direct = texts.post(line["url"], {"model": "demo", **line["body"]}).json()
        assert lasting(one["response"].pop("body")) == lasting(direct)
        asked.add(one["response"].pop("request_id"))
        assert one["response"] == {"status_code": 200} and one["error"] is None
        assert one["id"].startswith("batch_req_")
    assert len(asked) == len(lines) and all(name in texts.log for name in asked)


def test_a_server_of_its_own():
    """Without files of its own, too."""
    lines = "".join(json.dumps(request(name, prompt=name, max_tokens=3)) + "\n\n" for name in "ab")
    done = COMMAND.run(checkpoint.DEMO, "-i", "-", "-o", "-", "--", "-tp", 2,
                       stdin=lines.rstrip("\n").encode())
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["custom_id"] for one in found} == set("ab")
    assert all(one["response"]["body"]["usage"]["completion_tokens"] == 3 for one in found)
    assert b"ready after" in done.stderr and b"tokens 4 in and 6 out" in done.stderr, done.stderr


def test_names_and_keys(peer, files):
    server = peer()
    files.write(request("a", prompt="a"), request("b", prompt="b", model="other"))
    assert COMMAND.run(server.url, *files.words, "--api-key", "a-key").returncode == 0
    assert {body["prompt"]: body["model"] for body, _ in server.asked} == \
        {"a": "scripted", "b": "other"}
    assert server.keys == {"Bearer a-key"}
    files.output.unlink()
    assert COMMAND.run(server.url, *files.words, "--model", "mine").returncode == 0
    assert {body["model"] for body, _ in server.asked[2:]} == {"mine", "other"}


# ---- lines that have no answer ------------------------------------------------------------------


def test_wrong_lines(peer, files):
    server = peer()
    good = request("good", prompt="good")
    lines = [
        (b"nonsense", None, "no request: "),
        (good, "good", None),
        (b"", None, None),
        ({**good, "url": "/v1/files"}, None, 'an earlier line has the custom_id "good"'),
        (b'{"custom_id": "' + b"x" * (4 << 20) + b'", "a": "' + b"y" * 5000 + b'"}', None,
         "longer than 4198400 bytes"),
        (request("stream", prompt="", stream=True), "stream", "stream must be false"),
        ({**good, "custom_id": 7}, None, "custom_id must be a string, got "),
        ({**good, "custom_id": "get", "method": "GET"}, "get", 'POST, got "GET"'),
        ({**good, "custom_id": "url", "url": "/v1/score"}, "url", 'got "/v1/score"'),
        ({**good, "custom_id": "body", "body": "text"}, "body", "body must be an object, got a"),
        (good, None, 'an earlier line has the custom_id "good"'),
    ]
    files.write(*[line for line, _, _ in lines])
    line = COMMAND.refused(1, server.url, *files.words)
    assert "9 of 10 requests have no answer" in line
    found = files.results()
    assert len(found) == 10 and server.names() == ["good"]
    for one in found:
        if one["custom_id"] == "good":
            assert one["error"] is None and one["response"]["body"] == json.loads(ANSWER)
            continue
        assert one["response"] is None and one["error"]["code"] == "invalid_request"
        number = one["error"]["line"]
        _, name, why = lines[number - 1]
        assert one["error"]["message"].startswith(f"line {number}: ")
        assert why in one["error"]["message"] and one["custom_id"] == name, one
    assert len({one["error"]["line"] for one in found if one["error"]}) == 9


def test_what_the_server_refuses(texts, files):
    """It stands there with the server's words; the same command asks again."""
    files.write(request("a", prompt="a", max_tokens=3),
                request("b", prompt="b", max_tokens=3, model="another"),
                request("c", "/v1/embeddings", input="c"),
                request("d", prompt="d", max_tokens="many"))
    done = COMMAND.run(texts.url, *files.words)
    assert done.returncode == 1 and b"1 answered, 3 refused, 0 failed" in done.stderr
    found = files.by_name()
    for name, status, word in [("b", 404, "another"), ("c", 400, "vectors"),
                               ("d", 400, "max_tokens")]:
        one = found[name]
        assert one["response"]["status_code"] == status and one["response"]["request_id"]
        message = one["response"]["body"]["error"]["message"]
        assert word in message
        assert one["error"]["code"] == "refused"
        assert one["error"]["message"] == f"HTTP {status}: {message}"
    files.write(*[request(name, prompt=name, max_tokens=3) for name in "abd"])
    done = COMMAND.run(texts.url, *files.words)
    assert done.returncode == 0
    assert b"answers that stay: 1, lines without one, which are tried again: 3" in done.stderr
    assert b"2 answered, 0 refused, 0 failed, 1 answered before" in done.stderr
    assert set(files.by_name()) == set("abd") and files.by_name()["a"] == found["a"]


def test_answers_that_are_none(peer, files):
    answers = [(200, {}, b"<html>"), (500, {}, b"<html>"), (200, {}, b""),
               (200, {"Content-Type": "text/event-stream"}, b"data: {}\n\n"),
               (418, {"X-Request-Id": "tea"}, b'{"error": {"message": "pot"}}')]
    files.write(*prompts(len(answers)))
    server = peer(lambda number: answers[number])
    assert COMMAND.run(server.url, *files.words, "--max-concurrency", 1).returncode == 1
    found = files.by_name()
    for i, wanted in enumerate(("HTTP 200: the answer is not JSON", "HTTP 500: ", "HTTP 200: ",
                                "HTTP 200: ", "HTTP 418: pot")):
        one = found[f"r{i}"]
        assert one["error"]["message"].startswith(wanted)
        assert one["error"]["code"] == ("refused" if i in (1, 4) else "invalid_answer")
        assert one["response"]["body"] == ({"error": {"message": "pot"}} if i == 4 else None)
    assert found["r4"]["response"]["request_id"] == "tea"


# ---- servers that are busy, slow, or lost -------------------------------------------------------


def test_a_full_queue(serve, files):
    server = serve(checkpoint.DEMO, "--max-num-seqs", 1, "--max-num-queued-reqs", 1)
    files.write(*[request(f"r{i}", prompt="Once", max_tokens=60, ignore_eos=True)
                  for i in range(8)])
    done = COMMAND.run(server.url, *files.words, "--max-concurrency", 8)
    assert done.returncode == 0, done.stderr
    assert len(files.by_name()) == 8
    assert server.metrics().sum("tessera:http_responses_total", code=429) > 0


def test_busy(peer, files):
    """Not before the time that the server says; when the request's own would then be over, its
    refusal stands in the file."""
    answers = [(503, {}, b"{}"), (429, {"Retry-After": 1}, b"{}"), (200, {}, ANSWER)]
    server = peer((answers + [(429, {"Retry-After": 60}, b'{"n": 1}')]).__getitem__)
    files.write(*prompts(2))
    assert COMMAND.run(server.url, *files.words, "--max-concurrency", 1,
                       "--timeout", 2).returncode == 1
    assert server.names() == ["r0", "r0", "r0", "r1"]
    times = [when for _, when in server.asked]
    assert times[1] - times[0] >= 0.2 and times[2] - times[1] >= 1
    found = files.by_name()
    assert found["r0"]["response"]["status_code"] == 200
    assert found["r1"]["response"]["status_code"] == 429
    assert found["r1"]["response"]["body"] == {"n": 1}


def test_lost_connections(peer, files):
    """A few are nothing; when nobody is answered any more the rest is left for the next time."""
    server = peer(lambda number: None if number < 2 or number > 5 else (200, {}, ANSWER))
    files.write(*prompts(30))
    line = COMMAND.refused(1, server.url, *files.words, "--max-concurrency", 2)
    assert "does not answer any more" in line
    found = files.by_name()
    lost = [one for one in found.values() if one["error"]]
    assert len(found) - len(lost) == 4 and 4 <= len(lost) <= 5
    assert {one["error"]["code"] for one in lost} == {"no_answer"}
    assert not any(one["response"] for one in lost)


def test_slow(peer, files):
    """A terminal sees how far it is."""
    server = peer(lambda number: time.sleep((0, 3, 0.5)[number]) or (200, {}, ANSWER))
    files.write(*prompts(3))
    ours, theirs = pty.openpty()
    command = [str(harness.BINARY), "batch", server.url, *map(str, files.words), "--timeout", "1",
               "--max-concurrency", "1"]
    with subprocess.Popen(command, stderr=theirs, env=harness.environment()) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:
            pass  # the other end is closed
    os.close(ours)
    assert process.returncode == 1
    assert re.search(rb"\r1 answered, 0 refused, [01] failed, (67|100)% of the input read, ", shown)
    assert [files.by_name()[name]["error"] is None for name in ("r0", "r1", "r2")] == \
        [True, False, True]
    assert files.by_name()["r1"]["error"]["code"] == "timeout"


def test_nobody_there(files):
    files.write(*prompts(1))
    line = COMMAND.refused(1, f"http://127.0.0.1:{harness.free_port()}", *files.words)
    assert "Connection refused" in line
    assert "no such model directory" in COMMAND.refused(3, "/nowhere/model", *files.words)


# ---- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_going_on(peer, files, how):
    """A run that is ended in its midst has left whole answers, and another one asks for the rest
    alone."""
    hold = threading.Event()
    server = peer(lambda number: (number < 5 or hold.wait(30)) and (200, {}, ANSWER))
    files.write(*prompts(12))
    command = [str(harness.BINARY), "batch", server.url, *map(str, files.words),
               "--max-concurrency", "3"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=harness.environment()) as process:
        try:
            harness.eventually(lambda: len(server.asked) == 8, what="held requests")
            harness.eventually(lambda: len(files.results()) == 5, what="five answers")
            process.send_signal(how)
            process.send_signal(how)  # as those do who signal a process and its group
            said = process.communicate(timeout=5 * harness.PATIENCE)[1]
        finally:
            process.kill()
            hold.set()
    if how == signal.SIGKILL:
        with open(files.output, "ab") as file:
            file.write(b'{"id": "batch_req_0123", "custom')
    else:
        assert process.returncode == 1 and b"stopped before all" in said
        assert b"5 answered, 0 refused, 0 failed" in said
    before = files.output.read_bytes()
    names = [json.loads(line)["custom_id"] for line in before.splitlines()[:5]]
    again = peer()
    done = COMMAND.run(again.url, *files.words)
    assert done.returncode == 0, done.stderr
    assert b"answers that stay: 5, " in done.stderr
    assert (b"half a line was cut off" in done.stderr) == (how == signal.SIGKILL)
    assert b"7 answered, 0 refused, 0 failed, 5 answered before" in done.stderr
    assert sorted(again.names() + names) == sorted(f"r{i}" for i in range(12))
    assert len(files.by_name()) == 12
    assert files.output.read_bytes().splitlines()[:5] == before.splitlines()[:5]
    third = peer()
    assert COMMAND.run(third.url, *files.words).returncode == 0 and not third.asked


def test_a_link_stays_one(peer, files):
    """When its file is written anew, which touches nothing beside it."""
    real, beside = files.output.with_name("real.jsonl"), files.output.with_name("out.jsonl.new")
    files.output.symlink_to(real)
    beside.write_text("somebody's")
    real.touch(0o640)
    files.write(*prompts(3))
    server = peer(lambda number: (400 if number == 1 else 200, {}, ANSWER))
    assert COMMAND.run(server.url, *files.words, "--max-concurrency", 1).returncode == 1
    assert COMMAND.run(peer().url, *files.words).returncode == 0
    assert files.output.is_symlink() and len(files.by_name()) == 3
    assert real.read_bytes() == files.output.read_bytes() and real.stat().st_mode & 0o777 == 0o640
    assert beside.read_text() == "somebody's"
    assert {path.name for path in real.parent.iterdir()} == {
        "in.jsonl", "out.jsonl", "real.jsonl", "out.jsonl.new"}


def test_lines_that_come_late(peer):
    """A line is answered when it comes, and nobody has to wait for the next one."""
    command = [str(harness.BINARY), "batch", peer().url, "-i", "-", "-o", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=harness.environment()) as process:
        try:
            process.stdin.write(json.dumps(prompts(1)[0]).encode() + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["custom_id"] == "r0"
            process.send_signal(signal.SIGINT)
            assert process.wait(5 * harness.PATIENCE) == 1
            assert b"stopped before all requests were answered\n" in process.stderr.read()
        finally:
            process.kill()


def test_usage(files):
    files.write(*prompts(1))
    url = "http://127.0.0.1:1"
    assert "-i FILE and -o FILE are needed" in COMMAND.refused(2, url, "-i", files.input)
    assert "No such file" in COMMAND.refused(2, url, "-i", "/nowhere/in", "-o", files.output)
    assert "is a directory" in COMMAND.refused(2, url, "-i", "/", "-o", files.output)
    assert "/nowhere/out" in COMMAND.refused(2, url, "-i", files.input, "-o", "/nowhere/out")
    before = files.input.read_bytes()
    line = COMMAND.refused(2, url, "-i", files.input, "-o", files.input)
    assert "line 1 is no result of a batch" in line and files.input.read_bytes() == before
    assert "options after --" in COMMAND.refused(2, url, *files.words, "--", "-tp", 2)
    assert "blanks and controls" in COMMAND.refused(2, url, *files.words, "--api-key", "a b")
    assert "from 1 to 1024" in COMMAND.refused(2, url, *files.words, "--max-concurrency", 0)


def test_a_full_disk(peer, files):
    files.write(*prompts(40))
    line = COMMAND.refused(1, peer().url, "-i", files.input, "-o", "/dev/full")
    assert "the output cannot be written: No space left" in line
