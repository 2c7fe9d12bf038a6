"""--comm mpi: the whole server under mpirun, on one machine. Skipped without Open MPI."""

import os
import random
import secrets
import shutil
import signal
import subprocess
import time

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

    def start(model, ranks, *arguments, wait=True, ports=None):
        ports = ports or (free_port(), free_port())
        server = MpiServer(
            model, *LIMITS, "-tp", ranks, "--comm", "mpi", "--port", ports[0], "--master-port",
            ports[1],
            "--group-secret-file", secret_file(tmp_path / f"secret{len(servers)}"), *arguments,
            log=tmp_path / f"mpi{len(servers)}.log", wrapper=(*MPIRUN, "-n", str(ranks)))
        servers.append(server)
        server.port, server.ports = ports[0], ports
        return server.wait_ready() if wait else server

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


COUNTERS = ("tessera:comm_bytes_total", "tessera:comm_calls_total", "tessera:rank_weight_bytes",
            "tessera:rank_read_bytes", "tessera:rank_up")


def counters(server):
    """Every counter of every rank and group, by its labels."""
    return {(family, tuple(sorted(labels.items()))): value
            for family, labels, value in server.metrics().samples if family in COUNTERS}


@pytest.mark.parametrize("mode,ranks", [("1d", 2), ("1d", 3), ("2d", 4)])
def test_same_numbers_as_shared_memory(serve, launch, mode, ranks):
    """Text, and every digit of the logprobs; and the counters of every rank."""
    arguments = ("--parallel-mode", mode, "--no-enable-prefix-caching")
    servers = [launch(checkpoint.DEMO, ranks, *arguments),
               serve(checkpoint.DEMO, "-tp", ranks, *arguments)]
    seen, counted = [], []
    for server in servers:
        before = counters(server)
        answer = server.complete("Once upon a time", max_tokens=60, temperature=0, logprobs=5)
        sampled = server.complete("The fox", max_tokens=60, temperature=1, seed=5)
        seen.append((answer["choices"][0]["text"], answer["choices"][0]["logprobs"],
                     sampled["choices"][0]["text"]))
        after = counters(server)
        counted.append({key: value - before[key] if "_total" in key[0] else value
                        for key, value in after.items()})
    assert seen[0] == seen[1]
    assert counted[0] == counted[1]
    for rank in range(ranks):
        received = sum(value for (family, labels), value in counted[0].items()
                       if family == COUNTERS[0] and ("rank", str(rank)) in labels)
        assert received > 0, rank


def test_loading_progress_of_all_ranks(launch, synthetic, hanging_disk):
    """Rank 1 stops at a byte that the other side learns; then it counts as lost."""
    server = launch(synthetic, 2, "--load-timeout", 6, wait=False)
    offset = eventually(lambda: hanging_disk.exists() and hanging_disk.read_text(), 20, "hangs")
    ranks = server.ranks()
    total = server.get("/startupz").json()["bytes_total"]

    def stands():
        progress = server.get("/startupz").json()
        return progress["ranks_done"] == 1 and progress["bytes_done"] > total // 2 and progress
    assert eventually(stands, 10, "progress of both ranks")["bytes_done"] < total
    place = f"rank 1, at byte {offset} of model.safetensors, has read nothing for"
    eventually(lambda: f"{place} 3 s; after 6 s" in server.log, 10, "warning")
    assert server.wait(20) == 5
    assert f"{place} 6 s (--load-timeout)" in server.log
    eventually(lambda: not any(map(is_running, ranks)), 5, "ranks gone")


# ---- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target,number,codes", [
    ("front end", signal.SIGTERM, (0,)),
    ("front end", signal.SIGKILL, (137,)),
    ("launcher", signal.SIGTERM, None),
    ("launcher", signal.SIGKILL, (-9,)),
    ("rank 0", signal.SIGKILL, (5,)),
    ("rank 2", signal.SIGKILL, (5, 137)),  # who ends first is seen by the launcher
])
def test_ends_of_an_idle_group(launch, target, number, codes):
    """Whoever goes first, all go, soon, and without a complaint about how they left MPI."""
    server = launch(checkpoint.DEMO, 3)
    front_end, ranks = server.front_end(), server.ranks()
    pids = {"front end": front_end, "launcher": server.process.pid,
            "rank 0": ranks[0], "rank 2": ranks[2]}
    os.kill(pids[target], number)
    code = server.wait(20)
    assert codes is None or code in codes, server.log
    assert code >= 0 or target == "launcher" and number == signal.SIGKILL, server.log
    eventually(lambda: not any(map(is_running, [front_end, *ranks])), 20, "all gone")
    assert "without calling" not in server.log and "finalize" not in server.log.lower()
    if target.startswith("rank"):
        assert target in server.log and "ending all requests" in server.log


def test_signals_at_a_rank_change_nothing(launch):
    """Launchers send theirs to every process; they are for the server."""
    server = launch(checkpoint.DEMO, 3)
    for pid in server.ranks():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
    assert server.complete("Once", max_tokens=5)["usage"]["completion_tokens"] == 5
    assert server.stop() == 0, server.log


