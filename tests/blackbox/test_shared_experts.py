"""Mixtures with shared experts: GLM-4.5's and Qwen2's. Their greedy tokens at every number of ranks
are tested with those of all goldens; here is what only they have."""

import json
import sys

import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, run
from test_counters import READ_TOLERANCE, bytes_read, check_received
from test_mixtures import check_lost_rank, check_same_bits, fails
from test_packed import test_other_models as check_packed

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

GLM, QWEN2 = "glm4_moe_f32", "qwen2_moe_f32"
CORRECTION = "model.layers.1.mlp.gate.e_score_correction_bias"
GATE = "model.layers.0.mlp.shared_expert_gate.weight"
PROMPT = list(range(5, 24))


def family_config(directory, family, **changes):
    """Columns that no split divides, and three shared experts."""
    own = {"glm4_moe": {"first_k_dense_replace": 1, "n_routed_experts": 20, "n_shared_experts": 3,
                        "routed_scaling_factor": 1.5, "use_qk_norm": True,
                        "intermediate_size": 102},
           "qwen2_moe": {"num_experts": 20, "shared_expert_intermediate_size": 132}}
    checkpoint.write_config(directory, **{
        "model_type": family, "hidden_size": 128, "num_hidden_layers": 3,
        "moe_intermediate_size": 44, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 600, "norm_topk_prob": True, "num_experts_per_tok": 4,
        "torch_dtype": "float32", "mlp_only_layers": [], **own[family], **changes})
    return directory / "config.json"


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [
    (GLM, ()), (GLM, ("--quantization", "int8")), (GLM, ("--quantization", "int4")),
    ("glm4_moe_bf16", ()), (QWEN2, ()), ("qwen2_moe_bf16", ("--quantization", "int8")),
    ("qwen2_moe_bf16", ("--quantization", "int4"))], ids=str)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options)


def test_lost_rank(serve):
    check_lost_rank(serve, checkpoint.GOLDEN / GLM, 450)


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["glm4_moe", "qwen2_moe"])
def test_synthetic_model(serve, tmp_path, family):
    """Tokens of numpy, from the file and from the same values without one; what corrects the choice
    is no gain."""
    config, model = family_config(tmp_path / "shape", family), tmp_path / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 3).returncode == 0
    weights = llama_numpy.read_weights(model)
    assert (CORRECTION in weights) == (family == "glm4_moe") == (GATE not in weights)
    if CORRECTION in weights:
        assert 0 < abs(weights[CORRECTION]).max() < 0.1
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 3).token_ids(prompt, 24) == wanted
    dummy = serve(config.parent, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 24) == wanted


@pytest.mark.parametrize("name, changes", [
    (GLM, {"norm_topk_prob": False}), (GLM, {"routed_scaling_factor": 0.5}),
    (GLM, {"num_experts_per_tok": 5}), (GLM, {"partial_rotary_factor": 1.0}),
    (QWEN2, {"norm_topk_prob": True})], ids=str)
def test_what_the_config_says(serve, tmp_path, name, changes):
    model = checkpoint.copy_model(name, tmp_path / "model")
    before, _ = llama_numpy.greedy(model, PROMPT, 16)
    checkpoint.edit_config(model, lambda config: config.update(changes))
    wanted, _ = llama_numpy.greedy(model, PROMPT, 16)
    assert wanted != before
    assert serve(model, "-tp", 2).token_ids(PROMPT, 16) == wanted


def with_tensors(directory, name, tensors):
    """The golden with more tensors in its file."""
    model = checkpoint.copy_model(name, directory)
    fp8.write(model, {**fp8.read(model), **tensors}, model)
    return model


def test_layer_that_guesses(serve, tmp_path):
    """Published files have one more layer, which predicts more tokens: nobody reads it."""
    some = numpy.ones((2, 60), numpy.float32)
    more = {f"model.layers.3.{name}.weight": some
            for name in ("eh_proj", "enorm", "self_attn.q_proj", "mlp.experts.0.up_proj",
                         "shared_head.head")}
    model = with_tensors(tmp_path / "model", GLM, more)
    prompt, tokens = checkpoint.golden_runs(GLM)[0]
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == tokens[:24]
    other = with_tensors(tmp_path / "other", GLM, {"model.layers.4.eh_proj.weight": some})
    assert "unexpected tensor model.layers.4.eh_proj" in fails(3, "plan", other)
    other = with_tensors(tmp_path / "qwen", QWEN2, {"model.layers.2.eh_proj.weight": some})
    assert "unexpected tensor model.layers.2.eh_proj" in fails(3, "plan", other)


@pytest.mark.parametrize("name", [GLM, "qwen2_moe_bf16"])
def test_fp8(serve, tmp_path, name):
    """Codes made while loading; a shared expert's row has one scale with those beside it."""
    golden = checkpoint.GOLDEN / name
    prompt, _ = checkpoint.golden_runs(name)[0]
    plain = fp8.plain(tmp_path / "plain", golden, (1, 0))
    wanted, _ = llama_numpy.greedy(plain, prompt, 16)
    server = serve(golden, "-tp", 2, "--dtype", "float32", "--quantization", "fp8")
    assert server.token_ids(prompt, 16) == wanted


def test_fp8_blocks(serve, tmp_path):
    """A file's blocks begin where each of two shared experts does."""
    golden, block = checkpoint.GOLDEN / "qwen2_moe_bf16", (32, 32)
    config = {**fp8.BLOCK, "weight_block_size": list(block)}
    coded = fp8.quantized(tmp_path / "coded", golden, config, block, "_scale_inv")
    prompt, _ = checkpoint.golden_runs("qwen2_moe_bf16")[0]
    wanted, _ = llama_numpy.greedy(fp8.plain(tmp_path / "plain", golden, block), prompt, 16)
    assert serve(coded, "-tp", 3, "--dtype", "float32").token_ids(prompt, 16) == wanted
    whole = fp8.quantized(tmp_path / "whole", golden, fp8.BLOCK, (128, 128), "_scale_inv")
    assert "fp8 weights have a scale for each 128 columns" in fails(3, "plan", whole)


