"""What probes and the service manager are told, from the first byte read to the last signal."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import struct
import tempfile
import threading
import time

import pytest

import checkpoint
from harness import PATIENCE, eventually, free_port, run

pytestmark = pytest.mark.sanitized

LONG = 3000  # tokens: many seconds of work for the synthetic model


class Manager:
    """The other end of systemd's notification protocol, which listens all the time as systemd does:
    the kernel keeps ten messages."""

    def __init__(self, path):
        self.messages = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(0.1)
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self):
        while self.socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # nothing came, or it is closed
                self.messages += self.socket.recv(4096).decode().split("\n")

    def heard(self, beginning):
        return any(line.startswith(beginning) for line in self.messages)

    def forget(self):
        self.messages = []

    def close(self):
        self.socket.close()
        self.listener.join()


@pytest.fixture
def manager(request, monkeypatch):
    kind = getattr(request, "param", "path")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # names of sockets are short
        path = f"{folder}/notify" if kind == "path" else f"@tessera-test-{os.getpid()}"
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        other = Manager(path.replace("@", "\0"))
        yield other
        other.close()


def hollow_checkpoint(directory):
    """A checkpoint of 600 MB that takes no space on the disk: it takes a while to read."""
    checkpoint.write_config(directory, hidden_size=1024, intermediate_size=8192,
                            num_hidden_layers=10, num_attention_heads=8, head_dim=128)
    shapes = {"model.embed_tokens.weight": (8192, 1024), "lm_head.weight": (8192, 1024),
              "model.norm.weight": (1024,)}
    for layer in range(10):
        for name, shape in {
                "input_layernorm": (1024,), "post_attention_layernorm": (1024,),
                "self_attn.q_proj": (1024, 1024), "self_attn.k_proj": (1024, 1024),
                "self_attn.v_proj": (1024, 1024), "self_attn.o_proj": (1024, 1024),
                "mlp.gate_proj": (8192, 1024), "mlp.up_proj": (8192, 1024),
                "mlp.down_proj": (1024, 8192)}.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return directory, end


def test_loading_is_told(serve, tmp_path, manager):
    model, size = hollow_checkpoint(tmp_path / "hollow")
    server = serve(model, "--port", free_port(), wait=False)
    server.port = int(server.arguments[-1])
    rank = eventually(server.ranks, 5, "the rank")[0]
    os.kill(rank, signal.SIGSTOP)
    loading = server.get("/startupz")
    assert loading.status == 503
    told = loading.json()
    assert told["phase"] == "loading" and told["bytes_total"] == size, told
    assert 0 <= told["bytes_done"] < size and (told["ranks_done"], told["ranks"]) == (0, 1), told
    for path in ("/readyz", "/health"):
        assert server.get(path).error["code"] == "loading"
        assert server.request("HEAD", path).status == 503
    assert server.get("/livez").status == 200
    eventually(lambda: manager.heard("STATUS=loading weights: "), 5, "the status")
    time.sleep(1.2)  # a rank that does not move gets no more time
    extensions = [line for line in manager.messages if line.startswith("EXTEND_TIMEOUT_USEC=")]
    assert len(extensions) <= 1, manager.messages
    assert not manager.heard("READY=1")
    os.kill(rank, signal.SIGCONT)
    eventually(lambda: manager.heard("READY=1"), 30, "ready")
    server.wait_ready()
    told = server.get("/startupz").json()
    assert told["phase"] == "ready" and told["bytes_done"] == told["bytes_total"] == size, told
    assert told["ranks_done"] == 1 and told["eta_seconds"] == 0 and told["elapsed_seconds"] > 1
    assert server.request("HEAD", "/readyz").status == 200
    assert "STATUS=warming" in manager.messages
    assert re.search(r"info +loading weights: \S+ \S+ of \S+ \S+, [01] of 1 rank done", server.log)
    assert server.stop() == 0
    assert manager.heard("STOPPING=1")


def slices(pid):
    """How long the turns of a process's threads are; empty where the kernel does not tell."""
    found = set()
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/sched"):
        with contextlib.suppress(OSError):  # a thread that ended
            found.update(re.findall(r"^se\.slice +: +(\d+)$", file.read_text(), re.M))
    return set(map(int, found))


