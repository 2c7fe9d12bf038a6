"""Gemma 4's mixtures and small models: experts beside an MLP, layers that make queries alone, MLPs
of two widths, rows that layers take of each token. Their greedy tokens at every number of ranks are
tested with those of all goldens; here is what only they have."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, eventually, run
from test_counters import READ_TOLERANCE, bytes_read
from test_embeddings import CLOSE, embed
from test_files import contents, shard
from test_gemma4 import CONTEXT, PROMPT, ROWS, TOGETHER, best, shape, stored
from test_lora import merged, random_pairs, scores, write_adapter
from test_mixtures import check_lost_rank, check_same_bits, fails
from test_modes import check_received, plan_file
from test_recovery import answer, kill, lose_a_rank
from test_reshard import shard as reshard
from test_speculation import SPECULATING, guessed, pays
from test_window_cache import needed, outcome, planned, used_blocks

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

MIXTURE, SMALL = "gemma4_moe_f32", "gemma4_ple_f32"
NAMES = [MIXTURE, "gemma4_moe_bf16", SMALL, "gemma4_ple_bf16"]
SHARING = {  # of the first six layers one keeps all and five slide; of the last two one does
    "num_hidden_layers": 8, "num_kv_shared_layers": 2, "attention_k_eq_v": False,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"] + ["sliding_attention"] * 3 +
                   ["full_attention"]}
INPUTS = {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 311}
EXPERTS = {"enable_moe_block": True, "num_experts": 7, "top_k_experts": 3,
           "moe_intermediate_size": 38}


def small(directory, **changes):
    return shape(directory, **{**SHARING, **INPUTS, "use_double_wide_mlp": True, **changes})


def mixture(directory, **changes):
    return shape(directory, **{**EXPERTS, **changes})


def same_tokens(serve, model, name, *options):
    """Has the model those of a golden?"""
    prompt, tokens = checkpoint.golden_runs(name)[0]
    server = serve(model, "--dtype", "float32", *(options or ("-tp", 2)))
    assert server.token_ids(prompt, len(tokens)) == tokens


def synthetic(directory, config, seed=3):
    done = run("synth", "--config", config / "config.json", "-o", directory, "--seed", seed)
    assert done.returncode == 0, done.stderr
    return directory


# ---- the cache ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_beyond_the_window(serve, name):
    """Prompts in small chunks, again from the prefix cache, and two answers side by side."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 3, "--max-num-batched-tokens", 16)
    runs = checkpoint.golden_runs(name)
    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(server.token_ids, prompt, len(tokens))
                    for prompt, tokens in 2 * runs]
            assert [job.result() for job in jobs] == 2 * [tokens for _, tokens in runs]
    assert server.metrics().sum("vllm:prefix_cache_hits_total") > 0


LAYER_BYTES = {"slide": 16 * 2 * 4 * 16 * 4, "keep": 16 * 2 * 4 * 32 * 4}


def least_memory(model, *options):
    """Of a whole context, as planned; a block has room for layers of either kind."""
    plan = planned(model, "--max-num-batched-tokens", ROWS, "--max-model-len", CONTEXT,
                   "--kv-cache-memory", "64M", *options)
    assert plan["kv_groups"]["slide"] * plan["block_layers"] >= 5  # of those with keys and values
    assert plan["kv_groups"]["keep"] * plan["global_block_layers"] >= 1
    least, block = best(5, 1, LAYER_BYTES["slide"], LAYER_BYTES["keep"], CONTEXT, ROWS)
    groups = tuple(plan["kv_groups"].values())
    assert needed(groups, CONTEXT, ROWS, 40) == plan["context_blocks"]
    return plan["context_blocks"] * block