@pytest.mark.parametrize("form", ["packed, zeros", "gptq, 8 bits"])
def test_packed_codes(serve, tmp_path, form):
    """The same of integers."""
    check_packed(serve, tmp_path, "qwen2_moe_bf16", form)


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["glm4_moe", "qwen2_moe"])
@pytest.mark.parametrize("ranks", [2, 8])
def test_received_bytes(serve, tmp_path, family, ranks):
    """A shared expert moves nothing."""
    model = family_config(tmp_path / "shape", family).parent
    server = serve(model, "-tp", ranks, "--load-format", "dummy")
    check_received(server, checkpoint.shape_of(model), ranks, list(range(3, 26)), 12)


@pytest.mark.parametrize("family", ["glm4_moe", "qwen2_moe"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_read_and_held_bytes(serve, tmp_path, family, ranks):
    """A rank reads and holds its own columns of every expert, the shared ones among them."""
    model = tmp_path / "model"
    config = family_config(tmp_path / "shape", family, hidden_size=512, head_dim=32,
                           moe_intermediate_size=384, torch_dtype="bfloat16",
                           **({"intermediate_size": 1200} if family == "glm4_moe" else
                              {"shared_expert_intermediate_size": 1152}))
    assert run("synth", "--config", config, "-o", model).returncode == 0
    server = serve(model, "-tp", ranks)
    metrics = server.metrics()
    for rank, pid in enumerate(server.ranks()):
        held = oracle.weight_elements(checkpoint.shape_of(model), ranks, rank)
        wanted = 2 * sum(held.values())
        for kind in ("tessera:rank_read_bytes", "tessera:rank_weight_bytes"):
            assert metrics.sum(kind, rank=rank) == pytest.approx(wanted, rel=READ_TOLERANCE)
        assert bytes_read(pid) == pytest.approx(wanted, rel=READ_TOLERANCE), rank


@pytest.mark.parametrize("name, held, served", [(GLM, 4, 2), (GLM, 3, 8), (QWEN2, 3, 4)])
def test_shards_serve_at_any_size(serve, tmp_path, name, held, served):
    directory = tmp_path / "shards"
    assert run("shard", checkpoint.GOLDEN / name, "-tp", held, "-o", directory).returncode == 0
    prompt, tokens = checkpoint.golden_runs(name)[0]
    assert serve(directory, "-tp", served).token_ids(prompt, 24) == tokens[:24]


def test_inspect():
    """Every rank has its columns of each shared expert, and all of the router with their gate."""
    done = run("inspect", checkpoint.GOLDEN / QWEN2, "-tp", 2)
    assert done.returncode == 0, done.stderr
    assert "mlp.shared_expert.gate_proj.weight" in done.stdout and GATE in done.stdout


def test_plan_says_how_many():
    done = run("plan", checkpoint.GOLDEN / GLM, "-tp", 2)
    assert ("10 experts, each with these MLP columns; a token takes 3, and 1 that all share; the "
            "first layer has an MLP of 106 columns instead") in done.stdout
    told = json.loads(run("plan", checkpoint.GOLDEN / QWEN2, "--json").stdout)
    assert [told[key] for key in ("experts", "experts_per_token", "shared_experts",
                                  "dense_layers")] == [9, 3, 3, 0]


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name, change, wanted", [
    (GLM, {"n_group": 3}, "n_group is 3, expected a divisor of n_routed_experts, which is 10"),
    (GLM, {"n_shared_experts": 2}, "model.layers.1.mlp.shared_experts.gate_proj.weight"),
    (GLM, {"first_k_dense_replace": 3}, "first_k_dense_replace is 3, expected less than"),
    (GLM, {"first_k_dense_replace": 2}, "tensor model.layers.1.mlp.gate_proj.weight is missing"),
    (QWEN2, {"shared_expert_intermediate_size": 80}, "expected a multiple of moe_intermediate"),
    (QWEN2, {"decoder_sparse_step": 2}, "decoder_sparse_step is 2, expected 1")])
def test_bad_config(tmp_path, name, change, wanted):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(change))
    assert wanted in fails(3, "plan", model)


@pytest.mark.parametrize("name, tensor", [
    (GLM, CORRECTION), (GLM, "model.layers.2.mlp.shared_experts.down_proj.weight"),
    (GLM, "model.layers.0.mlp.up_proj.weight"), (QWEN2, GATE)])
def test_missing_tensor(tmp_path, name, tensor):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", tensor)
    assert tensor in fails(3, "serve", model, "--port", 0)


@pytest.mark.parametrize("name, kind", [(QWEN2, "int8"), ("glm4_moe_bf16", "int4")])
def test_groups_of_codes(name, kind):
    """A group of columns that has a scale lies in one shared expert."""
    line = fails(2, "plan", checkpoint.GOLDEN / name, "--quantization", kind)
    assert "shared experts of" in line and "would have to be a multiple" in line


@pytest.mark.parametrize("mode, ranks", [("2d", 4), ("3d", 8)])
def test_other_layouts(mode, ranks):
    line = fails(2, "plan", checkpoint.GOLDEN / GLM, "-tp", ranks, "--parallel-mode", mode)
    assert "1d and 1d_sp" in line and "mixture of experts" in line
