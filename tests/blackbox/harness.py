"""Starts the program and talks to it: what every black-box test needs.

Only what can be seen from outside is used: the command line, HTTP, the log, and /proc.
"""

import concurrent.futures
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("TESSERA", ROOT / "build/dev/tessera")).resolve()
RUN = str(os.getpid())
EMULATED = BINARY.parent / "tests" / "libtessera_cuda.so"  # the CUDA module on an emulated device
# Deadlines are those of an idle machine times this: what must happen is waited for, and a machine
# that is slow, loaded or runs sanitized programs may take its time.
PATIENCE = float(os.environ.get("TEST_PATIENCE", "4"))


def is_sanitized():
    """Does the program carry a sanitizer, which needs memory and system calls of its own?"""
    program = BINARY.read_bytes()
    return b"__asan_" in program or b"__tsan_" in program


def environment():
    """Ours without TESSERA_... variables, which the program would take as options, and with a mark
    by which the processes of this test run are told from those of others."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
    return {**ours, "TEST_RUN": RUN}


def run(*arguments, timeout=60, variables=None):
    """Runs a command that is expected to end by itself; variables are added to the environment."""
    command = [str(BINARY), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True,
                          env={**environment(), **(variables or {})}, timeout=timeout * PATIENCE,
                          check=False)


class Command:
    """One of the program's commands that print what a server answers."""

    def __init__(self, name):
        self.name = name

    def run(self, *arguments, stdin=b"", stdout=subprocess.PIPE):
        return subprocess.run([str(BINARY), self.name, *map(str, arguments)], input=stdin,
                              stdout=stdout, stderr=subprocess.PIPE, env=environment(),
                              timeout=60 * PATIENCE, check=False)

    def text(self, *arguments, **more):
        done = self.run(*arguments, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def refused(self, code, *arguments, **more):
        """The one line that says why."""
        done = self.run(*arguments, **more)
        assert done.returncode == code, done.stderr
        lines = [line for line in done.stderr.decode().splitlines() if line.startswith("tessera: ")]
        assert len(lines) == 1, done.stderr
        return lines[0]


def eventually(condition, timeout=5.0, what="condition"):
    """Polls until condition() is true and returns its value."""
    end = time.monotonic() + timeout * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {timeout * PATIENCE:g} s"
        time.sleep(0.005)


def free_port():
    """For a server that must be talked to before it says where it listens: below the ports that
    connections are given, one of which could be opened from it meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


# ---- processes --------------------------------------------------------------------------------


def command_line(pid):
    """The arguments of a process; empty for one that is gone or only waits to be reaped."""
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        return [word.decode(errors="replace") for word in words]
    except OSError:
        return []


def parent_of(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rsplit(")", 1)[1].split()[1])


def processes():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def ranks_of(pid):
    """Process ids of the `tessera rank` children of a server, by rank."""
    found = {}
    for child in processes():
        arguments = command_line(child)
        if arguments[1:2] == ["rank"] and parent_of(child) == pid:
            rank = re.search(r"--rank[= ](\d+)", " ".join(arguments))[1]
            found[int(rank)] = child
    return [found[rank] for rank in sorted(found)]


def is_running(pid):
    return bool(command_line(pid))


@contextlib.contextmanager
def halted(pids):
    """These processes stand still: what happens meanwhile happens within one step."""
    def state(pid):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: all(state(pid) in "TtZ" for pid in pids), what="halted")
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def files_of(pid):
    """{descriptor: what it is} of a process."""
    found = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found[int(entry)] = os.readlink(f"/proc/{pid}/fd/{entry}")
    return found


def listening(pid):
    """The ports a process listens on, by the kernel's tables."""
    sockets, ports = set(files_of(pid).values()), set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for row in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def cpu_seconds(*pids):
    """What processes have used of the processor."""
    stats = [pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
             for pid in pids]
    return sum(int(words[11]) + int(words[12]) for words in stats) / os.sysconf("SC_CLK_TCK")


def small_pages():
    """For a process whose memory is counted: its system may round it up to huge pages otherwise."""
    ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE, which children inherit


def check_rests(*pids, share=0.05):
    """Who spins always spins; who rests may first have something to finish."""
    def rests():
        begin, used = time.monotonic(), cpu_seconds(*pids)
        time.sleep(1)
        return cpu_seconds(*pids) - used < share * (time.monotonic() - begin)
    eventually(rests, what="no use of the processor")


def orphans():
    """`tessera rank` processes of this binary and this test run whose server is gone."""
    def ours(pid):
        try:
            mark = f"TEST_RUN={RUN}".encode()
            return (os.readlink(f"/proc/{pid}/exe") == str(BINARY) and
                    mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
        except OSError:
            return False
    return [pid for pid in processes() if command_line(pid)[1:2] == ["rank"] and ours(pid)
            and command_line(parent_of(pid))[1:2] != ["serve"]]


# ---- HTTP -------------------------------------------------------------------------------------


class Reply:
    """A whole HTTP answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object, whose shape is the same everywhere."""
        error = self.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and isinstance(error["type"], str), error
        assert error["code"] is None or isinstance(error["code"], str), error
        return error


class Stream:
    """An event stream, read as it comes: iterates over (arrival time, payload)."""

    def __init__(self, connection, response):
        self.connection, self.response = connection, response
        self.done = False  # [DONE] came

    def __iter__(self):
        try:
            while line := self.response.readline():
                text = line.decode().rstrip("\n")
                if not text or text.startswith(":"):
                    continue
                assert text.startswith("data: "), text
                if text == "data: [DONE]":
                    self.done = True
                    continue
                yield time.monotonic(), json.loads(text[len("data: "):])
        except (http.client.HTTPException, OSError):
            pass  # cut off: self.done stays false
        finally:
            self.connection.close()


class Server:
    """`tessera serve` on a free port; a wrapper is a command that becomes the one after it."""

    def __init__(self, model, *arguments, log, wrapper=(), before=None, program=BINARY):
        self.arguments = [*wrapper, str(program), "serve", str(model), "--port", "0",
                          *map(str, arguments)]
        self.log_path = log
        self.port = None
        with open(log, "wb") as output:
            self.process = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL,
                                            stdout=output, stderr=output, env=environment(),
                                            preexec_fn=before)
        self.pid = self.process.pid

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, timeout=30.0):
        """Until the log names the port, /health answers 200 and the ranks have nothing to do."""
        def logged(pattern):
            assert self.process.poll() is None, f"the server stopped:\n{self.log}"
            return re.search(pattern, self.log)
        listening = eventually(lambda: logged(r"listening on http://127\.0\.0\.1:(\d+)"), timeout,
                               "listening")
        self.port = int(listening.group(1))
        eventually(lambda: self.get("/health").status == 200, timeout, "/health")
        eventually(lambda: logged("a step takes"), timeout, "steps measured")
        return self

    def request(self, method, path, body=None, headers=None, timeout=60):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)
        try:
            connection.request(method, path, body, headers or {})
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, timeout=60):
        """POSTs an object as JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, {"Content-Type": "application/json"}, timeout)

    def complete(self, prompt, timeout=60, **fields):
        """A completion that must succeed, as an object."""
        reply = self.post("/v1/completions", {"prompt": prompt, **fields}, timeout)
        assert reply.status == 200, reply.body
        return reply.json()

    def token_ids(self, prompt, count, **fields):
        """The ids of exactly count tokens, whatever they are; greedy unless told otherwise."""
        fields = {"temperature": 0, **fields}
        answer = self.complete(prompt, max_tokens=count, ignore_eos=True, return_token_ids=True,
                               **fields)
        return answer["choices"][0]["token_ids"]

    def token_ids_together(self, requests, held=False):
        """token_ids of several requests at once: a list of (prompt, count, fields). held: the ranks
        stand still until all are there."""
        def all_there():
            return self.requests("running") + self.requests("waiting") == len(requests)

        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            with self.halted() if held else contextlib.nullcontext():
                futures = [pool.submit(self.token_ids, prompt, count, **fields)
                           for prompt, count, fields in requests]
                if held:
                    eventually(all_there, what="all requests")
            return [future.result() for future in futures]

    def stream(self, prompt, timeout=60, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)
        body = json.dumps({"prompt": prompt, "stream": True, **fields})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type").startswith("text/event-stream")
        return Stream(connection, response)

    def metrics(self):
        return Metrics(self.get("/metrics").body.decode())

    def ranks(self):
        return ranks_of(self.pid)

    def halted(self):
        return halted(self.ranks())

    def requests(self, state):
        return self.metrics().sum(f"vllm:num_requests_{state}")

    def wait(self, timeout=10.0):
        """Its exit code."""
        return self.process.wait(timeout * PATIENCE)

    def stop(self):
        """Ends it as an operator would, and checks that nothing stays behind."""
        ranks = self.ranks()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")
        return code


class Metrics:
    """A parsed /metrics page."""

    SAMPLE = re.compile(r'^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$')
    LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')

    def __init__(self, text):
        self.samples = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                match = self.SAMPLE.match(line)
                assert match, f"not a sample: {line}"
                labels = dict(self.LABEL.findall(match[2] or ""))
                self.samples.append((match[1], labels, float(match[3])))

    def sum(self, name, **wanted):
        """The sum of a family's samples that carry the wanted labels; there must be one."""
        values = [value for family, labels, value in self.samples if family == name
                  and all(labels.get(key) == str(label) for key, label in wanted.items())]
        assert values, f"no {name} with {wanted}"
        return sum(values)
