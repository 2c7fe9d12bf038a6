"""--quantization int8 and int4: weights as integers with a scale per 32 columns, times activations
as integers, the same bits whoever computes them."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy
import pytest

import checkpoint
import fp8
from harness import BINARY, eventually, run

sys.path.insert(0, str(checkpoint.GOLDEN.parent / "oracle"))
import llama_numpy  # noqa: E402

GROUP = 32
KINDS = ["int8", "int4"]
PROMPTS = ["Once upon a time, there was a little", "Tom and Anna went to the river. The fox said"]
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 11, "repetition_penalty": 1.1,
           "frequency_penalty": 0.3}
GREEDY = {"temperature": 0}


def outcome(server, prompt=PROMPTS[0], **options):
    """Tokens and logprobs, as the server writes them."""
    choice = server.complete(prompt, max_tokens=24, ignore_eos=True, logprobs=5,
                             return_token_ids=True, **options)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def outcomes(server):
    return [outcome(server, prompt, **options) for prompt in PROMPTS
            for options in (GREEDY, SAMPLED)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """{kind: what one rank says to each request alone}."""
    from conftest import Starter
    found = {}
    for kind in KINDS:
        starter = Starter(tmp_path_factory.mktemp(kind))
        try:
            found[kind] = outcomes(starter(checkpoint.DEMO, "--quantization", kind))
        finally:
            starter.close()
    return found


DEVICES = ["cpu-generic", "cpu-avx2", "cpu-avx512", "cpu-vnni", "cpu-bf16", "cpu-neon",
           "cpu-dotprod"]


def lacks(device):
    """Why this machine cannot run that variant, or nothing."""
    done = subprocess.run([BINARY, "plan", checkpoint.DEMO, "--device", device],
                          capture_output=True, text=True)
    return done.stderr.strip() if done.returncode == 4 else ""


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arguments", [("-tp", 2), ("-tp", 4), ("-tp", 8),
                                       ("-tp", 4, "--parallel-mode", "1d_sp"),
                                       ("-tp", 2, "--max-num-batched-tokens", 5),
                                       ("-tp", 2, "--sampler", "distributed")], ids=str)
def test_same_bits(serve, alone, kind, arguments):
    assert outcomes(serve(checkpoint.DEMO, "--quantization", kind, *arguments)) == alone[kind]


@pytest.mark.parametrize("name", ["untied_mha_bf16", "qwen2_gqa_bf16", "odd"])
def test_same_bits_of_other_models(serve, tmp_path, name):
    """A head of its own, biases, and widths that cut groups of columns everywhere."""
    model = checkpoint.GOLDEN / name
    if name == "odd":
        checkpoint.write_config(tmp_path, hidden_size=50, head_dim=10, num_attention_heads=8,
                                num_key_value_heads=8, intermediate_size=117)
        model = tmp_path / "m"
        run("synth", "--config", tmp_path / "config.json", "-o", model)
    prompt = list(range(5, 30))
    for kind in KINDS:
        answers = [outcome(serve(model, "--quantization", kind, "-tp", ranks), prompt, **SAMPLED)
                   for ranks in (1, 2, 4, 8)]
        assert answers.count(answers[0]) == 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
def test_same_bits_of_every_processor(serve, alone, kind, device):
    if reason := lacks(device):
        pytest.skip(reason)
    server = serve(checkpoint.DEMO, "--quantization", kind, "-tp", 2, "--device", device)
    assert outcomes(server) == alone[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_among_others(serve, alone, kind):
    """Many requests share steps, and the second time cached blocks."""
    server = serve(checkpoint.DEMO, "--quantization", kind, "-tp", 2)
    wanted = [(prompt, options) for prompt in PROMPTS for options in (GREEDY, SAMPLED)]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):
            jobs = [pool.submit(outcome, server, prompt, **options)
                    for prompt, options in 4 * wanted]
            assert [job.result() for job in jobs] == 4 * alone[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_lost_rank(serve, kind):
    """A request goes on to the same tokens when a rank dies under it."""
    server = serve(checkpoint.DEMO, "--quantization", kind, "-tp", 2)
    body = dict(max_tokens=900, ignore_eos=True, return_token_ids=True, **SAMPLED)
    want = server.complete("One day", **body)["choices"][0]["token_ids"]
    before = server.metrics().sum("vllm:generation_tokens_total")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.complete, "One day", **body)
        eventually(lambda: server.metrics().sum("vllm:generation_tokens_total") > before + 1, 5,
                   "running")
        os.kill(server.ranks()[-1], signal.SIGKILL)
        assert job.result(60)["choices"][0]["token_ids"] == want
    assert server.metrics().sum("tessera:group_restarts_total") == 1


def scores(server, prompts):
    """[logprobs of a prompt's tokens behind the first] of each prompt."""
    choices = server.complete(prompts, max_tokens=1, temperature=0, prompt_logprobs=0)["choices"]
    return [numpy.array([next(iter(place.values()))["logprob"]
                         for place in choice["prompt_logprobs"][1:]]) for choice in choices]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """{kind: scores of the prompts in 1d; None: of the unquantised model}."""
    from conftest import Starter
    starter = Starter(tmp_path_factory.mktemp("plain"))
    try:
        return {kind: numpy.concatenate(scores(starter(checkpoint.DEMO, *options), PROMPTS))
                for kind, options in {None: (), **{k: ("--quantization", k)
                                                   for k in KINDS}}.items()}
    finally:
        starter.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arguments", [("-tp", 3), ("-tp", 4, "--parallel-mode", "2d"),
                                       ("-tp", 8, "--parallel-mode", "2.5d"),
                                       ("-tp", 8, "--parallel-mode", "3d")], ids=str)