def test_short_of_blocks(serve, tmp_path):
    """Layers that share see what is kept for those before them, and no block that these have given
    back and others have written."""
    model = small(tmp_path / "shape", sliding_window=40)
    ample = serve(model, "-tp", 1, "--load-format", "dummy")
    alone = [answer(ample, request) for request in TOGETHER]
    few = least_memory(model)
    for options in (("-tp", 1), ("-tp", 2, "--no-enable-prefix-caching")):
        server = serve(model, "--load-format", "dummy", "--max-num-batched-tokens", ROWS,
                       "--kv-cache-memory", few // options[1], "--max-model-len", CONTEXT, *options)
        with ThreadPoolExecutor(len(TOGETHER)) as pool:
            assert list(pool.map(lambda request: answer(server, request), TOGETHER)) == alone
        assert server.metrics().sum("vllm:num_preemptions_total") > 0
    assert lose_a_rank(server, TOGETHER[:4], kill(-1)) == alone[:4]
    eventually(lambda: used_blocks(server)[0] == 0, what="all blocks free")


def test_longer_than_all_layers_had_room(serve, tmp_path):
    """What numpy computes of all positions, where layers keep few of them, for others, too."""
    config = small(tmp_path / "shape", max_position_embeddings=400)
    model = synthetic(tmp_path / "model", config)
    block = LAYER_BYTES["keep"]
    memory = needed((1, 3), 400, 16, 20) * block  # five in pairs
    server = serve(model, "-tp", 1, "--kv-cache-memory", memory, "--max-num-batched-tokens", 16,
                   "--no-enable-prefix-caching")
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 400
    tokens, _ = outcome(server, PROMPT, 100)
    for at in (0, 50, 99):
        assert tokens[at:at + 1] == llama_numpy.greedy(model, PROMPT + tokens[:at], 1)[0]


# ---- the same bits, and tokens ------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [
    (MIXTURE, ()), (SMALL, ()), ("gemma4_moe_bf16", ("--quantization", "int4")),
    (MIXTURE, ("--quantization", "fp8")), ("gemma4_ple_bf16", ("--quantization", "int4")),
    (SMALL, ("--quantization", "fp8")), (MIXTURE, ("--kv-cache-dtype", "fp8")),
    (SMALL, ("--kv-cache-dtype", "fp8"))], ids=str)
def test_same_bits(serve, name, options):
    check_same_bits(serve, checkpoint.GOLDEN / name, options, "1d" if "moe" in name else "1d_sp")


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_lost_rank(serve, name):
    check_lost_rank(serve, checkpoint.GOLDEN / name, 400)


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_guessed_tokens(serve, name):
    """Rows of guesses that were wrong leave nothing behind, in layers that share neither."""
    model, again = checkpoint.GOLDEN / name, [5, 6, 7, 8, 9, 10, 11, 5, 6, 7] * 6
    requests = [{"prompt": again[:n], "max_tokens": 150, "ignore_eos": True, "logprobs": 1,
                 "temperature": heat, "seed": n} for n, heat in ((60, 0), (43, 0.4), (21, 0))]
    plain = serve(model, "-tp", 2)
    wanted = [answer(plain, request) for request in requests]
    server = serve(model, "-tp", 2, *SPECULATING)
    for _ in range(2):
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda request: answer(server, request), requests)) == wanted
    assert guessed(server)[1] > 0 or not pays(server)


# ---- layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, mode, ranks", [
    (MIXTURE, "1d", 2), (MIXTURE, "1d", 5), (SMALL, "1d", 2), (SMALL, "1d", 3), (SMALL, "1d", 8),
    (SMALL, "1d_sp", 2), (SMALL, "1d_sp", 5), (SMALL, "1d_sp", 8)])
def test_received_bytes(serve, tmp_path, name, mode, ranks):
    """Three sums in a layer with experts beside an MLP, however many; rows that layers take move
    once for all of them."""
    model = checkpoint.GOLDEN / name
    server = serve(model, "-tp", ranks, "--plan", plan_file(tmp_path, mode))
    check_received(server, mode, ranks, checkpoint.shape_of(model), list(range(3, 26)), 12)


@pytest.mark.parametrize("ranks", [3, 8])
def test_sequence_parallel(serve, ranks):
    server = serve(checkpoint.GOLDEN / SMALL, "-tp", ranks, "--parallel-mode", "1d_sp")
    for prompt, tokens in checkpoint.golden_runs(SMALL):
        assert server.token_ids(prompt, len(tokens)) == tokens


