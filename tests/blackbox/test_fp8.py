"""F8_E4M3 weights, quantised while loading or in the checkpoint: the numbers are exactly those of
the same weights widened to F32 by numpy and ml_dtypes, at every number of ranks."""

import copy
import json
import sys

import numpy
import pytest

import checkpoint
import fp8
from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402  (lives in the folder just added)

PROMPTS = ["Once upon a time, there was a little", "Tom and Anna went to the river. The fox said"]
CHANNEL, BLOCK, TENSOR = (1, 0), (128, 128), (0, 0)


def outcome(server):
    """Tokens and logprobs, as the server writes them."""
    answers = []
    for prompt in PROMPTS:
        choice = server.complete(prompt, max_tokens=24, temperature=0, ignore_eos=True, logprobs=5,
                                 echo=True, return_token_ids=True)["choices"][0]
        answers.append((choice["token_ids"], choice["logprobs"]["token_logprobs"],
                        choice["logprobs"]["top_logprobs"]))
    return answers


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{block: directory} of the demo model's linears, quantised and widened again."""
    home = tmp_path_factory.mktemp("plain")
    return {block: fp8.plain(home / f"{block[0]}-{block[1]}", checkpoint.DEMO, block)
            for block in (CHANNEL, BLOCK, TENSOR)}


@pytest.fixture(scope="module")
def wanted(models, tmp_path_factory):
    """{block: outcome} of those, served in F32."""
    from conftest import Starter
    found = {}
    for block, directory in models.items():
        starter = Starter(tmp_path_factory.mktemp("wanted"))
        try:
            found[block] = outcome(starter(directory))
        finally:
            starter.close()
    return found


FLOAT = ("--dtype", "float32")  # of the rest: embedding, head and KV cache


@pytest.mark.parametrize("arguments", [("-tp", 1), ("-tp", 2), ("-tp", 4), ("-tp", 8),
                                       ("-tp", 2, "--device", "cpu-generic"),
                                       ("-tp", 2, "--device", "cpu-avx2"),
                                       ("-tp", 2, "--parallel-mode", "1d_sp")], ids=str)
def test_load_time(serve, wanted, arguments):
    server = serve(checkpoint.DEMO, "--quantization", "fp8", *FLOAT, *arguments)
    assert outcome(server) == wanted[CHANNEL]


@pytest.mark.parametrize("arguments", [("-tp", 3), ("-tp", 4, "--parallel-mode", "2d"),
                                       ("-tp", 8, "--parallel-mode", "2.5d"),
                                       ("-tp", 8, "--parallel-mode", "3d")], ids=str)
@pytest.mark.parametrize("block", [CHANNEL, BLOCK])
def test_other_layouts(serve, models, tmp_path, block, arguments):
    """Their sums are in another order than 1d's, but the same with F8_E4M3 and F32."""
    model = checkpoint.DEMO
    extra = ("--quantization", "fp8")
    if block == BLOCK:
        model = fp8.quantized(tmp_path / "m", model, fp8.BLOCK, BLOCK, "_scale_inv")
        extra = ()
    expected = outcome(serve(models[block], *arguments))
    assert outcome(serve(model, *extra, *FLOAT, *arguments)) == expected


FORMS = {
    "channel": (fp8.CHANNEL, CHANNEL, "_scale", None),
    "channel, scales in a list": (fp8.CHANNEL, CHANNEL, "_scale", lambda shape: shape[:1]),
    "block": (fp8.BLOCK, BLOCK, "_scale_inv", None),
    "tensor": (fp8.TENSOR, TENSOR, "_scale", lambda shape: ()),
    "tensor, as transformers writes it": (fp8.TENSOR, TENSOR, "_scale_inv", lambda shape: ()),
    "tensor, one in a list": (fp8.TENSOR, TENSOR, "_scale", lambda shape: (1,)),
}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("form", FORMS)
def test_checkpoints(serve, wanted, tmp_path, form, ranks):
    config, block, suffix, shape = FORMS[form]
    model = fp8.quantized(tmp_path / "m", checkpoint.DEMO, config, block, suffix, shape)
    server = serve(model, "-tp", ranks, *FLOAT)
    assert outcome(server) == wanted[block]
    plan = json.loads(run("plan", model, "-tp", ranks, *FLOAT, "--json").stdout)
    assert plan["quantization"] == "fp8"
    metrics = server.metrics()
    for rank, entry in enumerate(plan["per_rank"]):
        assert entry["read_bytes"] == metrics.sum("tessera:rank_read_bytes", rank=rank)
        assert entry["weight_bytes"] == metrics.sum("tessera:rank_weight_bytes", rank=rank)


