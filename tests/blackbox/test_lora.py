"""LoRA adapters: what PEFT computes with them, at every number of ranks and in every layout; the
bits of a checkpoint into which numpy has merged them; no more bytes than a rank's part needs."""

import json
import os
import shutil
import signal

import ml_dtypes
import numpy
import pytest

import checkpoint
import fp8
from harness import ROOT, eventually, is_sanitized, run
from test_counters import bytes_read

ADAPTERS = ROOT / "tests/golden/adapters"
NAMES = sorted(path.parent.name for path in ADAPTERS.glob("*/golden.safetensors"))
BASE = checkpoint.GOLDEN / "tied_gqa2_f32"
PROMPT = [5 + 7 * i % 210 for i in range(40)]


def base_of(name):
    return checkpoint.GOLDEN / checkpoint.read_json(
        ADAPTERS / name / "adapter_config.json")["base_model_name_or_path"]


@pytest.mark.parametrize("arguments", [("-tp", 1), ("-tp", 3), ("-tp", 8),
                                       ("-tp", 4, "--parallel-mode", "2d"),
                                       ("-tp", 6, "--parallel-mode", "3d", "--mesh", "1,2,3")])
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens(serve, name, arguments):
    server = serve(base_of(name), "--lora", ADAPTERS / name, *arguments)
    runs = checkpoint.golden_runs(f"adapters/{name}")
    together = server.token_ids_together([(prompt, len(tokens), {}) for prompt, tokens in runs])
    assert together == [tokens for _, tokens in runs]


def scores(server):
    """The logits' bits, as log-probabilities show them."""
    choice = server.complete(PROMPT, max_tokens=1, temperature=0, prompt_logprobs=2)["choices"][0]
    return choice["prompt_logprobs"][1:]


# ---- beside a checkpoint that was merged before -------------------------------------------------


def write_adapter(directory, pairs, dtype=numpy.float32, whole=None, **config):
    """pairs: {module: (A, B)}; whole: {tensor: values}"""
    directory.mkdir()
    tensors = {f"base_model.model.{name}": values for name, values in (whole or {}).items()}
    for module, (a, b) in pairs.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = a.astype(dtype)
        tensors[f"base_model.model.{module}.lora_B.weight"] = b.astype(dtype)
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": fp8.NAMES[values.dtype], "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + data)
    (directory / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": len(next(iter(pairs.values()))[0]), "lora_alpha": 1, **config}))
    return directory


def random_pairs(model, rank, seed, is_adapted=fp8.is_linear):
    """Sixteenths of whole numbers, so that sums are exact in any order."""
    rng = numpy.random.default_rng(seed)
    for name, values in fp8.read(model).items():
        if is_adapted(name):
            out, width = values.shape
            yield name.removesuffix(".weight"), (rng.integers(-2, 3, (rank, width)) / 16,
                                                 rng.integers(-2, 3, (out, rank)))


def merged(model, adapters, directory, rounded=False):
    """adapters: [(pairs, scale)]. Sums as floats, or rounded to the type that the tensor has."""
    tensors = dict(fp8.read(model))
    for module in {module for pairs, _ in adapters for module in pairs}:
        values = tensors[f"{module}.weight"]
        added = [numpy.float32(scale) * (pairs[module][1] @ pairs[module][0]).astype("f4")
                 for pairs, scale in adapters if module in pairs]
        tensors[f"{module}.weight"] = (values.astype("f4") + sum(added)).astype(
            values.dtype if rounded else "f4")
    return fp8.write(directory, tensors, model)


@pytest.fixture(scope="module", name="two")
def fixture_two(tmp_path_factory):
    """(--lora, the sum, the sum in bfloat16) of two adapters of the demo model, which is bfloat16;
    so is one of them."""
    folder = tmp_path_factory.mktemp("two")
    first = dict(random_pairs(checkpoint.DEMO, 4, 1))
    second = dict(random_pairs(checkpoint.DEMO, 3, 2, lambda name: "mlp" in name and "1." in name))
    write_adapter(folder / "first", first, lora_alpha=2)
    write_adapter(folder / "second", second, ml_dtypes.bfloat16, lora_alpha=6)
    both = [(first, 0.5), (second, -0.5)]
    return (f"{folder}/first,{folder}/second:-0.25",
            merged(checkpoint.DEMO, both, folder / "sum"),
            merged(checkpoint.DEMO, both, folder / "rounded", rounded=True))


@pytest.mark.parametrize("arguments", [
    ("-tp", 3), ("--dtype", "float32"), ("-tp", 4, "--parallel-mode", "2d"),
    ("-tp", 2, "--quantization", "int8"), ("-tp", 2, "--quantization", "fp8"),
    ("-tp", 3, "--quantization", "int4")])
def test_bits_of_the_merged_checkpoint(serve, two, arguments):
    """What is held is rounded from the sum: a checkpoint in bfloat16 has lost some of it."""
    adapters, whole, rounded = two
    got, want, short, plain = (
        scores(serve(model, *options, *arguments)) for model, options in
        ((checkpoint.DEMO, ("--lora", adapters)), (whole, ()), (rounded, ()),
         (checkpoint.DEMO, ())))
    assert got == want
    assert (got == short) == ("-tp" in arguments and "--quantization" not in arguments)
    assert got != plain


def test_shard_writes_the_sum(two, tmp_path):
    """Bytes of every tensor, of a checkpoint that needs the adapter no more."""
    adapters, _, whole = two
    for model, options, name in ((checkpoint.DEMO, ("--lora", adapters), "a"), (whole, (), "b")):
        done = run("shard", model, "-tp", 3, *options, "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in (tmp_path / "a").glob("*.safetensors"))
    assert files
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_experts(serve, tmp_path):
    """By the names that a mixture's files have for each of them."""
    model = checkpoint.GOLDEN / "mixtral_f32"
    pairs = dict(random_pairs(model, 2, 3, lambda name: "experts.1." in name or "gate" in name))
    assert any("experts.1.w2" in module for module in pairs)
    write_adapter(tmp_path / "adapter", pairs)
    whole = merged(model, [(pairs, 0.5)], tmp_path / "merged")
    assert scores(serve(model, "-tp", 2, "--lora", tmp_path / "adapter")) == \
        scores(serve(whole, "-tp", 2)) != scores(serve(model, "-tp", 2))


TOGETHER = {"in_proj_qkvz", "in_proj_ba", "out_proj"}
APART = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name, parts", [("qwen3_next_f32", TOGETHER), ("qwen3_5_f32", APART),
                                         ("qwen3_5_bf16", APART)])