@pytest.mark.parametrize("name, mode, ranks, wanted", [
    (MIXTURE, "1d_sp", 2, "experts beside an MLP need whole rows on every rank; 1d is the layout "
     "that has them"),
    (MIXTURE, "2d", 4, "experts beside an MLP need whole rows on every rank"),
    (MIXTURE, "3d", 8, "experts beside an MLP need whole rows on every rank"),
    (SMALL, "2d", 4, "1d and 1d_sp are layouts where they do"),
    (SMALL, "2.5d", 8, "1d and 1d_sp are layouts where they do"),
    (SMALL, "3d_gathered", 8, "1d and 1d_sp are layouts where they do")])
def test_other_layouts(name, mode, ranks, wanted):
    model = checkpoint.GOLDEN / name
    assert wanted in fails(2, "plan", model, "-tp", ranks, "--parallel-mode", mode)


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_auto_takes_a_layout_that_fits(serve, name):
    done = run("plan", checkpoint.GOLDEN / name, "-tp", 4, "--modes")
    assert done.returncode == 0 and ("1d_sp" in done.stdout) == (name == SMALL), done.stdout
    same_tokens(serve, checkpoint.GOLDEN / name, name, "-tp", 4, "--auto")


@pytest.mark.parametrize("held, served", [(3, 2), (2, 5), (8, 1)])
@pytest.mark.parametrize("name", ["gemma4_moe_bf16", "gemma4_ple_bf16"])
def test_shards(serve, tmp_path, name, held, served):
    same_tokens(serve, shard(checkpoint.GOLDEN / name, held, tmp_path / "shards"), name, "-tp",
                served)


@pytest.mark.parametrize("name", ["gemma4_moe_bf16", "gemma4_ple_bf16"])
def test_shards_of_other_layouts(tmp_path, name):
    """Any layout loads what another has written, byte for byte."""
    model, layouts = checkpoint.GOLDEN / name, [("1d", 3, None), ("1d", 4, None)]
    layouts += [("1d_sp", 5, None)] if "ple" in name else []
    for i, first in enumerate(layouts):
        wanted = contents(reshard(model, first, tmp_path / f"{i}"))
        for j, other in enumerate(layouts):
            held = reshard(model, other, tmp_path / f"{i}{j}")
            assert contents(reshard(held, first, tmp_path / f"{i}{j}{i}")) == wanted, (first, other)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("make", [mixture, small])
def test_read_and_held_bytes(serve, tmp_path, make, ranks):
    """A rank reads and holds its own columns of experts, of the MLP beside them, of tables, and of
    what makes queries alone, by the kernel's count, too."""
    config = make(tmp_path / "shape", hidden_size=512, intermediate_size=640, head_dim=32,
                  moe_intermediate_size=384, global_head_dim=64, dtype="bfloat16")
    server = serve(synthetic(tmp_path / "model", config), "-tp", ranks)
    metrics = server.metrics()
    for rank, pid in enumerate(server.ranks()):
        held = oracle.weight_elements(checkpoint.shape_of(config), ranks, rank)
        wanted = pytest.approx(2 * sum(held.values()), rel=READ_TOLERANCE)
        for family in ("tessera:rank_read_bytes", "tessera:rank_weight_bytes"):
            assert metrics.sum(family, rank=rank) == wanted
        assert bytes_read(pid) == wanted, rank


# ---- what is planned ----------------------------------------------------------------------------