def test_other_layouts(serve, plain, kind, arguments):
    """Runs of activations are cut otherwise there, so they differ by as much as rounding does: as
    much as int8 from the unquantised model, and far less than int4."""
    server = serve(checkpoint.DEMO, "--quantization", kind, *arguments)
    got = numpy.concatenate(scores(server, PROMPTS))
    assert numpy.abs(got - plain[kind]).mean() < 0.04
    if kind == "int4":
        assert numpy.abs(got - plain[None]).mean() > 0.2
    assert len(server.token_ids(PROMPTS[0], 24)) == 24


# ---- against numpy ------------------------------------------------------------------------------


def away_from_zero(scale):
    """The bf16 of no smaller magnitude."""
    bits = (scale.astype(numpy.float32).view(numpy.uint32) + 0xffff) & 0xffff0000
    return bits.view(numpy.float32)


def quantized(values, bits):
    """The weight that is meant, by the definition in weights/intq.h."""
    rows, cols = values.shape
    values = numpy.pad(values.astype(numpy.float32), ((0, 0), (0, -cols % GROUP)))
    groups = values.reshape(rows, -1, GROUP)
    most, least = groups.max(-1), groups.min(-1)
    extreme = numpy.where(most >= -least, most, least)
    tiny = numpy.finfo(numpy.float32).tiny
    steps = numpy.float32(127 if bits == 8 else 8)
    size = numpy.maximum(away_from_zero(numpy.abs(extreme) / steps), tiny)
    scale = (size if bits == 8 else numpy.where(extreme >= 0, -size, size))[..., None]
    codes = numpy.rint(numpy.minimum(groups / scale, 127 if bits == 8 else 7))
    assert (scale == scale.astype(ml_dtypes.bfloat16)).all() and codes.min() >= -(127 + bits % 8)
    return (codes * scale).reshape(rows, -1)[:, :cols].astype(numpy.float64)


def rounded(x, cuts):
    """x as integers of 8 bits: a scale for each run, the columns of a group between two cuts."""
    y = numpy.empty_like(x)
    edges = sorted({*range(0, x.shape[-1], GROUP), *cuts, x.shape[-1]})
    for begin, end in zip(edges, edges[1:]):
        part = x[:, begin:end].astype(numpy.float32)
        most = numpy.maximum(numpy.abs(part).max(-1, keepdims=True), numpy.float32(1e-30))
        y[:, begin:end] = numpy.rint(part * (numpy.float32(127) / most)) * (most / 127)
    return y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [checkpoint.DEMO, checkpoint.GOLDEN / "tied_gqa2_f32",
                                   checkpoint.GOLDEN / "qwen3_moe_f32",
                                   checkpoint.GOLDEN / "glm4_moe_f32",
                                   checkpoint.GOLDEN / "deepseek_v3_f32",
                                   checkpoint.GOLDEN / "qwen2_moe_bf16"],
                         ids=lambda model: model.name)
