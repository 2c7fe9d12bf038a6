"""Every layout through the whole server: the tokens of the goldens, and the bytes of the closed
forms in tests/oracle."""

import json
import sys

import pytest

import checkpoint
from harness import ROOT, eventually

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402

PLANS = ROOT / "engine/parallel/plans"
LAYOUTS = [("1d", 3), ("1d_sp", 3), ("1d_sp", 4), ("2d", 4), ("2d", 9), ("2.5d", 4), ("2.5d", 8),
           ("3d", 8)]


def received(metrics, rank):
    return metrics.sum("tessera:comm_bytes_total", rank=rank)


def check_received(server, mode, ranks, shape, prompt, count, many_from=None):
    """A request alone: its prompt is one step, each further token another."""
    before = server.metrics()
    server.token_ids(prompt, count)
    steps = [(len(prompt), [len(prompt) - 1])] + [(1, [0])] * (count - 1)
    for rank in range(ranks):
        wanted = received(before, rank) + sum(
            mode_bytes.step_bytes(shape, mode, ranks, rank, rows, sampled,
                                  many_from is not None and rows >= many_from)
            for rows, sampled in steps)
        try:  # the last ranks may still be leaving the last collective
            eventually(lambda: received(server.metrics(), rank) == wanted, 2)
        except AssertionError:
            assert received(server.metrics(), rank) == wanted, f"rank {rank}"


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "headdim_bf16"])
def test_greedy_text(serve, name, mode, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, "--parallel-mode", mode,
                   "--dtype", "float32")
    for prompt, greedy in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == greedy[:24]


def plan_file(tmp_path, mode, many_from=None):
    """The built-in plan, its form for many rows from so many on, or never."""
    plan = json.loads((PLANS / f"{mode.replace('.', 'p')}.json").read_text())
    if many_from:
        plan["phases"]["prefill"]["rows"] = many_from
    else:
        plan.pop("phases", None)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    return path


@pytest.fixture
def odd(tmp_path):
    """Nothing divides: 9 heads, 3 KV heads, MLP 131, vocabulary 301."""
    return checkpoint.write_config(tmp_path / "odd", hidden_size=72, num_hidden_layers=2,
                                   num_attention_heads=9, num_key_value_heads=3, head_dim=8,
                                   intermediate_size=131, vocab_size=301)


PROMPT = [3 + i for i in range(23)]


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
def test_received_bytes(serve, tmp_path, odd, mode, ranks):
    server = serve(odd, "-tp", ranks, "--plan", plan_file(tmp_path, mode),
                   "--load-format", "dummy", "--dtype", "float32")
    check_received(server, mode, ranks, checkpoint.shape_of(odd), PROMPT, 7)


@pytest.mark.parametrize("mode,ranks", [("2d", 4), ("2d", 9), ("2.5d", 8)])
def test_received_bytes_of_travelling_weights(serve, tmp_path, odd, mode, ranks):
    """The prompt is a step of many rows, its tokens are steps of few."""
    server = serve(odd, "-tp", ranks, "--plan", plan_file(tmp_path, mode, many_from=10),
                   "--load-format", "dummy", "--dtype", "float32")
    check_received(server, mode, ranks, checkpoint.shape_of(odd), PROMPT, 4, many_from=10)
