"""Multi-head latent attention: DeepSeek-V2's and V3's, Kimi-K2's and GLM-4.7-Flash's. Their greedy
tokens at every number of ranks are tested with those of all goldens; here is what only they have.
"""

import json
import sys

import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, eventually, is_sanitized, run, small_pages
from test_counters import READ_TOLERANCE, bytes_read, check_received
from test_memory import GROWTH_MAX, all_resident, knows_populate, resident
from test_mixtures import check_lost_rank, check_same_bits, fails
from test_modes import check_received as check_received_in, layout
from test_packed import test_other_models as check_packed

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

V2, V2_GROUPS, LITE = "deepseek_v2_f32", "deepseek_v2_groups_f32", "glm4_moe_lite_f32"
V3, V3_BF16 = "deepseek_v3_f32", "deepseek_v3_bf16"
FAMILIES = ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2"]
CORRECTION = "model.layers.1.mlp.gate.e_score_correction_bias"
ATTENTION = "model.layers.1.self_attn."
PAIRS = "kv_b_proj.weight"  # is never held as codes: attention multiplies with parts of it
PROMPT = list(range(5, 24))


def family_config(directory, family, **changes):
    """Columns that no split divides: of latents 37 + 48 + 16, or with DeepSeek-V2 64; MLPs' 44."""
    groups = {"n_group": 5, "topk_group": 2}
    own = {"deepseek_v2": {"q_lora_rank": None, "topk_method": "group_limited_greedy",
                           "norm_topk_prob": False, **groups},
           "deepseek_v3": groups, "kimi_k2": {"n_group": 1, "topk_group": 1}, "glm4_moe_lite": {}}
    checkpoint.write_config(directory, **{
        "model_type": family, "hidden_size": 128, "num_hidden_layers": 3,
        "moe_intermediate_size": 44, "intermediate_size": 102, "num_attention_heads": 6,
        "num_key_value_heads": 6, "vocab_size": 600, "norm_topk_prob": True,
        "num_experts_per_tok": 4, "n_routed_experts": 20, "n_shared_experts": 2,
        "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "q_lora_rank": 37,
        "kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 64,
        "torch_dtype": "float32", **own[family], **changes})
    return directory / "config.json"


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [
    (V2, ()), (V2_GROUPS, ()), (V3, ()), (V3, ("--quantization", "int8")),
    (V3, ("--quantization", "int4")), (V3, ("--kv-cache-dtype", "fp8")), (V3_BF16, ()),
    (V3_BF16, ("--quantization", "fp8")), (V3_BF16, ("--quantization", "int8")),
    (V3_BF16, ("--quantization", "int4")), (LITE, ())], ids=str)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options)


def test_lost_rank(serve):
    check_lost_rank(serve, checkpoint.GOLDEN / V3, 450)


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_synthetic_model(serve, tmp_path, family):
    """Tokens of numpy, from the file and from the same values without one; what corrects the choice
    is no gain."""
    config, model = family_config(tmp_path / "shape", family), tmp_path / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 3).returncode == 0
    weights = llama_numpy.read_weights(model)
    assert (CORRECTION in weights) == (family != "deepseek_v2")
    if CORRECTION in weights:
        assert 0 < abs(weights[CORRECTION]).max() < 0.1
    assert weights[ATTENTION + "kv_a_proj_with_mqa.weight"].shape == (64, 128)
    assert weights[ATTENTION + PAIRS].shape == (6 * 96, 48)
    assert weights[ATTENTION + "o_proj.weight"].shape == (128, 6 * 64)
    assert weights[ATTENTION + "kv_a_layernorm.weight"].shape == (48,)
    queries = "q_proj" if family == "deepseek_v2" else "q_b_proj"
    assert weights[f"{ATTENTION}{queries}.weight"].shape[0] == 6 * 48
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 3).token_ids(prompt, 24) == wanted
    dummy = serve(config.parent, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 24) == wanted


