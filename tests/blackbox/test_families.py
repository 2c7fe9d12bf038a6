"""What ERNIE 4.5, GLM-4, Granite, Mistral, OLMo 2 and 3, Phi-3, Qwen2, Qwen3, Seed-OSS and SmolLM3
have that Llama has not: biases and norms of heads, one by one or all together, in every file that
holds them, norms behind attention and MLP, fused tensors, and multipliers. Their tokens are tested
with those of all goldens."""

import json
import sys

import pytest

import checkpoint
import fp8
from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402  (lives in the folder just added)

BIAS = "model.layers.1.self_attn.k_proj.bias"
NORM = "model.layers.1.self_attn.q_norm.weight"
POST_NORM = "model.layers.1.post_self_attn_layernorm.weight"
MLP_NORM = "model.layers.1.post_feedforward_layernorm.weight"


def fails(code, *arguments):
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stderr


def family_config(directory, family, **changes):
    """A config.json with members that are Llama's left out."""
    checkpoint.write_config(directory, model_type=family, hidden_size=64, intermediate_size=112,
                            num_hidden_layers=2, num_attention_heads=7, num_key_value_heads=1,
                            head_dim=16, vocab_size=300, torch_dtype="float32",
                            tie_word_embeddings=True, **{"sliding_window": None, **changes})
    return directory / "config.json"


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["ernie4_5", "glm", "glm4", "granite", "mistral", "olmo2",
                                    "olmo3", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3"])
def test_synthetic_model(serve, tmp_path, family):
    """Tokens of numpy, from the file and from the same values without one; biases are not gains."""
    changes = {**{name: {"attention_bias": True} for name in ("glm", "glm4", "seed_oss")},
               "granite": {"residual_multiplier": 0.3, "logits_scaling": 3},
               "olmo3": {"sliding_window": 9,
                         "layer_types": ["sliding_attention", "full_attention"]},
               "smollm3": {"no_rope_layer_interval": 2}}
    config = family_config(tmp_path / "shape", family, **changes.get(family, {}))
    model = tmp_path / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 3).returncode == 0
    weights = llama_numpy.read_weights(model)
    assert (BIAS in weights) == (family in ("glm", "glm4", "qwen2", "seed_oss"))
    assert (NORM in weights) == (family in ("olmo2", "olmo3", "qwen3"))
    if NORM in weights:
        assert weights[NORM].shape == (16 if family == "qwen3" else 7 * 16,)
    if BIAS in weights:
        assert 0 < abs(weights[BIAS]).max() < 0.1
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 3).token_ids(prompt, 24) == wanted
    dummy = serve(config.parent, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 24) == wanted


@pytest.mark.parametrize("name", ["glm_f32", "granite_bias_f32", "minimax_m2_f32", "olmo2_f32",
                                  "phi3_gqa_f32", "qwen2_f32", "qwen3_f32", "qwen3_moe_bf16"])
def test_fp8(serve, tmp_path, name):
    """Codes of linears, made while loading or before, mean what ml_dtypes says; biases and norms
    are as they were."""
    golden, rows, blocks = checkpoint.GOLDEN / name, (1, 0), (128, 128)
    coded = fp8.quantized(tmp_path / "coded", golden, fp8.BLOCK, blocks, "_scale_inv")
    prompt, _ = checkpoint.golden_runs(name)[0]
    for model, block, options in ((golden, rows, ("--quantization", "fp8")), (coded, blocks, ())):
        plain = fp8.plain(tmp_path / f"plain-{block[0]}", golden, block)
        wanted, _ = llama_numpy.greedy(plain, prompt, 16)
        server = serve(model, "-tp", 2, "--dtype", "float32", *options)
        assert server.token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("context, length", [(512, 300), (300, 300)])
def test_longrope(serve, tmp_path, context, length):
    """The longest context of the server decides which factors slow the rotation."""
    model = checkpoint.copy_model("phi3_longrope_f32", tmp_path / "model")
    prompt, tokens = checkpoint.golden_runs("phi3_longrope_f32")[0]
    checkpoint.edit_config(model, lambda config: config.update(
        original_max_position_embeddings=length, max_position_embeddings=context,
        rope_scaling={**config["rope_scaling"], "attention_factor": 1.2}))
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert wanted != tokens[:24]
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == wanted
    if context > length:
        short = serve(model, "-tp", 2, "--max-model-len", length).token_ids(prompt, 24)
        checkpoint.edit_config(model, lambda config: config.update(max_position_embeddings=length))
        assert short == llama_numpy.greedy(model, prompt, 24)[0] != wanted


@pytest.mark.parametrize("name, tensor", [("glm4_f32", POST_NORM), ("olmo2_f32", MLP_NORM),
                                          ("olmo3_f32", NORM), ("qwen2_f32", BIAS),
                                          ("qwen3_f32", NORM)])
def test_missing_vector(tmp_path, name, tensor):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", tensor)
    assert tensor in fails(3, "serve", model, "--port", 0)


def test_other_family_than_the_file(tmp_path):
    """Biases that Llama would not add, and gains that others would not multiply with."""
    for name, family, tensor in (("qwen2_f32", "llama", "_proj.bias"),
                                 ("glm4_f32", "glm", "_layernorm.weight"),
                                 ("qwen3_f32", "mistral", "_norm.weight"),
                                 ("olmo2_f32", "granite", "input_layernorm.weight is missing"),
                                 ("qwen3_f32", "olmo2", "q_norm.weight: expected 1-d [1, 96]"),
                                 ("olmoe_f32", "qwen3_moe", "q_norm.weight: expected 1-d [1, 12]"),
                                 ("minimax_m2_f32", "mixtral", "e_score_correction_bias")):
        model = checkpoint.copy_model(name, tmp_path / family)
        checkpoint.edit_config(model, lambda config: config.update(model_type=family))
        assert tensor in fails(3, "serve", model, "--port", 0)


def test_inspect_shows_elements_of_a_bias():
    model = checkpoint.GOLDEN / "qwen2_gqa_bf16"
    wanted = {"q_proj.bias": [[0, 24], [24, 48], [48, 84]], "k_proj.bias": [[0, 12]] * 3}
    done = run("inspect", model, "-tp", 3, "--json")
    for tensor in json.loads(done.stdout):
        name = tensor["name"].rpartition("self_attn.")[2]
        if name in wanted:
            assert [part["cols"] for part in tensor["slices"]] == wanted[name]
    assert "0: [0:24]  1: [24:48]  2: [48:84]" in run("inspect", model, "-tp", 3).stdout


def test_inspect_shows_parts_of_a_tensor():
    """What is fused in the file is cut matrix by matrix."""
    wanted = {"qkv_proj": [[0, 32], [64, 72], [80, 88]], "gate_up_proj": [[0, 48], [96, 144]]}
    done = run("inspect", checkpoint.GOLDEN / "phi3_gqa_f32", "-tp", 2, "--json")
    found = {tensor["name"].split(".")[-2]: [part["rows"] for part in tensor["slices"]
                                             if part["rank"] == 0]
             for tensor in json.loads(done.stdout)}
    assert wanted.items() <= found.items()


def test_unknown_family(tmp_path):
    model = checkpoint.copy_model("qwen3_f32", tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(model_type="Qwen3"))
    line = fails(3, "plan", model)
    assert "expected qwen3 (the nearest) or another of llama, " in line
    assert "or gemma4_unified" in line