# (configuration, its closed form, bytes per token in bf16, layers that slide and have keys and
# values, and those that keep all)
PUBLISHED = {
    "26B-A4B": ({"hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30,
                 "num_attention_heads": 16, "num_key_value_heads": 8, "enable_moe_block": True,
                 "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
                 "sliding_window": 1024, "max_position_embeddings": 262144},
                oracle.GEMMA4_26B, 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512), 25, 5),
    "E2B": ({"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
             "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
             "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
             "hidden_size_per_layer_input": 256, "attention_k_eq_v": False, "sliding_window": 512,
             "max_position_embeddings": 131072},
            oracle.GEMMA4_E2B, 2 * 2 * (12 * 256 + 3 * 512), 12, 3),
    "E4B": ({"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42,
             "num_key_value_heads": 2, "num_kv_shared_layers": 18, "attention_k_eq_v": False,
             "hidden_size_per_layer_input": 256, "sliding_window": 512,
             "max_position_embeddings": 131072},
            oracle.GEMMA4_E4B, 2 * 2 * 2 * (20 * 256 + 4 * 512), 20, 4)}


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes(tmp_path, name, ranks):
    said, form, per_token, slide, keep = PUBLISHED[name]
    model = shape(tmp_path / "shape", head_dim=256, global_head_dim=512, dtype="bfloat16",
                  vocab_size=262144, **said)
    done = run("plan", model, "-tp", ranks, "--load-format", "dummy", "--json",
               "--kv-cache-memory", "2G")
    assert done.returncode in (0, 4), done.stderr  # where there is no room for it
    plan = json.loads(done.stdout)
    for rank, told in enumerate(plan["per_rank"]):
        assert told["weight_elements"] == sum(oracle.weight_elements(form, ranks, rank).values())
        assert told["kv_bytes_per_token"] == oracle.kv_bytes_per_token(form, ranks, rank, 2)
        assert ranks > 1 or told["kv_bytes_per_token"] == per_token
        step = oracle.step_bytes(form, ranks, rank, 1, 1)
        calls, moved = step["layer all_reduce"]
        assert told["received_bytes_per_layer"]["decode_1"] == moved // form.layers
        assert plan["collectives_per_layer"]["few_rows"] == calls // form.layers
        around = sum(moved for name, (_, moved) in step.items() if "layer" not in name)
        assert told["received_bytes_around_layers"] == around
    groups = plan["kv_groups"]
    assert 0 <= groups["slide"] * plan["block_layers"] - slide < plan["block_layers"]
    assert 0 <= groups["keep"] * plan["global_block_layers"] - keep < plan["global_block_layers"]
    longest, rows = plan["max_model_len"], plan["max_num_batched_tokens"]
    window = said["sliding_window"]
    assert plan["context_blocks"] == needed(tuple(groups.values()), longest, rows, window)


def test_told():
    told = run("plan", checkpoint.GOLDEN / MIXTURE).stdout
    assert "8 experts" in told and "beside an MLP of 58 columns" in told, told


# ---- what is computed ---------------------------------------------------------------------------

ALL_KEEP = ["full_attention"] * 8


@pytest.mark.parametrize("make, changes", [
    (mixture, {}), (mixture, {"top_k_experts": 7, "num_hidden_layers": 2}),
    (mixture, {"num_experts": 1, "top_k_experts": 1, "attention_k_eq_v": False}),
    (mixture, {**SHARING, **INPUTS}),  # all at once
    (mixture, {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}),  # which it is not
    (small, {}), (small, {"use_double_wide_mlp": False, "attention_k_eq_v": True}),
    (small, {"num_kv_shared_layers": 4, "hidden_size_per_layer_input": 0}),
    (small, {"num_kv_shared_layers": 7, "layer_types": ALL_KEEP}),  # the first one's
    (small, {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 7}),
    (small, {"tie_word_embeddings": False, "vocab_size": 311})],
    ids=lambda value: getattr(value, "__name__", str(value)))
def test_synthetic_model(serve, tmp_path, make, changes):
    """Tokens of numpy, from the file and from the same values without one."""
    config = make(tmp_path / "shape", **changes)
    model = synthetic(tmp_path / "model", config)
    prompt = [270, 281, 292, 263]
    wanted, _ = llama_numpy.greedy(model, prompt, 40)
    assert len(set(wanted)) > 8
    assert serve(model, "-tp", 3).token_ids(prompt, 40) == wanted
    dummy = serve(config, "-tp", 2, "--load-format", "dummy", "--seed", 3)
    assert dummy.token_ids(prompt, 40) == wanted


def apart(directory, name):
    """Each expert's tensors by themselves, gates and ups apart."""
    tensors = {}
    for at, values in fp8.read(checkpoint.GOLDEN / name).items():
        before, _, what = at.rpartition(".experts.")
        if what not in ("gate_up_proj", "down_proj"):
            tensors[at] = values
            continue
        for e, one in enumerate(values):
            parts = {"down": one} if what == "down_proj" else dict(zip(("gate", "up"),
                                                                       numpy.split(one, 2)))
            for part, each in parts.items():
                tensors[f"{before}.experts.{e}.{part}_proj.weight"] = numpy.ascontiguousarray(each)
    return fp8.write(directory, tensors, checkpoint.GOLDEN / name)


