"""Mixtures of experts: Mixtral's, MiniMax-M2's, OLMoE's and Qwen3's. Their greedy tokens at every
number of ranks are tested with those of all goldens; here is what only a mixture has."""

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, eventually, run
from test_counters import READ_TOLERANCE, bytes_read, check_received
from test_int_weights import SAMPLED

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

NAMES = ["minimax_m2_f32", "mixtral_f32", "qwen3_moe_bf16", "qwen3_moe_f32"]
EXPERT = {"mixtral_f32": "model.layers.1.block_sparse_moe.experts.3.w3.weight",
          "qwen3_moe_bf16": "model.layers.1.mlp.experts.7.down_proj.weight"}
CORRECTION = "model.layers.1.block_sparse_moe.e_score_correction_bias"
K_NORM = "model.layers.1.self_attn.k_norm.weight"
ROUTER = {"mixtral_f32": "model.layers.0.block_sparse_moe.gate.weight",
          "qwen3_moe_bf16": "model.layers.0.mlp.gate.weight"}


def fails(code, *arguments):
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    return done.stderr


def mixture(directory, family="qwen3_moe", **changes):
    """A config.json: more experts than any step has rows, and columns that no split divides."""
    count = "num_local_experts" if family in ("minimax_m2", "mixtral") else "num_experts"
    return checkpoint.write_config(directory, **{
        "model_type": family, "hidden_size": 128, "intermediate_size": 44,
        "num_hidden_layers": 2, "moe_intermediate_size": 44, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 600, "norm_topk_prob": True,
        "num_experts_per_tok": 5, count: 40, "torch_dtype": "float32", **changes})


def outcome(server, prompt, **options):
    choice = server.complete(prompt, max_tokens=24, ignore_eos=True, logprobs=3,
                             return_token_ids=True, **options)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


PROMPTS = [list(range(5, 5 + n)) for n in (3, 19, 40, 70)]


# ---- the same bits ------------------------------------------------------------------------------


def check_same_bits(serve, model, options, mode="1d_sp"):
    """Sampled with penalties: alone, among others, at any number of ranks, in steps of any size.
    mode: another layout, where the model has one."""
    wanted = None
    for more in (("-tp", 1), ("-tp", 2), ("-tp", 4), ("-tp", 8),
                 ("-tp", 4, "--parallel-mode", mode), ("-tp", 2, "--sampler", "distributed"),
                 ("-tp", 2, "--max-num-batched-tokens", 7)):
        server = serve(model, *options, *more)
        alone = [outcome(server, prompt, **SAMPLED) for prompt in PROMPTS]
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(outcome, server, prompt, **SAMPLED) for prompt in 2 * PROMPTS]
            assert [job.result() for job in jobs] == 2 * alone, more
        wanted = wanted or alone
        assert alone == wanted, more


def check_lost_rank(serve, model, tokens):
    """A request goes on to the same tokens when a rank dies under it, and not just after it."""
    server = serve(model, "-tp", 2)
    body = dict(max_tokens=tokens, ignore_eos=True, return_token_ids=True, **SAMPLED)
    want = server.complete(PROMPTS[1], **body)["choices"][0]["token_ids"]
    for losses in (1, 2, 3):
        before = server.metrics().sum("vllm:generation_tokens_total")
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(server.complete, PROMPTS[1], **body)
            eventually(lambda: server.metrics().sum("vllm:generation_tokens_total") > before + 1, 5,
                       "running")
            under_way = not job.done()
            os.kill(server.ranks()[-1], signal.SIGKILL)
            assert job.result(60)["choices"][0]["token_ids"] == want
        eventually(lambda: server.metrics().sum("tessera:group_restarts_total") == losses)
        if under_way:
            return
    pytest.fail("every request had ended before its rank was killed")


@pytest.mark.parametrize("options", [(), ("--quantization", "int8"), ("--quantization", "int4")],
                         ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options)


def test_lost_rank(serve):
    check_lost_rank(serve, checkpoint.GOLDEN / "mixtral_f32", 450)


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["minimax_m2", "mixtral", "olmoe", "qwen3_moe"])
def test_synthetic_model(serve, tmp_path, family):
    """Tokens of numpy, from the file and from the same values without one; what corrects the choice
    is no gain."""
    config, model = mixture(tmp_path / "shape", family), tmp_path / "model"
    assert run("synth", "--config", config / "config.json", "-o", model, "--seed", 3) \
        .returncode == 0
    weights = llama_numpy.read_weights(model)
    assert (CORRECTION in weights) == (family == "minimax_m2")
    if CORRECTION in weights:
        assert 0 < abs(weights[CORRECTION]).max() < 0.1
    if family in ("minimax_m2", "olmoe"):
        assert weights[K_NORM].shape == (2 * 16,)
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 3).token_ids(prompt, 24) == wanted
    dummy = serve(config, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 24) == wanted


def test_shares_of_all_experts(serve, tmp_path):
    """norm_topk_prob decides what the shares of the chosen experts add up to."""
    texts = []
    for among in (True, False):
        model = checkpoint.copy_model("qwen3_moe_bf16", tmp_path / str(among))
        checkpoint.edit_config(model, lambda config: config.update(norm_topk_prob=among))
        wanted, _ = llama_numpy.greedy(model, PROMPTS[1], 16)
        texts.append(serve(model, "-tp", 2, "--dtype", "float32").token_ids(PROMPTS[1], 16))
        assert texts[-1] == wanted
    assert texts[0] != texts[1]


