"""Layers that recur: Qwen3-Next's and Qwen3.5's. Their greedy tokens at every number of ranks are
tested with those of all goldens; here is what only they have: a state of each sequence, in the
place of keys and values, that nothing but its own tokens may touch."""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, eventually, is_sanitized, run, small_pages
from test_counters import READ_TOLERANCE, bytes_read, check_received
from test_embeddings import embed
from test_int_weights import SAMPLED
from test_memory import all_resident, knows_populate, resident
from test_mixtures import PROMPTS, check_lost_rank, check_same_bits, fails, outcome
from test_modes import check_received as check_received_in, layout
from test_packed import test_other_models as check_packed

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

NEXT, DENSE, BF16, MOE = "qwen3_next_f32", "qwen3_5_f32", "qwen3_5_bf16", "qwen3_5_moe_f32"
NAMES = [NEXT, DENSE, BF16, MOE]
FAMILIES = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"]
RECURS = "model.layers.0.linear_attn."
INSIDE = "model.language_model.layers.0.linear_attn."
PROMPT = list(range(5, 24))


def family_config(directory, family, **changes):
    """Heads and columns that no split divides; layers 0, 1 and 3 recur."""
    experts = {"num_experts": 20, "num_experts_per_tok": 4, "moe_intermediate_size": 44,
               "shared_expert_intermediate_size": 88} if family != "qwen3_5_text" else {}
    checkpoint.write_config(directory, **{
        "model_type": family, "hidden_size": 128, "num_hidden_layers": 4,
        "intermediate_size": 102, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 16, "vocab_size": 600, "linear_num_key_heads": 3, "linear_num_value_heads": 6,
        "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 3, "partial_rotary_factor": 0.25, "torch_dtype": "float32",
        **experts, **changes})
    return directory / "config.json"


def by_key_head(directory):
    """A Qwen3-Next with experts in whole groups of 32 columns, which its golden's are not."""
    config = family_config(directory / "shape", "qwen3_next", moe_intermediate_size=32,
                           shared_expert_intermediate_size=64)
    model = directory / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 5).returncode == 0
    return model


def experts_apart(directory):
    """Qwen3.5's mixture with a file of one tensor for each of an expert's matrices, as its FP8 one
    and transformers have them."""
    model, tensors = checkpoint.copy_model(MOE, directory), {}
    for name, values in fp8.read(model).items():
        stem, _, what = name.rpartition(".experts.")
        if not stem:
            tensors[name] = values
            continue
        for e, one in enumerate(values):
            for part, rows in zip(("gate", "up") if what == "gate_up_proj" else ("down",),
                                  numpy.split(one, 2) if what == "gate_up_proj" else (one,)):
                tensors[f"{stem}.experts.{e}.{part}_proj.weight"] = rows
    return fp8.write(model, tensors, model)


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [
    (NEXT, ()), (NEXT, ("--kv-cache-dtype", "fp8")), (DENSE, ()), (BF16, ()),
    (BF16, ("--quantization", "fp8")), (BF16, ("--quantization", "int8")),
    (BF16, ("--quantization", "int4")), (MOE, ()), (MOE, ("--quantization", "int4"))], ids=str)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options)


@pytest.mark.parametrize("code", ["fp8", "int8", "int4"])
def test_same_bits_of_codes_by_key_head(serve, tmp_path, code):
    """Of tensors that have the parts of a key head together."""
    model = by_key_head(tmp_path / "model")
    check_same_bits(serve, model, ("--quantization", code))


@pytest.mark.parametrize("name", [NEXT, BF16])
def test_lost_rank(serve, name):
    check_lost_rank(serve, checkpoint.GOLDEN / name, 420)


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_prompts_in_pieces(serve, rows):
    """Every piece goes on from the state that the one before it left, whatever is between them."""
    for name in (NEXT, DENSE):
        server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--max-num-batched-tokens", rows,
                       "--max-num-seqs", 4)
        runs = checkpoint.golden_runs(name)
        together = server.token_ids_together([(prompt, 40, {}) for prompt, _ in 3 * runs])
        assert together == [tokens[:40] for _, tokens in 3 * runs]


