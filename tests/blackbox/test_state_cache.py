"""The prefix cache of models with layers that recur: prompts go on from the states that are kept of
others, to the same tokens and logprobs as without, and what is found is not computed again."""

import json
import os
import random
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import checkpoint
from checkpoint import oracle
from harness import ROOT, eventually, run
from test_int_weights import SAMPLED
from test_recurrent import BF16, DENSE, MOE, NEXT, activation_bytes, family_config

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

BLOCK = 16
UNCACHED = ("--no-enable-prefix-caching",)


def text(seed, count):
    return [random.Random(1000 * seed + i).randrange(3, 200) for i in range(count)]


def ask(server, prompt, count=24, **fields):
    """Tokens and their logprobs, how many of the prompt were found, and how many rows were computed
    meanwhile."""
    before = server.metrics().sum("tessera:step_rows_total")
    answer = server.complete(prompt, max_tokens=count, ignore_eos=True, logprobs=2,
                             return_token_ids=True, **{"temperature": 0, **fields})
    rows = server.metrics().sum("tessera:step_rows_total") - before
    choice, details = answer["choices"][0], answer["usage"]["prompt_tokens_details"]
    return (choice["token_ids"], choice["logprobs"]["token_logprobs"],
            details["cached_tokens"] if details else 0, rows)


def turns(server, **fields):
    """A conversation of three turns, each prompt the last one with its answer and a question."""
    prompt, said = text(1, 120), []
    for turn in range(3):
        said.append(ask(server, prompt, 40, **fields))
        prompt = prompt + said[-1][0] + text(2 + turn, 20)
    return said


@pytest.mark.parametrize("options", [(), ("-tp", 2), ("-tp", 4), ("-tp", 8),
                                     ("-tp", 4, "--parallel-mode", "1d_sp"),
                                     ("-tp", 2, "--max-num-batched-tokens", 7)], ids=str)
def test_same_bits_of_turns(serve, options):
    """Sampled with penalties. Of a turn only what comes behind the last end of a block of the
    answer before it is computed."""
    for name in (NEXT, BF16):
        model = checkpoint.GOLDEN / name
        wanted = turns(serve(model, *UNCACHED), **SAMPLED)
        said = turns(serve(model, *options), **SAMPLED)
        assert [s[:2] for s in said] == [w[:2] for w in wanted]
        for turn, (_, _, cached, rows) in enumerate(said):
            known = (120 + 60 * turn - 21) // BLOCK * BLOCK if turn > 0 else 0
            assert cached == known
            least = 120 + 60 * turn - cached + 39  # a step may be in flight at the end
            assert least <= rows <= least + 2
            assert wanted[turn][2] == 0


@pytest.mark.parametrize("name", [DENSE, MOE])
def test_oracle(serve, name):
    """What goes on from a state is what the model says of the whole text."""
    model = checkpoint.GOLDEN / name
    server = serve(model, "-tp", 2)
    prompt = text(7, 150)
    for own in (60, 10, 40):
        whole = prompt + text(own, own)
        wanted, _ = llama_numpy.greedy(model, whole, 8)
        assert ask(server, whole, 8)[0] == wanted
    assert server.metrics().sum("vllm:prefix_cache_hits_total") > 0


