"""Checkpoints that quantisers publish: compressed-tensors' pack-quantized, GPTQ and AWQ. Held as
values they are the model that numpy makes of the same integers; held as they come they meet
activations as integers, with the same bits whoever computes them."""

import json
import os
import re
import signal
import sys

import numpy
import pytest

import checkpoint
import fp8
import packed
from harness import ROOT, eventually, is_sanitized, run
from packed import FORMS
from test_counters import bytes_read
from test_int_weights import DEVICES, GREEDY, GROUP, PROMPTS, SAMPLED, lacks, outcome, outcomes
from test_int_weights import rounded, scores
from test_mixtures import check_lost_rank

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

VALUES = ("--quantization", "none", "--dtype", "float32")
FEW = ["packed, 8 bits", "gptq, zeros", "awq"]
MANY = FEW if is_sanitized() else list(FORMS)  # sanitized ranks are slow
DOWN = "model.layers.1.mlp.down_proj."


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{form: directory} of the demo model."""
    home = tmp_path_factory.mktemp("packed")
    return {name: packed.quantized(home / str(i), checkpoint.DEMO, form)
            for i, (name, form) in enumerate(FORMS.items())}


# ---- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("form", MANY)
def test_values(serve, models, tmp_path, form, ranks):
    """--quantization none: the bits of a model that has these numbers as F32."""
    plain = packed.plain(tmp_path / "plain", checkpoint.DEMO, FORMS[form])
    assert outcomes(serve(models[form], *VALUES, "-tp", ranks)) == \
        outcomes(serve(plain, "-tp", ranks))


@pytest.mark.parametrize("form", MANY)
@pytest.mark.parametrize("model", [checkpoint.DEMO, checkpoint.GOLDEN / "tied_gqa2_f32"],
                         ids=lambda model: model.name)
def test_against_numpy(serve, tmp_path, model, form):
    """Logprobs of the second and third token are those of a forward pass with the numbers that the
    file means, and activations rounded by the definition (test_int_weights.py says why the median,
    and why no later tokens). The head is not quantised."""
    served = packed.quantized(tmp_path / "m", model, FORMS[form])
    config = llama_numpy.read_config(model)
    weights = llama_numpy.read_weights(packed.plain(tmp_path / "plain", model, FORMS[form]))
    mlp = checkpoint.shape_of(model).mlp
    cuts = {"mlp.down_proj": [mlp * leaf // 8 for leaf in range(9)],
            "self_attn.o_proj": [config.heads * leaf // 8 * config.head_dim for leaf in range(9)]}
    prompts = [[(7 * first + 13 * place) % (config.vocab - 10) + 5 for place in range(3)]
               for first in range(48)]
    got = numpy.array(scores(serve(served, "--dtype", "float32", "-tp", 2), prompts))

    def apart(met):
        every = [checkpoint.log_softmax(llama_numpy.forward(config, weights, ids[:2], met=met))
                 for ids in prompts]
        want = [one[[0, 1], ids[1:]] for one, ids in zip(every, prompts)]
        return numpy.median(numpy.abs(got - want), axis=0)  # of either place

    error = apart(lambda x, name: x if name == "lm_head" else rounded(x, cuts.get(name, [])))
    head = apart(lambda x, name: rounded(x, cuts.get(name, [])))
    plain = apart(lambda x, name: x)
    print(f"{model.name} {form}: {error}, not rounded {plain}, nor the head {head}")
    assert error.max() < 1e-5 and plain[1] > 1e-3 and head[1] > 3e-4


@pytest.mark.parametrize("name", ["qwen3_moe_f32", "qwen2_f32", "qwen2_gqa_bf16", "mixtral_f32",
                                  "phi3_gqa_f32", "glm4_moe_f32"])
@pytest.mark.parametrize("form", FEW)
def test_other_models(serve, tmp_path, name, form):
    """Biases, experts, and tensors that hold several matrices: tokens of numpy."""
    model = checkpoint.GOLDEN / name

    shapes = {tensor: values.shape for tensor, values in fp8.read(model).items()
              if packed.is_linear(tensor)}

    def part_of(tensor):
        return re.sub(r"^.*\.(\w+)\.weight$", r"\1", tensor).translate(str.maketrans("kv", "qq"))

    odd = {part_of(tensor) for tensor, shape in shapes.items()
           if FORMS[form].method != "packed" and (shape[0] % 8 or shape[1] % 8)}

    def left_out(tensor):  # what is in no whole words, and what is held with it
        return part_of(tensor) in odd

    served = packed.quantized(tmp_path / "m", model, FORMS[form], left_out)
    prompt = list(range(5, 25))
    wanted, _ = llama_numpy.greedy(packed.plain(tmp_path / "plain", model, FORMS[form], left_out),
                                   prompt, 16)
    assert serve(served, *VALUES, "-tp", 3).token_ids(prompt, 16) == wanted
    answers = [outcome(serve(served, "-tp", ranks), prompt, **SAMPLED) for ranks in (1, 2, 4)]
    assert answers.count(answers[0]) == 3


@pytest.mark.parametrize("stay", ["self_attn", "o_proj", "down_proj"])
def test_left_out(serve, tmp_path, stay):
    """Some linears of every layer are not quantised: the files say which."""
    form, model = FORMS["awq"], checkpoint.DEMO

    def left_out(name):
        return stay in name

    served = packed.quantized(tmp_path / "m", model, form, left_out)
    plain = packed.plain(tmp_path / "plain", model, form, left_out)
    assert outcomes(serve(served, *VALUES, "-tp", 2)) == outcomes(serve(plain, "-tp", 2))
    for more in ((), ("--parallel-mode", "2d")):
        options = ("-tp", 4, *more)
        server = serve(served, *options)
        told = json.loads(run("plan", served, *options, "--json").stdout)
        assert [entry["weight_bytes"] for entry in told["per_rank"]] == \
            [server.metrics().sum("tessera:rank_weight_bytes", rank=rank) for rank in range(4)]
        assert len(server.token_ids(PROMPTS[0], 24)) == 24


# ---- the same bits ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(models, tmp_path_factory):
    """{form: what one rank says}"""
    from conftest import Starter
    found = {}
    for form in FORMS:
        starter = Starter(tmp_path_factory.mktemp("alone"))
        try:
            found[form] = outcomes(starter(models[form]))
        finally:
            starter.close()
    return found


@pytest.mark.parametrize("form", MANY)
@pytest.mark.parametrize("arguments", [("-tp", 2), ("-tp", 4), ("-tp", 8),
                                       ("-tp", 4, "--parallel-mode", "1d_sp"),
                                       ("-tp", 2, "--max-num-batched-tokens", 5)], ids=str)
def test_same_bits(serve, models, alone, form, arguments):
    assert outcomes(serve(models[form], *arguments)) == alone[form]


@pytest.mark.parametrize("form", FEW)
@pytest.mark.parametrize("device", DEVICES)
def test_same_bits_of_every_processor(serve, models, alone, form, device):
    if reason := lacks(device):
        pytest.skip(reason)
    assert outcomes(serve(models[form], "-tp", 2, "--device", device)) == alone[form]


def test_int4_is_no_other(serve, models, alone):
    """Its name by --quantization changes nothing."""
    assert outcomes(serve(models["awq"], "--quantization", "int4")) == alone["awq"]


def test_lost_rank(serve, models):
    check_lost_rank(serve, models["gptq, zeros"], 450)


def test_lost_rank_without_files(serve, tmp_path):
    """Who takes over what a lost rank had loaded reads no weights, and is told which are packed."""
    model = packed.quantized(tmp_path / "m", checkpoint.DEMO, FORMS["gptq"],
                             left_out=lambda name: ".self_attn." in name)
    server = serve(model, "-tp", 2)
    wanted = server.token_ids([5, 6, 7], 30)
    for path in model.glob("*.safetensors"):
        path.unlink()
    os.kill(server.ranks()[1], signal.SIGKILL)
    eventually(lambda: server.metrics().sum("tessera:group_restarts_total") == 1, 20, "restart")
    assert server.token_ids([5, 6, 7], 30) == wanted


@pytest.fixture(scope="module")
def plain(models, tmp_path_factory):
    """{form: scores of the prompts in 1d}"""
    from conftest import Starter
    starter = Starter(tmp_path_factory.mktemp("plain"))
    try:
        return {form: numpy.concatenate(scores(starter(models[form]), PROMPTS)) for form in FEW}
    finally:
        starter.close()


@pytest.mark.parametrize("form", FEW)
@pytest.mark.parametrize("arguments", [("-tp", 3), ("-tp", 4, "--parallel-mode", "2d"),
                                       ("-tp", 8, "--parallel-mode", "2.5d"),
                                       ("-tp", 8, "--parallel-mode", "3d")], ids=str)
def test_other_layouts(serve, models, plain, form, arguments):
    """Runs of activations are cut otherwise there (test_int_weights.py)."""
    server = serve(models[form], *arguments)
    got = numpy.concatenate(scores(server, PROMPTS))
    assert numpy.abs(got - plain[form]).mean() < 0.04
    assert len(server.token_ids(PROMPTS[0], 24)) == 24


@pytest.mark.parametrize("held, served", [(2, 1), (3, 8), (8, 3)])
@pytest.mark.parametrize("form", FEW + ["packed, zeros"])
def test_shards(serve, models, alone, tmp_path, form, held, served):
    """Cut for some ranks, and back to one: the same model, and the same files."""
    done = run("shard", models[form], "-tp", held, "-o", tmp_path / "cut")
    assert done.returncode == 0, done.stderr
    server = serve(tmp_path / "cut", "-tp", served)
    if served != 3:
        assert outcomes(server) == alone[form]
    for directory, source in (("one", models[form]), ("two", tmp_path / "cut")):
        assert run("shard", source, "-tp", 1, "-o", tmp_path / directory).returncode == 0
    name = "model-rank-00000-part-00000.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


# ---- bytes --------------------------------------------------------------------------------------


def touched(span, size):
    """How many words, or groups, some rows or columns are in."""
    return -(-span.stop // size) - span.start // size if len(span) else 0


def held(rows, cols, form):
    """Panels of 32 outputs by groups of 32 columns, scales in F32 and zeros in bytes."""
    each = GROUP * GROUP * form.bits // 8 + 4 * GROUP + (0 if form.symmetric else GROUP)
    return -(-rows // GROUP) * touched(cols, GROUP) * each


def read(rows, cols, form):
    """Of one matrix in a file: whole words, scales, and what says how the columns lie."""
    each, size = 32 // form.bits, fp8.TYPES[form.scales].itemsize
    groups = touched(cols, form.group) if form.group > 0 else 1
    if not len(rows) or not len(cols):
        return 0
    codes = touched(rows, each) * len(cols) if form.method == "awq" else \
        len(rows) * touched(cols, each)
    zeros = groups * touched(rows, each) if form.method != "packed" or not form.symmetric else 0
    more = {"packed": 16, "awq": 0}.get(form.method, 4 * len(cols))
    return 4 * (codes + zeros) + size * groups * len(rows) + more


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("form", MANY)
def test_held_and_read_bytes(serve, models, form, ranks):
    model, form = models[form], FORMS[form]
    plan = json.loads(run("plan", model, "-tp", ranks, "--json").stdout)
    assert plan["quantization"] == ("int8" if form.bits == 8 else "int4")
    server = serve(model, "-tp", ranks)
    metrics, shape, pids = server.metrics(), checkpoint.shape_of(model), server.ranks()
    every, norms = range(shape.hidden), (2 * shape.layers + 1) * shape.hidden
    for rank, entry in enumerate(plan["per_rank"]):
        heads, mlp, vocab = (checkpoint.oracle.block(units, ranks, rank)
                             for units in (shape.heads, shape.mlp, shape.vocab))
        o = range(heads.start * shape.head_dim, heads.stop * shape.head_dim)
        heads_kv = checkpoint.oracle.kv_heads_of(shape, ranks, rank)
        kv = range(heads_kv[0] * shape.head_dim, (heads_kv[-1] + 1) * shape.head_dim)
        in_memory = (held(len(o) + 2 * len(kv), every, form) + held(shape.hidden, o, form) +
                     held(2 * len(mlp), every, form) + held(shape.hidden, mlp, form))
        in_files = (read(o, every, form) + 2 * read(kv, every, form) + read(every, o, form) +
                    2 * read(mlp, every, form) + read(every, mlp, form))
        head = 2 * shape.hidden * len(vocab)
        in_memory = shape.layers * in_memory + 4 * norms + \
            2 * shape.hidden * -(-len(vocab) // GROUP) * GROUP
        in_files = shape.layers * in_files + head + 2 * norms
        assert in_memory == entry["weight_bytes"] == \
            metrics.sum("tessera:rank_weight_bytes", rank=rank)
        assert in_files == entry["read_bytes"] == metrics.sum("tessera:rank_read_bytes", rank=rank)
        assert in_files <= bytes_read(pids[rank]) < in_files + (1 << 20)


@pytest.mark.parametrize("form", ["packed, zeros", "gptq, zeros", "awq"])
def test_many_pieces(serve, tmp_path, form):
    """A weight that is read piece by piece, of which the last rank's begin within words."""
    checkpoint.write_config(tmp_path, hidden_size=256, head_dim=32, num_attention_heads=8,
                            num_key_value_heads=4, intermediate_size=24568, num_hidden_layers=1)
    like, prompt = tmp_path / "like", list(range(5, 25))
    assert run("synth", "--config", tmp_path / "config.json", "-o", like).returncode == 0
    model = packed.quantized(tmp_path / "m", like, FORMS[form])
    plain = packed.plain(tmp_path / "plain", like, FORMS[form])
    server = serve(model, *VALUES, "-tp", 3)
    assert outcome(server, prompt, **GREEDY) == outcome(serve(plain, "-tp", 3), prompt, **GREEDY)
    server = serve(model, "-tp", 3)
    told = json.loads(run("plan", model, "-tp", 3, "--json").stdout)["per_rank"]
    assert [rank["read_bytes"] for rank in told] == \
        [server.metrics().sum("tessera:rank_read_bytes", rank=rank) for rank in range(3)]


