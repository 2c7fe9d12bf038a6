#!/usr/bin/env python3
"""Writes tests/corpus/gguf and gguf_values.f32 beside it: files by the gguf package of llama.cpp's
authors, and what that package makes of their blocks. The fuzzer of GGUF files begins there, too.
Deterministic. Needs gguf and numpy as tests/golden/requirements.txt has them.

blocks.gguf         a tensor of every form, of random bytes with finite scales
gguf_values.f32     the values of all its tensors, in the file's order
keys.gguf           a key of every type, and arrays of them
split-*.gguf        a model in three files
"""
import pathlib
import random

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Block
from gguf import GGUFValueType as Type

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE / "corpus" / "gguf"
GOLDEN = HERE / "corpus" / "gguf_values.f32"

# Where a block has its scales of fp16.
SCALES = {
    Block.Q4_0: [0], Block.Q4_1: [0, 2], Block.Q5_0: [0], Block.Q5_1: [0, 2], Block.Q8_0: [0],
    Block.Q2_K: [80, 82], Block.Q3_K: [108], Block.Q4_K: [0, 2], Block.Q5_K: [0, 2],
    Block.Q6_K: [208], Block.IQ4_NL: [0], Block.IQ4_XS: [0], Block.MXFP4: [],
    Block.F32: [], Block.F16: [], Block.BF16: [],
}
VALUES = 512  # of each tensor
MXFP4_SCALES = [0, 1, 2, 3, 126, 127, 128, 253, 254, 255]  # the ends, and 1

NUMBERS = {
    Type.UINT8: [0, 255], Type.INT8: [-128, 127], Type.UINT16: [0, 65535],
    Type.INT16: [-32768, 32767], Type.UINT32: [0, 2**32 - 1], Type.INT32: [-2**31, 2**31 - 1],
    Type.UINT64: [2**63 - 1, 2**64 - 1], Type.INT64: [-2**63, 2**63 - 1],
    Type.FLOAT32: [-0.15625, 3.0e38], Type.FLOAT64: [0.1, -1.7e308], Type.BOOL: [True, False],
}
STRINGS = ["", "a", "\u0120token \u2581", "nul\0inside", "x" * 300]


def finite_half(rng):
    while True:
        bits = rng.randbytes(2)
        if bits[1] & 0x7c != 0x7c:
            return bits


def block_bytes(block, size, number, rng):
    data = bytearray(rng.randbytes(size))
    for at in SCALES[block]:
        data[at:at + 2] = finite_half(rng)
    if block == Block.MXFP4 and number < len(MXFP4_SCALES):
        data[0] = MXFP4_SCALES[number]
    elif block == Block.F32:
        data[:] = np.float32(rng.gauss(0, 1)).tobytes()
    elif block == Block.F16:
        data[:] = finite_half(rng)
    elif block == Block.BF16:
        data[1] &= 0xbf  # an exponent that is not all ones
    return bytes(data)


def write(path, add, **options):
    writer = gguf.GGUFWriter(path, "test", **options)
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_blocks(writer, golden):
    rng = random.Random(20)
    for block in SCALES:
        values, size = gguf.GGML_QUANT_SIZES[block]
        count = VALUES // values
        raw = b"".join(block_bytes(block, size, i, rng) for i in range(count))
        data = np.frombuffer(raw, dtype=np.uint8).reshape(2, -1)
        with np.errstate(over="ignore"):
            golden.append(gguf.quants.dequantize(data, block).astype("<f4").tobytes())
        writer.add_tensor(block.name, data, raw_dtype=block)


def add_keys(writer):
    for kind, (low, high) in NUMBERS.items():
        writer.add_key_value(f"low.{kind.name}", low, kind)
        writer.add_key_value(f"high.{kind.name}", high, kind)
        writer.add_key_value(f"array.{kind.name}", [low, high, low], Type.ARRAY, kind)
    for i, text in enumerate(STRINGS):
        writer.add_key_value(f"text.{i}", text, Type.STRING)
    writer.add_key_value("array.STRING", STRINGS, Type.ARRAY, Type.STRING)
    writer.add_custom_alignment(64)
    writer.add_tensor("scalar", np.float32(7).reshape(()))
    writer.add_tensor("cube", np.arange(2 * 3 * 5, dtype=np.float32).reshape(2, 3, 5))
    writer.add_tensor("last", np.arange(4, dtype=np.float16))


def add_parts(writer):
    writer.add_uint32("test.number", 5)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((2, 3), i, dtype=np.float32))


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    golden = []
    write(CORPUS / "blocks.gguf", lambda writer: add_blocks(writer, golden))
    GOLDEN.write_bytes(b"".join(golden))
    write(CORPUS / "keys.gguf", add_keys)
    write(CORPUS / "split.gguf", add_parts, split_max_tensors=2)


if __name__ == "__main__":
    main()