def test_branch(serve):
    """The third of those who begin alike goes on from where the second left the first; a prompt
    again from near its end, before what a template may put behind it."""
    server = serve(checkpoint.GOLDEN / NEXT)
    common, found = text(1, 200), []
    for own in (50, 60, 70, 80):
        found.append(ask(server, common + text(own, own), 1)[2:])
    assert found == [(0, 250), (0, 260), (192, 78), (192, 88)]
    assert ask(server, common + text(80, 80), 1)[2:] == ((280 - 8) // BLOCK * BLOCK, 8)
    assert ask(server, common + text(90, 80), 1, cache_salt="of another")[2] == 0
    assert ask(server, common[:100], 1)[2] == 0  # no state of its length is kept


def test_all_at_once(serve):
    """Many with one beginning: the first is computed, the second leaves a state where it leaves the
    first, and for that the others wait."""
    server = serve(checkpoint.GOLDEN / NEXT, "--max-num-batched-tokens", 64)
    common = text(1, 160)
    prompts = [common + text(50 + i, 30) for i in range(8)]
    alone = serve(checkpoint.GOLDEN / NEXT, *UNCACHED).token_ids_together(
        [(prompt, 8, {}) for prompt in prompts])
    before = server.metrics().sum("tessera:step_rows_total")
    assert server.token_ids_together([(p, 8, {}) for p in prompts], held=True) == alone
    rows = server.metrics().sum("tessera:step_rows_total") - before
    assert rows <= 2 * 190 + 6 * 30 + 8 * 8 + 8


@pytest.mark.parametrize("states", [1, 2, 5])
def test_few_places(serve, states):
    """Many texts for few states: what takes the place of another leaves nothing of it to find."""
    model = checkpoint.GOLDEN / NEXT
    each = oracle.state_bytes(checkpoint.shape_of(model), 1, 0)
    prompts = [text(i % 4, 70 + 16 * (i % 3)) + text(40 + i, 9 + i) for i in range(24)]
    uncached = serve(model, *UNCACHED)
    alone = [ask(uncached, prompt, 20, **SAMPLED)[:2] for prompt in prompts]
    for options in ((), ("--max-num-batched-tokens", 40), ("--max-num-seqs", 3)):
        server = serve(model, "--state-cache-memory", states * each, *options)
        with ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(ask, server, prompt, 20, **SAMPLED) for prompt in 3 * prompts]
            assert [job.result()[:2] for job in jobs] == 3 * alone
        assert [ask(server, prompts[0], 20, **SAMPLED)[:2] for _ in range(3)] == 3 * alone[:1]
        metrics = server.metrics()
        assert metrics.sum("vllm:prefix_cache_hits_total") > 0
        assert 0 < metrics.sum("tessera:state_cache_usage_perc") <= 1


def test_shortage(serve):
    """Who has given its blocks to others goes on from the state of its answer, where that is found,
    and in any case to the same tokens."""
    model = checkpoint.GOLDEN / NEXT
    block = BLOCK * oracle.kv_bytes_per_token(checkpoint.shape_of(model), 1, 0)
    server = serve(model, "--max-model-len", 240, "--kv-cache-memory", 24 * block)
    requests = [(text(i, 60 + i), 120, {"temperature": 0.8 * (i % 2), "seed": i}) for i in range(8)]
    alone = serve(model, *UNCACHED).token_ids_together(requests)
    assert server.token_ids_together(requests) == alone
    assert server.metrics().sum("vllm:num_preemptions_total") > 0


def test_lost_rank(serve):
    """With the ranks all states are lost, and none is looked for in new ones."""
    server = serve(checkpoint.GOLDEN / NEXT, "-tp", 2)
    prompt = text(3, 150)
    first = ask(server, prompt, **SAMPLED)
    assert ask(server, prompt, **SAMPLED)[:3] == first[:2] + (128,)
    os.kill(server.ranks()[-1], signal.SIGKILL)
    eventually(lambda: server.metrics().sum("tessera:group_restarts_total") == 1)
    assert server.metrics().sum("tessera:state_cache_usage_perc") == 0
    assert ask(server, prompt, **SAMPLED)[:3] == first[:2] + (0,)
    assert ask(server, prompt, **SAMPLED)[:3] == first[:2] + (128,)


