"""Commands that write or describe models: shard, synth, plan, inspect; and dummy weights."""

import json

import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import run

PROMPT = [5, 6, 7, 8, 9]


def succeed(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def shard(model, ranks, directory):
    succeed("shard", model, "-tp", ranks, "-o", directory)
    return directory


# ---- shard --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", checkpoint.golden_names())
def test_shards_of_shards(tmp_path, name):
    """N -> M -> N gives the same bytes, whatever the way."""
    model = checkpoint.GOLDEN / name
    first = shard(model, 4, tmp_path / "4")
    other = shard(first, 3, tmp_path / "4-3")
    assert contents(other) == contents(shard(model, 3, tmp_path / "3"))
    assert contents(shard(other, 4, tmp_path / "4-3-4")) == contents(first)
    assert contents(shard(first, 1, tmp_path / "4-1")) == contents(shard(model, 1, tmp_path / "1"))


@pytest.mark.parametrize("held, served", [(4, 2), (2, 5), (8, 1), (1, 3)])
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "untied_mqa_f16", "phi3_gqa_f32",
                                  "qwen2_gqa_bf16", "qwen3_f32", "gemma3_wrapped_bf16",
                                  "olmo2_f32", "minimax_m2_f32", "gemma4_f32", "gemma4_bf16"])
def test_shards_serve_at_any_size(serve, tmp_path, name, held, served):
    directory = shard(checkpoint.GOLDEN / name, held, tmp_path / "shards")
    server = serve(directory, "-tp", served, "--dtype", "float32")
    prompt, tokens = checkpoint.golden_runs(name)[0]
    assert server.token_ids(prompt, len(tokens)) == tokens


def test_shards_are_slices(tmp_path):
    """Each rank's file holds about its part, not the whole."""
    name = "tied_gqa2_f32"
    directory = shard(checkpoint.GOLDEN / name, 4, tmp_path / "shards")
    files = sorted(directory.glob("model-rank-*.safetensors"))
    assert len(files) == 4
    shape = checkpoint.shape_of(directory)
    for rank, path in enumerate(files):
        elements = sum(oracle.weight_elements(shape, 4, rank).values())
        _, start = checkpoint.read_header(path)
        assert path.stat().st_size - start == pytest.approx(4 * elements, rel=0.02)


def test_shard_refuses_a_full_directory(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = run("shard", checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 2, "-o", tmp_path)
    assert done.returncode in (2, 3)
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_damaged_shard(tmp_path):
    directory = shard(checkpoint.GOLDEN / "tied_gqa2_f32", 2, tmp_path / "shards")
    path = sorted(directory.glob("model-rank-00001*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-8])
    done = run("serve", directory, "--port", 0)
    assert done.returncode == 3
    assert path.name in done.stderr


# ---- synth and dummy weights --------------------------------------------------------------------


def test_synthetic_model_serves(serve, synthetic):
    server = serve(synthetic, "-tp", 2)
    answer = server.complete("Some words", max_tokens=8, temperature=0, ignore_eos=True)
    assert answer["choices"][0]["text"]
    assert len(set(server.token_ids(PROMPT, 32))) > 1


def test_synth_is_deterministic(tmp_path):
    config = checkpoint.write_config(tmp_path / "shape", hidden_size=64, intermediate_size=100,
                                     vocab_size=300, num_attention_heads=2, num_key_value_heads=1)
    made = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        succeed("synth", "--config", config / "config.json", "-o", tmp_path / name, "--seed", seed)
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]
    assert made[0]["model.safetensors"] != made[2]["model.safetensors"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_dummy_weights_equal_synthetic_ones(serve, synthetic, ranks):
    """Same seed, same values, in every layout; no weight file is opened."""
    wanted = serve(synthetic, "-tp", 2, "--dtype", "float32").token_ids(PROMPT, 24)
    server = serve(synthetic, "-tp", ranks, "--dtype", "float32", "--load-format", "dummy",
                   "--seed", 7)
    assert server.token_ids(PROMPT, 24) == wanted


def test_dummy_weights_need_only_a_config(serve, tmp_path):
    model = checkpoint.write_config(tmp_path / "shape", vocab_size=300)
    server = serve(model, "-tp", 2, "--load-format", "dummy")
    assert len(server.token_ids(PROMPT, 4)) == 4
    assert "random weights made in" in server.log and "weights loaded" not in server.log


# ---- plan and inspect ---------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("name", checkpoint.golden_names())
def test_plan(name, ranks):
    """Predictions from headers alone equal the closed forms."""
    model = checkpoint.GOLDEN / name
    plan = json.loads(succeed("plan", model, "-tp", ranks, "--json", "--kv-cache-memory", "24M"))
    shape = checkpoint.shape_of(model)
    config = checkpoint.read_config(model)
    config = {**config.get("text_config", {}), **config}
    dtype = config.get("torch_dtype") or config.get("dtype", "bfloat16")  # of gpt-oss if none
    size = checkpoint.DTYPE_BYTES[dtype]
    assert len(plan["per_rank"]) == ranks
    for rank, entry in enumerate(plan["per_rank"]):
        elements = oracle.weight_elements(shape, ranks, rank)
        assert entry["weight_elements"] == sum(elements.values()), f"rank {rank}"
        assert entry["kv_bytes_per_token"] == oracle.kv_bytes_per_token(shape, ranks, rank, size)


def test_plan_that_does_not_fit():
    done = run("plan", checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 1, "--kv-cache-memory", "900T")
    assert done.returncode == 4


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_plan_of_the_distributed_sampler(ranks):
    plan = json.loads(succeed("plan", checkpoint.DEMO, "-tp", ranks, "--json", "--sampler",
                              "distributed"))
    for entry in plan["per_rank"]:
        assert entry["received_election_bytes_per_row"] == {
            "greedy": oracle.election_bytes([0], ranks)[1],
            "most": oracle.election_bytes([oracle.PLACES_MAX], ranks)[1]}


def test_plan_predicts_the_server(serve, synthetic):
    """What plan says a rank will hold and read is what the server reports."""
    plan = json.loads(succeed("plan", synthetic, "-tp", 3, "--json", "--kv-cache-memory", "24M"))
    metrics = serve(synthetic, "-tp", 3).metrics()
    for rank, entry in enumerate(plan["per_rank"]):
        assert entry["weight_bytes"] == metrics.sum("tessera:rank_weight_bytes", rank=rank)
        assert entry["read_bytes"] == metrics.sum("tessera:rank_read_bytes", rank=rank)


def test_inspect():
    name = "tied_gqa2_f32"
    header, _ = checkpoint.read_header(checkpoint.GOLDEN / name / "model.safetensors")
    text = succeed("inspect", checkpoint.GOLDEN / name, "-tp", 2)
    for tensor in header:
        if tensor != "__metadata__":
            assert tensor in text


def test_inspect_any_name(tmp_path):
    """What a model that sees has beside its text may be called anything."""
    like, name = checkpoint.GOLDEN / "tied_gqa2_f32", 'visual."a\\b\u20ac'
    model = fp8.write(tmp_path / "m", {**fp8.read(like), name: numpy.zeros(3, "f4")}, like)
    entries = json.loads(succeed("inspect", model, "-tp", 2, "--json"))
    assert {"name": name, "dtype": "F32", "shape": [3], "slices": []} in entries