ATTENTION = tuple(f".{part}_proj.weight" for part in "qkvo")


@pytest.mark.parametrize("left", [ATTENTION, ATTENTION[-1:], (".down_proj.weight",)], ids=str)
@pytest.mark.parametrize("form", ["channel", "block"])
def test_left_out(serve, tmp_path, form, left):
    """Some linears of every layer stay as they were: the files say which."""
    config, block, suffix, shape = FORMS[form]
    model = fp8.quantized(tmp_path / "m", checkpoint.DEMO, config, block, suffix, shape, left=left)
    plain = fp8.plain(tmp_path / "plain", checkpoint.DEMO, block, left)
    assert outcome(serve(model, "-tp", 2, *FLOAT)) == outcome(serve(plain, "-tp", 2))
    told = json.loads(run("plan", model, "-tp", 4, "--json").stdout)
    metrics = serve(model, "-tp", 4).metrics()
    for what in ("read_bytes", "weight_bytes"):
        assert [entry[what] for entry in told["per_rank"]] == \
            [metrics.sum(f"tessera:rank_{what}", rank=rank) for rank in range(4)]


def test_layers_that_differ(tmp_path):
    """One flow serves all layers, so what one of them leaves out all have to."""
    for layer, word in ((0, "found F8_E4M3"), (2, "found BF16")):
        left = (f"layers.{layer}.self_attn.o_proj.weight",)
        model = fp8.quantized(tmp_path / word, checkpoint.DEMO, fp8.CHANNEL, CHANNEL, "_scale",
                              left=left)
        done = run("plan", model, "-tp", 2)
        assert done.returncode == 3 and word in done.stderr, done.stderr


def test_compressed_block_and_other_scale_types(serve, tmp_path):
    """Scales in BF16, blocks by compressed-tensors' own name; static activation scales unused."""
    config = copy.deepcopy(fp8.CHANNEL)
    weights = config["config_groups"]["group_0"]["weights"]
    weights.update(strategy="block", block_structure=[128, 128])
    model = fp8.quantized(tmp_path / "m", checkpoint.DEMO, config, BLOCK, "_scale",
                          scale_type="BF16")
    tensors = fp8.read(model)
    same = {}
    for name, values in tensors.items():
        if name.endswith("_scale"):
            continue
        if fp8.is_linear(name):
            scales = tensors[name + "_scale"].astype(numpy.float32)
            values = values.astype(numpy.float32) * fp8.spread(scales, values.shape, BLOCK)
        same[name] = values.astype(numpy.float32)
    plain = fp8.write(tmp_path / "plain", same, checkpoint.DEMO, dtype="float32")
    inputs = {name.replace("weight", f"{what}_scale"): numpy.float32([1.5])
              for name in same if fp8.is_linear(name) for what in ("input", "activation")}
    fp8.write(model, {**tensors, **inputs}, model)
    server = serve(model, "-tp", 2, *FLOAT)
    assert outcome(server) == outcome(serve(plain))


def test_memory_is_halved(tmp_path):
    """Half the bytes of bfloat16, and a scale per row: by the plan, from headers alone."""
    shape = checkpoint.shape_of(checkpoint.DEMO)
    sizes = {}
    for name, arguments in {"bf16": (), "fp8": ("--quantization", "fp8")}.items():
        plan = json.loads(run("plan", checkpoint.DEMO, "-tp", 1, "--dtype", "bfloat16", "--json",
                              *arguments).stdout)
        sizes[name] = plan["per_rank"][0]["weight_bytes"]
    linears = {name: values.shape for name, values in fp8.read(checkpoint.DEMO).items()
               if fp8.is_linear(name)}
    saved = sum(rows * cols - 4 * rows for rows, cols in linears.values())
    assert shape.layers * 7 == len(linears)
    assert sizes["bf16"] - sizes["fp8"] == saved  # all sizes of the demo model are whole panels


# ---- refusals -----------------------------------------------------------------------------------


def refused(model, *arguments, code=3):
    done = run("plan", model, *arguments)
    assert done.returncode == code, done.stderr + done.stdout
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def broken(tmp_path, edit_config=None, edit_tensors=None):
    model = fp8.quantized(tmp_path / "m", checkpoint.DEMO, fp8.BLOCK, BLOCK, "_scale_inv")
    tensors = fp8.read(model)
    config = copy.deepcopy(fp8.BLOCK)
    if edit_tensors:
        edit_tensors(tensors)
    if edit_config:
        edit_config(config)
    return fp8.write(model, tensors, model, quantization_config=config)


DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.mark.parametrize("changes, words", [
    ({"quant_method": "hqq"}, ["quant_method", "hqq", "compressed-tensors", "gptq", "awq"]),
    ({"quant_method": None}, ["quant_method", "null"]),
    ({"fmt": "e5m2"}, ["fmt", "e5m2", "e4m3"]),
    ({"weight_block_size": [128]}, ["weight_block_size", "two numbers"]),
    ({"weight_block_size": [0, 128]}, ["weight_block_size", "two numbers"]),
    ({"weight_block_size": [64, 128]}, ["scale_inv", "expected ["]),
], ids=str)
def test_bad_config(tmp_path, changes, words):
    line = refused(broken(tmp_path, lambda config: config.update(changes)))
    assert all(word in line for word in words), line


@pytest.mark.parametrize("path, value, words", [
    (["format"], "int-quantized", ["format", "float-quantized"]),
    (["kv_cache_scheme"], {"num_bits": 8}, ["kv_cache_scheme", "null"]),
    (["config_groups"], {}, ["config_groups", "one group"]),
    (["config_groups", "group_0", "weights", "num_bits"], 4, ["num_bits", "4"]),
    (["config_groups", "group_0", "weights", "type"], "int", ["type", "float"]),
    (["config_groups", "group_0", "weights", "strategy"], "group", ["strategy", "group"]),
], ids=str)
def test_bad_compressed_config(tmp_path, path, value, words):
    config = copy.deepcopy(fp8.CHANNEL)
    place = config
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    model = fp8.write(tmp_path / "m", {}, checkpoint.DEMO, quantization_config=config)
    line = refused(model)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("edit, words", [
    (lambda t: t.pop(DOWN + "_scale_inv"), [DOWN + "_scale_inv", "missing"]),
    (lambda t: t.update({DOWN + "_scale_inv": t[DOWN + "_scale_inv"][:, :-1].copy()}),
     [DOWN + "_scale_inv", "expected ["]),
    (lambda t: t.update({DOWN: t[DOWN].astype(fp8.TYPES["BF16"])}), [DOWN, "F8_E4M3", "BF16"]),
    (lambda t: t.update({DOWN: t[DOWN].astype(fp8.TYPES["F8_E5M2"])}), [DOWN, "F8_E5M2"]),
], ids=["missing", "shape", "not codes", "e5m2"])
def test_bad_tensors(tmp_path, edit, words):
    line = refused(broken(tmp_path, edit_tensors=edit))
    assert all(word in line for word in words), line


def poison(name, value):
    def edit(tensors):
        tensors[name] = tensors[name].copy()
        tensors[name].flat[-1] = value
    return edit


@pytest.mark.parametrize("edit, words", [
    (poison(DOWN, numpy.nan), [DOWN, "not finite"]),
    (poison(DOWN + "_scale_inv", -1), [DOWN + "_scale_inv", "-1"]),
    (poison(DOWN + "_scale_inv", numpy.inf), [DOWN + "_scale_inv", "inf"]),
], ids=["NaN code", "negative scale", "infinite scale"])
def test_bad_values(serve, tmp_path, edit, words):
    """Only who reads the tensors can see them: the server stops before it is ready."""
    server = serve(broken(tmp_path, edit_tensors=edit), "-tp", 2, wait=False)
    assert server.wait() == 3, server.log
    assert all(word in server.log for word in words), server.log


def test_infinite_weight(serve, tmp_path):
    tensors = fp8.read(checkpoint.DEMO)
    poison(DOWN, numpy.inf)(tensors)
    model = fp8.write(tmp_path / "m", tensors, checkpoint.DEMO)
    server = serve(model, "-tp", 2, "--quantization", "fp8", wait=False)
    assert server.wait() == 3, server.log
    assert DOWN in server.log and "not finite" in server.log


def test_tools(tmp_path):
    """inspect knows whose the scales are; synth refuses."""
    model = broken(tmp_path)
    entries = {entry["name"]: entry
               for entry in json.loads(run("inspect", model, "-tp", 2, "--json").stdout)}
    scales = entries[DOWN + "_scale_inv"]
    rows, cols = fp8.read(model)[DOWN + "_scale_inv"].shape
    assert scales["slices"][0]["cols"][0] == 0 and scales["slices"][1]["cols"][1] == cols
    assert all(part["rows"] == [0, rows] for part in scales["slices"])
    done = run("synth", "--config", model / "config.json", "-o", tmp_path / "synth")
    assert done.returncode == 2 and "quantization_config" in done.stderr


