"""Checkpoints with F8_E4M3 weights, and what they mean, by ml_dtypes and numpy."""

import json
import shutil
import struct

import ml_dtypes
import numpy

import checkpoint

TYPES = {"F32": numpy.dtype("<f4"), "F16": numpy.dtype("<f2"),
         "BF16": numpy.dtype(ml_dtypes.bfloat16), "F8_E4M3": numpy.dtype(ml_dtypes.float8_e4m3fn),
         "F8_E5M2": numpy.dtype(ml_dtypes.float8_e5m2), "U8": numpy.dtype("u1"),
         "I32": numpy.dtype("<i4"), "I64": numpy.dtype("<i8")}
NAMES = {dtype: name for name, dtype in TYPES.items()}
MAX = numpy.float32(448)

CHANNEL = {"quant_method": "compressed-tensors", "format": "float-quantized",
           "config_groups": {"group_0": {
               "targets": ["Linear"], "output_activations": None,
               "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                                     "dynamic": True, "symmetric": True},
               "weights": {"num_bits": 8, "type": "float", "strategy": "channel",
                           "symmetric": True, "dynamic": False, "group_size": None}}},
           "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed"}
BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [128, 128]}
TENSOR = {"quant_method": "fp8", "activation_scheme": "static"}


def read(directory):
    """{name: array} of model.safetensors."""
    path = directory / "model.safetensors"
    header, start = checkpoint.read_header(path)
    header.pop("__metadata__", None)
    data = path.read_bytes()[start:]
    return {name: numpy.frombuffer(data[slice(*entry["data_offsets"])], TYPES[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in header.items()}


def write(directory, tensors, like, **config):
    """A model directory with these tensors, and otherwise as another; config: changed keys."""
    directory.mkdir(parents=True, exist_ok=True)
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        header[name] = {"dtype": NAMES[values.dtype], "shape": list(values.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path = directory / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "config.json").write_text(json.dumps({**checkpoint.read_config(like), **config}))
    for name in ("tokenizer.model", "tokenizer_config.json", "generation_config.json"):
        if like != directory and (like / name).exists():
            shutil.copy(like / name, directory)
    return directory


def is_linear(name):
    return "_proj.weight" in name or name.endswith((
        ".w1.weight", ".w2.weight", ".w3.weight", ".kv_a_proj_with_mqa.weight",
        ".in_proj_qkvz.weight", ".in_proj_qkv.weight", ".in_proj_z.weight"))


def spread(scales, shape, block):
    """A scale for every element."""
    rows, cols = (size or whole for size, whole in zip(block, shape))
    full = numpy.repeat(numpy.repeat(scales, rows, 0), cols, 1)
    return full[:shape[0], :shape[1]]


def quantize(values, block):
    """(codes, scales) with one scale per block of (rows, columns), 0: all of them."""
    values = values.astype(numpy.float32)
    size = [part or whole for part, whole in zip(block, values.shape)]
    counts = [-(-whole // part) for part, whole in zip(size, values.shape)]
    scales = numpy.array([[numpy.abs(values[r * size[0]:(r + 1) * size[0],
                                            c * size[1]:(c + 1) * size[1]]).max() / MAX
                           for c in range(counts[1])] for r in range(counts[0])], numpy.float32)
    scales = numpy.maximum(scales, numpy.finfo(numpy.float32).tiny)
    codes = (values / spread(scales, values.shape, block)).astype(ml_dtypes.float8_e4m3fn)
    return codes, scales


def plain(directory, model, block, left=()):
    """The model with its linears quantised and widened again, in F32; left: ends of the names of
    those that are not."""
    tensors = {}
    for name, values in read(model).items():
        if is_linear(name) and not name.endswith(left):
            codes, scales = quantize(values, block)
            values = codes.astype(numpy.float32) * spread(scales, values.shape, block)
        tensors[name] = values.astype(numpy.float32)
    return write(directory, tensors, model, torch_dtype="float32", dtype="float32")


def quantized(directory, model, config, block, suffix, shape=None, scale_type="F32",
              left=()):
    """The model with its linears in F8_E4M3; shape: of the scales, given their [rows, cols]; left:
    ends of the names of those that stay."""
    tensors = {}
    for name, values in read(model).items():
        if not is_linear(name) or name.endswith(left):
            tensors[name] = values
            continue
        tensors[name], scales = quantize(values, block)
        scales = scales.astype(TYPES[scale_type])
        tensors[name + suffix] = scales.reshape(shape(scales.shape)) if shape else scales
    return write(directory, tensors, model, quantization_config=config)
