"""--kv-cache-dtype fp8: keys and values as E4M3, the same bits whoever computes them."""

import json
import sys

import ml_dtypes
import numpy
import pytest

import checkpoint
from harness import run

sys.path.insert(0, str(checkpoint.GOLDEN.parent / "oracle"))
import llama_numpy  # noqa: E402

FP8 = ("--kv-cache-dtype", "fp8")
PROMPTS = ["Once upon a time, there was a little", "Tom and Anna went to the river. The fox said"]


def outcome(server, prompt, **options):
    choice = server.complete(prompt, max_tokens=40, temperature=0, ignore_eos=True, logprobs=5,
                             return_token_ids=True, **options)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one rank says to each prompt alone."""
    from conftest import Starter
    starter = Starter(tmp_path_factory.mktemp("alone"))
    try:
        server = starter(checkpoint.DEMO, *FP8)
        yield [outcome(server, prompt) for prompt in PROMPTS]
    finally:
        starter.close()


@pytest.mark.parametrize("arguments", [("-tp", 2), ("-tp", 4), ("-tp", 8),
                                       ("-tp", 2, "--max-num-batched-tokens", 5),
                                       ("-tp", 2, "--device", "cpu-generic"),
                                       ("-tp", 2, "--device", "cpu-avx2")], ids=str)
def test_same_bits(serve, alone, arguments):
    server = serve(checkpoint.DEMO, *FP8, *arguments)
    assert [outcome(server, prompt) for prompt in PROMPTS] == alone


def test_same_bits_among_others(serve, alone):
    """Both prompts in one request share steps, and the second time cached blocks."""
    server = serve(checkpoint.DEMO, *FP8)
    for _ in range(2):
        choices = server.complete(PROMPTS, max_tokens=40, temperature=0, ignore_eos=True,
                                  logprobs=5, return_token_ids=True)["choices"]
        assert [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in choices] == alone


def test_twice_as_many_blocks(serve):
    """Half the bytes a token: in the plan, in the start-up table and in /metrics."""
    shape = checkpoint.shape_of(checkpoint.DEMO)
    per_token = 2 * shape.layers * shape.kv_heads * shape.head_dim
    setup = ("-tp", 1, "--kv-cache-memory", 100 * 16 * 2 * per_token)
    blocks = {}
    for name, arguments in {"auto": (), "fp8": FP8}.items():
        plan = json.loads(run("plan", checkpoint.DEMO, *setup, *arguments, "--json").stdout)
        rank = plan["per_rank"][0]
        assert rank["kv_bytes_per_token"] == per_token * (2 if name == "auto" else 1)
        assert rank["kv_bytes"] == plan["kv_blocks"] * 16 * rank["kv_bytes_per_token"]
        server = serve(checkpoint.DEMO, *setup, *arguments)
        (labels,) = (labels for family, labels, _ in server.metrics().samples
                     if family == "vllm:cache_config_info")
        assert labels["cache_dtype"] == name
        blocks[name] = int(labels["num_gpu_blocks"])
        assert blocks[name] == plan["kv_blocks"]
    assert (blocks["auto"], blocks["fp8"]) == (100, 200)


def e4m3(x):
    """To the nearest E4M3, the largest being 448, by ml_dtypes."""
    return numpy.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(x.dtype)


@pytest.mark.parametrize("name", ["tied_gqa2_f32", "llama31_rope_f32"])
def test_against_numpy(serve, name):
    """Logprobs of a prompt are those of a float64 forward pass that rounds keys and values."""
    directory = checkpoint.GOLDEN / name
    ids = checkpoint.golden_runs(name)[0][0]
    server = serve(directory, *FP8)
    choice = server.complete(ids, max_tokens=1, temperature=0, prompt_logprobs=0)["choices"][0]
    got = [next(iter(place.values()))["logprob"] for place in choice["prompt_logprobs"][1:]]

    def wanted(stored):
        scores = llama_numpy.logits(directory, ids, stored)[:-1]
        scores = scores - scores.max(axis=-1, keepdims=True)
        every = scores - numpy.log(numpy.exp(scores).sum(axis=-1, keepdims=True))
        return every[numpy.arange(len(ids) - 1), ids[1:]]

    error = numpy.abs(got - wanted(e4m3)).max()
    effect = numpy.abs(got - wanted(lambda x: x)).max()
    assert error < 1e-4 and effect > 1e-3, (error, effect)


def test_agreement_of_greedy_text(serve, alone):
    """On the demo model fp8 changes few words: most places have the token of the full cache."""
    server = serve(checkpoint.DEMO)
    same = places = 0
    for prompt, (tokens, _) in zip(PROMPTS, alone):
        full = outcome(server, prompt)[0]
        apart = next((i for i, pair in enumerate(zip(full, tokens)) if pair[0] != pair[1]), 40)
        same, places = same + apart, places + 40
    print(f"the same first {same} of {places} greedy tokens")
    assert same >= places // 4


def test_unknown_type():
    done = run("serve", checkpoint.DEMO, "--kv-cache-dtype", "fp4")
    assert done.returncode == 2
    assert "--kv-cache-dtype" in done.stderr and "auto|fp8" in done.stderr
