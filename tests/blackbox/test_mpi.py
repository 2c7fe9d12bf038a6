"""--comm mpi: the whole server under mpirun, on one machine. Skipped without Open MPI."""

import os
import secrets
import shutil
import signal
import subprocess

import pytest

import checkpoint
import harness
from conftest import LIMITS
from harness import BINARY, eventually, free_port, is_running

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")

pytestmark = [
    pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed"),
    pytest.mark.skipif(not (BINARY.parent / "libtessera_mpi.so").exists(),
                       reason="the MPI module is not built"),
    pytest.mark.skipif(harness.is_sanitized(), reason="Open MPI is not sanitized"),
]


def secret_file(path, mode=0o600):
    path.write_text(secrets.token_hex(16) + "\n")
    path.chmod(mode)
    return path


class MpiServer(harness.Server):
    """The process that is started is the launcher; the front end is one of its children."""

    def children(self):
        return [pid for pid in harness.processes() if harness.parent_of(pid) == self.process.pid]

    def front_end(self):
        return next(pid for pid in self.children()
                    if harness.command_line(pid)[1:2] == ["serve"])

    def ranks(self):
        return harness.ranks_of(self.front_end()) + harness.ranks_of(self.process.pid)

    def stop(self):
        ranks = self.ranks()
        os.kill(self.front_end(), signal.SIGTERM)
        code = self.wait(20)
        eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")
        return code


@pytest.fixture
def launch(tmp_path):
    """launch(model, ranks, arguments...) -> an MpiServer that is ready; killed at the end."""
    servers = []

    def start(model, ranks, *arguments):
        server = MpiServer(
            model, *LIMITS, "-tp", ranks, "--comm", "mpi", "--master-port", free_port(),
            "--group-secret-file", secret_file(tmp_path / f"secret{len(servers)}"), *arguments,
            log=tmp_path / f"mpi{len(servers)}.log", wrapper=(*MPIRUN, "-n", str(ranks)))
        servers.append(server)
        return server.wait_ready()

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.terminate()  # the launcher ends its processes
            server.wait(20)


def run_mpi(*contexts, timeout=60):
    """mpirun with one list of arguments per group of processes: (count, arguments...)."""
    command = list(MPIRUN)
    for count, *arguments in contexts:
        command += [":"] if len(command) > len(MPIRUN) else []
        command += ["-n", str(count), str(BINARY), "serve", str(checkpoint.DEMO),
                    *map(str, LIMITS), "--port", "0", "--comm", "mpi", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=harness.environment(),
                          timeout=timeout * harness.PATIENCE, check=False)


@pytest.mark.parametrize("mode,ranks", [("1d", 1), ("1d", 3), ("1d_sp", 2), ("2d", 4)])
def test_greedy_text(launch, mode, ranks):
    name = "tied_gqa2_f32"
    server = launch(checkpoint.GOLDEN / name, ranks, "--parallel-mode", mode, "--dtype", "float32")
    for prompt, greedy in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == greedy[:24]
    assert server.stop() == 0, server.log


@pytest.mark.parametrize("ranks", [2, 3])
def test_same_numbers_as_shared_memory(serve, launch, ranks):
    """Text, and every digit of the logprobs; and rank 0 counts the same bytes."""
    servers = [launch(checkpoint.DEMO, ranks), serve(checkpoint.DEMO, "-tp", ranks)]
    seen, received = [], []
    for server in servers:
        before = server.metrics().sum("tessera:comm_bytes_total", rank=0)
        answer = server.complete("Once upon a time", max_tokens=60, temperature=0, logprobs=5)
        sampled = server.complete("The fox", max_tokens=60, temperature=1, seed=5)
        seen.append((answer["choices"][0]["text"], answer["choices"][0]["logprobs"],
                     sampled["choices"][0]["text"]))
        received.append(server.metrics().sum("tessera:comm_bytes_total", rank=0) - before)
    assert seen[0] == seen[1]
    assert received[0] == received[1] > 0


def test_lost_rank_ends_everything(launch):
    server = launch(checkpoint.DEMO, 3)
    ranks = server.ranks()
    os.kill(ranks[-1], signal.SIGKILL)
    assert server.wait(20) != 0
    eventually(lambda: not any(map(is_running, ranks)), 5, "ranks gone")


def test_wrong_secret_is_turned_away(tmp_path):
    port = free_port()
    good, bad = secret_file(tmp_path / "good"), secret_file(tmp_path / "bad")
    common = ("-tp", 2, "--master-port", port, "--group-secret-file")
    done = run_mpi((1, *common, good), (1, *common, bad))
    assert done.returncode != 0
    assert "rank 1 was turned away: --group-secret-file" in done.stderr


def test_secret_must_be_there_and_be_safe(tmp_path):
    done = run_mpi((2, "-tp", 2))
    assert done.returncode == 2
    assert "--comm mpi wants --group-secret-file FILE" in done.stderr
    loose = secret_file(tmp_path / "loose", 0o640)
    done = run_mpi((2, "-tp", 2, "--group-secret-file", loose))
    assert done.returncode == 2
    assert "has mode 0640 and others can use it" in done.stderr


def test_launcher_must_fit(tmp_path):
    secret = secret_file(tmp_path / "secret")
    alone = harness.run("serve", checkpoint.DEMO, "-tp", 2, "--comm", "mpi",
                        "--group-secret-file", secret)
    assert alone.returncode == 2
    assert "not started by a launcher: mpirun -n 2 tessera serve" in alone.stderr
    done = run_mpi((2, "-tp", 3, "--group-secret-file", secret))
    assert done.returncode == 2
    assert "as rank 0 of 2 processes, -tp is 3" in done.stderr