def test_vectors(serve):
    """Of a text that begins as another, from the state of that one."""
    server = serve(checkpoint.GOLDEN / DENSE, "--runner", "pooling", "--skip-tokenizer-init")
    prompts = [text(1, 100) + text(i, 20) for i in range(4)]
    for prompt in prompts:
        reply = server.post("/v1/embeddings", {"input": prompt})
        assert reply.status == 200, reply.body
        vector = reply.json()["data"][0]["embedding"]
        wanted = llama_numpy.vector(checkpoint.GOLDEN / DENSE, prompt)
        assert abs(wanted - vector).max() < 1e-4
    assert server.metrics().sum("vllm:prefix_cache_hits_total") == 2 * 96


# ---- how much memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_planned(tmp_path, ranks):
    """As many as the bytes have room for on the rank that keeps most, no more, and all of them."""
    model = family_config(tmp_path / "shape", "qwen3_next", linear_key_head_dim=256,
                          linear_value_head_dim=256).parent
    states = [oracle.state_bytes(checkpoint.shape_of(model), ranks, r) for r in range(ranks)]
    common = ("-tp", ranks, "--max-num-batched-tokens", 64, "--max-num-seqs", 4,
              "--load-format", "dummy")
    held = {}
    for count in (1, 3, 50):
        said = ("--state-cache-memory", count * max(states) + max(states) // 2)
        held[count], _ = activation_bytes(model, *common, *said)
        plan = json.loads(run("plan", model, *common, *said, "--json").stdout)
        assert plan["kept_states"] == count
    for rank in range(ranks):
        assert held[50][rank] - held[3][rank] == pytest.approx(47 * states[rank], rel=0.01)


def test_planned_by_itself():
    """Four of each sequence where there is room, and the table says it."""
    done = run("plan", checkpoint.GOLDEN / NEXT, "--max-num-seqs", 6)
    assert done.returncode == 0 and "and 24 states for prefixes" in done.stdout


@pytest.mark.parametrize("name, options, code, words", [
    (NEXT, ("--state-cache-memory", 1000), 4, ["--state-cache-memory 1000", "41984"]),
    (NEXT, (*UNCACHED, "--state-cache-memory", "1M"), 2, ["leave out either"]),
    ("qwen3_f32", ("--state-cache-memory", "1M"), 2, ["this one has none"])], ids=str)
def test_refused(name, options, code, words):
    done = run("serve", checkpoint.GOLDEN / name, "--port", 0, *options, timeout=5)
    lines = [line for line in done.stderr.splitlines() if " info " not in line]
    assert done.returncode == code and len(lines) == 1, done.stderr
    assert all(word in lines[0] for word in words)


def test_what_is_said_comes_first(tmp_path):
    """What is kept unless it is asked for takes no room of what is."""
    model = family_config(tmp_path / "shape", "qwen3_next", linear_key_head_dim=256,
                          linear_value_head_dim=256, linear_num_key_heads=32,
                          linear_num_value_heads=64, num_hidden_layers=8).parent
    options = ("plan", model, "--load-format", "dummy", "--max-model-len", 128, "--json",
               "--max-num-batched-tokens", 1024)
    state = oracle.state_bytes(checkpoint.shape_of(model), 1, 0)
    free = json.loads(run(*options, "--max-num-seqs", 1).stdout)["available_bytes"]
    most = int(free * 0.9) // state
    plan = json.loads(run(*options, "--max-num-seqs", most, "--kv-cache-memory", "16M").stdout)
    assert plan["fits"] and plan["max_num_seqs"] == most
    assert 0 <= plan["kept_states"] <= (plan["available_bytes"] - most * state) / 4 / state
    plan = json.loads(run(*options, "--max-num-seqs", 2, "--no-enable-prefix-caching").stdout)
    assert plan["kept_states"] == 0


def test_other_names():
    """Of vLLM, SGLang and llama.cpp."""
    for name in ("--mamba-cache-mode", "--max-mamba-cache-size", "--ctx-checkpoints"):
        done = run("serve", checkpoint.GOLDEN / NEXT, name, "1", timeout=5)
        assert done.returncode == 2 and "--state-cache-memory" in done.stderr