def test_layers_that_recur(serve, tmp_path, name, parts, ranks):
    """Of which a rank has rows of several places, those of its key heads."""
    model = checkpoint.GOLDEN / name
    pairs = dict(random_pairs(model, 2, 7, lambda tensor: tensor.split(".")[-2] in parts))
    assert {module.split(".")[-1] for module in pairs} == parts
    write_adapter(tmp_path / "adapter", pairs)
    whole = merged(model, [(pairs, 0.5)], tmp_path / "merged")
    got = scores(serve(model, "-tp", ranks, "--lora", tmp_path / "adapter"))
    assert got == scores(serve(whole, "-tp", ranks)) != scores(serve(model, "-tp", ranks))


def test_whole_tensors(serve, tmp_path):
    """modules_to_save: what is there whole takes the place of the model's."""
    model = checkpoint.GOLDEN / "qwen2_f32"
    pairs = dict(random_pairs(model, 2, 5, lambda name: "q_proj.weight" in name))
    rng = numpy.random.default_rng(6)
    saved = {name: rng.standard_normal(fp8.read(model)[name].shape).astype("f4")
             for name in ("lm_head.weight", "model.norm.weight")}
    write_adapter(tmp_path / "adapter", pairs, whole=saved, lora_alpha=2)
    folder = merged(model, [(pairs, 1)], tmp_path / "merged")
    whole = fp8.write(tmp_path / "whole", {**fp8.read(folder), **saved}, model)
    server = serve(model, "-tp", 3, "--lora", tmp_path / "adapter")
    assert "in the place of 2" in server.log
    assert scores(server) == scores(serve(whole, "-tp", 3))


def test_a_lost_rank_has_it_again(serve, two):
    server = serve(checkpoint.DEMO, "-tp", 2, "--lora", two[0])
    assert "second: of rank 3" in server.log and ", times -0.25" in server.log
    before = scores(server)
    os.kill(server.ranks()[1], signal.SIGKILL)
    eventually(lambda: "requests go on after" in server.log, 20, "recovery")
    assert scores(server) == before