STRETCHED = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("name, changes", [
    (V2, {"num_experts_per_tok": 5}), (V2, {"routed_scaling_factor": 2.0}),
    (V2_GROUPS, {"topk_method": "greedy"}), (V2_GROUPS, {"topk_group": 1}),
    (V2_GROUPS, {"rope_scaling": STRETCHED}),
    (V3, {"norm_topk_prob": False}), (V3, {"n_group": 1, "topk_group": 1}),
    (V3, {"n_group": 6, "topk_group": 5}), (V3, {"rope_interleave": False}),
    (V3, {"rope_scaling": None}),
    (V3, {"rope_scaling": {**STRETCHED, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    (LITE, {"n_group": 2}), (LITE, {"rope_theta": 100.0})], ids=str)
def test_what_the_config_says(serve, tmp_path, name, changes):
    model = checkpoint.copy_model(name, tmp_path / "model")
    before, _ = llama_numpy.greedy(model, PROMPT, 16)
    checkpoint.edit_config(model, lambda config: config.update(changes))
    wanted, _ = llama_numpy.greedy(model, PROMPT, 16)
    assert wanted != before
    assert serve(model, "-tp", 2).token_ids(PROMPT, 16) == wanted


def test_name_of_its_own(serve, tmp_path):
    """Kimi-K2 is a DeepSeek-V3."""
    model = checkpoint.copy_model(V3, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(model_type="kimi_k2"))
    prompt, tokens = checkpoint.golden_runs(V3)[0]
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == tokens[:24]


def test_layers_told_by_a_list(serve, tmp_path):
    """As transformers writes GLM-4.7-Flash."""
    model = checkpoint.copy_model(LITE, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(
        mlp_layer_types=["dense", "sparse", "sparse"], first_k_dense_replace=2, head_dim=16))
    prompt, tokens = checkpoint.golden_runs(LITE)[0]
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == tokens[:24]


def test_layer_that_guesses(serve, tmp_path):
    """Published files have one more layer, which predicts more tokens: nobody reads it."""
    some = numpy.ones((2, 64), numpy.float32)
    model = checkpoint.copy_model(V3, tmp_path / "model")
    more = {f"model.layers.3.{name}.weight": some
            for name in ("eh_proj", "enorm", "self_attn.q_a_proj", "self_attn.kv_b_proj",
                         "mlp.experts.0.up_proj", "shared_head.head", "embed_tokens")}
    fp8.write(model, {**fp8.read(model), **more}, model)
    prompt, tokens = checkpoint.golden_runs(V3)[0]
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == tokens[:24]


@pytest.mark.parametrize("name", [V2_GROUPS, V3, V3_BF16, LITE])
def test_fp8(serve, tmp_path, name):
    """Codes made while loading, of all linears but those of which keys and values are made."""
    golden = checkpoint.GOLDEN / name
    prompt, _ = checkpoint.golden_runs(name)[0]
    plain = fp8.plain(tmp_path / "plain", golden, (1, 0), left=(PAIRS,))
    wanted, _ = llama_numpy.greedy(plain, prompt, 16)
    server = serve(golden, "-tp", 2, "--dtype", "float32", "--quantization", "fp8")
    assert server.token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("name, block, ranks", [
    (V3, (128, 128), 2), (V3_BF16, (32, 32), 3), (V3_BF16, (48, 32), 1), (LITE, (16, 128), 5)])
def test_fp8_blocks(serve, tmp_path, name, block, ranks):
    """As DeepSeek publishes its models; blocks do not end where heads do, nor those of one latent
    where a rank's columns do."""
    golden = checkpoint.GOLDEN / name
    config = {**fp8.BLOCK, "weight_block_size": list(block)}
    coded = fp8.quantized(tmp_path / "coded", golden, config, block, "_scale_inv")
    tensors = fp8.read(coded)
    for linear in (PAIRS, "q_a_proj.weight", "kv_a_proj_with_mqa.weight"):
        assert tensors[ATTENTION + linear].dtype == fp8.TYPES["F8_E4M3"]
    prompt, _ = checkpoint.golden_runs(name)[0]
    wanted, _ = llama_numpy.greedy(fp8.plain(tmp_path / "plain", golden, block), prompt, 16)
    assert serve(coded, "-tp", ranks, "--dtype", "float32").token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("form", ["packed, zeros", "gptq, 8 bits"])
def test_packed_codes(serve, tmp_path, form):
    """The same of integers."""
    check_packed(serve, tmp_path, V3_BF16, form)


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [V2, V2_GROUPS, V3, LITE])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_received_bytes(serve, name, ranks):
    """Latents are completed once a layer; at eight ranks some have no head, and all the rows."""
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks)
    shape = checkpoint.shape_of(checkpoint.GOLDEN / name)
    check_received(server, shape, ranks, list(range(3, 26)), 12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode, ranks", [("1d", 5), ("1d_sp", 3), ("1d_sp", 4)])
def test_received_bytes_of_layouts(serve, tmp_path, family, mode, ranks):
    model = family_config(tmp_path / "shape", family).parent
    server = serve(model, "-tp", ranks, *layout(mode), "--load-format", "dummy")
    check_received_in(server, mode, ranks, checkpoint.shape_of(model), list(range(3, 26)), 12)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_read_and_held_bytes(serve, tmp_path, family, ranks):
    """A rank reads and holds what is its heads', and its columns of latents."""
    model = tmp_path / "model"
    config = family_config(tmp_path / "shape", family, hidden_size=512, intermediate_size=1200,
                           moe_intermediate_size=192, num_attention_heads=12,
                           num_key_value_heads=12, kv_lora_rank=256, v_head_dim=128,
                           qk_nope_head_dim=128, torch_dtype="bfloat16",
                           **({"q_lora_rank": 320} if family == "deepseek_v3" else {}))
    assert run("synth", "--config", config, "-o", model).returncode == 0
    server = serve(model, "-tp", ranks)
    metrics = server.metrics()
    for rank, pid in enumerate(server.ranks()):
        held = oracle.weight_elements(checkpoint.shape_of(model), ranks, rank)
        wanted = 2 * sum(held.values())
        for kind in ("tessera:rank_read_bytes", "tessera:rank_weight_bytes"):
            assert metrics.sum(kind, rank=rank) == pytest.approx(wanted, rel=READ_TOLERANCE)
        assert bytes_read(pid) == pytest.approx(wanted, rel=READ_TOLERANCE), rank


@pytest.mark.parametrize("name, size, options", [
    (V2, 4, ()), (V3, 4, ()), (V3, 1, ("--kv-cache-dtype", "fp8")), (V3_BF16, 2, ()),
    (LITE, 4, ())], ids=str)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_cached_bytes(name, size, options, ranks):
    """Latents and what turns of keys, once on every rank, however many heads it has; where it has
    none there is nothing to attend to."""
    config = checkpoint.read_config(checkpoint.GOLDEN / name)
    each = size * config["num_hidden_layers"] * (config["kv_lora_rank"] +
                                                 config["qk_rope_head_dim"])
    plan = json.loads(run("plan", checkpoint.GOLDEN / name, "-tp", ranks, "--json", *options,
                          "--kv-cache-memory", 100 * 16 * each).stdout)
    assert plan["kv_blocks"] == 100
    heads = config["num_attention_heads"]
    for r, rank in enumerate(plan["per_rank"]):
        held = each if heads * (r + 1) // ranks > heads * r // ranks else 0
        assert (rank["kv_bytes_per_token"], rank["kv_bytes"]) == (held, 1600 * held)


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
@pytest.mark.skipif(not knows_populate(), reason="the kernel cannot touch memory ahead")
def test_resident_cache(serve, tmp_path):
    """What was planned is resident, by the kernel's count, and holds as long a text as it should:
    one that fills it changes nothing."""
    model = family_config(tmp_path / "shape", "deepseek_v3", num_hidden_layers=8).parent
    blocks, each = 1024, 4 * 8 * (48 + 16)
    setup = ("-tp", 2, "--threads-per-rank", 1, "--kv-cache-memory", blocks * 16 * each,
             "--load-format", "dummy")
    plan = json.loads(run("plan", model, *setup, "--json").stdout)
    assert plan["kv_blocks"] == blocks
    server = serve(model, *setup, before=small_pages)
    (labels,) = (labels for family, labels, _ in server.metrics().samples
                 if family == "vllm:cache_config_info")
    assert int(labels["num_gpu_blocks"]) == blocks
    ranks = server.ranks()
    wanted = [rank["kv_bytes"] + rank["weight_bytes"] for rank in plan["per_rank"]]
    eventually(lambda: all_resident(ranks, wanted), 60, "planned memory")
    before = [resident(pid) for pid in ranks]
    for first in range(4):  # 4 * 4000 positions of 16384
        server.token_ids([3 + (first + i * i) % 500 for i in range(4000)], 4)
    grown = [resident(pid) - was for pid, was in zip(ranks, before)]
    assert max(grown) < GROWTH_MAX, grown


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, held, served", [
    (V2, 4, 2), (V2_GROUPS, 2, 5), (V3, 3, 8), (V3, 8, 1), (LITE, 1, 3)])
