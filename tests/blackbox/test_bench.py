"""`tessera bench` against our server, and against a scripted peer whose every delay is known.

What the client prints is compared with what the peer did by its own clock. A machine that is busy
with something else now and then adds delays of its own: times must be right in one of some tries.
"""

import http.server
import json
import re
import resource
import signal
import socket
import subprocess
import threading
import time
import xml.etree.ElementTree as tree

import pytest

import checkpoint
import harness

SLACK = 0.04 * harness.PATIENCE  # seconds that a loaded machine may add
MASK = (1 << 64) - 1


class Peer(http.server.ThreadingHTTPServer):
    """An OpenAI-style server that streams by a script: script(number, body) -> list of actions,
    each a number (seconds to sleep), bytes to write as they are, or an HTTP status to answer."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script, framing="chunked", one_at_a_time=False, exchanges=1):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.framing, self.exchanges = script, framing, exchanges
        self.connections, self.failure = 0, "scripted failure"
        self.turn = threading.Lock() if one_at_a_time else None
        self.lock = threading.Lock()
        self.arrivals, self.bodies, self.probes = [], [], []
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self):
        self.shutdown()
        self.server_close()
        self.thread.join()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    exchanges = 0  # of this connection

    def log_message(self, *_):
        pass

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path.endswith("/models"):
            self.answer(200, {"object": "list", "data": [{"id": "scripted"}]})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        arrived = time.monotonic()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            is_probe = body.get("max_tokens") == 1
            kept = self.server.probes if is_probe else self.server.bodies
            number = len(kept)
            kept.append((self.path, body))
            if not is_probe:
                self.server.arrivals.append(arrived)
        if self.server.turn:
            with self.server.turn:
                self.play(self.server.script(number, body))
        else:
            self.play(self.server.script(number, body))
        self.exchanges += 1
        if self.exchanges == 1:
            with self.server.lock:
                self.server.connections += not is_probe
        self.close_connection = self.exchanges >= self.server.exchanges  # and says nothing of it

    def play(self, actions):
        if isinstance(actions[0], int):
            self.answer(actions[0], {"error": {"message": self.server.failure, "code": None}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if self.server.framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for action in actions:
            if isinstance(action, float):
                time.sleep(action)
                continue
            if self.server.framing == "chunked":
                action = b"%x\r\n%s\r\n" % (len(action), action)
            self.wfile.write(action)
        if self.server.framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")


def event(text="x", finish=None, newline=b"\n", **more):
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + 2 * newline


DONE = b"data: [DONE]\n\n"


def steady(first, gap, tokens, newline=b"\n"):
    """A whole answer: the first token after `first` seconds, each further one `gap` later."""
    actions = [first, event(newline=newline)]
    for _ in range(tokens - 1):
        actions += [gap, event(newline=newline)]
    usage = {"usage": {"prompt_tokens": 11, "completion_tokens": tokens}}
    return actions + [event("", "length", newline, **usage), DONE]


def in_one_of_several(tries, attempt):
    """Calls attempt() until it passes."""
    for _ in range(tries - 1):
        try:
            return attempt()
        except AssertionError as error:
            print(f"once more: {error}")
    return attempt()


@pytest.fixture
def peer():
    peers = []

    def start(script, **options):
        peers.append(Peer(script, **options))
        return peers[-1]
    yield start
    for each in peers:
        each.close()


@pytest.fixture
def bench(tmp_path):
    """bench(target, arguments...) -> (the finished process, its JSON rounds)."""
    def run(target, *arguments, code=0, rest=()):
        out = tmp_path / "out.json"
        done = harness.run("bench", target, "--output-json", out, *arguments, *rest)
        assert done.returncode == code, done.stdout + done.stderr
        return done, json.loads(out.read_text())["rounds"] if out.exists() else None
    return run


# ---- what is measured -------------------------------------------------------------------------


@pytest.mark.parametrize("framing, newline", [("chunked", b"\n"), ("close", b"\r\n")])
def test_measures_the_scripted_delays(peer, bench, framing, newline):
    server = peer(lambda *_: steady(0.2, 0.03, 8, newline), framing=framing)

    def attempt():
        done, (figures,) = bench(server.url, "--num-prompts", 6, "--max-concurrency", 2)
        assert figures["completed"] == 6 and figures["failed"] == 0
        assert figures["total_output_tokens"] == 48 and figures["total_input_tokens"] == 66
        for name, scripted in (("ttft", 200), ("itl", 30), ("tpot", 30), ("e2el", 200 + 7 * 30)):
            for statistic in ("mean", "median"):
                measured = figures[f"{statistic}_{name}_ms"]
                assert scripted - 2 <= measured <= scripted + SLACK * 1000, (statistic, name)
        assert figures["max_itl_ms"] >= 30
        assert 3 * 0.41 <= figures["duration"] <= 3 * 0.41 + 3 * SLACK + 0.2
        assert "TTFT" in done.stdout and "scripted" in done.stdout
    in_one_of_several(5, attempt)


def test_tokens_are_counted_without_usage(peer, bench):
    script = [0.01, event("a"), event("b"), event("c", "stop"), DONE]
    server = peer(lambda *_: script)
    _, (figures,) = bench(server.url, "--num-prompts", 3)
    assert figures["total_output_tokens"] == 9 and figures["total_input_tokens"] == 0


def test_bytes_may_be_cut_anywhere(peer, bench):
    whole = b": ping\n\n" + b"".join(a for a in steady(0.0, 0.0, 5) if isinstance(a, bytes))
    pieces = []
    for i in range(0, len(whole), 7):
        pieces += [whole[i:i + 7], 0.0005]
    server = peer(lambda *_: pieces)
    _, (figures,) = bench(server.url, "--num-prompts", 4, "--max-concurrency", 2)
    assert figures["completed"] == 4 and figures["total_output_tokens"] == 20


def test_latency_counts_from_the_schedule(peer, bench):
    """One request at a time, all due at once: the last has waited for all before it, whether it
    waits in the peer or for a place in the client."""
    for arguments in ([], ["--request-rate", 5000, "--max-concurrency", 1]):
        server = peer(lambda *_: steady(0.1, 0.0, 1), one_at_a_time=True)

        def attempt(server=server, arguments=arguments):
            _, (figures,) = bench(server.url, "--num-prompts", 8, *arguments)
            assert figures["max_ttft_ms"] >= 800
            assert 400 <= figures["mean_ttft_ms"] <= 450 + 1000 * SLACK * 8
            return figures
        figures = in_one_of_several(5, attempt)
    assert figures["max_send_delay_ms"] >= 695  # the client's part is told apart


def test_a_closed_loop_counts_from_sending(peer, bench):
    server = peer(lambda *_: steady(0.1, 0.0, 1), one_at_a_time=True)

    def attempt():
        _, (figures,) = bench(server.url, "--num-prompts", 8, "--max-concurrency", 1)
        assert 100 <= figures["max_ttft_ms"] <= 100 + 1000 * SLACK
    in_one_of_several(5, attempt)


def splitmix(state):
    state = (state + 0x9e3779b97f4a7c15) & MASK
    z = ((state ^ (state >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
    return state, z ^ (z >> 31)


def schedule(seed, rate, count):
    """The documented schedule, written a second time: exponential gaps from splitmix64."""
    from math import log
    state = seed
    for word in (MASK, 0):
        state = splitmix(state)[1] ^ word
    state = splitmix(state)[1]
    due, at = [], 0.0
    for _ in range(count):
        due.append(at)
        state, z = splitmix(state)
        at += -log(((z >> 11) + 0.5) * 2.0 ** -53) / rate
    return due


def test_connections_are_kept(peer, bench):
    def script(number, body):
        return [429] if number % 2 and body["max_tokens"] > 1 else steady(0.0, 0.0, 2)
    server = peer(script, exchanges=100)
    _, (figures,) = bench(server.url, "--num-prompts", 40, "--max-concurrency", 2, code=1)
    assert (figures["completed"], figures["errors"]) == (20, {"http_429": 20})
    assert server.connections == 2


def test_peer_may_close_idle_connections(peer, bench):
    """No request is lost or sent twice, whether the end is seen before or after the sending."""
    server = peer(lambda *_: steady(0.0, 0.0, 2), exchanges=3)
    for load in (["--max-concurrency", 2], ["--request-rate", 100]):
        _, (figures,) = bench(server.url, "--num-prompts", 60, *load)
        assert figures["completed"] == 60 and figures["failed"] == 0
    assert len(server.bodies) == 120 and server.connections >= 40


def test_requests_arrive_by_the_seed(peer, bench):
    due = schedule(5, 30, 30)

    def attempt():
        server = peer(lambda *_: steady(0.0, 0.0, 1))
        bench(server.url, "--num-prompts", 30, "--request-rate", 30, "--seed", 5)
        late = [arrival - server.arrivals[0] - wanted
                for arrival, wanted in zip(server.arrivals, due)]
        assert all(abs(seconds) <= SLACK for seconds in late), late
    in_one_of_several(8, attempt)


# ---- failures ---------------------------------------------------------------------------------


def test_failures_are_counted_by_kind(peer, bench):
    error = b'data: {"error": {"message": "rank lost"}}\n\n'
    kinds = [steady(0.0, 0.0, 2), [429], [500], [event(), error], [event()],
             [event(), b"data: {nonsense\n\n"], [event("", "stop"), DONE], [429]]
    server = peer(lambda number, body: kinds[number % 8] if body["max_tokens"] > 1 else kinds[0])
    done, (figures,) = bench(server.url, "--num-prompts", 16, "--max-concurrency", 1, code=1)
    assert figures["completed"] == 2 and figures["failed"] == 14
    assert figures["errors"] == {"http_429": 4, "http_500": 2, "stream_error": 2, "cut": 2,
                                 "malformed": 2, "empty": 2}
    assert figures["total_output_tokens"] == 4
    assert "4 × HTTP 429" in done.stdout and "scripted failure" in done.stdout
    assert "14 of 16 requests failed" in done.stderr


def test_how_long_a_refusal_takes(peer, bench):
    def script(_, body):
        if body["max_tokens"] == 1:
            return steady(0.0, 0.0, 1)
        time.sleep(0.3)
        return [429]
    def attempt():
        done, (figures,) = bench(peer(script).url, "--num-prompts", 4, code=1)
        assert figures["errors"] == {"http_429": 4}
        assert 300 <= figures["median_http_error_ms"] <= 300 + 1000 * SLACK
        assert "(answered in " in done.stdout
    in_one_of_several(5, attempt)


def test_a_stalled_request_times_out(peer, bench):
    def attempt():
        server = peer(lambda number, body: [event(), 9.0] if number == 1 else steady(0.0, 0.0, 2))
        _, (figures,) = bench(server.url, "--num-prompts", 3, "--timeout", 1, code=1)
        assert figures["completed"] == 2 and figures["errors"] == {"timeout": 1}
    in_one_of_several(5, attempt)


def test_an_answer_that_is_no_stream(peer, bench):
    server = peer(lambda number, body: [200] if body["max_tokens"] > 1 else steady(0.0, 0.0, 1))
    done, (figures,) = bench(server.url, "--num-prompts", 2, code=1)
    assert figures["errors"] == {"malformed": 2}
    assert "not an event stream" in done.stdout


def test_goodput(peer, bench):
    def attempt():
        server = peer(lambda number, _: steady(0.0 if number % 2 else 0.6, 0.0, 2))
        done, (figures,) = bench(server.url, "--num-prompts", 8, "--max-concurrency", 2,
                                 "--goodput", "ttft:500,tpot:400")
        assert figures["request_goodput"] * figures["duration"] == pytest.approx(4, rel=1e-4)
        assert "(50.0 % of those sent) within ttft 500 tpot 400 ms" in done.stdout
    in_one_of_several(5, attempt)


# ---- peers that differ ------------------------------------------------------------------------


def test_text_where_ids_are_refused(peer, bench):
    def script(_, body):
        return steady(0.0, 0.0, 1) if isinstance(body["prompt"], str) else [400]
    server = peer(script)
    bench(server.url, "--num-prompts", 2, "--random-input-len", 20)
    assert [len(body["prompt"].split()) for _, body in server.bodies] == [20, 20]


def test_chat(peer, bench):
    delta = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
    chunk = b"data: " + json.dumps(delta).encode() + b"\n\n"
    server = peer(lambda *_: [chunk, DONE])
    _, (figures,) = bench(server.url + "/v1/chat/completions", "--num-prompts", 2)
    assert figures["completed"] == 2
    path, body = server.bodies[0]
    assert path == "/v1/chat/completions" and body["messages"][0]["role"] == "user"


def test_what_is_sent(peer, bench, tmp_path):
    server = peer(lambda *_: steady(0.0, 0.0, 1))
    bench(server.url, "--num-prompts", 3, "--max-concurrency", 1, "--ignore-eos",
          "--random-input-len", 40, "--random-output-len", 5, "--random-vocab", 77)
    prompts = [body["prompt"] for _, body in server.bodies]
    assert all(len(ids) == 40 and all(3 <= i < 77 for i in ids) for ids in prompts)
    assert len({tuple(ids) for ids in prompts}) == 3
    _, body = server.bodies[0]
    assert body["model"] == "scripted" and body["ignore_eos"] and body["stream"]
    assert body["max_tokens"] == 5 and body["stream_options"] == {"include_usage": True}
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "caf\\u00e9", "max_tokens": 9}\n{"prompt": [5, 6]}\n')
    bench(server.url, "--num-prompts", 3, "--max-concurrency", 1, "--prompts", lines)
    sent = [(body["prompt"], body["max_tokens"]) for _, body in server.bodies[3:]]
    assert sent == [("café", 9), ([5, 6], 64), ("café", 9)]


# ---- a sweep and its picture ------------------------------------------------------------------


def test_a_sweep_and_its_picture(peer, bench, tmp_path):
    server = peer(lambda *_: steady(0.02, 0.002, 4))
    picture = tmp_path / "plot.svg"
    _, rounds = bench(server.url, "--num-prompts", 12, "--rates", "20,40,80", "--plot", picture)
    assert [figures["request_rate"] for figures in rounds] == [20, 40, 80]
    # different rounds send different prompts: none is answered from another's cache
    assert len({tuple(body["prompt"]) for _, body in server.bodies}) == 36
    root = tree.parse(picture).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in root.findall("svg:circle", space)]
    circles = circles[1:]  # the first is the legend's
    assert len(circles) == 9
    for panel, name in enumerate(("ttft", "tpot", "e2el")):
        points = circles[3 * panel:3 * panel + 3]
        # abscissas are linear in the rate, ordinates in the median, upwards
        assert points[2][0] - points[1][0] == pytest.approx(2 * (points[1][0] - points[0][0]),
                                                            abs=0.3)
        medians = [figures[f"median_{name}_ms"] for figures in rounds]
        base = float(root.findall("svg:rect", space)[0].get("y") or 0)
        assert base == 0
        order = sorted(range(3), key=lambda i: medians[i])
        heights = [points[i][1] for i in order]
        assert heights == sorted(heights, reverse=True)


# ---- our own server ---------------------------------------------------------------------------


def test_agrees_with_our_servers_counters(demo, bench):
    before = demo.metrics()
    _, (figures,) = bench(demo.url, "--num-prompts", 20, "--request-rate", 100, "--ignore-eos",
                          "--random-output-len", 16)
    after = demo.metrics()

    def counted(name):
        return after.sum(name) - before.sum(name)
    assert figures["completed"] == 20 and figures["total_output_tokens"] == 320
    assert counted("vllm:generation_tokens_total") == 320 + 1  # and the first exchange
    assert counted("vllm:prompt_tokens_total") == figures["total_input_tokens"] + 8 == 20 * 128 + 8
    assert figures["server_cpu_seconds"] is None  # not ours to look into


def test_a_model_directory(bench):
    done, (figures,) = bench(checkpoint.DEMO, "--num-prompts", 8, "--max-concurrency", 4,
                             rest=["--", "-tp", 2, "--served-model-name", "mine",
                                   "--log-format", "json", "--log-level", "error"])
    assert figures["completed"] == 8 and "model mine" in done.stdout
    assert figures["server_cpu_seconds"] >= 0 and figures["ranks_cpu_seconds"] >= 0
    told = re.search(r"front end [\d.]+ s of CPU, ([\d.]+) % of a core", done.stdout)
    share = 100 * figures["server_cpu_seconds"] / figures["duration"]
    assert told and abs(float(told[1]) - share) < 0.06
    harness.eventually(lambda: not harness.orphans(), what="no orphans")


def test_without_http():
    done = harness.run("bench", checkpoint.DEMO, "--latency", "--throughput", "--num-prompts", 4,
                       "--random-output-len", 8, "--", "-tp", 2)
    assert done.returncode == 0, done.stderr
    assert re.search(r"answer +[\d.]+ ms per token, [\d.]+ tokens/s", done.stdout)
    assert re.search(r"4 requests of 128 \+ 8 tokens", done.stdout)
    harness.eventually(lambda: not harness.orphans(), what="no orphans")


def test_an_interrupt_prints_what_there_is(peer, tmp_path):
    server = peer(lambda number, _: steady(0.0, 0.0, 2) if number < 3 else steady(9.0, 0.0, 1))
    out = tmp_path / "out.json"
    process = subprocess.Popen(
        [harness.BINARY, "bench", server.url, "--num-prompts", "6", "--max-concurrency", "1",
         "--output-json", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=harness.environment())
    harness.eventually(lambda: len(server.bodies) == 4, what="the fourth request")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=10 * harness.PATIENCE)
    (figures,) = json.loads(out.read_text())["rounds"]
    assert process.returncode == 0 and "(interrupted)" in stdout
    assert figures["completed"] == 3 and figures["unfinished"] == 1 and figures["failed"] == 0
    assert figures["interrupted"]


# ---- wrong use --------------------------------------------------------------------------------


def refused(code, says, *arguments):
    done = harness.run("bench", *arguments)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1 and says in done.stderr, done.stderr


def test_wrong_use(tmp_path):
    with socket.socket() as bound:  # taken, and nobody listens
        bound.bind(("127.0.0.1", 0))
        refused(1, "Connection refused", f"http://127.0.0.1:{bound.getsockname()[1]}")
    refused(2, "expected http://HOST", "https://127.0.0.1")
    refused(2, "which model directory or http:// URL")
    refused(2, "did you mean --request-rate", "http://h", "--request-rat", "3")
    refused(2, "--request-rate", "http://h", "--request-rate", "0")
    refused(2, "--rates", "http://h", "--rates", "0")
    refused(2, "--max-concurrency", "http://h", "--max-concurrency", "0")
    refused(2, "--goodput", "http://h", "--goodput", "fast")
    refused(2, "after --", "http://h", "--", "-tp", "2")
    refused(2, "model directory", "http://h", "--latency")
    for option in ("--output-json", "figures.json"), ("--request-rate", 2), ("--plot", "x"):
        refused(2, f"{option[0]} is about requests over HTTP", checkpoint.DEMO, "--latency",
                *option)
    refused(3, f"tessera: the server stopped: {tmp_path}/nothing: no such model directory",
            tmp_path / "nothing")
    refused(2, "did you mean", checkpoint.DEMO, "--", "--tensor-paralel-size", "2")


def test_wrong_peers(demo, peer, tmp_path):
    refused(1, "HTTP 404", demo.url + "/nowhere")
    refused(1, "nobody", demo.url, "--model", "nobody")
    refused(1, "HTTP 503", peer(lambda *_: [503]).url)
    refused(2, "No such file", demo.url, "--prompts", tmp_path / "nothing")


@pytest.mark.parametrize("option", ["--output-json", "--plot"])
def test_results_have_a_place_before_anything_is_sent(peer, tmp_path, option):
    server = peer(lambda *_: steady(0.0, 0.0, 1))
    refused(2, "No such file or directory", server.url, option, tmp_path / "none" / "file")
    assert not server.bodies


@pytest.mark.parametrize("option", ["--output-json", "--plot"])
def test_results_that_are_not_written(peer, option):
    server = peer(lambda *_: steady(0.0, 0.0, 1))
    refused(1, f"{option} /dev/full: No space left on device", server.url, "--num-prompts", "1",
            option, "/dev/full")


def few_files(count, *arguments):
    return subprocess.run(
        [harness.BINARY, "bench", *map(str, arguments)], capture_output=True, text=True,
        env=harness.environment(), timeout=60 * harness.PATIENCE, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count)))


def test_few_files(peer):
    server = peer(lambda *_: steady(0.0, 0.0, 1))
    done = few_files(40, server.url, "--num-prompts", 60)
    assert done.returncode == 0, done.stderr
    assert "at most 24 connections at once instead of 60" in done.stderr
    done = few_files(16, server.url, "--num-prompts", 60)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("tessera: only 16 files may be open")
