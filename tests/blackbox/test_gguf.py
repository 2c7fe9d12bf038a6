"""tessera convert: llama.cpp's files as Hugging Face's directories. tests/corpus/gguf_models was
written by llama.cpp's own converter, from checkpoints whose values the test makes again, so what
comes back must be what went in: each tensor bit for bit, and a model that answers with the same
bits."""

import json
import shutil
import sys

import numpy
import pytest

import fp8
from harness import ROOT, run

sys.path.insert(0, str(ROOT / "tests"))
import make_gguf_models as corpus  # noqa: E402  (lives in the folder just added)

FILES = ROOT / "tests/corpus/gguf_models"
NAMES = sorted(path.stem for path in FILES.glob("*.json"))
PROMPT = [5 + i * 7 % 53 for i in range(150)]  # beyond every window, and each original context


def convert(path, out, *arguments):
    return run("convert", path, "-o", out, *arguments)


def converted(name, out, *arguments):
    done = convert(FILES / f"{name}.gguf", out, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_original(directory, name):
    """The checkpoint that the converter saw, in fp32."""
    known = json.loads((FILES / f"{name}.json").read_text())
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**known["config"], "dtype": "float32"}))
    return fp8.write(directory, {tensor: corpus.values(tensor, shape)
                                 for tensor, shape in known["tensors"].items()}, directory)


def as_q8_0(values):
    """ggml's Q8_0: each 32 of a row in whole parts of the largest's 127th, which is an fp16."""
    blocks = values.reshape(-1, 32)
    scale = abs(blocks).max(axis=1, keepdims=True) / numpy.float32(127)
    parts = numpy.float32(1) / numpy.where(scale == 0, 1, scale) * blocks
    codes = numpy.trunc(parts + numpy.copysign(numpy.float32(0.5), parts))
    return (codes * scale.astype("f2").astype("f4")).reshape(values.shape)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_comes_back(tmp_path, name):
    known = json.loads((FILES / f"{name}.json").read_text())
    beyond = f"model.layers.{known['config']['num_hidden_layers']}."  # guesses: left out
    tensors = {tensor: shape for tensor, shape in known["tensors"].items()
               if not tensor.startswith(beyond)}
    codes = known["type"] == "Q8_0"
    said = converted(name, tmp_path / "model", *(["--dtype", "float32"] if codes else []))
    found = fp8.read(tmp_path / "model")
    kind = "F32" if codes else known["type"]
    assert f"{len(found)} tensors of {kind}" in said
    assert sorted(found) == sorted(tensors)
    for tensor, shape in tensors.items():
        exact = tensor.endswith("correction_bias")
        assert found[tensor].dtype == fp8.TYPES["F32" if exact else kind], tensor
        wanted = corpus.values(tensor, shape)
        if codes and len(shape) == 2:
            wanted = as_q8_0(wanted)
        assert numpy.array_equal(found[tensor].astype("f4"), wanted), tensor


@pytest.mark.parametrize("name", NAMES)
def test_model_answers_as_the_original(serve, tmp_path, name):
    """Bit by bit, scores too: so config.json says the same of shapes, norms, windows, rotations."""
    original = write_original(tmp_path / "original", name)
    converted(name, tmp_path / "model", "--dtype", "float32")
    if name == "llama_q8_0":
        shutil.copy(tmp_path / "model/model.safetensors", original)
    answers = []
    for model in (original, tmp_path / "model"):
        server = serve(model, "--skip-tokenizer-init", "-tp", 2)
        reply = server.complete(PROMPT, max_tokens=24, temperature=0, logprobs=3, ignore_eos=True,
                                return_token_ids=True)["choices"][0]
        answers.append((reply["token_ids"], reply["logprobs"]["token_logprobs"],
                        reply["logprobs"]["top_logprobs"]))
    assert len(answers[0][0]) == 24
    assert answers[0] == answers[1]