def test_shards_serve_at_any_size(serve, tmp_path, name, held, served):
    directory = tmp_path / "shards"
    assert run("shard", checkpoint.GOLDEN / name, "-tp", held, "-o", directory).returncode == 0
    prompt, tokens = checkpoint.golden_runs(name)[0]
    assert serve(directory, "-tp", served).token_ids(prompt, 24) == tokens[:24]


def test_inspect():
    done = run("inspect", checkpoint.GOLDEN / V3, "-tp", 2)
    assert done.returncode == 0, done.stderr
    for name in ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
                 "kv_b_proj", "o_proj"):
        assert f"{ATTENTION}{name}.weight" in done.stdout


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name, change, wanted", [
    (V2, {"norm_topk_prob": True}, "norm_topk_prob is true, expected false"),
    (V2, {"topk_method": "noaux_tc"}, "topk_method is \"noaux_tc\", expected \"greedy\" or"),
    (V2, {"q_lora_rank": 40}, "model.layers.0.self_attn.q_"),
    (V3, {"n_group": 5}, "n_group is 5, expected a divisor of n_routed_experts, which is 12"),
    (V3, {"topk_group": 5}, "topk_group is 5, expected at most n_group, which is 4"),
    (V3, {"n_group": 6, "topk_group": 1}, "groups of 2 experts that have num_experts_per_tok"),
    (V3, {"scoring_func": "softmax"}, "scoring_func is \"softmax\", expected \"sigmoid\""),
    (V3, {"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
    (V3, {"attention_bias": True}, "attention_bias is true, expected false"),
    (V3, {"num_key_value_heads": 1}, "expected num_attention_heads, which is 5"),
    (V3, {"kv_lora_rank": 40}, "kv_lora_rank is 40, expected a multiple of 16"),
    (V3, {"kv_lora_rank": 48}, "model.layers.0.self_attn.kv_a_"),
    (V3, {"v_head_dim": 32}, "model.layers.0.self_attn."),
    (V3, {"q_lora_rank": None}, "model.layers.0.self_attn.q_"),
    (LITE, {"mlp_layer_types": ["sparse", "dense", "sparse"]}, "\"dense\" before \"sparse\""),
    (LITE, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1")])
def test_bad_config(tmp_path, name, change, wanted):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(change))
    assert wanted in fails(3, "plan", model)


@pytest.mark.parametrize("name, tensor", [
    (V2, "q_proj.weight"), (V3, "q_a_proj.weight"), (V3, "q_a_layernorm.weight"),
    (V3, "q_b_proj.weight"), (V3, "kv_a_proj_with_mqa.weight"), (V3, "kv_a_layernorm.weight"),
    (V3, PAIRS), (LITE, "o_proj.weight")])
def test_missing_tensor(tmp_path, name, tensor):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", ATTENTION + tensor)
    assert ATTENTION + tensor in fails(3, "serve", model, "--port", 0)


def test_other_family_than_the_file(tmp_path):
    """Corrections that DeepSeek-V2 would not add, and keys that others would look for."""
    for name, change, tensor in (
            (V3, {"model_type": "deepseek_v2", "scoring_func": "softmax", "topk_method": "greedy",
                  "norm_topk_prob": False}, "e_score_correction_bias"),
            (LITE, {"model_type": "glm4_moe", "head_dim": 16}, "self_attn."),
            ("glm4_moe_f32", {"model_type": "glm4_moe_lite", "attention_bias": False,
                              "num_key_value_heads": 6, "partial_rotary_factor": 1.0},
             "self_attn.")):
        model = checkpoint.copy_model(name, tmp_path / f"{name}-{change['model_type']}")
        checkpoint.edit_config(model, lambda config: config.update(change))
        assert tensor in fails(3, "serve", model, "--port", 0)


@pytest.mark.parametrize("mode, ranks", [("2d", 4), ("3d", 8)])
def test_other_layouts(mode, ranks):
    line = fails(2, "plan", checkpoint.GOLDEN / V3, "-tp", ranks, "--parallel-mode", mode)
    assert "1d and 1d_sp" in line
