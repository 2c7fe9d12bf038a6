"""Gemma 4's dense models: heads of two sizes, whose caches share blocks, values of the product of
keys, a rotation of a part of the pairs, a factor at each layer's end. Their greedy tokens at every
number of ranks are tested with those of all goldens; here is what only they have."""

import itertools
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, eventually, is_sanitized, run, small_pages
from test_int_weights import SAMPLED
from test_lora import merged, random_pairs, scores, write_adapter
from test_memory import all_resident, knows_populate
from test_mixtures import check_lost_rank, check_same_bits, fails
from test_modes import check_received, mapped, plan_file
from test_recovery import answer, kill, lose_a_rank
from test_speculation import guessed, pays
from test_window_cache import cached, needed, outcome, planned, used_blocks

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

PLAIN, WRAPPED, APART = "gemma4_f32", "gemma4_bf16", "gemma4_kv_f32"
KEYS = "model.layers.2.self_attn.k_proj"  # of keys and values in PLAIN


def shape(directory, **changes):
    """A config.json: of six layers the last has no window."""
    config = {
        "model_type": "gemma4_text", "hidden_size": 60, "intermediate_size": 90,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16,
        "global_head_dim": 32, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0, "vocab_size": 300, "sliding_window": 20,
        "max_position_embeddings": 1200, "hidden_activation": "gelu_pytorch_tanh",
        "dtype": "float32", **changes}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def golden_tokens(serve, model, name, *options):
    """Of a model that means what a golden does."""
    prompt, tokens = checkpoint.golden_runs(name)[0]
    server = serve(model, "-tp", 2, "--dtype", "float32", *options)
    return server.token_ids(prompt, len(tokens)), tokens


# ---- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [PLAIN, APART])
def test_beyond_the_window(serve, name):
    """Prompts in small chunks, again from the prefix cache, and two answers side by side."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 3, "--dtype", "float32",
                   "--max-num-batched-tokens", 16)
    runs = checkpoint.golden_runs(name)
    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(server.token_ids, prompt, len(tokens))
                    for prompt, tokens in 2 * runs]
            assert [job.result() for job in jobs] == 2 * [tokens for _, tokens in runs]
    assert server.metrics().sum("vllm:prefix_cache_hits_total") > 0


@pytest.mark.parametrize("name, options", [
    (PLAIN, ()), (WRAPPED, ("--quantization", "int4")), (PLAIN, ("--kv-cache-dtype", "fp8")),
    (APART, ("--quantization", "fp8"))], ids=str)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options)


def test_lost_rank(serve):
    check_lost_rank(serve, checkpoint.GOLDEN / PLAIN, 400)


# Memory of heads of 4 x 16 and 2 x 32, in F32
LAYER_BYTES = 16 * 2 * 4 * 16 * 4
CONTEXT, ROWS = 520, 32
PROMPT = [3 + 7 * i % 290 for i in range(300)]
TOGETHER = [
    {"prompt": PROMPT[:n], "max_tokens": count, "ignore_eos": True, "logprobs": 1, **options}
    for n, count, options in [(300, 200, {"temperature": 0}), (40, 400, SAMPLED),
                              (17, 200, {**SAMPLED, "n": 2}), (299, 100, {"temperature": 0}),
                              (120, 300, SAMPLED), (300, 100, SAMPLED)]]


def test_short_of_blocks(serve, tmp_path):
    """Blocks go from layers of one kind to those of the other, which fill half of them, with what
    was in them."""
    model = shape(tmp_path / "shape", sliding_window=40, num_global_key_value_heads=1)
    ample = serve(model, "-tp", 1, "--load-format", "dummy")
    alone = [answer(ample, request) for request in TOGETHER]
    few = needed((1, 5), CONTEXT, ROWS, 40) * LAYER_BYTES
    for options in (("-tp", 1), ("-tp", 2, "--no-enable-prefix-caching")):
        memory = few // options[1]
        setup = (model, "--load-format", "dummy", "--max-num-batched-tokens", ROWS,
                 "--kv-cache-memory", memory, "--max-model-len", CONTEXT, *options)
        plan = json.loads(run("plan", *setup, "--json").stdout)
        assert plan["kv_groups"] == {"keep": 1, "slide": 5}
        assert (plan["block_layers"], plan["global_block_layers"]) == (1, 1)
        server = serve(*setup)
        with ThreadPoolExecutor(len(TOGETHER)) as pool:
            assert list(pool.map(lambda request: answer(server, request), TOGETHER)) == alone
        assert server.metrics().sum("vllm:num_preemptions_total") > 0
    assert lose_a_rank(server, TOGETHER[:4], kill(-1)) == alone[:4]
    eventually(lambda: used_blocks(server)[0] == 0, what="all blocks free")


def test_longer_than_all_layers_had_room(serve, tmp_path):
    """What layers that slide give back is enough for a whole context, whose answer is numpy's."""
    model = tmp_path / "model"
    config = shape(tmp_path / "shape", max_position_embeddings=400) / "config.json"
    assert run("synth", "--config", config, "-o", model, "--seed", 5).returncode == 0
    least = needed((1, 5), 400, 16, 20) * LAYER_BYTES
    assert least < 0.5 * 6 * LAYER_BYTES * 400 / 16
    server = serve(model, "-tp", 1, "--kv-cache-memory", least, "--max-num-batched-tokens", 16,
                   "--no-enable-prefix-caching")
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 400
    tokens, _ = outcome(server, PROMPT, 100)
    for at in (0, 50, 99):  # of each some, as numpy computes all anew
        assert tokens[at:at + 1] == llama_numpy.greedy(model, PROMPT + tokens[:at], 1)[0]


