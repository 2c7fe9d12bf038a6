"""Sharded checkpoints with F8_E4M3 weights: codes and scales are those of the source, by numpy; a
rank's files have the scales of all blocks its codes touch; any layout loads any other's shards."""

import json

import numpy
import pytest

import checkpoint
import fp8
from harness import run
from test_reshard import contents, layout_options, shard, succeed

LAYOUTS = [("1d", 2, None), ("1d", 5, None), ("2d", 4, None), ("2.5d", 8, None),
           ("3d", 12, "2,3,2")]
SMALL = dict(hidden_size=72, num_hidden_layers=2, num_attention_heads=9, num_key_value_heads=3,
             head_dim=8, intermediate_size=131, vocab_size=301, max_position_embeddings=128)
STRADDLING = (16, 24)  # neither heads of 8 x 3 nor 131 columns are cut at such blocks

FORMS = {
    "channel": (fp8.CHANNEL, (1, 0), "_scale", None),
    "list": (fp8.CHANNEL, (1, 0), "_scale", lambda shape: shape[:1]),
    "block": ({**fp8.BLOCK, "weight_block_size": list(STRADDLING)}, STRADDLING, "_scale_inv", None),
    "tensor": (fp8.TENSOR, (0, 0), "_scale", lambda shape: ()),
    "tensor as transformers has it": (fp8.TENSOR, (0, 0), "_scale_inv", lambda shape: ()),
    "tensor in a list": (fp8.TENSOR, (0, 0), "_scale", lambda shape: (1,)),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """{form: directory} of one small random model."""
    home = tmp_path_factory.mktemp("models")
    plain = checkpoint.write_config(home / "config", **SMALL)
    succeed("synth", "--config", plain / "config.json", "-o", home / "plain")
    return {form: fp8.quantized(home / form, home / "plain", config, block, suffix, shape)
            for form, (config, block, suffix, shape) in FORMS.items()}


def pieces(path):
    """(tensor, [first row, first column], values) of a file, all of 2 dimensions."""
    header, start = checkpoint.read_header(path)
    offsets = json.loads(header.pop("__metadata__")["DCP_SHARDING_INFO"])
    data = path.read_bytes()[start:]
    for name, entry in header.items():
        dtype = fp8.TYPES[entry["dtype"]]
        begin, end = entry["data_offsets"]
        assert (start + begin) % dtype.itemsize == 0, (path.name, name)
        values = numpy.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
        at = offsets[name]["saved_offsets"]
        assert len(at) == values.ndim
        yield name, [0] * (2 - len(at)) + at, numpy.atleast_2d(values)


def bits(values):
    return values.view(f"u{values.dtype.itemsize}")


def touched(first, count, block):
    """Blocks, of `block` elements or (0) all of them, that so many elements are in."""
    return {at // block if block else 0 for at in range(first, first + count)}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_codes_and_scales(tmp_path, models, form, layout):
    _, block, suffix, _ = FORMS[form]
    source = {name: numpy.atleast_2d(values) for name, values in fp8.read(models[form]).items()}
    directory = shard(models[form], layout, tmp_path / "shards")
    found = {name: numpy.zeros(values.shape, bool) for name, values in source.items()}
    for rank in range(layout[1]):
        codes, scales = {}, {}
        for path in sorted(directory.glob(f"model-rank-{rank:05}-*.safetensors")):
            for name, (row, col), values in pieces(path):
                place = numpy.s_[row:row + values.shape[0], col:col + values.shape[1]]
                assert (bits(values) == bits(source[name][place].copy())).all(), (rank, name)
                found[name][place] = True
                blocks = {(r, c) for r in touched(row, values.shape[0], 1)
                          for c in touched(col, values.shape[1], 1)}
                if name.endswith(suffix):  # a list of scales is a row here, a column by meaning
                    turned = source[name].shape[0] == 1 and block == (1, 0)
                    scales.setdefault(name, set()).update({(c, r) for r, c in blocks} if turned
                                                          else blocks)
                elif fp8.is_linear(name):
                    codes.setdefault(name, set()).update(
                        {(r, c) for r in touched(row, values.shape[0], block[0])
                         for c in touched(col, values.shape[1], block[1])})
        assert {name + suffix: blocks for name, blocks in codes.items()} == scales, rank
    assert all(whole.all() for whole in found.values())


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
@pytest.mark.parametrize("form", ["list", "block", "tensor"])
def test_round_trips(tmp_path, models, form, layout):
    """Layout -> another -> the first gives the same bytes; so does any way to the other."""
    first = shard(models[form], layout, tmp_path / "first")
    between = shard(first, ("1d", 3, None), tmp_path / "between")
    straight = shard(models[form], ("1d", 3, None), tmp_path / "straight")
    assert contents(between) == contents(straight)
    assert contents(shard(between, layout, tmp_path / "back")) == contents(first)


@pytest.mark.parametrize("held, served", [(("1d", 3, None), ("1d", 2, None)),
                                          (("2d", 4, None), ("3d", 8, None)),
                                          (("2.5d", 8, None), ("2d", 4, None))], ids=str)
@pytest.mark.parametrize("form", ["block", "tensor"])
def test_any_layout_serves_any_shards(serve, tmp_path, models, form, held, served):
    prompt, options = list(range(3, 20)), [*layout_options(*served), "--dtype", "float32"]
    wanted = serve(models[form], *options).token_ids(prompt, 24)
    directory = shard(models[form], held, tmp_path / "shards")
    server = serve(directory, *options)
    assert server.token_ids(prompt, 24) == wanted
    plan = json.loads(run("plan", directory, *map(str, options), "--json").stdout)
    assert sum(entry["read_bytes"] for entry in plan["per_rank"]) == \
        server.metrics().sum("tessera:rank_read_bytes")


def test_inspect(tmp_path, models):
    """Of shards as of the source: names, shapes and who holds what."""
    directory = shard(models["block"], ("2d", 4, None), tmp_path / "shards")
    for extra in ([], ["--json"]):
        lines = [succeed("inspect", model, "-tp", 3, *extra)
                 for model in (models["block"], directory)]
        assert lines[0].replace("plain form", "sharded form") == lines[1]
        assert "down_proj.weight_scale_inv" in lines[0]


def test_missing_scales(tmp_path, models):
    tensors = fp8.read(models["block"])
    name = "model.layers.1.mlp.down_proj.weight_scale_inv"
    del tensors[name]
    model = fp8.write(tmp_path / "m", tensors, models["block"])
    done = run("shard", model, "-tp", 2, "-o", tmp_path / "shards")
    assert done.returncode == 3 and name in done.stderr and "missing" in done.stderr
    assert not (tmp_path / "shards").exists()


def test_damaged_shards(tmp_path, models):
    """A block of scales that no file has is named."""
    directory = shard(models["block"], ("1d", 2, None), tmp_path / "shards")
    path = directory / "model-rank-00001-part-00000.safetensors"
    name = "model.layers.0.mlp.down_proj.weight_scale_inv"
    checkpoint.drop_tensor(path, name)
    done = run("plan", directory, "-tp", 2)
    assert done.returncode == 3 and name in done.stderr and "no file" in done.stderr
