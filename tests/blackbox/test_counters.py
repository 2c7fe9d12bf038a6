"""What each rank reads, holds and receives equals the closed forms of tests/oracle."""

import pathlib

import pytest

import checkpoint
from checkpoint import oracle
from harness import eventually

READ_TOLERANCE = 0.05


def received(metrics, rank):
    """(calls, bytes) of each collective that a rank has taken part in."""
    found = {}
    for family in ("calls", "bytes"):
        for name, labels, value in metrics.samples:
            if name == f"tessera:comm_{family}_total" and labels["rank"] == str(rank):
                key = (family, labels["op"])
                found[key] = found.get(key, 0) + value
    return found


def expected(shape, ranks, rank, steps, election=None):
    """The same for a list of steps, each (rows, sampled rows); election: (places of each row,
    whether its logits are gathered all the same) with the distributed sampler."""
    total = {}
    for rows, sampled in steps:
        step = oracle.step_bytes(shape, ranks, rank, rows, sampled,
                                 oneshot_max_bytes=checkpoint.ONESHOT_MAX_BYTES)
        if election is not None:
            places, gathered = election
            if not gathered:
                del step["logits all_gather"]
            step["election all_gather"] = oracle.election_bytes([places] * sampled, ranks)
        for name, (calls, size) in step.items():
            op = name.split()[1]
            total["calls", op] = total.get(("calls", op), 0) + calls
            total["bytes", op] = total.get(("bytes", op), 0) + size
    return total


def check_received(server, shape, ranks, prompt, count, election=None, **fields):
    """Runs one request alone: its prompt is one step, each further token another."""
    steps = [(len(prompt), 1)] + [(1, 1)] * (count - 1)
    before = server.metrics()
    server.token_ids(prompt, count, **fields)
    for rank in range(ranks):
        start = received(before, rank)
        wanted = {key: value + start.get(key, 0)
                  for key, value in expected(shape, ranks, rank, steps, election).items()}

        # The last ranks may still be leaving the last collective when the answer is out.
        def settled():
            now = received(server.metrics(), rank)
            return all(now[key] == value for key, value in wanted.items())
        try:
            eventually(settled, 2)
        except AssertionError:
            now = received(server.metrics(), rank)
            assert {key: now[key] for key in wanted} == wanted, f"rank {rank}"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "untied_mqa_f16", "olmo2_f32"])
def test_received_bytes_one_shot(serve, name, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks)
    shape = checkpoint.shape_of(checkpoint.GOLDEN / name)
    prompt = [3 + i for i in range(23)]
    check_received(server, shape, ranks, prompt, 20)
    if ranks == 1:
        assert server.metrics().sum("tessera:comm_bytes_total", rank=0) == 0


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("family, heads", [("llama", 8), ("olmo2", 128)])
def test_received_bytes_two_shot(serve, tmp_path, family, heads, ranks):
    """Vectors above the one-shot limit are reduced block by block; so are squares of many heads."""
    model = checkpoint.write_config(tmp_path / "wide", hidden_size=512, num_hidden_layers=2,
                                    num_attention_heads=heads, num_key_value_heads=heads,
                                    head_dim=8 if heads > 8 else 64, vocab_size=301,
                                    model_type=family)
    prompt = [3 + i % 290 for i in range(300)]
    assert len(prompt) * (2 * heads if heads > 8 else 512) * 4 > checkpoint.ONESHOT_MAX_BYTES
    server = serve(model, "-tp", ranks, "--load-format", "dummy")
    check_received(server, checkpoint.shape_of(model), ranks, prompt, 4)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_received_bytes_of_the_distributed_sampler(serve, ranks):
    """Candidates instead of logits, as many as the parameters say, and the logits only for rows
    that want logprobs."""
    model = checkpoint.GOLDEN / "tied_gqa2_f32"
    shape = checkpoint.shape_of(model)
    server = serve(model, "-tp", ranks, "--sampler", "distributed",
                   "--no-enable-prefix-caching")  # every row of the same prompt is computed again
    prompt = [3 + i for i in range(23)]
    for i, asked in enumerate([{"temperature": 0.0}, {"temperature": 0.9}, {"top_p": 0.9},
                               {"top_k": 20, "temperature": 0.8}, {"min_p": 0.1, "top_k": 300}]):
        asked = {"temperature": 1.0, **asked}
        fresh = [100 + i, *prompt]  # nothing of it is cached
        check_received(server, shape, ranks, fresh, 12, seed=7, **asked,
                       election=(oracle.places(shape.vocab, **asked), False))
    check_received(server, shape, ranks, prompt, 12, logprobs=2, election=(0, True))
    assert server.metrics().sum("tessera:sampler_fallback_total") == 0
    assert server.metrics().sum("tessera:step_replays_total") == 0  # which are of devices


def bytes_read(pid):
    """All bytes a process has read, by the kernel's count."""
    for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar: "):
            return int(line.split()[1])
    raise AssertionError("no rchar")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_read_and_held_bytes(serve, synthetic, ranks):
    """A rank reads its own slices only: by its own count and by the kernel's."""
    server = serve(synthetic, "-tp", ranks)
    shape = checkpoint.shape_of(synthetic)
    metrics = server.metrics()
    pids = server.ranks()
    assert len(pids) == ranks
    for rank, pid in enumerate(pids):
        elements = sum(oracle.weight_elements(shape, ranks, rank).values())
        wanted = elements * checkpoint.DTYPE_BYTES["bfloat16"]
        reads = metrics.sum("tessera:rank_read_bytes", rank=rank)
        assert reads == pytest.approx(wanted, rel=READ_TOLERANCE), f"rank {rank}"
        assert bytes_read(pid) == pytest.approx(wanted, rel=READ_TOLERANCE), f"rank {rank}"
        held = metrics.sum("tessera:rank_weight_bytes", rank=rank)
        assert held == pytest.approx(wanted, rel=READ_TOLERANCE), f"rank {rank}"
        assert metrics.sum("tessera:rank_up", rank=rank) == 1


def test_tokens_are_counted(serve):
    server = serve(checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 2)
    before = server.metrics()
    server.token_ids([5] * 11, 9)
    after = server.metrics()
    for family, count in (("vllm:prompt_tokens_total", 11), ("vllm:generation_tokens_total", 9)):
        assert after.sum(family) - before.sum(family) == count, family
    assert after.sum("vllm:num_requests_running") == 0
    assert after.sum("vllm:kv_cache_usage_perc") == 0