def test_many_tables(serve, tmp_path):
    """As 12B has them on one rank, where a layer with a window is as large as four others."""
    model = tmp_path / "model"
    config = shape(tmp_path / "shape", num_hidden_layers=48, num_key_value_heads=8,
                   num_global_key_value_heads=1) / "config.json"
    assert run("synth", "--config", config, "-o", model, "--seed", 6).returncode == 0
    memory = needed((1, 20), 1200, ROWS, 20) * 4 * LAYER_BYTES
    setup = (model, "-tp", 1, "--max-num-batched-tokens", ROWS, "--kv-cache-memory", memory)
    plan = json.loads(run("plan", *setup, "--json").stdout)
    assert plan["kv_groups"] == {"keep": 1, "slide": 20} and plan["max_model_len"] == 1200
    server = serve(*setup)
    tokens, _ = outcome(server, PROMPT, 600)
    for at in (0, 99):
        assert tokens[at:at + 1] == llama_numpy.greedy(model, PROMPT + tokens[:at], 1)[0]
    with ThreadPoolExecutor(2) as pool:  # which have no room beside each other
        both = list(pool.map(lambda _: outcome(server, PROMPT, 600)[0], range(2)))
    assert both == 2 * [tokens]
    assert lose_a_rank(server, TOGETHER[:1], kill(0)) == [answer(server, TOGETHER[0])]


def test_prefixes(serve, tmp_path):
    """What slid out is found while nobody needed its place: by the same prompt, and by one that
    goes on somewhere in the answer."""
    model = shape(tmp_path / "shape", sliding_window=40, num_global_key_value_heads=1)
    server = serve(model, "-tp", 2, "--load-format", "dummy", "--max-num-batched-tokens", ROWS)
    said, found = cached(server, PROMPT, 700)
    assert found == 0 and len(set(said)) > 20
    for end in (0, 5, 300, 652):
        more, found = cached(server, PROMPT + said[:end], 700 - end)
        assert more == said[end:]
        assert found == (len(PROMPT) + end - 1) // 16 * 16
    assert cached(server, [1] + PROMPT[1:], 5)[1] == 0