@pytest.mark.skipif(is_sanitized(), reason="sanitizers read files of their own")
@pytest.mark.parametrize("ranks", [4, 8])  # whose weights are read in one piece each
def test_read_bytes(serve, synthetic, tmp_path, ranks):
    """Of A the columns, and of B the rows that a rank has of the tensor; what it has all of is read
    by each."""
    rank, hidden, mlp = 64, 256, 1408
    write_adapter(tmp_path / "adapter", dict(random_pairs(synthetic, rank, 4)))
    columns = 3 * (hidden + hidden // ranks) + 2 * (hidden + mlp // ranks)
    rows = hidden // ranks + hidden + mlp // ranks + hidden
    want = 4 * 4 * rank * (columns + rows)  # layers, bytes of a float
    # a start measures steps of more and more rows until its clock says enough: of 8 rows at most,
    # so that two starts read about as many bytes of messages
    plain, adapted = (
        [bytes_read(pid) for pid in serve(synthetic, "-tp", ranks, "--max-num-batched-tokens", 8,
                                          *more).ranks()]
        for more in ((), ("--lora", tmp_path / "adapter")))
    for before, after in zip(plain, adapted):
        assert want <= after - before < 1.01 * want  # headers, too


# ---- what is refused ----------------------------------------------------------------------------


def refused(code, *arguments):
    done = run("serve", *arguments, "--port", 0)
    assert done.returncode == code, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tessera: ")]
    return line


def test_what_is_no_adapter(tmp_path):
    assert "no such directory" in refused(3, BASE, "--lora", "nowhere/at-all")
    assert "adapter_config.json" in refused(3, BASE, "--lora", BASE)
    assert "expected DIR or DIR:SCALE" in refused(2, BASE, "--lora", f"{ADAPTERS / NAMES[0]},")
    assert "is there twice" in refused(2, BASE, "--lora", ADAPTERS / NAMES[0],
                                       f"--lora={ADAPTERS / NAMES[0]}")
    assert "--load-format dummy" in refused(2, BASE, "--lora", ADAPTERS / NAMES[0],
                                            "--load-format", "dummy")
    line = refused(3, ADAPTERS / NAMES[0])  # in the place of the model
    assert "--lora" in line and "base_model_name_or_path" in line
    shutil.copytree(ADAPTERS / NAMES[0], tmp_path / "cut")
    file = tmp_path / "cut/adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "adapter_model.safetensors" in refused(3, BASE, "--lora", tmp_path / "cut")


def test_what_does_not_fit(tmp_path):
    other = checkpoint.GOLDEN / "untied_mha_bf16"
    assert "is the adapter of this model?" in refused(3, other, "--lora", ADAPTERS / "all_linears")
    assert "a head that is tied" in refused(3, BASE, "--lora", ADAPTERS / "with_head")
    codes = {name: fp8.quantize(values, (1, 0))[0] if fp8.is_linear(name) else values
             for name, values in fp8.read(BASE).items()}
    scales = {f"{name}_scale": fp8.quantize(values, (1, 0))[1] for name, values in
              fp8.read(BASE).items() if fp8.is_linear(name)}
    model = fp8.write(tmp_path / "codes", {**codes, **scales}, BASE,
                      quantization_config=fp8.CHANNEL)
    assert "nothing can be added to codes" in refused(3, model, "--lora", ADAPTERS / "all_linears")


def test_names_in_the_cache(tmp_path, monkeypatch):
    """ORG/NAME, with and without a scale, beside a directory."""
    root = tmp_path / "models--us--ours"
    shutil.copytree(ADAPTERS / "all_linears", root / "snapshots/abc")
    (root / "refs").mkdir()
    (root / "refs/main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("us/ours", "us/ours:0.5", f"{ADAPTERS}/all_linears,us/ours:0.25"):
        done = run("plan", BASE, "-tp", 2, "--lora", name)
        assert done.returncode == 0, done.stderr
        assert f"adapter {root}/snapshots/abc: of rank 6, added to 21 tensors" in done.stdout
        assert (", times 0." in done.stdout) == (":" in name)


def test_other_names_of_it():
    for option in ("--lora-modules", "--enable-lora", "--max-lora-rank"):
        assert "--lora DIR" in refused(2, BASE, option, "x")


def test_plan_checks_it():
    done = run("plan", BASE, "-tp", 2, "--lora", ADAPTERS / "all_linears")
    assert done.returncode == 0 and "added to 21 tensors" in done.stdout
    assert run("plan", BASE, "-tp", 2, "--lora", ADAPTERS / "with_head").returncode == 3