@pytest.mark.parametrize("name", ["gemma4_moe_bf16", MIXTURE])
def test_experts_apart(serve, tmp_path, name):
    same_tokens(serve, apart(tmp_path / "model", name), name)


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_fp8(serve, tmp_path, name):
    """Codes of linears mean what ml_dtypes says, of experts, too; routers and what layers make of
    rows of their own are as they were."""
    model = apart(tmp_path / "apart", name)
    prompt, _ = checkpoint.golden_runs(name)[0]
    wanted, _ = llama_numpy.greedy(fp8.plain(tmp_path / "plain", model, (1, 0)), prompt, 24)
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--quantization", "fp8")
    assert server.token_ids(prompt, 24) == wanted


@pytest.mark.parametrize("name", ["gemma4_moe_bf16", "gemma4_ple_bf16"])
def test_codes_in_the_file(serve, tmp_path, name):
    """Linears as E4M3 with scales beside them, where layers make queries alone, and of each
    expert."""
    model = apart(tmp_path / "apart", name)
    coded = fp8.quantized(tmp_path / "coded", model, fp8.BLOCK, (128, 128), "_scale_inv")
    prompt, _ = checkpoint.golden_runs(name)[0]
    wanted, _ = llama_numpy.greedy(fp8.plain(tmp_path / "plain", model, (128, 128)), prompt, 16)
    assert serve(coded, "-tp", 3, "--dtype", "float32").token_ids(prompt, 16) == wanted
    assert serve(shard(coded, 4, tmp_path / "shards"), "-tp", 2, "--dtype",
                 "float32").token_ids(prompt, 16) == wanted


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_cache_in_fp8(serve, name):
    """Scores of a prompt that numpy rounds its keys and values for, those of others, too."""
    prompt, _ = checkpoint.golden_runs(name)[0]
    wanted = checkpoint.log_softmax(llama_numpy.logits(checkpoint.GOLDEN / name, prompt, stored))
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--kv-cache-dtype", "fp8")
    choice = server.complete(prompt, max_tokens=1, temperature=0, prompt_logprobs=0)["choices"][0]
    got = [one[str(token)]["logprob"] for one, token in zip(choice["prompt_logprobs"][1:],
                                                            prompt[1:])]
    assert numpy.median(abs(wanted[range(len(prompt) - 1), prompt[1:]] - got)) < 1e-3


SHARED_QUERY, WIDE = "model.layers.5.self_attn.q_proj", "model.layers.6.mlp"


@pytest.mark.parametrize("name, adapted", [
    (SMALL, SHARED_QUERY), (SMALL, WIDE), (SMALL, "model.layers."), (MIXTURE, "model.layers.")])
def test_lora(serve, tmp_path, name, adapted):
    """Beside queries that are made alone, the wider MLP, and the MLP that experts are beside."""
    model = checkpoint.GOLDEN / name
    pairs = dict(random_pairs(model, 2, 9, lambda tensor: fp8.is_linear(tensor) and
                              tensor.startswith(adapted)))
    assert len(pairs) == {SHARED_QUERY: 1, WIDE: 3}.get(adapted, len(pairs)) > 0
    write_adapter(tmp_path / "adapter", pairs)
    whole = merged(model, [(pairs, 0.5)], tmp_path / "merged")
    prompt, tokens = checkpoint.golden_runs(name)[0]
    wanted, _ = llama_numpy.greedy(whole, prompt, 24)
    server = serve(model, "-tp", 3, "--lora", tmp_path / "adapter")
    assert server.token_ids(prompt, 24) == wanted != tokens[:24]
    assert scores(server) == scores(serve(whole, "-tp", 3))


@pytest.mark.parametrize("name", [MIXTURE, SMALL])
def test_vectors(serve, name):
    """Of a text, where vectors are asked for: numpy's."""
    server = serve(checkpoint.GOLDEN / name, "-tp", 2, "--runner", "pooling",
                   "--skip-tokenizer-init")
    prompts = [prompt for prompt, _ in checkpoint.golden_runs(name)]
    got, _ = embed(server, prompts)
    for prompt, vector in zip(prompts, got):
        assert abs(vector - llama_numpy.vector(checkpoint.GOLDEN / name, prompt)).max() < CLOSE