@pytest.mark.parametrize("name", [PLAIN, APART])
def test_guesses(serve, name):
    """Rows that are taken back, of either kind of layers: transformers' tokens."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--speculative-config", "ngram")
    for prompt, tokens in checkpoint.golden_runs(name):
        again = prompt + tokens + prompt  # so that there is something to guess
        wanted, _ = llama_numpy.greedy(checkpoint.GOLDEN / name, again, 16)
        assert server.token_ids(prompt, len(tokens)) == tokens
        assert server.token_ids(again, 16) == wanted
    assert guessed(server)[1] > 0 or not pays(server)


# ---- what is planned ----------------------------------------------------------------------------

# Published shapes: (layers, KV heads with a window and without one, query heads, positions)
PUBLISHED = {"31B": (60, 16, 4, 32, 262144), "12B": (48, 8, 1, 16, 262144)}


def best(local, globals_, local_bytes, global_bytes, positions, rows):
    """Bytes of a whole context, and of a block, with its best layers; a table is a 256th more."""
    found = []
    for each, wide in itertools.product(range(1, local + 1), range(1, globals_ + 1)):
        groups = -(-globals_ // wide), -(-local // each)
        block = max(each * local_bytes, wide * global_bytes)
        if sum(groups) <= 24:
            need = needed(groups, positions, rows, 1024) * block
            found.append((need * (1 + sum(groups) / 256), need, block))
    return min(found)[1:]


@pytest.mark.parametrize("ranks", [1, 4, 8])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes(tmp_path, name, ranks):
    """A rank's heads are those that its queries read; a block has room for layers of either kind;
    a whole context takes least, and little more than what rows see."""
    layers, local, wide, heads, positions = PUBLISHED[name]
    model = shape(tmp_path / "shape", num_hidden_layers=layers, num_key_value_heads=local,
                  num_global_key_value_heads=wide, num_attention_heads=heads, head_dim=256,
                  global_head_dim=512, sliding_window=1024, max_position_embeddings=positions,
                  dtype="bfloat16")
    queries = heads // ranks
    local_bytes, global_bytes = (
        16 * 2 * 2 * max(1, queries * kv // heads) * size for kv, size in ((local, 256),
                                                                           (wide, 512)))
    few, many = layers // 6, layers - layers // 6
    plan = planned(model, "-tp", ranks, "--kv-cache-memory", "2G", "--max-num-batched-tokens", 512)
    each, of = plan["block_layers"], plan["global_block_layers"]
    block = max(each * local_bytes, of * global_bytes)
    assert plan["kv_groups"] == {"keep": -(-few // of), "slide": -(-many // each)}
    assert plan["kv_blocks"] == (2 << 30) // block
    longest = plan["max_model_len"]
    groups = tuple(plan["kv_groups"].values())
    assert plan["context_blocks"] == needed(groups, longest, 512, 1024) <= plan["kv_blocks"]
    assert longest == positions or needed(groups, longest + 1, 512, 1024) > plan["kv_blocks"]
    for rank in plan["per_rank"]:
        per_token = (many * local_bytes + few * global_bytes) // 16
        assert rank["kv_bytes_per_token"] == per_token
        assert rank["kv_bytes"] == plan["kv_blocks"] * block
    least, _ = best(many, few, local_bytes, global_bytes, longest, 512)
    assert plan["context_blocks"] * block == least
    seen = few * global_bytes * longest / 16 + many * local_bytes * (1024 + 512) / 16
    assert seen < least < 1.01 * seen


def test_told():
    done = run("plan", checkpoint.GOLDEN / PLAIN, "--kv-cache-memory", "1M")
    assert re.search(r"\d+ KV blocks of 16 tokens x 1 layers that slide or 1 others in F32",
                     done.stdout), done.stdout
    plan = json.loads(run("plan", checkpoint.GOLDEN / PLAIN, "-tp", 3, "--json").stdout)
    assert [rank["kv_heads"] for rank in plan["per_rank"]] == [[0, 1], [1, 3], [2, 4]]
    assert [rank["global_kv_heads"] for rank in plan["per_rank"]] == [[0, 1], [0, 2], [1, 2]]


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
@pytest.mark.skipif(not knows_populate(), reason="the kernel cannot touch memory ahead")
def test_resident_cache(serve, tmp_path):
    """One memory for both kinds of layers: what was planned, by the kernel's count."""
    model = shape(tmp_path / "shape", max_position_embeddings=4096)
    setup = ("-tp", 2, "--kv-cache-memory", 1000 * LAYER_BYTES, "--load-format", "dummy",
             "--max-num-batched-tokens", ROWS)
    plan = json.loads(run("plan", model, *setup, "--json").stdout)
    assert plan["kv_blocks"] == 2000
    wanted = [rank["kv_bytes"] + rank["weight_bytes"] for rank in plan["per_rank"]]
    assert [rank["kv_bytes"] for rank in plan["per_rank"]] == 2 * [1000 * LAYER_BYTES]
    server = serve(model, *setup, before=small_pages)
    eventually(lambda: all_resident(server.ranks(), wanted), 60, "planned memory")
    assert [mapped(pid, "tessera-kv") for pid in server.ranks()] == 2 * [1000 * LAYER_BYTES]