def stacked(directory, both):
    """Mistral Small 4's golden as its file is in fp8: all experts of a layer in two tensors of
    codes, each expert with a scale, or one of its gates and one of its ups; scales of activations
    beside them. And what these codes mean, in F32."""
    like = checkpoint.GOLDEN / "mistral4_f32"
    coded, plain = {}, {}

    def put(name, codes, scales, inverse, activation):
        coded.update({name: codes, inverse: scales.reshape(-1)[0] if codes.ndim == 2 else scales,
                      activation: numpy.full(len(scales), 0.5, numpy.float32)})
        whole = scales if codes.ndim == 2 else numpy.repeat(
            scales, codes.shape[1] // scales.shape[1], 1)
        plain[name] = codes.astype(numpy.float32) * whole

    for name, values in fp8.read(like).items():
        if ".experts." in name:
            halves = 2 if both and "gate_up" in name else 1
            each = [fp8.quantize(half, TENSOR) for one in values
                    for half in numpy.split(one, halves)]
            codes = numpy.concatenate([one for one, _ in each]).reshape(values.shape)
            scales = numpy.array([scale for _, scale in each]).reshape(len(values), halves, 1)
            put(name, codes, scales, name + "_scale_inv", name + "_activation_scale")
        elif fp8.is_linear(name):
            module = name.removesuffix(".weight")
            put(name, *fp8.quantize(values, TENSOR), name + "_scale_inv",
                module + ".activation_scale")
        else:
            coded[name] = plain[name] = values
    fp8.write(directory / "coded", coded, like,
              quantization_config={**fp8.TENSOR, "weight_block_size": None})
    return directory / "coded", fp8.write(directory / "plain", plain, like)


@pytest.mark.parametrize("both", [False, True])
def test_stacked_experts(serve, tmp_path, both):
    coded, plain = stacked(tmp_path, both)
    prompt, _ = checkpoint.golden_runs("mistral4_f32")[0]
    wanted, _ = llama_numpy.greedy(plain, prompt, 24)
    for ranks in (1, 2, 3):
        assert serve(coded, *FLOAT, "-tp", ranks).token_ids(prompt, 24) == wanted
    shards = tmp_path / "shards"
    assert run("shard", coded, "-tp", 2, "-o", shards).returncode == 0
    assert serve(shards, *FLOAT, "-tp", 3).token_ids(prompt, 24) == wanted
    tensors = fp8.read(coded)
    del tensors["model.layers.1.mlp.experts.down_proj_scale_inv"]
    done = run("plan", fp8.write(tmp_path / "less", tensors, coded))
    assert done.returncode == 3
    assert "model.layers.1.mlp.experts.0.down_proj.weight_scale" in done.stderr
    odd = {**fp8.read(coded)}
    odd["model.layers.0.mlp.experts.gate_up_proj_scale_inv"] = numpy.ones((10, 3, 1), numpy.float32)
    done = run("plan", fp8.write(tmp_path / "odd", odd, coded))
    assert done.returncode == 3 and "gate_up_proj_scale_inv" in done.stderr


def test_stacked_blocks(tmp_path):
    """Of blocks that hold gates and ups nothing says whose scale it is."""
    like, tensors = checkpoint.GOLDEN / "mistral4_f32", {}
    for name, values in fp8.read(like).items():
        tensors[name] = values
        if ".experts." in name:  # of 26 gates and 26 ups, so that the second block has ups alone
            each = [fp8.quantize(one, (32, 32)) for one in values]
            tensors[name] = numpy.array([codes for codes, _ in each])
            tensors[name + "_scale_inv"] = numpy.array([scales for _, scales in each])
        elif fp8.is_linear(name):
            tensors[name], tensors[name + "_scale_inv"] = fp8.quantize(values, (32, 32))
    model = fp8.write(tmp_path / "model", tensors, like,
                      quantization_config={**fp8.BLOCK, "weight_block_size": [32, 32]})
    done = run("plan", model)
    assert done.returncode == 3
    assert ("gate_up_proj_scale_inv: blocks of 32 rows, expected ones that end with the gates, "
            "which have 26 rows") in done.stderr