@pytest.mark.parametrize("slots", [1, 3])
def test_more_requests_than_slots(serve, slots):
    """A sequence finds nothing of the one that had its slot."""
    model = checkpoint.GOLDEN / NEXT
    alone = [outcome(serve(model), prompt, **SAMPLED) for prompt in PROMPTS]
    server = serve(model, "-tp", 2, "--max-num-seqs", slots)
    with ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(outcome, server, prompt, **SAMPLED) for prompt in 4 * PROMPTS]
        assert [job.result() for job in jobs] == 4 * alone


def test_left_in_the_middle(serve):
    """Nor of one whose client has gone."""
    prompt, tokens = checkpoint.golden_runs(NEXT)[0]
    server = serve(checkpoint.GOLDEN / NEXT, "-tp", 2, "--max-num-seqs", 1)
    for _ in range(3):
        stream = server.stream(PROMPT, max_tokens=400, ignore_eos=True)
        next(iter(stream))
        stream.connection.close()
        assert server.token_ids(prompt, 24) == tokens[:24]


def test_shortage(serve):
    """Who has to leave for want of blocks comes back with its first token."""
    model = checkpoint.GOLDEN / NEXT
    block = 16 * oracle.kv_bytes_per_token(checkpoint.shape_of(model), 1, 0)
    server = serve(model, "--max-model-len", 160, "--kv-cache-memory", 12 * block)
    requests = [{"prompt": PROMPT[:9 + i], "count": 100, "temperature": 0.8 * (i % 2), "seed": i,
                 "frequency_penalty": 0.3 * (i % 3)} for i in range(10)]
    alone = [server.token_ids(**request) for request in requests]
    assert server.metrics().sum("vllm:num_preemptions_total") == 0
    with ThreadPoolExecutor(10) as pool:
        with server.halted():
            jobs = [pool.submit(server.token_ids, **request) for request in requests]
            eventually(lambda: server.requests("running") + server.requests("waiting") == 10)
        assert [job.result() for job in jobs] == alone
    assert server.metrics().sum("vllm:num_preemptions_total") > 0


def test_several_answers(serve):
    """To one prompt: each has a state of its own."""
    server = serve(checkpoint.GOLDEN / NEXT, "-tp", 2)
    wanted = server.token_ids(PROMPT, 24)
    body = dict(max_tokens=24, ignore_eos=True, return_token_ids=True, n=3)
    greedy = server.complete(PROMPT, temperature=0, **body)["choices"]
    assert [choice["token_ids"] for choice in greedy] == 3 * [wanted]
    sampled = [sorted(choice["token_ids"] for choice in server.complete(
        PROMPT, temperature=1.0, seed=4, **body)["choices"]) for _ in range(2)]
    assert sampled[0] == sampled[1]


def test_idle_between(serve):
    """A step of other sequences leaves a state alone, however long it stands."""
    prompt, tokens = checkpoint.golden_runs(DENSE)[0]
    server = serve(checkpoint.GOLDEN / DENSE, "-tp", 3, "--max-num-batched-tokens", 4)
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(server.token_ids, prompt[:1 + i] + prompt, 8) for i in range(5)]
        jobs.append(pool.submit(server.token_ids, prompt, 48))
        assert jobs[-1].result() == tokens[:48]
        alone = [server.token_ids(prompt[:1 + i] + prompt, 8) for i in range(5)]
        assert [job.result() for job in jobs[:5]] == alone


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_synthetic_model(serve, tmp_path, family):
    """Tokens of numpy, from the file and from the same values without one."""
    config, model = family_config(tmp_path / "shape", family), tmp_path / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 3).returncode == 0
    stored = fp8.read(model)
    together = {"in_proj_qkvz": (480, 128), "in_proj_ba": (12, 128)}
    apart = {"in_proj_qkv": (288, 128), "in_proj_z": (192, 128), "in_proj_b": (6, 128),
             "in_proj_a": (6, 128)}
    shapes = together if family == "qwen3_next" else apart
    for part, shape in shapes.items():
        assert stored[f"{RECURS}{part}.weight"].shape == shape
    assert stored[f"{RECURS}A_log"].shape == stored[f"{RECURS}dt_bias"].shape == (6,)
    assert stored[f"{RECURS}conv1d.weight"].shape == (288, 1, 4)
    assert stored[f"{RECURS}out_proj.weight"].shape == (128, 192)
    assert stored["model.layers.2.self_attn.q_proj.weight"].shape == (192, 128)
    assert stored[f"{RECURS}A_log"].min() < 0 and abs(stored[f"{RECURS}norm.weight"] - 1).max() < .1
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 3).token_ids(prompt, 24) == wanted
    dummy = serve(config.parent, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 24) == wanted