# ---- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode, ranks", [("1d", 4), ("1d_sp", 3), ("1d_sp", 8)])
@pytest.mark.parametrize("name", [PLAIN, APART])
def test_layouts(serve, name, mode, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, "--parallel-mode", mode)
    for prompt, tokens in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, len(tokens)) == tokens


@pytest.mark.parametrize("mode, ranks", [("2d", 4), ("2.5d", 8), ("3d", 8), ("3d_gathered", 8)])
def test_other_layouts(mode, ranks):
    line = fails(2, "plan", checkpoint.GOLDEN / PLAIN, "-tp", ranks, "--parallel-mode", mode)
    assert "heads with gates, or of two sizes, and layers that recur, have to stay" in line
    assert "1d and 1d_sp are layouts where they do" in line


def test_auto_takes_a_layout_that_fits(serve):
    done = run("plan", checkpoint.GOLDEN / PLAIN, "-tp", 4, "--modes")
    assert done.returncode == 0 and "1d_sp" in done.stdout, done.stderr
    got, tokens = golden_tokens(serve, checkpoint.GOLDEN / PLAIN, PLAIN, "--auto")
    assert got == tokens


@pytest.mark.parametrize("mode, ranks", [("1d", 3), ("1d_sp", 4)])
def test_received_bytes(serve, tmp_path, mode, ranks):
    """Layers of either kind meet as often as any, and move as much."""
    model = checkpoint.GOLDEN / PLAIN
    server = serve(model, "-tp", ranks, "--plan", plan_file(tmp_path, mode))
    check_received(server, mode, ranks, checkpoint.shape_of(model), list(range(3, 26)), 12)


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [
    {}, {"attention_k_eq_v": False, "final_logit_softcapping": 9.5}, {"global_head_dim": 40},
    {"num_hidden_layers": 7, "num_global_key_value_heads": 1, "tie_word_embeddings": False}],
    ids=str)
def test_synthetic_model(serve, tmp_path, changes):
    """Tokens of numpy, from the file and from the same values without one."""
    config, model = shape(tmp_path / "shape", **changes), tmp_path / "model"
    done = run("synth", "--config", config / "config.json", "-o", model, "--seed", 3)
    assert done.returncode == 0, done.stderr
    weights = llama_numpy.read_weights(model)
    assert weights["model.layers.5.layer_scalar"].shape == (1,)
    for name, values in weights.items():  # gains and factors, as they are
        assert values.ndim > 1 or (0.9 <= values).all() and (values <= 1.1).all(), name
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 40)
    assert len(set(wanted)) > 10
    assert serve(model, "-tp", 3).token_ids(prompt, 40) == wanted
    dummy = serve(config, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 40) == wanted


@pytest.mark.parametrize("window", [1, 16, 37, 400])
def test_any_window(serve, tmp_path, window):
    """Of one position, of whole blocks, odd, and longer than what is said: numpy's tokens."""
    model = checkpoint.copy_model(PLAIN, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(sliding_window=window))
    prompt = checkpoint.golden_runs(PLAIN)[0][0]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == wanted