def test_against_numpy(serve, model, kind):
    """Logprobs of the second and third token are those of a forward pass that rounds weights and
    activations. (Later places are no measure: where an angle's last bit decides how an activation
    is rounded, all that follows is rounded otherwise.) The median, since that can happen here. At
    the third, attention has keys to choose from. Leaves cut runs of down_proj in the demo model,
    and of o_proj in the second, whose heads have 8 columns. A router is not rounded, nor what makes
    keys and values of latents."""
    config, weights = llama_numpy.read_config(model), llama_numpy.read_weights(model)
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"  # 8 bits with either
    low = {name: quantized(values, 8 if name == head else int(kind[3]))
           if (fp8.is_linear(name) and "kv_b_proj" not in name) or name == head else values
           for name, values in weights.items()}
    width = config.latent.head if config.latent else config.head_dim
    shape = checkpoint.shape_of(model)

    def leaves(width):
        return [width * leaf // 8 for leaf in range(9)]

    shared = [i * shape.mlp + cut for i in range(shape.shared) for cut in leaves(shape.mlp)]
    cuts = {"mlp.down_proj": leaves(shape.dense_mlp or shape.mlp),
            "down_proj": leaves(shape.mlp), "shared.down_proj": shared,  # of an expert, of several
            "self_attn.o_proj": [config.heads * leaf // 8 * width for leaf in range(9)]}
    server = serve(model, "--quantization", kind, "--dtype", "float32", "-tp", 2)
    prompts = [[(7 * first + 13 * place) % (config.vocab - 10) + 5 for place in range(3)]
               for first in range(48)]
    got = numpy.array(scores(server, prompts))

    def apart(weights, met=lambda x, name: x):
        every = [checkpoint.log_softmax(llama_numpy.forward(config, weights, ids[:2], met=met))
                 for ids in prompts]
        want = [one[[0, 1], ids[1:]] for one, ids in zip(every, prompts)]
        return numpy.median(numpy.abs(got - want), axis=0)  # of either place

    def met(x, name):
        return x if "kv_b_proj" in name else rounded(x, cuts.get(name, []))

    queries = ("q_proj", "k_proj", "q_b_proj")  # and keys, but latents'
    error = apart(low, met)
    others = {"runs not cut by leaves": apart(low, lambda x, name: rounded(x, [])),
              "activations not rounded": apart(low), "nor weights": apart(weights),
              "weights of q and k": apart({**low, **{name: weights[name] for name in low
                                                     if any(one in name for one in queries)}},
                                          met)}
    print(f"{model.name} {kind}: {error}", {name: f"{other[1]:.2g}"
                                            for name, other in others.items()})
    assert error.max() < 1e-5 and min(other[1] for other in others.values()) > 1e-3


# ---- memory, files, refusals --------------------------------------------------------------------


def panels(rows, cols, kind):
    """Bytes of rows of a weight, and of the groups that its columns touch."""
    groups = -(-cols.stop // GROUP) - cols.start // GROUP if len(cols) else 0
    return -(-rows // GROUP) * groups * (GROUP * GROUP * int(kind[3]) // 8 + 2 * GROUP)


def whole_groups(cols, width):
    """How many columns are read to quantise these."""
    return min(-(-cols.stop // GROUP) * GROUP, width) - cols.start // GROUP * GROUP


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_memory(serve, kind, ranks):
    """What a rank holds is panels of 32 outputs by groups of 32 columns, and the norms; what it
    reads is whole groups, in bf16."""
    options = ("-tp", ranks, "--quantization", kind)
    plan = json.loads(run("plan", checkpoint.DEMO, *options, "--json").stdout)
    assert plan["quantization"] == kind
    metrics = serve(checkpoint.DEMO, *options).metrics()
    shape = checkpoint.shape_of(checkpoint.DEMO)
    every, norms = range(shape.hidden), (2 * shape.layers + 1) * shape.hidden
    for rank, entry in enumerate(plan["per_rank"]):
        heads, mlp, vocab = (checkpoint.oracle.block(units, ranks, rank)
                             for units in (shape.heads, shape.mlp, shape.vocab))
        o = range(heads.start * shape.head_dim, heads.stop * shape.head_dim)
        kv = len(checkpoint.oracle.kv_heads_of(shape, ranks, rank)) * shape.head_dim
        qkv = len(o) + 2 * kv
        held = (panels(qkv, every, kind) + panels(shape.hidden, o, kind) +
                panels(2 * len(mlp), every, kind) + panels(shape.hidden, mlp, kind))
        read = shape.hidden * (qkv + whole_groups(o, shape.heads * shape.head_dim) +
                               2 * len(mlp) + whole_groups(mlp, shape.mlp))
        held = shape.layers * held + panels(len(vocab), every, "int8") + 4 * norms
        read = 2 * (shape.layers * read + len(vocab) * shape.hidden + norms)
        assert held == entry["weight_bytes"] == metrics.sum("tessera:rank_weight_bytes", rank=rank)
        assert read == entry["read_bytes"] == metrics.sum("tessera:rank_read_bytes", rank=rank)


@pytest.mark.parametrize("kind", KINDS)
def test_shards(serve, alone, tmp_path, kind):
    """A checkpoint that is cut for two ranks is the same model at any number."""
    done = run("shard", checkpoint.DEMO, "-tp", 2, "-o", tmp_path / "cut")
    assert done.returncode == 0, done.stderr
    for ranks in (1, 2, 4):
        server = serve(tmp_path / "cut", "--quantization", kind, "-tp", ranks)
        assert outcomes(server) == alone[kind]


def test_dummy(serve, tmp_path):
    """Dummy weights are those that synth writes, quantised like them."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(checkpoint.llama_config()))
    assert run("synth", "--config", config, "-o", tmp_path / "m", "--seed", 0).returncode == 0
    options = ("--quantization", "int4", "-tp", 2)
    want = outcome(serve(tmp_path / "m", *options), [5, 6, 7], **GREEDY)
    dummy = serve(tmp_path / "m", *options, "--load-format", "dummy", "--seed", 0)
    assert outcome(dummy, [5, 6, 7], **GREEDY) == want


def refused(code, *arguments):
    """The one line that says why."""
    done = run(*arguments)
    assert done.returncode == code, done.stderr + done.stdout
    (line,) = done.stderr.strip().splitlines()
    return line


def test_refusals(tmp_path):
    codes = fp8.quantized(tmp_path / "m", checkpoint.DEMO, fp8.BLOCK, (128, 128), "_scale_inv")
    line = refused(2, "serve", codes, "--quantization", "int4")
    assert "int4" in line and "fp8 already" in line
    line = refused(2, "serve", checkpoint.DEMO, "--quantization", "int5")
    assert '"int5"' in line and "auto|none|fp8|int8|int4" in line
    for command, kind in (("plan", "int8"), ("serve", "int4")):
        line = refused(2, command, checkpoint.DEMO, "-tp", 8, "--parallel-mode", "3d_gathered",
                       "--quantization", kind)
        assert "quantised weights are not gathered" in line


@pytest.mark.parametrize("value", [numpy.inf, numpy.nan])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight",
                                  "model.embed_tokens.weight"])
def test_bad_weight(serve, tmp_path, name, value):
    """Only who reads the tensors can see it: the server stops before it is ready."""
    tensors = fp8.read(checkpoint.DEMO)
    tensors[name] = tensors[name].copy()
    tensors[name].flat[-1] = value
    model = fp8.write(tmp_path / "m", tensors, checkpoint.DEMO)
    server = serve(model, "-tp", 2, "--quantization", "int8", wait=False)
    assert server.wait() == 3, server.log
    assert name in server.log and "not finite" in server.log
