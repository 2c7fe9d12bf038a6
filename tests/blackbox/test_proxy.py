"""deploy/nginx.conf, with its own ports and certificate, in front of real servers."""

import collections
import concurrent.futures
import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading

import pytest

import checkpoint
import harness
from harness import ROOT, Reply, Stream, eventually, free_port

RECIPE = ROOT / "deploy/nginx.conf"
KEY = "sk-behind-a-proxy-0123"
LIMIT = 4 << 20


def need(program):
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin")
    if not path:
        pytest.skip(f"{program} is not installed")
    return path


class Proxy:
    """nginx with the recipe, for servers on these ports."""

    def __init__(self, folder, ports):
        self.folder = folder
        self.port = free_port()
        self.nginx = need("nginx")
        self.write(ports)
        self.command = [self.nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"),
                        "-g", "daemon off;"]
        checked = subprocess.run([*self.command, "-t"], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
        assert "warn" not in checked.stderr
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)

    def write(self, ports):
        """The recipe, where only what says "to be replaced" is another: and what a server asks of
        nginx in its headers is ignored, so that the recipe alone makes streams."""
        subprocess.run([need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days",
                        "2", "-subj", "/CN=llm.example.com", "-keyout", self.folder / "key",
                        "-out", self.folder / "crt"], check=True, capture_output=True)
        text, count = re.subn(r"(    server 127\.0\.0\.1:8\d{3} .*\n)+", lambda match: "".join(
            re.sub(r":8\d{3}", f":{port}", match[0].splitlines(True)[0]) for port in ports),
            RECIPE.read_text())
        assert count == 1
        for old, new in (("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
                         ("    listen [::]:443 ssl;\n", ""),
                         ("/etc/nginx/tls/llm.example.com.crt", str(self.folder / "crt")),
                         ("/etc/nginx/tls/llm.example.com.key", str(self.folder / "key")),
                         ("location / {", "location / { proxy_ignore_headers X-Accel-Buffering;")):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (self.folder / "tessera.conf").write_text(text)
        temporary = "".join(f"{name}_temp_path {self.folder}/{name};" for name in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (self.folder / "nginx.conf").write_text(
            f"pid {self.folder}/pid; error_log {self.folder}/error.log warn; events {{}}\n"
            f"http {{ access_log off; {temporary} include {self.folder}/tessera.conf; }}\n")

    def connect(self):
        trusting = ssl.create_default_context()
        trusting.check_hostname = False
        trusting.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=trusting,
                                           timeout=60 * harness.PATIENCE)

    def request(self, method, path, body=None, **headers):
        connection = self.connect()
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def complete(self, **headers):
        body = json.dumps({"prompt": [5, 6], "max_tokens": 2})
        return self.request("POST", "/v1/completions", body, **headers)

    def stream(self, **fields):
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps({"stream": True, **fields}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return Stream(connection, response)

    def listens(self):
        assert self.process.poll() is None, self.errors()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def errors(self):
        return (self.folder / "error.log").read_text()

    def close(self):
        self.process.terminate()
        self.process.wait(20 * harness.PATIENCE)


@pytest.fixture(name="proxy")
def fixture_proxy(tmp_path):
    """proxy(ports...) -> a Proxy that listens."""
    need("nginx")
    with contextlib.ExitStack() as stack:
        def start(*ports):
            folder = tmp_path / f"nginx{len(list(tmp_path.glob('nginx*')))}"
            folder.mkdir()
            made = Proxy(folder, ports)
            stack.callback(made.close)
            eventually(made.listens, 10, "nginx")
            return made
        yield start


def ids_of(payload):
    return [token for choice in payload["choices"] for token in choice["token_ids"]]


def test_tokens_come_one_by_one(serve, proxy, synthetic):
    """Each token that was made is here, also while none follows that would push it out."""
    server = serve(synthetic, "-tp", 2)
    stream = proxy(server.port).stream(prompt=[5, 6, 7], max_tokens=2000, ignore_eos=True,
                                       return_token_ids=True)
    pieces, got = iter(stream), 0
    for _ in range(3):  # it stands still at three places
        got += len(ids_of(next(pieces)[1]))
        with server.halted():
            assert server.requests("running") == 1
            made = server.metrics().sum("vllm:generation_tokens_total")
            assert made < 2000
            stream.connection.sock.settimeout(5 * harness.PATIENCE)
            while got < made:
                got += len(ids_of(next(pieces)[1]))
    got += sum(len(ids_of(payload)) for _, payload in pieces)
    assert stream.done and got == 2000


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_frees_the_server(serve, proxy, synthetic, stream):
    """In a stream, and while nothing has been said yet."""
    server = serve(synthetic)
    connection = proxy(server.port).connect()
    body = {"prompt": [5, 6], "max_tokens": 3000, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    if stream:
        connection.getresponse().readline()
    eventually(lambda: server.metrics().sum("vllm:generation_tokens_total") > 0, 5, "tokens")
    with server.halted():
        assert server.requests("running") == 1
        connection.sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: server.metrics().sum("vllm:request_success_total",
                                            finished_reason="abort") == 1, 5, "abort")


def test_keys_and_ids_pass(serve, proxy, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(KEY + "\n")
    keys.chmod(0o600)
    behind = proxy(serve(checkpoint.DEMO, "--api-key-file", keys).port)
    assert behind.complete().status == 401
    assert behind.complete(Authorization=f"Bearer {KEY}x").status == 401
    assert behind.complete(**{"x-api-key": KEY}).status == 200
    reply = behind.complete(Authorization=f"Bearer {KEY}", **{"X-Request-Id": "one-of-ours"})
    assert reply.status == 200 and reply.headers["x-request-id"] == "one-of-ours"
    for path in ("/metrics", "/livez", "/startupz"):  # of one server, which nobody chose
        assert behind.request("GET", path, Authorization=f"Bearer {KEY}").status == 404
    assert behind.request("GET", "/readyz").status == 200


def test_bodies_have_the_limit_of_the_server(demo, proxy):
    behind = proxy(demo.port)
    body = json.dumps({"prompt": [5], "max_tokens": 1}).encode()
    assert behind.request("POST", "/v1/completions", body.ljust(LIMIT)).status == 200
    assert demo.request("POST", "/v1/completions", body.ljust(LIMIT + 1),
                        {"Content-Type": "application/json"}).status == 413
    reply = behind.request("POST", "/v1/completions", body.ljust(LIMIT + 1))
    assert reply.status == 413 and b"nginx" in reply.body
    assert "temporary file" not in behind.errors()  # no prompt was on the disk


def test_a_replica_that_is_away_or_stops_is_passed_over(serve, proxy, synthetic):
    stays, leaves = serve(synthetic), serve(synthetic)
    behind = proxy(leaves.port, stays.port)
    long = leaves.stream([5, 6], max_tokens=800, ignore_eos=True)  # which it still finishes
    pieces = iter(long)
    next(pieces)
    with leaves.halted():
        leaves.process.send_signal(signal.SIGTERM)
        eventually(lambda: leaves.get("/readyz").status == 503, 5, "draining")
        for _ in range(8):
            assert behind.complete().status == 200
        assert leaves.metrics().sum("tessera:http_responses_total", code=503) > 1
    assert sum(1 for _ in pieces) > 300 and long.done
    assert leaves.wait() == 0
    for _ in range(8):
        assert behind.complete().status == 200  # refused connections


def test_rolling_restart(serve, proxy, synthetic):
    """One after the other, the second as soon as the first is ready again, under load."""
    ports = free_port(), free_port()
    first, second = (serve(synthetic, "--port", port) for port in ports)
    behind = proxy(*ports)
    over, statuses = threading.Event(), []

    def ask():
        while not over.is_set():
            statuses.append(behind.complete().status)

    def answered():
        count = len(statuses)
        eventually(lambda: len(statuses) >= count + 8, 10, "answers")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            answered()
            assert first.stop() == 0
            answered()
            serve(synthetic, "--port", ports[0])
            assert second.stop() == 0
            answered()
            serve(synthetic, "--port", ports[1])
            answered()
        finally:
            over.set()
        for one in asking:
            one.result()
    assert set(statuses) == {200}, collections.Counter(statuses)


class Full(http.server.BaseHTTPRequestHandler):
    """A server whose queue is always full."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers.append(self.headers)
        self.send_response(429)
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format, *args):
        pass


def test_a_full_queue_is_the_clients_to_know(demo, proxy):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Full) as full:
        full.headers = []
        thread = threading.Thread(target=full.serve_forever)
        thread.start()
        try:
            behind = proxy(full.server_port, demo.port)
            replies = [behind.complete() for _ in range(8)]
        finally:
            full.shutdown()
            thread.join()
    refused = [reply for reply in replies if reply.status == 429]
    assert {reply.status for reply in replies} == {200, 429}
    assert len(refused) == len(full.headers)  # nobody tried again
    assert all(reply.headers["retry-after"] == "7" for reply in refused)
    for headers in full.headers:
        assert headers["X-Forwarded-For"] == "127.0.0.1"
        assert headers["X-Forwarded-Proto"] == "https"
        assert headers["Connection"] is None


def test_connections_are_kept(demo, proxy):
    """Many requests, few connections to the server."""
    behind = proxy(demo.port)

    def connections():
        held = [link for link in harness.files_of(demo.pid).values() if link.startswith("socket:")]
        return len(held)
    before = connections()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert {reply.status for reply in pool.map(lambda _: behind.complete(), range(30))} == {200}
    assert before < connections() <= before + 2 * (os.cpu_count() + 1)