@pytest.mark.parametrize("sliding, kv_heads, size", [(0, 8, 64), (0, 1, 32), (4, 2, 64)])
def test_other_orders_of_layers(serve, tmp_path, sliding, kv_heads, size):
    """None slides, with heads that are more than those that would, or fewer; or the last is said
    to, and does not."""
    kinds = ["full_attention"] * (6 if sliding == 0 else 1) + (sliding + 1) * ["sliding_attention"]
    kinds = kinds[:6]
    model = tmp_path / "model"
    config = shape(tmp_path / "shape", layer_types=kinds, global_head_dim=size,
                   num_global_key_value_heads=kv_heads) / "config.json"
    assert run("synth", "--config", config, "-o", model, "--seed", 4).returncode == 0
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 40)
    server = serve(model, "-tp", 3, "--kv-cache-memory", "3M")
    assert server.token_ids(prompt, 40) == wanted
    memory = 8 << 20
    plan = planned(model, "--kv-cache-memory", memory)
    assert plan["sliding_layers"] == sliding
    rank, = plan["per_rank"]
    wide = 2 * 4 * kv_heads * size
    assert rank["kv_bytes_per_token"] == sliding * 2 * 4 * 4 * 16 + (6 - sliding) * wide
    assert 0.95 * memory < rank["kv_bytes"] <= memory
    assert sliding > 0 or plan["kv_blocks"] == memory // (6 * 16 * wide)


def factors(name):
    """What rotations may say beside what they are."""
    return {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5,
                               "rope_theta": 5000.0, "factor": 3.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}} if name else None


