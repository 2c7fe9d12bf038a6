"""The server on an emulated device: whole processes over the CUDA module, against transformers.

One rank only: the emulated NCCL is between threads.
"""

import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys

import pytest

import checkpoint
import harness
import packed

sys.path.insert(0, str(harness.ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

pytestmark = pytest.mark.skipif(not harness.EMULATED.exists(),
                                reason="no emulated device in this build")


@pytest.fixture
def device_server(tmp_path, request):
    """device_server(model, arguments...): a server whose program has the module beside it."""
    program = shutil.copy(harness.BINARY, tmp_path)
    shutil.copy(harness.EMULATED, tmp_path)
    servers = request.node.servers = []

    def start(model, *arguments):
        servers.append(harness.Server(
            model, "--device", "cuda", "--threads-per-rank", 1, "--kv-cache-memory", "8M",
            "--dtype", "float32", *arguments, log=tmp_path / "server.log", program=program))
        return servers[-1].wait_ready(90)

    yield start
    for server in servers:
        if server.process.poll() is None:
            assert server.stop() == 0


def test_packed_integers(device_server, tmp_path):
    """As values of --dtype; their 4 bits it does not hold."""
    form, like = packed.FORMS["awq"], checkpoint.GOLDEN / "tied_gqa2_f32"
    model = packed.quantized(tmp_path / "m", like, form)
    prompt = list(range(5, 25))
    wanted, _ = llama_numpy.greedy(packed.plain(tmp_path / "plain", like, form), prompt, 12)
    server = device_server(model, "--quantization", "none")
    assert server.token_ids(prompt, 12) == wanted
    done = subprocess.run([tmp_path / "tessera", "plan", model, "--device", "cuda"],
                          capture_output=True, text=True)
    assert done.returncode == 4
    assert "cannot hold int4 weights; use --device cpu, or --quantization none" in done.stderr


def test_lost_rank(device_server):
    """The next one is told that it is not the first, and leaves out what may be the cause."""
    name = "tied_gqa2_f32"
    server = device_server(checkpoint.GOLDEN / name)
    (prompt, tokens), *_ = checkpoint.golden_runs(name)
    for restarted in (False, True):
        assert server.token_ids(prompt, 8) == tokens[:8]
        rank, = server.ranks()
        assert ("--restarted" in harness.command_line(rank)) == restarted
        os.kill(rank, signal.SIGKILL)
        server.wait_ready(90)


@pytest.mark.parametrize("arguments", [
    ("--sampler", "gather"), ("--sampler", "distributed"), ("--speculative-config", "ngram"),
    ("--speculative-config", "ngram", "--sampler", "distributed", "--enforce-eager")])
def test_greedy_tokens(device_server, arguments):
    """Requests that come and go: steps of several sizes, each launched while another runs."""
    name = "tied_gqa2_f32"
    server = device_server(checkpoint.GOLDEN / name, "--max-num-seqs", 3,
                           "--max-num-batched-tokens", 16, *arguments)
    runs = [(prompt, tokens[:count]) for count in (6, 12)
            for prompt, tokens in checkpoint.golden_runs(name)]
    requests = [(prompt, len(tokens), {}) for prompt, tokens in runs]
    assert server.token_ids_together(requests) == [tokens for _, tokens in runs]


def test_deterministic(device_server):
    """A drawn answer and its logprobs do not depend on who else is served, nor on ranks that are
    lost while it is given."""
    name = "tied_gqa2_f32"
    server = device_server(checkpoint.GOLDEN / name, "--deterministic", "--max-num-seqs", 4,
                           "--max-num-batched-tokens", 24)
    prompts = [prompt[:20] for prompt, _ in checkpoint.golden_runs(name)][:3]

    def answer(i):
        choice = server.complete(prompts[i], max_tokens=5, temperature=0.9, top_p=0.9, seed=i,
                                 presence_penalty=0.5, ignore_eos=True, logprobs=3,
                                 return_token_ids=True)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    alone = [answer(i) for i in range(len(prompts))]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(answer, range(len(prompts)))) == alone
        again = pool.map(answer, range(len(prompts)))
        harness.eventually(lambda: server.requests("running") > 0, what="a running request")
        os.kill(server.ranks()[0], signal.SIGKILL)
        assert list(again) == alone
    assert "--restarted" in harness.command_line(server.ranks()[0])
    assert "order of a single rank: outputs have its bits" in server.log