def test_rank_killed_while_streaming(launch, synthetic):
    server = launch(synthetic, 3)
    ranks = server.ranks()
    stream = server.stream([5, 6, 7], max_tokens=3000, ignore_eos=True, temperature=0)
    payloads = (payload for _, payload in stream)
    next(payloads)
    os.kill(ranks[1], signal.SIGKILL)
    assert list(payloads)[-1]["error"]["code"] == "rank_lost"
    assert server.wait(20) in (5, 137)
    eventually(lambda: not any(map(is_running, ranks)), 5, "ranks gone")


def test_started_again_after_a_loss(launch):
    """What a service manager does: the same command, at once, on the same ports."""
    server = launch(checkpoint.DEMO, 2)
    text = server.complete("Once", max_tokens=8, temperature=0)["choices"][0]["text"]
    os.kill(server.ranks()[1], signal.SIGKILL)
    assert server.wait(20) in (5, 137)
    again = launch(checkpoint.DEMO, 2, ports=server.ports)
    assert again.complete("Once", max_tokens=8, temperature=0)["choices"][0]["text"] == text
    assert again.stop() == 0, again.log


def test_stopped_rank_is_noticed(launch, synthetic):
    server = launch(synthetic, 3, "--step-timeout", 1)
    ranks = server.ranks()
    stream = server.stream([5, 6, 7], max_tokens=3000, ignore_eos=True, temperature=0)
    payloads = (payload for _, payload in stream)
    next(payloads)
    os.kill(ranks[2], signal.SIGSTOP)
    assert list(payloads)[-1]["error"]["code"] == "rank_lost"
    assert server.wait(20) == 5
    eventually(lambda: not any(map(is_running, ranks)), 5, "ranks gone")


def test_stop_while_a_rank_loads(launch, synthetic, hanging_disk):
    server = launch(synthetic, 3, wait=False)
    eventually(hanging_disk.exists, 20, "hangs")
    front_end, ranks = server.front_end(), server.ranks()
    os.kill(front_end, signal.SIGTERM)
    assert server.wait(5) == 0, server.log
    eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")


def test_stop_while_ranks_have_not_come(tmp_path):
    """One of the launcher's processes is not ours and never comes."""
    secret = secret_file(tmp_path / "secret")
    command = [*MPIRUN, "-n", "1", str(BINARY), "serve", str(checkpoint.DEMO), *map(str, LIMITS),
               "--port", "0", "--comm", "mpi", "-tp", "2", "--master-port", str(free_port()),
               "--group-secret-file", str(secret), ":", "-n", "1", "sleep", "100"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                          env=harness.environment()) as launcher:
        def front_end():
            return [pid for pid in harness.processes()
                    if harness.parent_of(pid) == launcher.pid
                    and harness.command_line(pid)[1:2] == ["serve"]]
        line = next(line for line in launcher.stderr if "waiting for 1 rank at" in line)
        assert "(by --master-addr)" in line or "default" in line
        os.kill(front_end()[0], signal.SIGTERM)
        text = launcher.stderr.read()
        assert launcher.wait(10 * harness.PATIENCE) == 5
    assert "stopped before all ranks had come" in text


@pytest.mark.parametrize("seed", range(12))
def test_stop_at_any_moment(launch, seed):
    """In the rendezvous a stop is a failure, since not all can be told; later it is none."""
    server = launch(checkpoint.DEMO, 3, wait=False)
    front_end = eventually(lambda: [pid for pid in server.children()
                                    if harness.command_line(pid)[1:2] == ["serve"]], 20, "starts")
    eventually(lambda: "waiting for 2 ranks" in server.log, 20, "waits")
    time.sleep(random.Random(seed).random() * 0.8)
    ranks = server.ranks()
    os.kill(front_end[0], signal.SIGTERM)
    code = server.wait(20)
    assert code == 0 or code == 5 and "before all ranks had come" in server.log, server.log
    assert "without calling" not in server.log and "finalize" not in server.log.lower()
    eventually(lambda: not any(map(is_running, ranks)), 2, "ranks gone")


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


def test_launchers_without_mpi(tmp_path, monkeypatch):
    secret = secret_file(tmp_path / "secret")
    for variable, name in (("RANK", "torchrun"), ("LWS_WORKER_INDEX", "LeaderWorkerSet")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "0")
            done = harness.run("serve", checkpoint.DEMO, "-tp", 2, "--comm", "mpi",
                               "--group-secret-file", secret)
        assert done.returncode == 2
        assert name in done.stderr and "starts no MPI" in done.stderr


def test_no_gpus(tmp_path):
    done = run_mpi((2, "-tp", 2, "--device", "cuda", "--group-secret-file",
                    secret_file(tmp_path / "secret")))
    assert done.returncode == 2
    assert "--comm mpi is for CPU ranks" in done.stderr