# ---- files --------------------------------------------------------------------------------------


def test_heads_by_kind(serve, tmp_path):
    """As published files say what the golden says layer by layer, and the other way around."""
    model = checkpoint.copy_model(MIXTURE, tmp_path / "model")

    def edit(config):
        config.pop("per_layer_config")
        config.update(global_head_dim=32, num_global_key_value_heads=2)

    checkpoint.edit_config(model, edit)
    same_tokens(serve, model, MIXTURE)
    model = checkpoint.copy_model(SMALL, tmp_path / "other")

    def edit_other(config):
        config.pop("global_head_dim")
        config["per_layer_config"] = {str(i): {"head_dim": 32} for i in (2, 4, 6)}

    checkpoint.edit_config(model, edit_other)
    same_tokens(serve, model, SMALL)


def with_tensors(model, more):
    fp8.write(model, {**fp8.read(model), **more}, model)


def test_unused_keys(serve, tmp_path):
    """Published files have keys and values of layers that take others', of which nothing is read;
    and so has one of the goldens."""
    held = fp8.read(checkpoint.GOLDEN / "gemma4_ple_bf16")
    unused = "model.language_model.layers.4.self_attn."
    assert {f"{unused}{what}.weight" for what in ("k_proj", "v_proj", "k_norm")} <= set(held)
    model = checkpoint.copy_model("gemma4_ple_bf16", tmp_path / "less")
    for layer, what in ((3, "k_proj"), (4, "v_proj"), (5, "k_norm")):
        checkpoint.drop_tensor(model / "model.safetensors",
                               f"model.language_model.layers.{layer}.self_attn.{what}.weight")
    same_tokens(serve, model, "gemma4_ple_bf16")
    model = checkpoint.copy_model(SMALL, tmp_path / "more")
    with_tensors(model, {f"model.layers.{layer}.self_attn.{what}": numpy.ones((3, 5), "f4")
                         for layer in (4, 6) for what in ("k_proj.weight", "v_proj.weight_scale",
                                                          "k_norm.weight")})
    same_tokens(serve, model, SMALL)


@pytest.mark.parametrize("like, name", [
    (SMALL, "model.layers.3.self_attn.k_proj.weight"),
    (SMALL, "model.layers.2.self_attn.v_proj.weight"),
    (SMALL, "model.layers.1.self_attn.k_norm.weight"),
    (SMALL, "model.layers.4.self_attn.q_norm.weight"),
    (SMALL, "model.layers.6.self_attn.q_proj.weight"),
    (SMALL, "model.layers.6.mlp.up_proj.weight"),
    (SMALL, "model.layers.0.per_layer_input_gate.weight"),
    (SMALL, "model.layers.5.per_layer_projection.weight"),
    (SMALL, "model.layers.5.post_per_layer_input_norm.weight"),
    (SMALL, "model.embed_tokens_per_layer.weight"),
    (SMALL, "model.per_layer_model_projection.weight"),
    (SMALL, "model.per_layer_projection_norm.weight"),
    (MIXTURE, "model.layers.0.router.scale"),
    (MIXTURE, "model.layers.3.router.per_expert_scale"),
    (MIXTURE, "model.layers.1.router.proj.weight"),
    (MIXTURE, "model.layers.2.mlp.gate_proj.weight"),
    (MIXTURE, "model.layers.1.pre_feedforward_layernorm_2.weight"),
    (MIXTURE, "model.layers.1.post_feedforward_layernorm_1.weight"),
    (MIXTURE, "model.layers.1.post_feedforward_layernorm_2.weight")])
