"""--comm mpi between machines: here a machine is a network namespace, with a switch between them.

The kernel's count of what came in on the sockets of each rank is the witness of the bytes that the
closed forms of tests/oracle say. Needs root, iproute2 and Open MPI; skipped elsewhere.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

import checkpoint
import harness
import test_modes
import test_mpi
from harness import ROOT, eventually

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402

PORT, MASTER_PORT = 8000, 29500  # each network is new, nobody else is there


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=check)


def can_have_namespaces():
    """Not in every container, nor with every kernel."""
    try:
        network = Network(1)
    except (OSError, subprocess.CalledProcessError):
        return False
    try:
        network.run(0, "unshare", "--uts", "hostname", "probe")
        network.run(0, "ss", "-HOtnpi")
    except AssertionError:
        return False
    finally:
        network.close()
    return bool(shutil.which("curl"))


class Network:
    """Machines NAME-0, NAME-1, ... at 10.77.0.1, 10.77.0.2, ... behind one switch."""

    def __init__(self, machines):
        name = f"tessera-{os.getpid()}"
        self.switch = f"{name}-switch"
        self.machines = [f"{name}-{number}" for number in range(machines)]
        try:
            self.connect()
        except (OSError, subprocess.CalledProcessError):
            self.close()
            raise

    def connect(self):
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for number, machine in enumerate(self.machines):
            ip("netns", "add", machine)
            ip("link", "add", f"port{number}", "netns", self.switch, "type", "veth",
               "peer", "name", "eth0", "netns", machine)
            ip("-n", self.switch, "link", "set", f"port{number}", "master", "bridge0", "up")
            ip("-n", machine, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", machine, "link", "set", device, "up")

    def close(self):
        with contextlib.suppress(FileNotFoundError):  # without iproute2 there is nothing
            for namespace in (*self.machines, self.switch):
                ip("netns", "del", namespace, check=False)

    def run(self, machine, *command):
        done = subprocess.run(["ip", "netns", "exec", self.machines[machine], *command],
                              capture_output=True, text=True, check=False,
                              timeout=60 * harness.PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def received(self, machine):
        """Bytes that came in from other machines on the collectives' sockets of its rank."""
        lines = self.run(machine, "ss", "-HOtnpi", "src", f"10.77.0.{machine + 1}").splitlines()
        return sum(int(re.search(r"bytes_received:(\d+)", line)[1]) for line in lines
                   if '"tessera-rank"' in line and f":{MASTER_PORT} " not in line
                   and "bytes_received:" in line)


pytestmark = [
    *test_mpi.pytestmark,
    pytest.mark.skipif(os.geteuid() != 0 or not can_have_namespaces(),
                       reason="no network namespaces: not root, no iproute2, or not allowed"),
]


@pytest.fixture
def network(request):
    made = Network(request.param)
    yield made
    made.close()


class NetworkServer(test_mpi.MpiServer):
    """The launcher starts the other machines' processes through an agent, as it would by ssh."""

    def __init__(self, network, model, *arguments, directory):
        self.network = network
        agent = directory / "agent"
        agent.write_text('#!/bin/sh\nhost=$1; shift\n'
                         'exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n')
        agent.chmod(0o755)
        machines = network.machines
        first = ["ip", "netns", "exec", machines[0], "unshare", "--uts", "sh", "-c",
                 'hostname "$0"; exec "$@"', machines[0]]
        launcher = [*test_mpi.MPIRUN, "--mca", "plm_rsh_agent", str(agent), "--mca", "btl",
                    "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca",
                    "oob_tcp_if_include", "eth0", "-H", ",".join(f"{m}:1" for m in machines),
                    "-n", str(len(machines))]
        super().__init__(
            model, *test_mpi.LIMITS, "-tp", len(machines), "--comm", "mpi", "--port", PORT,
            "--master-addr", "10.77.0.1", "--master-port", MASTER_PORT, "--group-secret-file",
            test_mpi.secret_file(directory / "secret"), *arguments,
            log=directory / "network.log", wrapper=(*first, *launcher))

    def wait_ready(self, timeout=60.0):
        def listening():
            assert self.process.poll() is None, f"the server stopped:\n{self.log}"
            # it measures the cost of steps first, which moves bytes too
            return "ready: listening" in self.log and "a step takes" in self.log
        eventually(listening, timeout, "listening")
        return self

    def complete(self, prompt, timeout=60, **fields):
        body = json.dumps({"prompt": prompt, **fields})
        return json.loads(self.network.run(
            0, "curl", "-sSf", "--max-time", str(timeout * harness.PATIENCE),
            "-H", "Content-Type: application/json", "-d", body,
            f"http://127.0.0.1:{PORT}/v1/completions"))


