"""gpt-oss: sinks, biases everywhere, gates and ups in turns, experts of 4 bits as they are
published. Greedy tokens with experts held as values are tested with those of all goldens, at every
number of ranks; here is the default: experts held as they come, times activations as integers."""

import json
import sys

import numpy
import pytest

import checkpoint
import fp8
from checkpoint import oracle
from harness import ROOT, run
from test_counters import bytes_read
from test_int_weights import DEVICES, GROUP, SAMPLED, lacks, panels, rounded, scores
from test_mixtures import PROMPTS, check_lost_rank, check_same_bits, fails, outcome
from test_modes import check_received, plan_file

sys.path.insert(0, str(ROOT / "tests/oracle"))
import llama_numpy  # noqa: E402

NAMES = ["gpt_oss_bf16", "gpt_oss_f32"]
LAYER = "model.layers.1."


def copied(tmp_path, change=lambda config: None, name="gpt_oss_bf16"):
    model = checkpoint.copy_model(name, tmp_path / "model")
    checkpoint.edit_config(model, change)
    return model


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_same_bits(serve, name):
    check_same_bits(serve, checkpoint.GOLDEN / name, ())


@pytest.mark.parametrize("device", DEVICES)
def test_same_bits_of_every_processor(serve, device):
    if reason := lacks(device):
        pytest.skip(reason)
    model = checkpoint.GOLDEN / "gpt_oss_bf16"
    both = [[outcome(server, prompt, **SAMPLED) for prompt in PROMPTS]
            for server in (serve(model), serve(model, "-tp", 2, "--device", device))]
    assert both[0] == both[1]


def test_lost_rank(serve):
    check_lost_rank(serve, checkpoint.GOLDEN / "gpt_oss_bf16", 400)