def test_missing_tensor(tmp_path, like, name):
    model = checkpoint.copy_model(like, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", name)
    assert name in fails(3, "serve", model, "--port", 0)


def test_missing_experts(tmp_path):
    model = checkpoint.copy_model(MIXTURE, tmp_path / "model")
    checkpoint.drop_tensor(model / "model.safetensors", "model.layers.2.experts.down_proj")
    assert "model.layers.2.experts." in fails(3, "serve", model, "--port", 0)


@pytest.mark.parametrize("like, name", [
    (SMALL, "model.layers.3.self_attn.k_proj.bias"), (SMALL, "model.layers.4.self_attn.k_up"),
    (SMALL, "model.layers.1.router.proj.weight"), (MIXTURE, "model.layers.1.per_layer_input_gate"),
    (MIXTURE, "model.layers.3.self_attn.v_proj.weight")])
def test_tensors_of_no_one(tmp_path, like, name):
    model = checkpoint.copy_model(like, tmp_path / "model")
    with_tensors(model, {name: numpy.ones((3, 5), "f4")})
    assert name in fails(3, "serve", model, "--port", 0)


# ---- what is refused ----------------------------------------------------------------------------

SLIDE_FIRST = 5 * ["sliding_attention"] + 2 * ["full_attention"]
KEPT_FIRST = 4 * ["full_attention"] + ["sliding_attention"] + 2 * ["full_attention"]
LONG = {"rope_type": "longrope", "short_factor": 8 * [1.0], "long_factor": 8 * [1.0], "factor": 2.0}
BEFORE = "so few that a layer of each of their layer_types is before them"


@pytest.mark.parametrize("like, change, wanted", [
    (SMALL, {"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7, expected an integer from 0 to "
     "6"),
    (SMALL, {"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
    (SMALL, {"num_kv_shared_layers": "3"}, 'num_kv_shared_layers is "3"'),
    (SMALL, {"num_kv_shared_layers": 5}, f"num_kv_shared_layers is 5, expected {BEFORE}"),
    (SMALL, {"layer_types": SLIDE_FIRST}, f"num_kv_shared_layers is 3, expected {BEFORE}"),
    (SMALL, {"layer_types": KEPT_FIRST}, f"num_kv_shared_layers is 3, expected {BEFORE}"),
    (SMALL, {"use_double_wide_mlp": "yes"}, 'use_double_wide_mlp is "yes", expected true'),
    (SMALL, {"use_double_wide_mlp": False}, "model.layers.4.mlp."),
    (SMALL, {"vocab_size_per_layer_input": 228}, "vocab_size_per_layer_input is 228, expected at "
     "least vocab_size, which is 229"),
    (SMALL, {"vocab_size_per_layer_input": 239}, "model.embed_tokens_per_layer.weight: expected"),
    (SMALL, {"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input is -1"),
    (SMALL, {"hidden_size_per_layer_input": 15}, "per_layer"),
    (MIXTURE, {"num_experts": None}, "num_experts is missing"),
    (MIXTURE, {"top_k_experts": None}, "top_k_experts is missing"),
    (MIXTURE, {"moe_intermediate_size": None}, "moe_intermediate_size is missing"),
    (MIXTURE, {"top_k_experts": 9}, "top_k_experts is 9, expected at most as many as there are "
     "experts, 8"),
    (MIXTURE, {"top_k_experts": 0}, "top_k_experts is 0"),
    (MIXTURE, {"num_experts": 1025}, "num_experts is 1025"),
    (MIXTURE, {"enable_moe_block": "on"}, 'enable_moe_block is "on", expected true or false'),
    (MIXTURE, {"num_kv_shared_layers": 1, "use_double_wide_mlp": True}, "use_double_wide_mlp is "
     "true, expected false (not supported of mixtures"),
    (SMALL, {"rope_parameters": {"full_attention": LONG, "sliding_attention": {}}},
     'rope_type is "longrope", expected default, linear, llama3, proportional or yarn'),
    (MIXTURE, {"per_layer_config": {"01": {"head_dim": 32, "num_key_value_heads": 2}}},
     "per_layer_config is an object, expected the same of all layers that attend to everything")],
    ids=str)
def test_bad_config(tmp_path, like, change, wanted):
    model = checkpoint.copy_model(like, tmp_path / "model")

    def edit(config):
        config.update(change)
        for key in [key for key, value in change.items() if value is None]:
            config.pop(key)

    checkpoint.edit_config(model, edit)
    assert wanted in fails(3, "plan", model)


def test_rows_of_all_layers_together(tmp_path):
    assert "at most 1048576 of all layers together" in fails(
        3, "plan", shape(tmp_path / "shape", hidden_size_per_layer_input=1 << 14,
                         num_hidden_layers=65), "--load-format", "dummy")