@pytest.mark.parametrize("rotations", [
    factors(True), None,
    {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
     "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
     "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}], ids=range(4))
def test_rotations(serve, tmp_path, rotations):
    model = checkpoint.copy_model(PLAIN, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(rope_parameters=rotations))
    prompt, tokens = checkpoint.golden_runs(PLAIN)[0]
    wanted, _ = llama_numpy.greedy(model, prompt, 24)
    assert serve(model, "-tp", 2).token_ids(prompt, 24) == wanted
    assert (wanted == tokens[:24]) == (rotations is None)  # which is what it says anyway


@pytest.mark.parametrize("name", [PLAIN, APART])
def test_fp8(serve, tmp_path, name):
    """Codes of linears mean what ml_dtypes says; norms and factors are as they were."""
    prompt, _ = checkpoint.golden_runs(name)[0]
    plain = fp8.plain(tmp_path / "plain", checkpoint.GOLDEN / name, (1, 0))
    wanted, _ = llama_numpy.greedy(plain, prompt, 16)
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--dtype", "float32",
                   "--quantization", "fp8")
    assert server.token_ids(prompt, 16) == wanted


def stored(values):
    """Keys and values as E4M3."""
    return values.astype(ml_dtypes.float8_e4m3fn).astype(numpy.float64)


def test_cache_in_fp8(serve):
    """Scores of a prompt that numpy rounds its keys and values for."""
    prompt, _ = checkpoint.golden_runs(PLAIN)[0]
    wanted = checkpoint.log_softmax(llama_numpy.logits(checkpoint.GOLDEN / PLAIN, prompt, stored))
    server = serve(checkpoint.GOLDEN / PLAIN, "-tp", 2, "--kv-cache-dtype", "fp8")
    choice = server.complete(prompt, max_tokens=1, temperature=0, prompt_logprobs=0)["choices"][0]
    got = [one[str(token)]["logprob"] for one, token in zip(choice["prompt_logprobs"][1:],
                                                            prompt[1:])]
    assert numpy.median(abs(wanted[range(len(prompt) - 1), prompt[1:]] - got)) < 1e-3


@pytest.mark.parametrize("ranks", [1, 3])
def test_vectors(serve, ranks):
    """What is behind the last norm, which no cap is for."""
    prompt, _ = checkpoint.golden_runs(PLAIN)[0]
    server = serve(checkpoint.GOLDEN / PLAIN, "-tp", ranks, "--runner", "pooling")
    reply = server.post("/v1/embeddings", {"input": prompt}).json()
    wanted = llama_numpy.vector(checkpoint.GOLDEN / PLAIN, prompt)
    assert abs(numpy.array(reply["data"][0]["embedding"]) - wanted).max() < 5e-6


@pytest.mark.parametrize("modules", [(KEYS,), None], ids=["keys", "all linears"])
def test_lora(serve, tmp_path, modules):
    """What is added to keys' product is added to the values that are made of it."""
    model = checkpoint.GOLDEN / PLAIN
    pairs = dict(random_pairs(model, 2, 9, lambda name: fp8.is_linear(name) and (
        not modules or name.startswith(modules))))
    assert KEYS in pairs and (len(pairs) == 1) == bool(modules)
    write_adapter(tmp_path / "adapter", pairs)
    whole = merged(model, [(pairs, 0.5)], tmp_path / "merged")
    prompt, tokens = checkpoint.golden_runs(PLAIN)[0]
    wanted, _ = llama_numpy.greedy(whole, prompt, 24)
    server = serve(model, "-tp", 3, "--lora", tmp_path / "adapter")
    assert server.token_ids(prompt, 24) == wanted != tokens[:24]
    assert scores(server) == scores(serve(whole, "-tp", 3))


# ---- files --------------------------------------------------------------------------------------


def test_inspect_names_the_text_model():
    done = run("inspect", checkpoint.GOLDEN / WRAPPED, "-tp", 2, "--json")
    held = {tensor["name"]: tensor["slices"] for tensor in json.loads(done.stdout)}
    assert held["model.layers.0.layer_scalar"]
    assert not [name for name in held if "language_model" in name]
    seeing = [slices for name, slices in held.items() if "vision" in name]
    assert seeing and not any(seeing)
    keys = held["model.layers.5.self_attn.k_proj.weight"]
    assert [(part["rank"], part["rows"]) for part in keys] == [
        (0, [0, 32]), (1, [32, 64])]


def with_others(model, more):
    """A copy in which tensors of what sees and hears are, too."""
    fp8.write(model, {**fp8.read(model), **{name: numpy.zeros((3, 5), ml_dtypes.bfloat16)
                                            for name in more}}, model)


def test_texts_of_one_that_hears(serve, tmp_path):
    """Of gemma4 as it comes, and as gemma4_unified, where most is said as there or unsaid."""
    model = checkpoint.copy_model(WRAPPED, tmp_path / "model")
    with_others(model, ["model.audio_tower.layers.0.norm.weight",
                        "model.embed_audio.embedding_projection.weight"])
    got, tokens = golden_tokens(serve, model, WRAPPED)
    assert got == tokens


def unify(config):
    """As a unified model's configuration has it: no key for what it never has."""
    text = config["text_config"]
    for key in ("hidden_size_per_layer_input", "enable_moe_block", "num_experts", "top_k_experts",
                "moe_intermediate_size", "expert_intermediate_size", "use_double_wide_mlp",
                "num_kv_shared_layers", "use_bidirectional_attention", "rope_parameters",
                "layer_types"):
        text.pop(key)
    config.update(model_type="gemma4_unified")
    text.update(model_type="gemma4_unified_text")


def test_unified(serve, tmp_path):
    model = checkpoint.copy_model(WRAPPED, tmp_path / "model")
    checkpoint.edit_config(model, unify)
    tensors = {name: values for name, values in fp8.read(model).items() if "vision_tower" not in
               name}
    fp8.write(model, tensors, model)
    with_others(model, ["model.vision_embedder.patch_dense.weight",
                        "model.embed_audio.embedding_projection.weight"])
    got, tokens = golden_tokens(serve, model, WRAPPED)
    assert got == tokens


def test_unified_text_alone(serve, tmp_path):
    model = checkpoint.copy_model("gemma4_f32", tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(model_type="gemma4_unified_text"))
    got, tokens = golden_tokens(serve, model, "gemma4_f32")
    assert got == tokens


def test_codes_in_the_file(serve, tmp_path):
    """Linears of a wrapped model as E4M3, with scales beside them, in two files."""
    prompt, _ = checkpoint.golden_runs(WRAPPED)[0]
    coded = fp8.quantized(tmp_path / "coded", checkpoint.GOLDEN / WRAPPED, fp8.BLOCK, (128, 128),
                          "_scale_inv")
    plain = fp8.plain(tmp_path / "plain", checkpoint.GOLDEN / WRAPPED, (128, 128))
    wanted = serve(plain, "-tp", 2, "--dtype", "float32").token_ids(prompt, 16)
    assert serve(coded, "-tp", 2, "--dtype", "float32").token_ids(prompt, 16) == wanted
    names, tensors = {}, fp8.read(coded)
    for i, part in enumerate((list(tensors)[::2], list(tensors)[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        fp8.write(coded, {name: tensors[name] for name in part}, coded)
        (coded / "model.safetensors").rename(coded / file)
        names.update(dict.fromkeys(part, file))
    (coded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert serve(coded, "-tp", 3, "--dtype", "float32").token_ids(prompt, 16) == wanted


OWN = {"head_dim": 32, "num_key_value_heads": 2}


@pytest.mark.parametrize("layers", [{"2": OWN, "4": OWN}, {"02": OWN, "04": OWN},
                                    {"002": OWN, "4": OWN, "3": {}}], ids=str)
def test_heads_layer_by_layer(serve, tmp_path, layers):
    """As transformers writes them since 5.15: its numbers have as many digits as the largest."""
    model = checkpoint.copy_model(PLAIN, tmp_path / "model")

    def edit(config):
        config.pop("global_head_dim")
        config.pop("num_global_key_value_heads")
        config["per_layer_config"] = layers

    checkpoint.edit_config(model, edit)
    got, tokens = golden_tokens(serve, model, PLAIN)
    assert got == tokens


def test_unsaid(serve, tmp_path):
    """What is absent is what it is in transformers, kinds of layers and rotations among it."""
    model = checkpoint.copy_model(WRAPPED, tmp_path / "model")

    def edit(config):
        text = config["text_config"]
        for key in ("layer_types", "rope_parameters", "rms_norm_eps", "tie_word_embeddings",
                    "num_attention_heads", "num_key_value_heads", "attention_bias",
                    "enable_moe_block", "num_kv_shared_layers", "use_double_wide_mlp", "dtype",
                    "hidden_activation", "use_bidirectional_attention", "use_cache"):
            text.pop(key)
        config.pop("tie_word_embeddings")

    checkpoint.edit_config(model, edit)
    got, tokens = golden_tokens(serve, model, WRAPPED)
    assert got == tokens
    text = checkpoint.read_config(shape(tmp_path / "defaults"))
    for key in ("head_dim", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v",
                "sliding_window", "max_position_embeddings", "vocab_size"):
        del text[key]
    (tmp_path / "defaults/config.json").write_text(json.dumps(text))
    plan = planned(tmp_path / "defaults", "--kv-cache-memory", "64M")
    assert plan["sliding_window"] == 512
    assert plan["per_rank"][0]["vocab_rows"] == [0, 262144]
    assert plan["per_rank"][0]["kv_bytes_per_token"] == 4 * 2 * 4 * (5 * 256 + 512)
    elements = oracle.weight_elements(oracle.shape_of(text), 1, 0)
    assert plan["per_rank"][0]["weight_elements"] == sum(elements.values())


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("change, wanted", [
    ({"per_layer_config": [OWN]}, "per_layer_config is an array, expected an object"),
    ({"per_layer_config": {"2": 7, "4": OWN}}, "expected an object with an object of each layer"),
    ({"per_layer_config": {"2": OWN}}, "the same of all layers that attend to everything"),
    ({"per_layer_config": {"2": OWN, "4": OWN, "1": {"head_dim": 32}}}, "nothing of others"),
    ({"per_layer_config": {"2": OWN, "4": {**OWN, "head_dim": 34}}}, "per_layer_config is"),
    ({"per_layer_config": {"2": {**OWN, "head_dim": "32"}, "4": OWN}}, 'head_dim is "32"'),
    ({"per_layer_config": dict.fromkeys("24", {**OWN, "num_key_value_heads": 3})},
     "a divisor of num_attention_heads, which is 8"),
    ({"global_head_dim": 31}, "global_head_dim is 31, expected an even number from 2 to 512"),
    ({"global_head_dim": 514}, "global_head_dim is 514"),
    ({"num_global_key_value_heads": 3}, "num_global_key_value_heads is 3, expected a divisor of "
     "num_attention_heads, which is 8"),
    ({"num_global_key_value_heads": 16}, "num_global_key_value_heads is 16"),
    ({"num_global_key_value_heads": 0}, "num_global_key_value_heads is 0"),
    ({"num_global_key_value_heads": 4}, "k_proj.weight: expected 2-d [128, 60]"),
    ({"attention_k_eq_v": 1}, "attention_k_eq_v is 1, expected true or false"),
    ({"attention_k_eq_v": False}, "layers.2.self_attn.k_proj.weight: expected 2-d [128, 60]"),
    ({"use_bidirectional_attention": "all"}, 'use_bidirectional_attention is "all", expected'),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention is true, expected false"),
    ({"attention_bias": True}, "attention_bias is true"),
    ({"hidden_activation": "silu"}, 'hidden_activation is "silu", expected "gelu_pytorch_tanh"'),
    ({"rope_parameters": {"rope_type": "default"}},
     "rope_parameters is an object, expected full_attention and sliding_attention"),
    ({"rope_parameters": {"full_attention": {"rope_type": "wavy", "rope_theta": 1e6},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
     'rope_type is "wavy", expected default, linear, llama3, proportional or yarn'),
    ({"rope_parameters": {"full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                                             "partial_rotary_factor": 1.5},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
     "partial_rotary_factor is 1.5"),
    ({"layer_types": ["full_attention"]}, "expected a list of as many as num_hidden_layers")],
    ids=str)
def test_bad_config(tmp_path, change, wanted):
    model = checkpoint.copy_model(PLAIN, tmp_path / "model")
    checkpoint.edit_config(model, lambda config: config.update(change))
    assert wanted in fails(3, "plan", model)


def test_proportional_elsewhere(tmp_path):
    """Others do not have that rotation."""
    model = checkpoint.copy_model("gemma3_f32", tmp_path / "model")
    rotation = {"rope_type": "proportional", "rope_theta": 1e6}
    checkpoint.edit_config(model, lambda config: config.update(
        rope_parameters={"full_attention": rotation, "sliding_attention": rotation}))
    line = fails(3, "plan", model)
    assert 'rope_type is "proportional", expected default, linear, llama3' in line


@pytest.mark.parametrize("like, name", [
    (PLAIN, "model.layers.1.layer_scalar"), (PLAIN, f"{KEYS}.weight"),
    (PLAIN, "model.layers.4.self_attn.k_norm.weight"),
    (PLAIN, "model.layers.3.self_attn.v_proj.weight"),
    (APART, "model.layers.5.self_attn.v_proj.weight")])
def test_missing_tensor(tmp_path, like, name):
    model = checkpoint.copy_model(like, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", name)
    assert name in fails(3, "serve", model, "--port", 0)


def test_values_that_are_not_used(tmp_path):
    """A tensor of values where there can be none is no other model's."""
    model = checkpoint.copy_model(PLAIN, tmp_path / "model")
    name = KEYS.replace("k_proj", "v_proj") + ".weight"
    fp8.write(model, {**fp8.read(model), name: fp8.read(model)[f"{KEYS}.weight"]}, model)
    assert name in fails(3, "serve", model, "--port", 0)
