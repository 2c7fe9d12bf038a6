"""Checkpoints across layouts: every element lands where the plan says, by an independent reading of
the plan; any layout loads what any other has written, byte for byte."""

import json
import struct
import sys

import numpy
import pytest

import checkpoint
from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tests/oracle"))
import plan_places  # noqa: E402

PLANS = ROOT / "tests/corpus/plans"
LAYOUTS = [("1d", 3, None), ("1d_sp", 5, None), ("2d", 4, None), ("2d", 9, None),
           ("2.5d", 8, None), ("2.5d", 9, "1,3,3"), ("3d", 8, None), ("3d", 6, "1,2,3"),
           ("3d", 12, "2,3,2"), ("ok_prepare.json", 4, None), ("ok_sub_mesh.json", 6, None),
           ("ok_3d.json", 6, None)]
GATHERED = [("3d_gathered", 8, None), ("3d_gathered", 6, "3,1,2"), ("3d_gathered", 12, "3,2,2")]


def succeed(*arguments):
    done = run(*map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def layout_options(mode, ranks, mesh):
    """mode: a name, or a plan file of the corpus."""
    named = ["--plan", PLANS / mode] if mode.endswith(".json") else ["--parallel-mode", mode]
    return ["-tp", ranks, *named] + (["--mesh", mesh] if mesh else [])


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def shard(model, layout, directory):
    succeed("shard", model, *layout_options(*layout), "-o", directory)
    return directory


def code(number, row, col, width):
    """The location of an element, as a number that fp32 holds exactly."""
    return number * 32768 + row * width + col


def tensors_of(config):
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    width, hidden, mlp = config["head_dim"], config["hidden_size"], config["intermediate_size"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "lm_head.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (heads * width, hidden)
        yield at + "self_attn.k_proj.weight", (kv * width, hidden)
        yield at + "self_attn.v_proj.weight", (kv * width, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, heads * width)
        yield at + "mlp.gate_proj.weight", (mlp, hidden)
        yield at + "mlp.up_proj.weight", (mlp, hidden)
        yield at + "mlp.down_proj.weight", (hidden, mlp)


@pytest.fixture(scope="module")
def located(tmp_path_factory):
    """(directory, {tensor: number}) of a model in which every weight is its own location."""
    directory = checkpoint.write_config(
        tmp_path_factory.mktemp("located") / "model", hidden_size=72, num_hidden_layers=2,
        num_attention_heads=9, num_key_value_heads=3, head_dim=8, intermediate_size=131,
        vocab_size=301, torch_dtype="float32", tie_word_embeddings=False)
    header, data, numbers = {}, b"", {}
    for number, (name, shape) in enumerate(tensors_of(checkpoint.read_config(directory))):
        numbers[name] = number
        values = numpy.arange(numpy.prod(shape), dtype=numpy.float32) + number * 32768
        header[name] = {"dtype": "F32", "shape": list(shape),
                        "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return directory, numbers


def pieces(path):
    """(tensor, first row, first column, values) of a rank's file."""
    header, start = checkpoint.read_header(path)
    offsets = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
    data = path.read_bytes()[start:]
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[begin:end], numpy.float32).reshape(entry["shape"])
        values = numpy.atleast_2d(values)
        yield name, *([0] * (2 - len(entry["shape"])) + offsets[name]["saved_offsets"]), values


@pytest.mark.parametrize("layout", LAYOUTS + GATHERED, ids=str)
def test_elements_are_where_the_plan_says(tmp_path, located, layout):
    model, numbers = located
    options = layout_options(*layout)
    plan = json.loads(succeed("plan", model, *options, "--print-plan"))
    config = checkpoint.read_config(model)
    wanted = plan_places.places(plan, config, layout[1])
    directory = shard(model, layout, tmp_path / "shards")
    shapes = dict(tensors_of(config))
    copies = {name: numpy.zeros(numpy.atleast_2d(numpy.zeros(shape)).shape, int)
              for name, shape in shapes.items()}
    for rank, mine in enumerate(wanted):
        held = {name: numpy.zeros_like(count) for name, count in copies.items()}
        for path in directory.glob(f"model-rank-{rank:05}-*.safetensors"):
            for name, row, col, values in pieces(path):
                rows = numpy.arange(row, row + values.shape[0])[:, None]
                cols = numpy.arange(col, col + values.shape[1])[None, :]
                width = shapes[name][-1]
                assert (values == code(numbers[name], rows, cols, width)).all(), (rank, name)
                held[name][rows, cols] = 1
        for name, count in held.items():
            rows, (left, right) = mine[name]
            rows = numpy.arange(*rows) if isinstance(rows, tuple) else rows
            assert count.sum() == len(rows) * (right - left), (rank, name)
            assert count[rows, left:right].all(), (rank, name)
            copies[name] += count
    assert all(count.min() >= 1 for count in copies.values())


@pytest.mark.parametrize("layout", LAYOUTS[1:] + GATHERED, ids=str)
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "untied_mqa_f16", "phi3_gqa_f32",
                                  "qwen2_f32", "gemma3_wrapped_bf16", "glm4_f32", "olmo2_f32"])
def test_round_trips(tmp_path, name, layout):
    """Layout -> another -> the first gives the same bytes; so does any way to one rank."""
    model, other = checkpoint.GOLDEN / name, ("1d", 3, None)
    first = shard(model, layout, tmp_path / "first")
    between = shard(first, other, tmp_path / "between")
    assert contents(between) == contents(shard(model, other, tmp_path / "straight"))
    assert contents(shard(between, layout, tmp_path / "back")) == contents(first)


@pytest.mark.parametrize("held, served", [(("2d", 4, None), ("3d", 8, None)),
                                          (("3d", 8, None), ("1d", 3, None)),
                                          (("3d_gathered", 8, None), ("1d", 3, None)),
                                          (("1d", 3, None), ("3d_gathered", 6, "3,1,2")),
                                          (("1d", 5, None), ("2.5d", 8, None))], ids=str)
def test_any_layout_serves_any_shards(serve, tmp_path, held, served):
    directory = shard(checkpoint.GOLDEN / "tied_gqa2_f32", held, tmp_path / "shards")
    server = serve(directory, *layout_options(*served), "--dtype", "float32")
    prompt, tokens = checkpoint.golden_runs("tied_gqa2_f32")[0]
    assert server.token_ids(prompt, 24) == tokens[:24]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_inspect_names_what_ranks_hold(located, layout):
    model, _ = located
    options = layout_options(*layout)
    plan = json.loads(succeed("plan", model, *options, "--print-plan"))
    wanted = plan_places.places(plan, checkpoint.read_config(model), layout[1])
    for tensor in json.loads(succeed("inspect", model, *options, "--json")):
        for slice_ in tensor["slices"]:
            rows, cols = wanted[slice_["rank"]][tensor["name"]]
            size = (rows[1] - rows[0]) * (cols[1] - cols[0])
            got = [slice_["rows"], slice_["cols"]]
            assert size == 0 or got == [list(rows), list(cols)], (slice_["rank"], tensor["name"])