def text_part(config):
    return config.get("text_config", config)


@pytest.mark.parametrize("name, changes", [
    (NEXT, {"partial_rotary_factor": 1.0}), (NEXT, {"norm_topk_prob": False}),
    (NEXT, {"rms_norm_eps": 0.1}), (NEXT, {"num_experts_per_tok": 5}),
    (NEXT, {"rope_theta": 100.0}), (DENSE, {"rms_norm_eps": 0.1}),
    (MOE, {"num_experts_per_tok": 3})], ids=str)
def test_what_the_config_says(serve, tmp_path, name, changes):
    model = checkpoint.copy_model(name, tmp_path / "model")
    before, _ = llama_numpy.greedy(model, PROMPT, 16)
    checkpoint.edit_config(model, lambda config: text_part(config).update(changes))
    wanted, _ = llama_numpy.greedy(model, PROMPT, 16)
    assert wanted != before
    assert serve(model, "-tp", 2).token_ids(PROMPT, 16) == wanted


def test_experts_apart(serve, tmp_path):
    prompt, tokens = checkpoint.golden_runs(MOE)[0]
    model = experts_apart(tmp_path / "model")
    for ranks in (1, 3):
        assert serve(model, "-tp", ranks).token_ids(prompt, 24) == tokens[:24]


def test_no_layer_recurs(serve, tmp_path):
    """Then it is a model as others are, and prefixes are cached."""
    config = family_config(tmp_path / "shape", "qwen3_next", full_attention_interval=1)
    model = tmp_path / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 3).returncode == 0
    prompt = list(range(263, 263 + 50))
    wanted, _ = llama_numpy.greedy(model, prompt, 16)
    server = serve(model, "-tp", 2)
    assert [server.token_ids(prompt, 16) for _ in range(2)] == 2 * [wanted]
    assert server.metrics().sum("vllm:prefix_cache_hits_total") == 48


def test_no_experts(serve, tmp_path):
    """Qwen3-Next without a mixture."""
    config = family_config(tmp_path / "shape", "qwen3_next", num_experts=0)
    model = tmp_path / "model"
    assert run("synth", "--config", config, "-o", model, "--seed", 3).returncode == 0
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 16)
    assert serve(model, "-tp", 2).token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("name", [NEXT, DENSE])