def test_front_end_has_short_turns(serve, synthetic):
    server = serve(synthetic, "-tp", 2)
    if not slices(server.pid):
        pytest.skip("the kernel does not tell")
    assert slices(server.pid) == {500000}
    assert all(slices(pid).isdisjoint({500000}) for pid in server.ranks())


@pytest.mark.parametrize("manager", ["path", "abstract"], indirect=True)
def test_ranks_do_not_speak_to_the_manager(serve, synthetic, manager):
    server = serve(synthetic, "-tp", 2)
    for pid in server.ranks():
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"NOTIFY_SOCKET" not in file.read()
    assert manager.heard("READY=1")


def test_manager_that_is_gone(serve, synthetic, monkeypatch, manager):
    manager.close()
    path = os.environ["NOTIFY_SOCKET"]
    os.unlink(path)
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    server = serve(synthetic)
    eventually(lambda: "NOTIFY_SOCKET" in server.log, 5, "the warning")
    time.sleep(0.3)
    assert server.log.count("NOTIFY_SOCKET") == 1  # said once, tried again and again
    late = Manager(path)
    eventually(lambda: late.heard("WATCHDOG=1"), 5, "found after all")
    late.close()


def test_watchdog_is_fed_by_progress(serve, synthetic, manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    server = serve(synthetic, "-tp", 2, "--step-timeout", 3 * PATIENCE)
    eventually(lambda: manager.heard("READY=1"), 5, "ready")
    manager.forget()
    eventually(lambda: manager.messages.count("WATCHDOG=1") >= 3, 5, "fed while idle")
    stream = server.stream([5, 6, 7], max_tokens=LONG, ignore_eos=True)
    pieces = iter(stream)
    next(pieces)
    manager.forget()
    eventually(lambda: manager.heard("WATCHDOG=1"), 5, "fed while busy")
    rank = server.ranks()[1]
    os.kill(rank, signal.SIGSTOP)
    ready = eventually(lambda: (reply := server.get("/readyz")).status != 200 and reply, 9)
    assert ready.error["code"] == "stalled"

    def starves():
        manager.forget()
        time.sleep(0.5)
        return not manager.heard("WATCHDOG=1")
    eventually(starves, 2, "not fed")
    os.kill(rank, signal.SIGCONT)
    eventually(lambda: manager.heard("WATCHDOG=1"), 5, "fed again")
    assert server.get("/readyz").status == 200
    assert next(pieces)
    pieces.close()


def test_watchdog_of_another_process(serve, synthetic, manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    serve(synthetic)
    time.sleep(0.5)
    assert not manager.heard("WATCHDOG=1")


def test_signals_while_draining(serve, synthetic):
    """Not ready from the first SIGTERM on; SIGHUP changes nothing; the second ends it."""
    server = serve(synthetic, "-tp", 2)
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/v1/completions", body)
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") > 0, 5, "running")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.get("/readyz").status == 503, 5, "not ready")
        assert server.get("/health").error["code"] == "draining"
        assert server.get("/livez").status == 200
        assert server.get("/startupz").json()["phase"] == "draining"
        assert server.post("/v1/completions", body).error["code"] == "draining"
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert server.process.poll() is None and not running.done()
        server.process.send_signal(signal.SIGTERM)
        assert running.result(10 * PATIENCE).error["code"] == "draining"
    assert server.wait(2) == 0


def test_stopped_within_a_step(serve, synthetic):
    """The second SIGTERM waits for no step that does not end, and no rank is called lost for it."""
    server = serve(synthetic, "-tp", 2)
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/v1/completions", body)
        eventually(lambda: server.requests("running") > 0, 5, "running")
        with server.halted():
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: server.get("/readyz").status == 503, 5, "not ready")
            server.process.send_signal(signal.SIGTERM)
            assert running.result(10 * PATIENCE).error["code"] == "draining"
            assert server.wait(10) == 0
    assert "lost" not in server.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_the_process_group(serve, synthetic, number):
    """Ctrl-C and timeout(1) reach the ranks too, which work on for the requests that run."""
    server = serve(synthetic, "-tp", 2, "--drain-timeout", 3600)
    body = {"prompt": [5, 6, 7], "max_tokens": 40, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with server.halted():
            running = pool.submit(server.post, "/v1/completions", body)
            eventually(lambda: server.requests("running") > 0, 5, "running")
            for pid in [*server.ranks(), server.pid]:
                os.kill(pid, number)
        assert running.result(20 * PATIENCE).status == 200
    assert server.stop() == 0


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize("host, shown", [("::1", "[::1]"), ("localhost", "localhost")])
def test_address_in_the_log(serve, synthetic, host, shown):
    """The address that is shown as ready is one that a client can be given."""
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 here")
    server = serve(synthetic, "--host", host, wait=False)
    pattern = rf"listening on (http://{re.escape(shown)}:\d+)"
    match = eventually(lambda: re.search(pattern, server.log), 30, "ready")
    assert run("health", match[1]).returncode == 0


def test_drain_timeout(serve, synthetic):
    server = serve(synthetic, "--drain-timeout", 0.5)
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/v1/completions", body)
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") > 0, 5, "running")
        server.process.send_signal(signal.SIGTERM)
        assert running.result(20 * PATIENCE).error["code"] == "draining"
    assert server.wait(5) == 0


def test_rank_lost_while_draining(serve, synthetic):
    server = serve(synthetic, "-tp", 2, "--max-group-restarts", 0)
    body = {"prompt": [5, 6, 7], "max_tokens": LONG, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/v1/completions", body)
        eventually(lambda: server.metrics().sum("vllm:num_requests_running") > 0, 5, "running")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.get("/readyz").status == 503, 5, "not ready")
        os.kill(server.ranks()[1], signal.SIGKILL)
        assert running.result(20 * PATIENCE).error["code"] == "rank_lost"
    assert server.wait(5) == 5


def test_hangup_while_loading(serve, synthetic):
    server = serve(synthetic, wait=False)
    eventually(server.ranks, 5, "the rank")
    server.process.send_signal(signal.SIGHUP)
    server.wait_ready()


# ---- tessera health -----------------------------------------------------------------------------


def test_health_command(serve, synthetic, monkeypatch, tmp_path):
    server = serve(synthetic)
    for words in ((server.url,), (server.url + "/livez",), ("--port", server.port),
                  (f"http://localhost:{server.port}",), (f"localhost:{server.port}",),
                  (f"127.0.0.1:{server.port}/readyz",)):
        done = run("health", *words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] in ("ready", "alive")
    file = tmp_path / "server.yaml"
    file.write_text(f"model: {synthetic}\nport: {server.port}\n")
    assert run("health", "--config", file).returncode == 0
    assert run("health", variables={"TESSERA_PORT": str(server.port)}).returncode == 0
    assert run("health", server.url + "/nothing").returncode == 1
    assert server.stop() == 0
    done = run("health", server.url)
    assert done.returncode == 1 and "Connection refused" in done.stderr, done.stderr


def test_health_command_of_a_server_that_loads(serve, tmp_path):
    model, _ = hollow_checkpoint(tmp_path / "hollow")
    server = serve(model, "--port", free_port(), wait=False)
    server.port = int(server.arguments[-1])
    rank = eventually(server.ranks, 5, "the rank")[0]
    os.kill(rank, signal.SIGSTOP)
    done = run("health", server.url)
    assert done.returncode == 1 and "being loaded" in done.stderr, done.stderr
    os.kill(rank, signal.SIGKILL)
    assert server.wait(5) == 5


@pytest.mark.parametrize("url", ["https://a", "a", "a:", ":80", "a:80x", "http://", "http://a:b",
                                 "http://a:1 /", "http://a:1x"])
def test_health_command_usage(url):
    done = run("health", url)
    assert done.returncode == 2 and url in done.stderr, done.stderr


def test_health_command_does_not_wait_for_ever():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done = run("health", f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=10)
    assert done.returncode == 1 and "no answer" in done.stderr, done.stderr