@pytest.fixture
def launch(network, tmp_path):
    servers = []

    def start(model, *arguments):
        servers.append(NetworkServer(network, model, *arguments, directory=tmp_path))
        return servers[0].wait_ready()

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
            server.wait(20)


@pytest.mark.parametrize("network", [3], indirect=True)
def test_greedy_text(launch, network):
    name = "tied_gqa2_f32"
    server = launch(checkpoint.GOLDEN / name, "--dtype", "float32")
    for prompt, greedy in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == greedy[:24]
    assert server.stop() == 0, server.log


@pytest.mark.parametrize("mode,network", [("1d", 3), ("1d_sp", 2), ("2d", 4)],
                         indirect=["network"])
def test_same_bits_as_shared_memory(serve, launch, network, mode):
    arguments = ("--parallel-mode", mode, "--no-enable-prefix-caching")
    servers = (launch(checkpoint.DEMO, *arguments),
               serve(checkpoint.DEMO, "-tp", len(network.machines), *arguments))
    for fields in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
        seen = [server.complete("Once upon a time", max_tokens=40, logprobs=5, **fields)
                ["choices"][0] for server in servers]
        assert seen[0]["text"] == seen[1]["text"]
        assert seen[0]["logprobs"] == seen[1]["logprobs"]


@pytest.mark.parametrize("mode,network", [("1d", 2), ("1d", 3), ("1d_sp", 3), ("2d", 4),
                                          ("2.5d", 8), ("3d", 8), ("3d_gathered 2,2,1", 4)],
                         indirect=["network"])
def test_kernel_counts_the_bytes(launch, network, tmp_path, mode):
    """Sockets carry what the closed forms say, and the headers of MPI: less than a twentieth."""
    model = checkpoint.write_config(tmp_path / "shape", hidden_size=576, num_hidden_layers=2,
                                    num_attention_heads=9, num_key_value_heads=3, head_dim=64,
                                    intermediate_size=1031, vocab_size=2045)
    ranks, prompt, count = len(network.machines), [3 + i for i in range(200)], 8
    server = launch(model, "--load-format", "dummy", "--dtype", "float32", *test_modes.layout(mode),
                    "--no-enable-prefix-caching")
    plan = json.loads(harness.run("plan", model, "-tp", ranks, *test_modes.layout(mode), "--json",
                                  "--load-format", "dummy", "--max-model-len", 512).stdout)
    many_from = plan.get("many_rows_from", 1 << 30)
    before = [network.received(rank) for rank in range(ranks)]
    server.token_ids(prompt, count)
    steps = [(len(prompt), [len(prompt) - 1])] + [(1, [0])] * (count - 1)
    for rank in range(ranks):
        wanted = sum(mode_bytes.step_bytes(checkpoint.shape_of(model), mode, ranks, rank, rows,
                                           sampled, rows >= many_from) for rows, sampled in steps)
        witnessed = network.received(rank) - before[rank]
        assert wanted <= witnessed <= wanted * 1.05 + 4096, (rank, wanted, witnessed)