@pytest.mark.parametrize("form", ["packed, zeros", "gptq", "awq"])
def test_inspect(models, form):
    """Every tensor is somebody's; a word and a group across a cut are in both parts."""
    found = {tensor["name"]: tensor for tensor in
             json.loads(run("inspect", models[form], "-tp", 8, "--json").stdout)}
    assert all(tensor["slices"] for tensor in found.values())
    codes = DOWN + ("weight_packed" if form == "packed, zeros" else "qweight")
    along = "cols" if form == "packed, zeros" else "rows"
    parts = [part[along] for part in found[codes]["slices"]]
    each = 1 if form == "awq" else 8
    assert parts == [[448 // 8 * i // each, -(-448 // 8 * (i + 1) // each)] for i in range(8)]
    scales = DOWN + ("weight_scale" if form == "packed, zeros" else "scales")
    size = FORMS[form].group
    assert [part[along] for part in found[scales]["slices"]] == \
        [[56 * i // size, -(-56 * (i + 1) // size)] for i in range(8)]


@pytest.mark.parametrize("form", ["packed, zeros", "awq"])
def test_inspect_fused(tmp_path, form):
    """Queries, keys and values are parts of one tensor, side by side or one below the other."""
    like = checkpoint.GOLDEN / "phi3_gqa_f32"
    model = packed.quantized(tmp_path / "m", like, FORMS[form])
    found = {tensor["name"]: tensor for tensor in
             json.loads(run("inspect", model, "-tp", 2, "--json").stdout)}
    codes = found["model.layers.0.self_attn.qkv_proj." +
                  ("weight_packed" if form == "packed, zeros" else "qweight")]
    covered = numpy.zeros(codes["shape"], int)
    for part in codes["slices"]:
        covered[slice(*part["rows"]), slice(*part["cols"])] += 1
    assert covered.min() == 1 and len(codes["slices"]) == 2 * 3


@pytest.mark.parametrize("form", FEW)
def test_dummy(serve, models, tmp_path, form):
    """Without a file: held as they would be, at any number of ranks."""
    (tmp_path / "config.json").write_text((models[form] / "config.json").read_text())
    options = ("--load-format", "dummy", "--skip-tokenizer-init")
    servers = {ranks: serve(tmp_path, "-tp", ranks, *options) for ranks in (1, 2, 4)}
    answers = [outcome(server, [5, 6, 7], **GREEDY) for server in servers.values()]
    assert answers.count(answers[0]) == 3
    told = json.loads(run("plan", models[form], "-tp", 2, "--json").stdout)
    assert told["per_rank"][1]["weight_bytes"] == \
        servers[2].metrics().sum("tessera:rank_weight_bytes", rank=1)


# ---- refusals -----------------------------------------------------------------------------------


def refused(code, *arguments):
    """The one line that says why."""
    done = run(*arguments)
    assert done.returncode == code, done.stderr + done.stdout
    (line,) = done.stderr.strip().splitlines()
    return line


def damaged(tmp_path, form, change=lambda tensors: None, **changes):
    model = packed.quantized(tmp_path / "m", checkpoint.DEMO, FORMS[form])
    tensors = {name: values.copy() for name, values in fp8.read(model).items()}
    change(tensors)
    config = {**FORMS[form].config(), **changes}
    return fp8.write(model, tensors, model, quantization_config=config)


@pytest.mark.parametrize("form, changes, words", [
    ("gptq", {"desc_act": True}, ["desc_act is true, expected false", "quantise again"]),
    ("gptq", {"bits": 3}, ["bits is 3, expected 4, or 8"]),
    ("gptq", {"checkpoint_format": "marlin"}, ["checkpoint_format", "marlin", "gptq_v2"]),
    ("gptq", {"group_size": 48}, ["group_size is 48, expected a multiple of 32"]),
    ("gptq", {"group_size": 32}, ["scales: expected 2-d [6, 256], found 2-d [2, 256]"]),
    ("awq", {"version": "gemv"}, ["version", "gemv", "gemm"]),
    ("awq", {"quant_method": "gptq"}, ["qweight: expected 2-d [24, 256], found 2-d [192, 32]"]),
    ("awq", {"quant_method": "quip"}, ["quant_method", "quip", "awq"]),
    ("packed", {"format": "int-quantized"}, ["format", "int-quantized", "pack-quantized"]),
    ("packed", {"config_groups": {}}, ["config_groups", "one group"])], ids=str)
def test_bad_config(tmp_path, form, changes, words):
    line = refused(3, "plan", damaged(tmp_path, form, **changes))
    assert all(word in line for word in words), line


def put(name, values):
    return lambda tensors: tensors.update({name: numpy.ascontiguousarray(values(tensors[name]))})


@pytest.mark.parametrize("form, change, words", [
    ("packed", lambda t: t.pop(DOWN + "weight_shape"), ["weight_shape is missing"]),
    ("packed, zeros", lambda t: t.pop(DOWN + "weight_zero_point"), [DOWN + "weight_zero_point is"]),
    ("packed, zeros", put(DOWN + "weight_zero_point", lambda v: v.T), ["expected 2-d [24, 14]"]),
    ("packed", put(DOWN + "weight_packed", lambda v: v[:, 1:]), ["expected 2-d [192, 56]"]),
    ("packed", put(DOWN + "weight_packed", lambda v: v.astype("<i8")), ["expected I32", "I64"]),
    ("packed", put(DOWN + "weight_scale", lambda v: v.astype("<i4")), ["F32, F16 or BF16", "I32"]),
    ("gptq", lambda t: t.pop(DOWN + "scales"), [DOWN + "scales is missing"]),
    ("gptq", put(DOWN + "g_idx", lambda v: v[1:]), ["g_idx: expected 1-d [1, 448]"]),
    ("gptq", lambda t: t.update({DOWN + "weight_zero_point": t[DOWN + "qzeros"]}),
     ["unexpected tensor " + DOWN + "weight_zero_point"]),
    ("awq", put(DOWN + "qweight", lambda v: v.T), ["qweight: expected 2-d [448, 24]"]),
    ("awq", put(DOWN + "qzeros", lambda v: v[:-1]), ["qzeros: expected 2-d [7, 24]"])],
    ids=lambda value: value if isinstance(value, str) else "")
def test_bad_tensors(tmp_path, form, change, words):
    line = refused(3, "plan", damaged(tmp_path, form, change))
    assert all(word in line for word in words), line


def test_layers_that_differ(tmp_path):
    def left_out(name):
        return name == DOWN + "weight"

    model = packed.quantized(tmp_path / "m", checkpoint.DEMO, FORMS["gptq"], left_out)
    line = refused(3, "plan", model)
    assert DOWN + "weight is not quantised, as others are that are held as it is" in line


def test_rows_that_fill_no_words(tmp_path):
    checkpoint.write_config(tmp_path, hidden_size=48, head_dim=10, num_attention_heads=3,
                            num_key_value_heads=1, intermediate_size=40)
    assert run("synth", "--config", tmp_path / "config.json", "-o", tmp_path / "s").returncode == 0
    model = fp8.write(tmp_path / "m", fp8.read(tmp_path / "s"), tmp_path / "s",
                      quantization_config=FORMS["awq"].config())
    tensors = {name.replace("weight", "qweight") if fp8.is_linear(name) else name: values
               for name, values in fp8.read(model).items()}
    line = refused(3, "plan", fp8.write(model, tensors, model))
    assert "q_proj.weight: [30, 48] is in no whole words" in line


def poison(name, place, value):
    def change(tensors):
        tensors[name][place] = value
    return change


@pytest.mark.parametrize("form, change, words", [
    ("gptq", poison(DOWN + "scales", (1, 7), numpy.inf), ["scales: a scale of output 7"]),
    ("awq", poison(DOWN + "scales", (-1, -1), numpy.nan), ["scales: a scale of output 191"]),
    ("packed", poison(DOWN + "weight_scale", (3, 2), -numpy.inf), ["scale of output 3"]),
    ("gptq", poison(DOWN + "qzeros", (2, 1), 0x77777677), ["qzeros: a zero of output 10", "sym"]),
    ("gptq", poison(DOWN + "g_idx", 300, 1), ["g_idx: column 300 is in group 1, expected 2",
                                              "desc_act"]),
    ("gptq", poison(DOWN + "g_idx", 0, -1), ["g_idx: column 0 is in group -1, expected 0"]),
    ("packed", poison(DOWN + "weight_shape", 1, 447), ["weight_shape: expected 192 and 448"])],
    ids=lambda value: value if isinstance(value, str) else "")
def test_bad_values(serve, tmp_path, form, change, words):
    """Only who reads the tensors can see them: the server stops before it is ready."""
    server = serve(damaged(tmp_path, form, change), "-tp", 2, wait=False)
    assert server.wait() == 3, server.log
    assert all(word in server.log for word in words), server.log


def test_order_may_be_missing(serve, models, tmp_path):
    def change(tensors):
        for name in [name for name in tensors if name.endswith("g_idx")]:
            tensors.pop(name)

    model = damaged(tmp_path, "gptq", change)
    assert outcomes(serve(model, "-tp", 2)) == outcomes(serve(models["gptq"], "-tp", 2))


def test_biases_of_zeros(serve, models, tmp_path):
    """Older files have one for every linear; another number is a model that we do not have."""
    def change(tensors):
        for name in [name for name in tensors if name.endswith("qweight")]:
            tensors[name.replace("qweight", "bias")] = numpy.zeros(tensors[name].shape[1], "<f2")

    model = damaged(tmp_path, "gptq", change)
    server = serve(model, "-tp", 2)
    assert outcomes(server) == outcomes(serve(models["gptq"], "-tp", 2))
    told = json.loads(run("plan", model, "-tp", 2, "--json").stdout)["per_rank"][1]["read_bytes"]
    assert told == server.metrics().sum("tessera:rank_read_bytes", rank=1)
    tensors = {name: values.copy() for name, values in fp8.read(model).items()}
    tensors[DOWN + "bias"][101] = -0.25
    server = serve(fp8.write(model, tensors, model), "-tp", 2, wait=False)
    assert server.wait() == 3, server.log
    assert DOWN + "bias: element 101 is -0.25, expected zeros" in server.log


def test_other_refusals(models):
    line = refused(2, "plan", models["gptq"], "--quantization", "int8")
    assert "--quantization int8: the checkpoint's weights are int4 already" in line
    line = refused(2, "plan", models["awq"], "-tp", 8, "--parallel-mode", "3d_gathered")
    assert "quantised weights are not gathered" in line
    done = run("synth", "--config", models["awq"] / "config.json", "-o", "/nowhere")
    assert done.returncode == 2 and "quantization_config" in done.stderr
