"""Checkpoints of the tests: the goldens, shapes to synthesise, and damaged copies."""

import json
import pathlib
import shutil
import struct
import sys

import numpy

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/oracle"))
import tp1d_bytes as oracle  # noqa: E402  (lives in the folder just added)

GOLDEN = ROOT / "tests/golden"
DEMO = ROOT / "deploy/demo/model"
ONESHOT_MAX_BYTES = 256 << 10  # of the shared-memory all-reduce
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def golden_names():
    return sorted(path.parent.name for path in GOLDEN.glob("*/golden.safetensors"))


def read_header(path):
    """(header, offset of the data) of a safetensors file."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(size)), 8 + size


def read_ints(path, name):
    """One I32 tensor as a list."""
    header, start = read_header(path)
    assert header[name]["dtype"] == "I32", name
    begin, end = header[name]["data_offsets"]
    with open(path, "rb") as file:
        file.seek(start + begin)
        return list(struct.unpack(f"<{(end - begin) // 4}i", file.read(end - begin)))


def golden_runs(name):
    """[(prompt, the greedy tokens after it)] of a golden checkpoint."""
    path = GOLDEN / name / "golden.safetensors"
    return [(read_ints(path, f"prompt{i}"), read_ints(path, f"greedy{i}")) for i in range(2)]


def golden_logits(name, index):
    """Of every place of a golden prompt: row i is about the token after place i."""
    path = GOLDEN / name / "golden.safetensors"
    header, start = read_header(path)
    entry = header[f"logits{index}"]
    begin, end = (start + offset for offset in entry["data_offsets"])
    logits = numpy.frombuffer(path.read_bytes()[begin:end], "<f4")
    return logits.reshape(entry["shape"]).astype("f8")


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=-1, keepdims=True))


def read_json(path):
    return json.loads(pathlib.Path(path).read_text())


def read_config(directory):
    return read_json(pathlib.Path(directory) / "config.json")


def shape_of(directory):
    return oracle.shape_of(read_config(directory))


def llama_config(**changes):
    """A small Llama config.json, as an object."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 256, "intermediate_size": 1408, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 32, "vocab_size": 8192,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": None, "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }
    return {**config, **changes}


def write_config(directory, **changes):
    """A directory that holds nothing but a config.json, for dummy weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(llama_config(**changes), indent=2))
    return directory


# ---- damage -----------------------------------------------------------------------------------


def copy_model(name, directory):
    """A copy of a golden checkpoint that a test may spoil."""
    shutil.copytree(GOLDEN / name, directory)
    (directory / "golden.safetensors").unlink()
    return directory


def edit_config(directory, edit):
    config = read_config(directory)
    edit(config)
    (directory / "config.json").write_text(json.dumps(config))


def edit_header(path, edit):
    """Rewrites the JSON header of a safetensors file and keeps its data."""
    header, start = read_header(path)
    data = path.read_bytes()[start:]
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def fill_tensor(path, name, element):
    """Sets every element of a tensor to these bytes."""
    header, start = read_header(path)
    begin, end = header[name]["data_offsets"]
    with open(path, "r+b") as file:
        file.seek(start + begin)
        file.write(element * ((end - begin) // len(element)))


def copy_tensor(path, name, copy):
    """Adds a tensor that is another one once more."""
    header, start = read_header(path)
    data = path.read_bytes()[start:]
    begin, end = header[name]["data_offsets"]
    header[copy] = {**header[name], "data_offsets": [len(data), len(data) + end - begin]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data + data[begin:end])


def drop_tensor(path, name):
    """Removes a tensor and its bytes, so that the file is valid but incomplete."""
    header, start = read_header(path)
    data = path.read_bytes()[start:]
    begin, end = header.pop(name)["data_offsets"]
    for entry in header.values():
        offsets = entry.get("data_offsets")
        if offsets and offsets[0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in offsets]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[:begin] + data[end:])