# ---- what is computed ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_against_numpy(serve, name):
    """Logprobs of the second and third token are those of a forward pass that rounds what experts
    are given (test_int_weights.py says why the median, and why no later tokens)."""
    model = checkpoint.GOLDEN / name
    config, weights = llama_numpy.read_config(model), llama_numpy.read_weights(model)
    mlp = checkpoint.shape_of(model).mlp
    cuts = {"gate_proj": [], "up_proj": [], "down_proj": [mlp * leaf // 8 for leaf in range(9)]}
    prompts = [[(7 * first + 13 * place) % (config.vocab - 10) + 5 for place in range(3)]
               for first in range(48)]
    got = numpy.array(scores(serve(model, "--dtype", "float32", "-tp", 2), prompts))

    def apart(met):
        every = [checkpoint.log_softmax(llama_numpy.forward(config, weights, ids[:2], met=met))
                 for ids in prompts]
        want = [one[[0, 1], ids[1:]] for one, ids in zip(every, prompts)]
        return numpy.median(numpy.abs(got - want), axis=0)  # of either place

    error = apart(lambda x, name: rounded(x, cuts[name]) if name in cuts else x)
    plain = apart(lambda x, name: x)
    whole = apart(lambda x, name: rounded(x, []) if name in cuts else x)
    print(f"{name}: {error}, not rounded {plain}, not cut by leaves {whole}")
    assert error.max() < 1e-5 and plain[1] > 1e-3 and whole[1] > 1e-3


def test_values_are_what_transformers_has(serve):
    """--quantization none: the experts as numbers of --dtype."""
    prompt, tokens = checkpoint.golden_runs("gpt_oss_bf16")[1]
    server = serve(checkpoint.GOLDEN / "gpt_oss_bf16", "--quantization", "none", "-tp", 4,
                   "--dtype", "float32", "--parallel-mode", "1d_sp", "--max-num-batched-tokens", 3)
    assert server.token_ids(prompt, len(tokens)) == tokens


def test_dummy_weights(serve, tmp_path):
    """As they would be held, without a file."""
    shape = copied(tmp_path)
    (shape / "model.safetensors").unlink()
    answers = [outcome(serve(shape, "-tp", ranks, "--load-format", "dummy"), PROMPTS[1], **SAMPLED)
               for ranks in (1, 2, 4)]
    assert answers.count(answers[0]) == 3


# ---- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode, ranks", [("1d", 2), ("1d", 3), ("1d_sp", 4)])
def test_received_bytes(serve, tmp_path, mode, ranks):
    """Sinks and biases move nothing."""
    model = checkpoint.GOLDEN / "gpt_oss_bf16"
    server = serve(model, "-tp", ranks, "--plan", plan_file(tmp_path, mode))
    check_received(server, mode, ranks, checkpoint.shape_of(model), list(range(3, 26)), 12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_held_and_read_bytes(serve, ranks):
    """A group of 32 columns is 16 bytes of codes and a scale; who has a part of it reads it all."""
    model = checkpoint.GOLDEN / "gpt_oss_bf16"
    config, shape = checkpoint.read_config(model), checkpoint.shape_of(model)
    server = serve(model, "-tp", ranks)
    metrics, all_experts = server.metrics(), shape.layers * shape.experts
    for rank, pid in enumerate(server.ranks()):
        elements = oracle.weight_elements(shape, ranks, rank)
        cols = oracle.block(shape.mlp, ranks, rank)
        groups = -(-cols.stop // GROUP) - cols.start // GROUP
        experts = elements.pop("gate_up") + elements.pop("down")
        assert experts == 3 * all_experts * len(cols) * shape.hidden
        coded = 2 * len(cols) * (shape.hidden // GROUP) + shape.hidden * groups  # groups
        wanted = 2 * sum(elements.values()) + all_experts * coded * (GROUP // 2 + 1)
        assert metrics.sum("tessera:rank_read_bytes", rank=rank) == wanted
        assert wanted <= bytes_read(pid) < wanted + (1 << 20)
        held = all_experts * (panels(2 * len(cols), range(shape.hidden), "int4") +
                              panels(shape.hidden, cols, "int4"))
        total = metrics.sum("tessera:rank_weight_bytes", rank=rank)
        # the others: 2 bytes of a matrix's element in panels of 32 rows, 4 of a vector's
        others = total - held
        assert 0.95 * 2 * sum(elements.values()) < others < 4.2 * sum(elements.values())
    assert config["quantization_config"]["quant_method"] == "mxfp4"


def test_shape_of_the_published_model(tmp_path):
    """gpt-oss-20b: 20.9 billion parameters (arXiv 2508.10925, table 1), most of them of 4 bits."""
    checkpoint.write_config(
        tmp_path, model_type="gpt_oss", hidden_size=2880, intermediate_size=2880,
        num_hidden_layers=24, num_attention_heads=64, num_key_value_heads=8, head_dim=64,
        vocab_size=201088, max_position_embeddings=131072, attention_bias=True,
        num_local_experts=32, num_experts_per_tok=4, sliding_window=128, rope_theta=150000,
        swiglu_limit=7.0, quantization_config={"quant_method": "mxfp4"}, rope_scaling={
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": False})
    told = json.loads(run("plan", tmp_path, "-tp", 4, "--load-format", "dummy", "--json",
                          "--kv-cache-memory", "1G").stdout)
    each = [rank["weight_elements"] for rank in told["per_rank"]]
    shape = checkpoint.shape_of(tmp_path)
    assert each == [sum(oracle.weight_elements(shape, 4, rank).values()) for rank in range(4)]
    assert told["sliding_layers"] == 12 and told["experts"] == 32
    assert 3.1e9 < max(rank["weight_bytes"] for rank in told["per_rank"]) < 3.7e9


# ---- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("held, served", [(4, 1), (3, 8)])
def test_shards_serve_at_any_size(serve, tmp_path, held, served):
    model = checkpoint.GOLDEN / "gpt_oss_bf16"
    wanted = outcome(serve(model), PROMPTS[2], **SAMPLED)
    assert run("shard", model, "-tp", held, "-o", tmp_path / "shards").returncode == 0
    server = serve(tmp_path / "shards", "-tp", served)
    assert outcome(server, PROMPTS[2], **SAMPLED) == wanted


def test_inspect():
    """Two dimensions of what has four; a cut within a group is in both ranks' part."""
    done = run("inspect", checkpoint.GOLDEN / "gpt_oss_bf16", "-tp", 2, "--json")
    found = {tensor["name"]: tensor for tensor in json.loads(done.stdout)}
    blocks = found[LAYER + "mlp.experts.down_proj_blocks"]
    assert blocks["shape"] == [6 * 64, 48] and blocks["dtype"] == "U8"
    assert [part["cols"] for part in blocks["slices"]] == [[0, 32], [16, 48]]
    scales = found[LAYER + "mlp.experts.down_proj_scales"]
    assert [part["cols"] for part in scales["slices"]] == [[0, 2], [1, 3]]
    gates = found[LAYER + "mlp.experts.gate_up_proj_blocks"]
    assert [part["rows"] for part in gates["slices"]][:7] == \
        [[192 * expert, 192 * expert + 96] for expert in range(6)] + [[96, 192]]


@pytest.mark.parametrize("change, code, wanted", [
    ({"quantization_config": None}, 3, "experts in other types are not supported"),
    ({"quantization_config": {"quant_method": "fp8"}}, 3, "expected \"mxfp4\" (of gpt_oss)"),
    ({"swiglu_limit": 6.5}, 3, "swiglu_limit is 6.5, expected 7"),
    ({"swiglu_alpha": 1}, 3, "swiglu_alpha is 1, expected 1.702"),
    ({"attention_bias": False}, 3, "attention_bias is false, expected true"),
    ({"rope_scaling": None}, 3, "rope_scaling is null, expected an object"),
    ({"intermediate_size": 90}, 3, "in multiples of 32"),
    ({"num_local_experts": 5}, 3, "expected [5, 192, 2, 16], found [6, 192, 2, 16]"),
    ({"hidden_act": "gelu"}, 3, "hidden_act is \"gelu\""),
    ({"model_type": "mixtral", "attention_bias": False}, 3, "mxfp4: of gpt_oss")])
def test_bad_config(tmp_path, change, code, wanted):
    model = copied(tmp_path, lambda config: config.update(change))
    assert wanted in fails(code, "plan", model)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_other_codes(kind):
    line = fails(2, "plan", checkpoint.GOLDEN / "gpt_oss_bf16", "--quantization", kind)
    assert f"--quantization {kind}: the checkpoint's weights are mxfp4 already" in line


@pytest.mark.parametrize("mode, ranks, more", [
    ("2d", 4, ()), ("3d", 8, ()), ("3d_gathered", 8, ("--quantization", "none"))])
def test_other_layouts(mode, ranks, more):
    line = fails(2, "plan", checkpoint.GOLDEN / "gpt_oss_bf16", "-tp", ranks, "--parallel-mode",
                 mode, *more)
    assert "1d and 1d_sp" in line and "mixture of experts" in line


def test_published_type(tmp_path):
    """Published configurations do not say that what has not 4 bits is bf16."""
    assert "torch_dtype" not in json.loads((checkpoint.GOLDEN / "gpt_oss_bf16" /
                                            "config.json").read_text())
    held = [json.loads(run("plan", copied(tmp_path / str(i), lambda config: config.update(more)),
                           "--json").stdout)["per_rank"][0]["weight_bytes"]
            for i, more in enumerate(({}, {"dtype": "bfloat16"}, {"dtype": "float32"}))]
    assert held[0] == held[1] < held[2]


def test_synth_is_refused(tmp_path):
    line = fails(2, "synth", "--config", checkpoint.GOLDEN / "gpt_oss_bf16" / "config.json", "-o",
                 tmp_path / "made")
    assert "experts of MXFP4 only; serve it with --load-format dummy" in line


def damaged(tmp_path, change):
    model = copied(tmp_path)
    tensors = {name: values.copy() for name, values in fp8.read(model).items()}
    change(tensors)
    fp8.write(model, tensors, model)
    return model


@pytest.mark.parametrize("tensor", ["self_attn.sinks", "self_attn.o_proj.bias",
                                    "mlp.router.bias", "mlp.experts.gate_up_proj_bias",
                                    "mlp.experts.down_proj_blocks",
                                    "mlp.experts.down_proj_scales"])
def test_missing_tensor(tmp_path, tensor):
    model = damaged(tmp_path, lambda tensors: tensors.pop(LAYER + tensor))
    assert f"tensor {LAYER}{tensor} is missing" in fails(3, "serve", model, "--port", 0)


@pytest.mark.parametrize("tensor, axes", [
    ("down_proj_blocks", (0, 1, 3, 2)), ("down_proj_blocks", (1, 0, 2, 3)),
    ("gate_up_proj_blocks", (1, 0, 2, 3)), ("down_proj_scales", (1, 0, 2))])
def test_turned_tensor(tmp_path, tensor, axes):
    """As many numbers in another order."""
    name = LAYER + "mlp.experts." + tensor
    shapes = []

    def change(tensors):
        shapes.append(list(tensors[name].shape))
        tensors[name] = numpy.ascontiguousarray(tensors[name].transpose(axes))
        shapes.append(list(tensors[name].shape))

    line = fails(3, "plan", damaged(tmp_path, change))
    scales = " scales" if "scales" in tensor else ""
    assert f"tensor {name}: expected {shapes[0]}{scales}, found {shapes[1]}" in line


@pytest.mark.parametrize("scale", [255, 1, 0])
def test_bad_scales(tmp_path, scale):
    """NaN, and what is too small for a number of bf16."""
    def change(tensors):
        tensors[LAYER + "mlp.experts.down_proj_scales"][3, 7, 1] = scale

    line = fails(3, "serve", damaged(tmp_path, change), "--port", 0)
    assert "down_proj_blocks: row 199 has a scale that is NaN, below" in line


def test_scale_of_zeros(serve, tmp_path):
    """Where all codes are zeros a scale may be anything but NaN."""
    def change(tensors):
        tensors[LAYER + "mlp.experts.down_proj_blocks"][:, :, 1] = 0x80
        tensors[LAYER + "mlp.experts.down_proj_scales"][:, :, 1] = 0

    model = damaged(tmp_path, change)
    wanted, _ = llama_numpy.greedy(model, PROMPTS[1], 12)
    server = serve(model, "-tp", 2, "--quantization", "none", "--dtype", "float32")
    assert server.token_ids(PROMPTS[1], 12) == wanted


def test_codes_of_another_type(tmp_path):
    def change(tensors):
        name = LAYER + "mlp.experts.down_proj_blocks"
        tensors[name] = tensors[name].astype(numpy.float32)

    line = fails(3, "serve", damaged(tmp_path, change), "--port", 0)
    assert "expected U8, by quantization_config, found F32" in line