def test_vectors(serve, name):
    """Of whole texts, one after the other in the same slots."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--runner", "pooling",
                   "--skip-tokenizer-init", "--max-num-batched-tokens", 16, "--max-num-seqs", 2)
    prompts = [prompt for prompt, _ in checkpoint.golden_runs(name)] + PROMPTS
    got, _ = embed(server, prompts)
    for prompt, vector in zip(prompts, got):
        wanted = llama_numpy.vector(checkpoint.GOLDEN / name, prompt)
        assert abs(vector - wanted).max() < 1e-4


@pytest.mark.parametrize("name", [NEXT, BF16, MOE])
def test_fp8(serve, tmp_path, name):
    """Codes made while loading, of all linears but those of gates of layers that recur."""
    golden = experts_apart(tmp_path / "apart") if name == MOE else checkpoint.GOLDEN / name
    prompt, _ = checkpoint.golden_runs(name)[0]
    plain = fp8.plain(tmp_path / "plain", golden, (1, 0))
    wanted, _ = llama_numpy.greedy(plain, prompt, 16)
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32", "--quantization",
                   "fp8")
    assert server.token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("name, block, ranks", [
    (NEXT, (48, 32), 2), (NEXT, (16, 16), 3), (BF16, (32, 32), 3), (BF16, (48, 32), 2)])
def test_fp8_blocks(serve, tmp_path, name, block, ranks):
    """As Qwen publishes its models; blocks need not end where heads do."""
    golden = by_key_head(tmp_path / "by") if name == NEXT else checkpoint.GOLDEN / name
    config = {**fp8.BLOCK, "weight_block_size": list(block)}
    coded = fp8.quantized(tmp_path / "coded", golden, config, block, "_scale_inv")
    tensors = fp8.read(coded)
    part = f"{RECURS}in_proj_qkvz.weight" if name == NEXT else f"{INSIDE}in_proj_qkv.weight"
    assert tensors[part].dtype == fp8.TYPES["F8_E4M3"]
    wanted, _ = llama_numpy.greedy(fp8.plain(tmp_path / "plain", golden, block), PROMPT, 16)
    assert serve(coded, "-tp", ranks, "--dtype", "float32").token_ids(PROMPT, 16) == wanted


@pytest.mark.parametrize("ranks", [1, 3])
def test_fp8_left_out(serve, tmp_path, ranks):
    """Layers that recur stay as they were, as llm-compressor is told to leave them."""
    left = (".in_proj_qkv.weight", ".in_proj_z.weight", ".out_proj.weight")
    golden, block = checkpoint.GOLDEN / BF16, (1, 0)
    coded = fp8.quantized(tmp_path / "coded", golden, fp8.CHANNEL, block, "_scale", left=left)
    wanted, _ = llama_numpy.greedy(fp8.plain(tmp_path / "plain", golden, block, left), PROMPT, 16)
    assert serve(coded, "-tp", ranks, "--dtype", "float32").token_ids(PROMPT, 16) == wanted


@pytest.mark.parametrize("form", ["packed, zeros", "gptq, 8 bits"])
def test_packed_codes(serve, tmp_path, form):
    """The same of integers."""
    check_packed(serve, tmp_path, BF16, form)


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_received_bytes(serve, name, ranks):
    """What layers that attend do; at eight ranks some have no heads of either kind."""
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks)
    shape = checkpoint.shape_of(checkpoint.GOLDEN / name)
    check_received(server, shape, ranks, list(range(3, 26)), 12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode, ranks", [("1d", 5), ("1d_sp", 3), ("1d_sp", 4)])
def test_received_bytes_of_layouts(serve, tmp_path, family, mode, ranks):
    model = family_config(tmp_path / "shape", family).parent
    server = serve(model, "-tp", ranks, *layout(mode), "--load-format", "dummy")
    check_received_in(server, mode, ranks, checkpoint.shape_of(model), list(range(3, 26)), 12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_read_and_held_bytes(serve, tmp_path, family, ranks):
    """A rank reads and holds what is its heads'."""
    model = tmp_path / "model"
    config = family_config(tmp_path / "shape", family, hidden_size=512, intermediate_size=1200,
                           head_dim=64, linear_num_key_heads=6, linear_num_value_heads=18,
                           linear_key_head_dim=64, linear_value_head_dim=64,
                           torch_dtype="bfloat16",
                           **({} if family == "qwen3_5_text" else {
                               "moe_intermediate_size": 192,
                               "shared_expert_intermediate_size": 384}))
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
    (NEXT, 4, ()), (NEXT, 1, ("--kv-cache-dtype", "fp8")), (DENSE, 4, ()), (BF16, 2, ()),
    (MOE, 4, ())], ids=str)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_cached_bytes(name, size, options, ranks):
    """Keys and values of layers that attend, a state in fp32 of those that recur."""
    shape = checkpoint.shape_of(checkpoint.GOLDEN / name)
    per_token = [oracle.kv_bytes_per_token(shape, ranks, rank, size) for rank in range(ranks)]
    plan = json.loads(run("plan", checkpoint.GOLDEN / name, "-tp", ranks, "--json", *options,
                          "--kv-cache-memory", 100 * 16 * max(per_token)).stdout)
    assert plan["kv_blocks"] == 100
    filled = -(-shape.head_dim // 16) * 16  # heads fill whole groups of 16
    for r, rank in enumerate(plan["per_rank"]):
        assert rank["kv_bytes_per_token"] == per_token[r]
        assert rank["kv_bytes"] == 1600 * per_token[r] * filled // shape.head_dim
        assert rank["state_bytes_per_sequence"] == oracle.state_bytes(shape, ranks, r)


def activation_bytes(model, *options):
    plan = json.loads(run("plan", model, "--json", "--max-model-len", 128, "--kv-cache-memory",
                          "1M", *options).stdout)
    return [rank["activation_bytes"] for rank in plan["per_rank"]], plan["max_num_seqs"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_planned_states(tmp_path, ranks):
    """As many as there are slots, and here one for prefixes."""
    shape = family_config(tmp_path / "shape", "qwen3_next", linear_key_head_dim=256,
                          linear_value_head_dim=256)
    model, rows = shape.parent, ("-tp", ranks, "--max-num-batched-tokens", 64)
    state = oracle.state_bytes(checkpoint.shape_of(model), ranks, 0)
    rows += ("--state-cache-memory", state + state // 2)
    dummy = ("--load-format", "dummy")
    few, eight = activation_bytes(model, *rows, *dummy, "--max-num-seqs", 8)
    more, forty = activation_bytes(model, *rows, *dummy, "--max-num-seqs", 40)
    assert (eight, forty) == (8, 40)
    for rank in range(ranks):
        state = oracle.state_bytes(checkpoint.shape_of(model), ranks, rank)
        assert more[rank] - few[rank] == pytest.approx(32 * state, rel=0.01)


def test_told():
    done = run("plan", checkpoint.GOLDEN / NEXT, "-tp", 2)
    assert done.returncode == 0, done.stderr
    state = oracle.state_bytes(checkpoint.shape_of(checkpoint.GOLDEN / NEXT), 2, 0)
    assert state == 2 * 4 * (4 * 16 * 32 + 3 * 192)
    assert "2 of 4 layers recur: a rank keeps up to 20.5 KiB of each" in done.stdout
    assert "recur" not in run("plan", checkpoint.GOLDEN / "qwen3_f32").stdout
    done = run("plan", checkpoint.GOLDEN / NEXT, "-tp", 8)  # rank 0 has no heads
    assert "a rank keeps up to 10.2 KiB of each" in done.stdout


def test_sequences_at_once(tmp_path):
    """As many as a sixteenth of the memory has room for, if nobody says how many."""
    shape = family_config(tmp_path / "shape", "qwen3_next", linear_key_head_dim=256,
                          linear_value_head_dim=256, linear_num_key_heads=32,
                          linear_num_value_heads=64, num_hidden_layers=8)
    options = (shape.parent, "--load-format", "dummy", "--max-model-len", 128, "--json")
    state = oracle.state_bytes(checkpoint.shape_of(shape.parent), 1, 0)
    done = run("plan", *options)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    fit = plan["available_bytes"] // 16 // state
    assert plan["max_num_seqs"] in (min(64, max(1, fit + i)) for i in (-1, 0, 1))
    assert ("--max-num-seqs N fixes it" in done.stderr) == (plan["max_num_seqs"] < 64)
    for said in (1, 2):
        done = run("plan", *options, "--max-num-seqs", said)
        assert json.loads(done.stdout)["max_num_seqs"] == said and "fixes it" not in done.stderr
    done = run("plan", *options, "--max-num-seqs", 1024, "--max-num-batched-tokens", 1024)
    assert done.returncode == 0 or "--max-num-seqs and --state-cache-memory" in done.stderr


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
@pytest.mark.skipif(not knows_populate(), reason="the kernel cannot touch memory ahead")
def test_resident_states(serve, tmp_path):
    """Long texts cost what layers that attend keep of them, and states no more than was planned."""
    model = family_config(tmp_path / "shape", "qwen3_next", num_hidden_layers=8,
                          linear_key_head_dim=128, linear_value_head_dim=128).parent
    server = serve(model, "-tp", 2, "--threads-per-rank", 1, "--kv-cache-memory", "8M",
                   "--max-num-seqs", 8, "--load-format", "dummy", before=small_pages)

    def sums():
        return [sum(resident(pid, kind) for kind in ("RssAnon", "RssShmem"))
                for pid in server.ranks()]

    eventually(lambda: all_resident(server.ranks(), [8 << 20, 8 << 20]), 60, "planned memory")
    texts = [([3 + (first + i * i) % 500 for i in range(300)], 4, {}) for first in range(8)]
    server.token_ids_together(texts)
    before = sums()
    for _ in range(3):
        server.token_ids_together(texts)
    grown = [now - was for now, was in zip(sums(), before)]
    assert max(grown) < 1 << 20, grown


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, held, served", [
    (NEXT, 4, 2), (NEXT, 3, 8), (DENSE, 2, 5), (BF16, 8, 1), (MOE, 2, 3)])
def test_shards_serve_at_any_size(serve, tmp_path, name, held, served):
    directory = tmp_path / "shards"
    assert run("shard", checkpoint.GOLDEN / name, "-tp", held, "-o", directory).returncode == 0
    prompt, tokens = checkpoint.golden_runs(name)[0]
    server = serve(directory, "-tp", served, "--dtype", "float32")
    assert server.token_ids(prompt, 24) == tokens[:24]


def test_inspect():
    done = run("inspect", checkpoint.GOLDEN / NEXT, "-tp", 2)
    assert done.returncode == 0, done.stderr
    for name in ("in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "A_log", "dt_bias",
                 "norm.weight", "out_proj.weight"):
        assert f"{RECURS}{name}" in done.stdout
    conv = next(line for line in done.stdout.split("\n") if f"{RECURS}conv1d.weight" in line)
    assert conv.count("0: [") == conv.count("1: [") == 3  # q, k and v


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name, change, wanted", [
    (NEXT, {"linear_num_value_heads": 6}, "a multiple of linear_num_key_heads, which is 4"),
    (NEXT, {"linear_num_value_heads": 4}, RECURS + "in_proj_"),
    (NEXT, {"linear_key_head_dim": 24}, "linear_key_head_dim is 24, expected a multiple of 16"),
    (NEXT, {"linear_key_head_dim": 32}, RECURS),
    (NEXT, {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1, expected an integer"),
    (NEXT, {"linear_conv_kernel_dim": 3}, RECURS + "conv1d.weight"),
    (NEXT, {"full_attention_interval": 3}, "model.layers."),
    (NEXT, {"full_attention_interval": 9}, "expected at most num_hidden_layers"),
    (NEXT, {"decoder_sparse_step": 2}, "decoder_sparse_step is 2, expected 1"),
    (NEXT, {"attention_bias": True}, "attention_bias is true, expected false"),
    (NEXT, {"head_dim": 48}, "self_attn."),
    (DENSE, {"layer_types": ["linear_attention"] * 5}, "expected a list with full_attention"),
    (DENSE, {"layer_types": ["mamba"] * 5}, "layer_types[0] is mamba, expected full_attention or"),
    (BF16, {"attn_output_gate": False}, "attn_output_gate is false, expected true"),
    (MOE, {"norm_topk_prob": False}, "norm_topk_prob is false, expected true"),
    (MOE, {"num_experts": 6}, "model.layers.0.mlp."),
    (MOE, {"num_experts": 9}, "mlp.")])
def test_bad_config(tmp_path, name, change, wanted):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: text_part(config).update(change))
    line = fails(3, "plan", model)
    assert wanted in line and line.count("\n") == 1