def test_both_names_of_their_number(serve, tmp_path):
    """Newer configurations of Qwen say num_local_experts."""
    model = checkpoint.copy_model("qwen3_moe_bf16", tmp_path / "model")
    checkpoint.edit_config(
        model, lambda config: config.update(num_local_experts=config.pop("num_experts")))
    prompt, tokens = checkpoint.golden_runs("qwen3_moe_bf16")[0]
    assert serve(model, "--dtype", "float32").token_ids(prompt, 24) == tokens[:24]


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_received_bytes(serve, tmp_path, ranks):
    """A mixture meets as often as an MLP does, and moves as much."""
    model = mixture(tmp_path / "shape")
    server = serve(model, "-tp", ranks, "--load-format", "dummy")
    check_received(server, checkpoint.shape_of(model), ranks, list(range(3, 26)), 12)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_read_and_held_bytes(serve, tmp_path, ranks):
    """A rank reads and holds its own columns of every expert, by the kernel's count, too."""
    model = tmp_path / "model"
    mixture(tmp_path / "shape", hidden_size=512, moe_intermediate_size=384, head_dim=32,
            torch_dtype="bfloat16")
    assert run("synth", "--config", tmp_path / "shape/config.json", "-o", model).returncode == 0
    server = serve(model, "-tp", ranks)
    metrics = server.metrics()
    for rank, pid in enumerate(server.ranks()):
        held = oracle.weight_elements(checkpoint.shape_of(model), ranks, rank)
        wanted = 2 * sum(held.values())
        for family in ("tessera:rank_read_bytes", "tessera:rank_weight_bytes"):
            assert metrics.sum(family, rank=rank) == pytest.approx(wanted, rel=READ_TOLERANCE)
        assert bytes_read(pid) == pytest.approx(wanted, rel=READ_TOLERANCE), rank


@pytest.mark.parametrize("held, served", [(4, 2), (3, 8)])
def test_shards_serve_at_any_size(serve, tmp_path, held, served):
    name = "mixtral_f32"
    directory = tmp_path / "shards"
    assert run("shard", checkpoint.GOLDEN / name, "-tp", held, "-o", directory).returncode == 0
    prompt, tokens = checkpoint.golden_runs(name)[0]
    assert serve(directory, "-tp", served).token_ids(prompt, 24) == tokens[:24]


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode, ranks", [("2d", 4), ("2.5d", 8), ("3d", 8), ("3d_gathered", 8)])
def test_other_layouts(mode, ranks):
    model = checkpoint.GOLDEN / "mixtral_f32"
    line = fails(2, "plan", model, "-tp", ranks, "--parallel-mode", mode)
    assert "1d and 1d_sp" in line and "mixture of experts" in line


def test_plan_says_how_many():
    done = run("plan", checkpoint.GOLDEN / "qwen3_moe_bf16", "-tp", 2)
    assert "12 experts, each with these MLP columns; a token takes 4" in done.stdout
    told = json.loads(run("plan", checkpoint.GOLDEN / "qwen3_moe_bf16", "--json").stdout)
    assert (told["experts"], told["experts_per_token"]) == (12, 4)
    told = json.loads(run("plan", checkpoint.GOLDEN / "qwen3_f32", "--json").stdout)
    assert (told["experts"], told["experts_per_token"]) == (0, 0)


def test_auto_takes_a_layout_that_fits(serve):
    """--auto and --modes say what a mixture cannot have, and go on with what it can."""
    model = checkpoint.GOLDEN / "mixtral_f32"
    done = run("plan", model, "-tp", 4, "--modes")
    assert done.returncode == 0 and "1d_sp" in done.stdout, done.stderr
    prompt, tokens = checkpoint.golden_runs("mixtral_f32")[0]
    assert serve(model, "-tp", 2, "--auto").token_ids(prompt, 24) == tokens[:24]


@pytest.mark.parametrize("change, wanted", [
    ({"num_experts_per_tok": 13}, "num_experts_per_tok is 13, expected at most as many"),
    ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
    ({"num_experts": 2000}, "num_experts is 2000"),
    ({"num_hidden_layers": 1000, "num_experts": 128}, "128000, expected at most 65536"),
    ({"mlp_only_layers": [1]}, "mlp_only_layers is an array, expected an empty list"),
    ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2, expected 1"),
    ({"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
    ({"num_experts": 11}, "model.layers.0.mlp.gate.weight: expected 2-d [11, 64]")])
def test_bad_config(tmp_path, change, wanted):
    model = checkpoint.copy_model("qwen3_moe_bf16", tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(change))
    assert wanted in fails(3, "plan", model)


@pytest.mark.parametrize("tensors", [EXPERT, ROUTER], ids=["expert", "router"])
@pytest.mark.parametrize("name", ["mixtral_f32", "qwen3_moe_bf16"])
def test_missing_tensor(tmp_path, name, tensors):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", tensors[name])
    assert tensors[name] in fails(3, "serve", model, "--port", 0)


def test_quantised_router(tmp_path):
    """Files keep a router as it is; one in 8 bits is named."""
    model = checkpoint.GOLDEN / "qwen3_moe_bf16"
    coded = fp8.quantized(tmp_path / "coded", model, fp8.BLOCK, (128, 128), "_scale_inv")
    tensors = fp8.read(coded)
    router = ROUTER["qwen3_moe_bf16"]
    tensors[router], tensors[router + "_scale_inv"] = fp8.quantize(tensors[router], (128, 128))
    fp8.write(coded, tensors, coded)
    assert router in fails(3, "serve", coded, "--port", 0)
