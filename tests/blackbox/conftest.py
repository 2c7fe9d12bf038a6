"""Fixtures of the black-box tests, which start the program as a user would.

The binary is $TESSERA, else build/dev/tessera. $TEST_PATIENCE stretches the deadlines.
"""

import contextlib
import os
import signal
import subprocess
import tempfile

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle ones of more would spin

import checkpoint
import harness

# A shell that starts this in the background has it and all that it starts ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

LIMITS = ("--threads-per-rank", 1, "--kv-cache-memory", "24M")


def pytest_configure(config):
    config.addinivalue_line("markers", "sanitized: also run with the thread sanitizer")
    # of the Python that Jinja2 makes of random templates
    config.addinivalue_line("filterwarnings", "ignore::SyntaxWarning")
    os.environ.setdefault("HOME", tempfile.gettempdir())  # PMIx of Open MPI 4 wants one
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # every server of the tests is here
    if not harness.BINARY.exists():
        pytest.exit(f"{harness.BINARY} is not there: build it, or name it in TESSERA", 1)


def pytest_collection_modifyitems(items):
    for item in items:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(90 * harness.PATIENCE))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Shows the end of the logs of a failed test's servers."""
    outcome = yield
    report = outcome.get_result()
    for server in getattr(item, "servers", []) if report.failed else []:
        report.sections.append((f"log of {' '.join(server.arguments[1:])}", server.log[-4000:]))


class Starter:
    """Starts servers and sees to it that they end."""

    def __init__(self, directory):
        self.directory = directory
        self.servers = []

    def __call__(self, model, *arguments, wait=True, before=None):
        log = self.directory / f"server{len(self.servers)}.log"
        server = harness.Server(model, *LIMITS, *arguments, log=log, before=before)
        self.servers.append(server)
        return server.wait_ready() if wait else server

    def close(self):
        """A server that still runs must stop cleanly; all traces must be gone."""
        codes = [(server, server.stop()) for server in self.servers
                 if server.process.poll() is None]
        for server, code in codes:
            assert code == 0, f"exit code {code} after SIGTERM:\n{server.log[-4000:]}"
        for server in self.servers:
            assert "Sanitizer" not in server.log, server.log[-8000:]
        harness.eventually(lambda: not harness.orphans(), 2, "no orphans")


@pytest.fixture
def serve(tmp_path, request):
    """serve(model, arguments...) -> a Server that is ready; stopped and checked at the end."""
    starter = Starter(tmp_path)
    request.node.servers = starter.servers
    yield starter
    starter.close()


def shared(tmp_path_factory, model, *arguments):
    starter = Starter(tmp_path_factory.mktemp("shared"))
    try:
        yield starter(model, *arguments)
    finally:
        starter.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo model, which has a tokenizer, on two ranks; shared by the tests of a module."""
    yield from shared(tmp_path_factory, checkpoint.DEMO, "-tp", 2, "--served-model-name", "demo")


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory):
    """A model of 19 MB: large enough for bytes to count and for a stream to be interrupted."""
    directory = tmp_path_factory.mktemp("synthetic")
    config = checkpoint.write_config(directory / "shape") / "config.json"
    model = directory / "model"
    done = harness.run("synth", "--config", config, "-o", model, "--seed", 7)
    assert done.returncode == 0, done.stderr
    return model


def preload(name, tmp_path, monkeypatch):
    """Builds tests/blackbox/NAME.c; servers that start now load it before the C library."""
    if harness.is_sanitized():
        pytest.skip("sanitizers want to be the first library")
    source, library = harness.ROOT / f"tests/blackbox/{name}.c", tmp_path / f"{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))


@pytest.fixture
def hanging_disk(tmp_path, monkeypatch):
    """Rank 1 of servers that start now reads up to a place in its files, and no further. The value
    is a path: the offset of that read is in it."""
    preload("hanging_disk", tmp_path, monkeypatch)
    monkeypatch.setenv("HANGS_FROM", "6000000")
    monkeypatch.setenv("HANGS_TELL", str(tmp_path / "offset"))
    return tmp_path / "offset"


@pytest.fixture
def allocations(tmp_path, monkeypatch):
    """A context: what servers that were started in this test allocate while it lasts, as a list of
    (process, thread, who asked, bytes)."""
    preload("allocations", tmp_path, monkeypatch)
    flag, log = tmp_path / "flag", tmp_path / "allocations"
    flag.write_bytes(b"\0")
    log.touch()
    monkeypatch.setenv("ALLOCATIONS_FLAG", str(flag))
    monkeypatch.setenv("ALLOCATIONS_LOG", str(log))

    @contextlib.contextmanager
    def counted():
        found = []
        with open(flag, "r+b", buffering=0) as switch:
            switch.write(b"1")
            yield found
            switch.seek(0)
            switch.write(b"\0")
        for line in log.read_text().splitlines():
            pid, thread, asker, size = line.split()
            found.append((int(pid), int(thread), asker, int(size)))

    return counted


@pytest.fixture
def odd(tmp_path, request):
    """Nothing divides: 9 heads, 3 KV heads, MLP 131, vocabulary 301. Of the family that the test's
    parameter names, or Llama."""
    return checkpoint.write_config(tmp_path / "odd", hidden_size=72, num_hidden_layers=2,
                                   num_attention_heads=9, num_key_value_heads=3, head_dim=8,
                                   intermediate_size=131, vocab_size=301,
                                   model_type=getattr(request, "param", "llama"))