@pytest.mark.parametrize("name, tensor", [
    (NEXT, RECURS + "in_proj_qkvz.weight"), (NEXT, RECURS + "in_proj_ba.weight"),
    (NEXT, RECURS + "conv1d.weight"), (NEXT, RECURS + "A_log"), (NEXT, RECURS + "dt_bias"),
    (NEXT, RECURS + "norm.weight"), (NEXT, RECURS + "out_proj.weight"),
    (DENSE, RECURS.replace(".0.", ".1.") + "in_proj_qkv.weight"),
    (DENSE, RECURS.replace(".0.", ".1.") + "in_proj_z.weight"),
    (DENSE, RECURS.replace(".0.", ".1.") + "in_proj_b.weight"),
    (DENSE, RECURS.replace(".0.", ".1.") + "in_proj_a.weight"),
    (NEXT, "model.layers.1.self_attn.q_proj.weight"),
    (MOE, "model.language_model.layers.0.mlp.experts.gate_up_proj"),
    (MOE, "model.language_model.layers.3.mlp.experts.down_proj")])
def test_missing_tensor(tmp_path, name, tensor):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", tensor)
    said = tensor.replace("language_model.", "").removesuffix("gate_up_proj")
    assert said.removesuffix("down_proj") in fails(3, "serve", model, "--port", 0)


