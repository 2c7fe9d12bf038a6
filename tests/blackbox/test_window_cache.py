"""Layers that slide give back what no row sees any more: by closed formulas, by counted blocks, and
with the tokens of a server that never runs short. What is computed in windows is tested with the
goldens (test_gemma.py, test_gpt_oss.py)."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import checkpoint
from conftest import Starter
from harness import eventually, run
from test_int_weights import SAMPLED
from test_recovery import answer, kill, lose_a_rank

WINDOW, ROWS, CONTEXT = 40, 32, 1200
SHORT = "--max-num-batched-tokens", ROWS
# Published shapes: (layers, of them full, window, groups that keep and that slide, layers of each)
SHAPES = {
    "gemma3_text": (26, 4, 512, (1, 6), 4),
    "gpt_oss": (24, 12, 128, (1, 1), 12),
    "mistral": (32, 0, 4096, (0, 1), 32),
    "gemma2": (26, 13, 4096, (1, 1), 13),
}


def blocks(positions):
    return -(-positions // 16)


def needed(groups, positions, rows, window):
    """A text's blocks: of layers that keep all, and at most those of some rows and of what the
    first of them sees, wherever in a block that begins."""
    keep, slide = groups
    seen = max(blocks(begin + window - 1 + rows) for begin in range(16))
    return keep * blocks(positions) + slide * min(seen, blocks(positions))


def sliding(directory, **changes):
    """Of six layers one keeps all; or those that are said."""
    return checkpoint.write_config(directory, **{
        "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "vocab_size": 300, "sliding_window": WINDOW, "query_pre_attn_scalar": 16,
        "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "torch_dtype": "float32",
        **changes})


def all_slide(directory):
    return sliding(directory, layer_types=6 * ["sliding_attention"])


BLOCK_BYTES = 16 * 2 * 2 * 16 * 4  # of one layer: keys and values, two heads of 16


def planned(model, *options):
    done = run("plan", model, "--load-format", "dummy", "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- what is planned -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", SHAPES)
def test_planned(tmp_path, family):
    layers, full, window, groups, each = SHAPES[family]
    period = {0: 0, 4: 6}.get(full, 2)
    kinds = ["full_attention" if period and i % period == period - 1 else "sliding_attention"
             for i in range(layers)]
    assert kinds.count("full_attention") == full
    more = {"layer_types": kinds} if full else {}
    if family == "gpt_oss":
        more |= {"num_local_experts": 4, "num_experts_per_tok": 2, "attention_bias": True,
                 "quantization_config": {"quant_method": "mxfp4"}, "rope_scaling": {
                     "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096, "truncate": False}}
    model = sliding(tmp_path / "model", model_type=family, num_hidden_layers=layers,
                    sliding_window=window, max_position_embeddings=32768, **more)
    memory = 64 << 20
    plan = planned(model, "--kv-cache-memory", memory, "--max-num-batched-tokens", 256)
    assert plan["kv_groups"] == {"keep": groups[0], "slide": groups[1]}
    assert plan["block_layers"] == each
    assert plan["kv_blocks"] == memory // (each * BLOCK_BYTES)
    assert plan["context_blocks"] == needed(groups, plan["max_model_len"], 256, window)
    longest = plan["max_model_len"]
    assert longest == 32768 or needed(groups, longest + 1, 256, window) > plan["kv_blocks"]
    assert longest > memory // (layers * BLOCK_BYTES) * 16  # what all of all layers had room for


def test_no_text_slides(tmp_path):
    """One table does where nothing is ever given back: no context is longer than window and rows
    together, or the cache has no room for one."""
    model = sliding(tmp_path / "model")
    one, several = {"keep": 1, "slide": 0}, {"keep": 1, "slide": 5}
    longest = 16 * max(blocks(begin + WINDOW - 1 + ROWS) for begin in range(16))
    assert planned(model, *SHORT, "--max-model-len", longest)["kv_groups"] == one
    assert planned(model, *SHORT, "--max-model-len", longest + 1)["kv_groups"] == several
    little = 6 * BLOCK_BYTES * longest // 16
    plan = planned(model, *SHORT, "--kv-cache-memory", little)
    assert (plan["kv_groups"], plan["max_model_len"]) == (one, longest)


def test_told(tmp_path):
    model = sliding(tmp_path / "model")
    done = run("plan", model, "--load-format", "dummy", "--max-num-batched-tokens", ROWS,
               "--kv-cache-memory", 1000 * BLOCK_BYTES)
    assert "5 of 6 layers attend to the last 40 positions only, and keep no others" in done.stdout
    room = 1000 / needed((1, 5), CONTEXT, ROWS, WINDOW)
    assert f"1000 KV blocks of 16 tokens x 1 layers in F32: room for {room:.1f} whole " \
        "contexts" in done.stdout
    assert "holds 0 positions" in run("plan", model, "--load-format", "dummy",
                                      "--kv-cache-memory", BLOCK_BYTES - 1).stderr
    few = 100  # of them 30 for what slides
    done = run("plan", model, "--load-format", "dummy", "--max-num-batched-tokens", ROWS,
               "--kv-cache-memory", few * BLOCK_BYTES, "--max-model-len", CONTEXT)
    assert done.returncode == 4
    longest = max(n for n in range(CONTEXT) if needed((1, 5), n, ROWS, WINDOW) <= few)
    assert f"the KV cache holds {longest} positions (100 blocks of {BLOCK_BYTES} bytes per rank)" \
        in done.stderr


# ---- what is kept --------------------------------------------------------------------------------


def used_blocks(server):
    """(blocks of the cache that are owned, tokens made), by one page of metrics."""
    seen = server.metrics()
    total, = [int(labels["num_gpu_blocks"]) for name, labels, _ in seen.samples
              if name == "vllm:cache_config_info"]
    return (round(seen.sum("vllm:kv_cache_usage_perc") * total),
            int(seen.sum("vllm:generation_tokens_total")))


PROMPT = [3 + 7 * i % 290 for i in range(300)]


def outcome(server, prompt, count, **options):
    choice = server.complete(prompt, max_tokens=count, ignore_eos=True, logprobs=2,
                             return_token_ids=True, **(options or {"temperature": 0}))["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("make, groups", [(sliding, (1, 5)), (all_slide, (0, 1))])
def test_longer_than_all_layers_had_room(serve, tmp_path, make, groups):
    """With memory for a fifth of it in all layers a whole context is served, and what it has of
    the cache at its end is what the formula says."""
    model = make(tmp_path / "model")
    layers = 6 // sum(groups)
    least = needed(groups, CONTEXT, ROWS, WINDOW)
    memory = least * layers * BLOCK_BYTES // 2  # on two ranks
    assert memory < 3 * BLOCK_BYTES * blocks(CONTEXT) * (0.45 if groups[0] else 0.1)
    few = ("--load-format", "dummy", *SHORT, "--kv-cache-memory", memory)
    server = serve(model, "-tp", 2, *few, "--no-enable-prefix-caching")
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == CONTEXT
    count = CONTEXT - len(PROMPT)
    ample = serve(model, "-tp", 1, "--load-format", "dummy")
    wanted = outcome(ample, PROMPT, count)
    assert outcome(server, PROMPT, count) == wanted
    assert outcome(server, PROMPT, 300, **SAMPLED) == outcome(ample, PROMPT, 300, **SAMPLED)


@pytest.mark.parametrize("make, groups", [(sliding, (1, 5)), (all_slide, (0, 1))])
def test_blocks_of_a_stream(serve, tmp_path, make, groups):
    """While an answer grows, layers that slide own the blocks of a window."""
    server = serve(make(tmp_path / "model"), "-tp", 1, "--load-format", "dummy", *SHORT)
    seen = 0
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(outcome, server, PROMPT, 800)
        while not job.done():
            used, made = used_blocks(server)
            if made == 0 or made > 790:
                continue
            seen += 1
            row = len(PROMPT) + made  # some more are under way
            window = range(WINDOW // 16 + 1, blocks(WINDOW + 15) + 2)
            assert used in [groups[0] * blocks(row + ahead) + groups[1] * slide
                            for ahead in range(17) for slide in window], (used, made)
        assert len(job.result()[0]) == 800
    assert seen > 5


def cached(server, prompt, count):
    """(tokens of an answer, prompt tokens that were found)"""
    answer = server.complete(prompt, max_tokens=count, temperature=0, ignore_eos=True,
                             return_token_ids=True)
    found = answer["usage"]["prompt_tokens_details"]
    return answer["choices"][0]["token_ids"], found["cached_tokens"] if found else 0


@pytest.mark.parametrize("make", [sliding, all_slide])
def test_prefixes(serve, tmp_path, make):
    """What slid out is found while nobody needed its place: by the same prompt, and by one that
    goes on somewhere in the answer."""
    server = serve(make(tmp_path / "model"), "-tp", 2, "--load-format", "dummy", *SHORT)
    said, found = cached(server, PROMPT, 700)
    assert found == 0
    for end in (0, 5, 300, 652):
        more, found = cached(server, PROMPT + said[:end], 700 - end)
        assert more == said[end:]
        assert found == (len(PROMPT) + end - 1) // 16 * 16
    other = [1] + PROMPT[1:]
    assert cached(server, other, 5)[1] == 0


# Together, with guesses, and with a rank lost: short of blocks.
SETTINGS = [
    ("-tp", 1),
    ("-tp", 2, "--speculative-config", "ngram"),
    ("-tp", 2, "--no-enable-prefix-caching"),
]
TOGETHER = [
    {"prompt": PROMPT[:n], "max_tokens": count, "ignore_eos": True, "logprobs": 1, **options}
    for n, count, options in [(300, 200, {"temperature": 0}), (40, 400, SAMPLED),
                              (17, 200, {**SAMPLED, "n": 2}), (299, 100, {"temperature": 0}),
                              (120, 300, SAMPLED), (300, 100, SAMPLED)]]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """What a server with room for all says, one after the other."""
    model = sliding(tmp_path_factory.mktemp("window") / "model")
    starter = Starter(model.parent)
    try:
        server = starter(model, "-tp", 1, "--load-format", "dummy")
        yield model, [answer(server, request) for request in TOGETHER]
    finally:
        starter.close()


@pytest.mark.parametrize("options", SETTINGS, ids=lambda options: " ".join(map(str, options)))
def test_short_of_blocks(serve, wanted, options):
    model, alone = wanted
    context = 520
    few = needed((1, 5), context, ROWS, WINDOW) * BLOCK_BYTES // min(2, options[1])
    server = serve(model, "--load-format", "dummy", *SHORT, "--kv-cache-memory", few,
                   "--max-model-len", context, *options)
    with ThreadPoolExecutor(len(TOGETHER)) as pool:
        assert list(pool.map(lambda request: answer(server, request), TOGETHER)) == alone
    assert server.metrics().sum("vllm:num_preemptions_total") > 0
    assert lose_a_rank(server, TOGETHER[:4], kill(-1)) == alone[:4]
    eventually(lambda: used_blocks(server)[0] == 0, what="all blocks free")


def test_homes(serve):
    """Each home has a pool of its own for all layers: transformers' tokens, short of blocks."""
    name = "gemma3_f32"
    runs = checkpoint.golden_runs(name)
    each = 16 * 2 * 20 * 4  # bytes of a block: one layer of one head
    longest = max(len(prompt) + len(tokens) for prompt, tokens in runs)
    few = needed((1, 3), longest, 8, 20) + 4
    server = serve(checkpoint.GOLDEN / name, "-tp", 4, "--parallel-mode", "2d", "--kv-placement",
                   "home", "--dtype", "float32", "--max-num-batched-tokens", 16,
                   "--kv-cache-memory", few * each, "--max-model-len", longest)
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(server.token_ids, prompt, len(tokens)) for prompt, tokens in 4 * runs]
        assert [job.result() for job in jobs] == 4 * [tokens for _, tokens in runs]
    assert server.metrics().sum("vllm:num_preemptions_total") > 0