@pytest.mark.parametrize("shape", [[4, 1, 384], [384, 4], [192, 1, 8]], ids=str)
def test_wrong_convolution(tmp_path, shape):
    """As many elements in another shape."""
    model = checkpoint.copy_model(NEXT, tmp_path / "model")
    name = RECURS + "conv1d.weight"
    checkpoint.edit_header(model / "model.safetensors",
                           lambda header: header[name].update(shape=shape))
    line = fails(3, "serve", model, "--port", 0)
    assert name in line and "expected" in line and str(shape) in line


def test_other_family_than_the_file(tmp_path):
    """Qwen3.5 with Qwen3-Next's tensors, and the other way; layers that would attend."""
    for name, change, tensor in (
            (NEXT, {"model_type": "qwen3_5_moe_text"}, "linear_attn.in_proj_"),
            (DENSE, {"model_type": "qwen3_next", "num_experts": 0}, "linear_attn.in_proj_"),
            (NEXT, {"model_type": "qwen3_moe"}, "_attn.")):
        model = checkpoint.copy_model(name, tmp_path / f"{name}-{change['model_type']}")
        checkpoint.edit_config(model, lambda config: config.update(change))
        assert tensor in fails(3, "serve", model, "--port", 0)


def test_refused_option():
    option = "--speculative-config"
    done = run("serve", checkpoint.GOLDEN / NEXT, "--port", 0, option, "ngram", timeout=5)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert option in done.stderr and "layers that recur" in done.stderr


def test_prefixes_may_be_said_not_to_be_cached(serve):
    prompt, tokens = checkpoint.golden_runs(NEXT)[1]
    server = serve(checkpoint.GOLDEN / NEXT, "--no-enable-prefix-caching")
    assert server.token_ids(prompt, 24) == tokens[:24]


@pytest.mark.parametrize("mode, ranks", [("2d", 4), ("2.5d", 8), ("3d", 8), ("3d_gathered", 8)])
def test_other_layouts(mode, ranks):
    for name in (DENSE, BF16):
        line = fails(2, "plan", checkpoint.GOLDEN / name, "-tp", ranks, "--parallel-mode", mode)
        assert "1d and 1d_sp" in line and line.count("\n") == 1


def test_a_rank_is_killed_while_it_reads_a_prompt(serve):
    """A prompt in small pieces, some of which are done when a rank is lost, begins anew."""
    server = serve(checkpoint.GOLDEN / NEXT, "-tp", 2, "--max-num-batched-tokens", 1,
                   "--no-enable-prefix-caching")
    prompt = [3 + i * i % 200 for i in range(400)]

    def rows():
        return server.metrics().sum("tessera:step_rows_total")

    begin = time.monotonic()
    wanted = server.token_ids(prompt, 8)
    took = time.monotonic() - begin
    with ThreadPoolExecutor(1) as pool:
        for _ in range(50):  # until the ranks are caught within the prompt
            before = rows()
            with server.halted():
                job = pool.submit(server.token_ids, prompt, 8)
                eventually(lambda: server.requests("running") == 1, what="running")
            time.sleep(took / 4)
            with server.halted():
                done = rows() - before
                caught = 8 < done < len(prompt)
                if caught:
                    os.kill(server.ranks()[-1], signal.SIGKILL)
            assert job.result(60) == wanted
            if caught:
                break
    assert caught
    assert rows() - before >= done + len(prompt)  # some of them twice
