#!/usr/bin/env python3
"""Writes tests/corpus/safetensors: one file per rule of the safetensors reader, and small
checkpoint directories. Plain struct and json, no code of ours and no library, so that reader and
writer cannot share a mistake. Deterministic: running it again changes nothing (`--check` says so).

cases.txt lists, per line, a file or directory and the words its error message must hold, or `ok`.
"""
import argparse
import json
import pathlib
import shutil
import struct
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = HERE / "corpus" / "safetensors"
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}


def header_file(header, data=b"", length=None):
    """Length, header bytes, data: each may be wrong."""
    raw = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def simple(n=24, **entries):
    """A header of the given entries over n bytes."""
    return header_file(json.dumps(entries), bytes(range(n)))


def files():
    """name -> (bytes, words the message must hold)."""
    good = simple(a=entry())
    two = {"a": entry(), "b": entry(shape=[2], offsets=[24, 32])}
    out = {
        "ok": (good, "ok"),
        "ok_empty": (header_file("{}"), "ok"),
        "ok_padded": (header_file(json.dumps(two) + "    ", bytes(32)), "ok"),
        "ok_metadata": (simple(__metadata__={"format": "pt", "k\n\"": "\u00e9\x7f"}, a=entry()),
                        "ok"),
        "ok_scalar": (simple(4, a=entry(shape=[], offsets=[0, 4])), "ok"),
        "ok_zero_size": (simple(24, z=entry(shape=[0, 5], offsets=[0, 0]), a=entry()), "ok"),
        "ok_any_order": (header_file(json.dumps({"b": two["b"], "a": two["a"]}), bytes(32)), "ok"),
        "ok_unknown_key": (simple(a={**entry(), "note": [1, {"x": None}]}), "ok"),
        "ok_eight_dims": (simple(4, a=entry(shape=[1] * 8, offsets=[0, 4])), "ok"),
        "short_0": (b"", "too short"),
        "short_7": (b"\0" * 7, "too short"),
        "length_only": (struct.pack("<Q", 2), "does not fit"),
        "length_over_file": (header_file("{}", length=3), "does not fit"),
        "length_over_limit": (header_file("{}", length=100_000_001), "at most 100000000"),
        "length_huge": (header_file("{}", length=2**64 - 1), "at most 100000000"),
        "length_zero": (header_file(""), "start with '{'"),
        "first_byte": (header_file(" " + json.dumps({"a": entry()}), bytes(24)), "start with '{'"),
        "first_byte_array": (header_file("[]"), "start with '{'"),
        "not_json": (header_file('{"a":}'), "line 1"),
        "two_values": (header_file("{}{}"), "end of file expected"),
        "not_utf8": (header_file(b'{"\xff\xfe":1}'), "decode byte 0xff"),
        "nul_in_name": (header_file('{"a\\u0000b":1}'), "NUL"),
        "deep": (header_file('{"a":' + "[" * 70 + "]" * 70 + "}"), "nested deeper"),
        "duplicate_tensor": (header_file('{"a":%s,"a":%s}' % ((json.dumps(entry()),) * 2),
                                         bytes(24)), "duplicate"),
        "duplicate_field": (header_file('{"a":{"dtype":"F32","dtype":"F32","shape":[1],'
                                        '"data_offsets":[0,4]}}', bytes(4)), "duplicate"),
        "name_empty": (simple(**{"": entry()}), "name is empty or holds control"),
        "name_newline": (simple(**{"a\nb": entry()}), "name is empty or holds control"),
        "entry_not_object": (simple(0, a=[1]), "tensor a: expected an object"),
        "dtype_unknown": (simple(a=entry("F31")), 'unknown dtype "F31"'),
        "dtype_case": (simple(a=entry("f32")), 'unknown dtype "f32"'),
        "dtype_number": (simple(a=entry(4)), '"dtype" to be a string'),
        "dtype_missing": (simple(a={"shape": [6], "data_offsets": [0, 24]}),
                          '"dtype" to be a string'),
        "shape_negative": (simple(a=entry(shape=[-2, -3])), "shape[0] to be an integer >= 0"),
        "shape_real": (simple(a=entry(shape=[2.0, 3])), "shape[0] to be an integer >= 0"),
        "shape_string": (simple(a=entry(shape=["2", 3])), "shape[0] to be an integer >= 0"),
        "shape_too_big": (header_file('{"a":{"dtype":"F32","shape":[99999999999999999999],'
                                      '"data_offsets":[0,4]}}', bytes(4)), "too big integer"),
        "shape_missing": (simple(a={"dtype": "F32", "data_offsets": [0, 24]}),
                          '"shape" to be an array'),
        "shape_object": (simple(a={**entry(), "shape": {}}), '"shape" to be an array'),
        "elements_overflow": (simple(a=entry(shape=[2**32, 2**32])), "overflows"),
        "elements_wrap_to_24": (simple(24, a=entry("U8", [2**61 + 3, 8])), "overflows"),
        "bytes_overflow": (simple(0, a=entry(shape=[2**62], offsets=[0, 0])), "overflows"),
        "bytes_negative": (simple(0, a=entry(shape=[2**61], offsets=[0, 0])), "overflows"),
        "nine_dims": (simple(4, a=entry(shape=[1] * 9, offsets=[0, 4])), "at most 8"),
        "length_mismatch": (simple(a=entry(offsets=[0, 20])), "expected 24 bytes by dtype"),
        "length_mismatch_long": (simple(a=entry(shape=[1], offsets=[0, 24])),
                                 "expected 4 bytes by dtype"),
        "offsets_reversed": (simple(a=entry(offsets=[24, 0])), "begin <= end"),
        "offsets_negative": (simple(a=entry(offsets=[-24, 0])), "begin <= end"),
        "offsets_three": (simple(a=entry(offsets=[0, 24, 24])), "two integers"),
        "offsets_missing": (simple(a={"dtype": "F32", "shape": [6]}), "two integers"),
        "offsets_real": (simple(a=entry(offsets=[0.0, 24])), "two integers"),
        "hole_first": (simple(32, a=entry(offsets=[8, 32])), "hole"),
        "hole_between": (simple(40, a=entry(), b=entry(shape=[2], offsets=[32, 40])), "hole"),
        "overlap": (simple(28, a=entry(), b=entry(shape=[2], offsets=[20, 28])), "overlap"),
        "overlap_same": (simple(24, a=entry(), b=entry()), "overlap"),
        "truncated": (good[:-1], "truncated"),
        "truncated_all": (good[:-24], "truncated"),
        "trailing": (good + b"\0", "expected 24 bytes after the header, found 25"),
        "metadata_number": (simple(__metadata__={"a": 1}, a=entry()),
                            "__metadata__ to hold strings"),
        "metadata_string": (simple(__metadata__="x", a=entry()), "__metadata__ to be an object"),
    }
    return {name + ".safetensors": case for name, case in out.items()}


# ---- checkpoint directories: the same tensors in every form ----

TENSORS = [  # name, dtype, shape; value(k, i) = (131 k + i) mod 251, exact in every dtype
    ("head.weight", "BF16", [37, 12]),
    ("layers.0.down.weight", "F16", [12, 29]),
    ("layers.0.norm.weight", "BF16", [12]),
    ("layers.0.up.weight", "F32", [29, 12]),
    ("layers.0.rotary.inv_freq", "I64", [3]),
]


def element(dtype, v):
    if dtype == "I64":
        return struct.pack("<q", v)
    if dtype == "F16":
        return struct.pack("<e", v)
    raw = struct.pack("<f", v)
    return raw if dtype == "F32" else raw[2:]


def tensor_bytes(k, rows=None, cols=None):
    """The elements of tensor k in [rows) x [cols) of its [rows, cols] form."""
    _, dtype, shape = TENSORS[k]
    height, width = (shape + [1])[:2] if len(shape) == 2 else (1, shape[0])
    rows, cols = rows or (0, height), cols or (0, width)
    return b"".join(element(dtype, (131 * k + r * width + c) % 251)
                    for r in range(*rows) for c in range(*cols))


def tensor_file(parts, metadata=None):
    """parts: (name, dtype, shape, bytes)."""
    header, at = ({"__metadata__": metadata} if metadata else {}), 0
    for name, dtype, shape, raw in parts:
        header[name] = entry(dtype, shape, (at, at + len(raw)))
        at += len(raw)
    return header_file(json.dumps(header), b"".join(p[3] for p in parts))


def whole(k):
    return (*TENSORS[k], tensor_bytes(k))


def index_of(weight_map, total=0):
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return json.dumps(index, indent=1).encode()


def index_dir(first=(0, 1), second=(2, 3, 4), changes=None):
    """Two files and an index; `changes` edits the map."""
    a, b = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    weight_map = {TENSORS[k][0]: a for k in first} | {TENSORS[k][0]: b for k in second}
    for name, file in (changes or {}).items():
        if file is None:
            del weight_map[name]
        else:
            weight_map[name] = file
    return {"model.safetensors.index.json": index_of(weight_map),
            a: tensor_file([whole(k) for k in first]), b: tensor_file([whole(k) for k in second])}


def shard_file(parts, info=None):
    """parts: (tensor, rows or None, cols)."""
    out, offsets = [], {}
    for k, rows, cols in parts:
        name, dtype, shape = TENSORS[k]
        size = [cols[1] - cols[0]] if rows is None else [rows[1] - rows[0], cols[1] - cols[0]]
        offsets[name] = {"saved_offsets": [cols[0]] if rows is None else [rows[0], cols[0]]}
        out.append((name, dtype, size, tensor_bytes(k, rows, cols)))
    return tensor_file(out, {"DCP_SHARDING_INFO": json.dumps(offsets if info is None else info)})


def shard_dir(cut=17, overlap=0, extra=None, **changes):
    """Two ranks: head by rows with an overlap, up by rows, down by columns, norm on both."""
    ranks = [[(0, (0, cut + overlap), (0, 12)), (3, (0, 14), (0, 12)), (1, (0, 12), (0, 14)),
              (2, None, (0, 12)), (4, None, (0, 3))],
             [(0, (17, 37), (0, 12)), (3, (14, 29), (0, 12)), (1, (0, 12), (14, 29)),
              (2, None, (0, 12))]]
    names = ["model-rank-%05d-part-00000.safetensors" % r for r in range(2)]
    tensors = {name: {"dtype": dtype, "shape": shape} for name, dtype, shape in TENSORS}
    tensors.update(extra or {})
    shards = {"version": 1, "ranks": 2, "files": [[n] for n in names], "tensors": tensors}
    shards.update(changes)
    out = {"shards.json": json.dumps(shards, indent=1).encode()}
    out.update({n: shard_file(r) for n, r in zip(names, ranks)})
    return out


def directories():
    """name -> (files, words)."""
    a, b = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    rank1 = "model-rank-00001-part-00000.safetensors"
    out = {
        "plain": ({"model.safetensors": tensor_file([whole(k) for k in range(5)])}, "ok"),
        "index": (index_dir(), "ok"),
        "sharded": (shard_dir(), "ok"),
        "sharded_overlap": (shard_dir(overlap=3), "ok"),
        "nothing": ({"readme.txt": b"no model here\n"},
                    "looked for shards.json, model.safetensors"),
        "pickle": ({"pytorch_model.bin": b""}, "convert it to safetensors"),
        "damaged": ({"model.safetensors": b"1234567"}, "model.safetensors: 7 bytes"),
        "map_path": (index_dir(changes={"head.weight": "sub/" + a}), "plain name"),
        "map_parent": (index_dir(changes={"head.weight": ".."}), "plain name"),
        "map_absolute": (index_dir(changes={"head.weight": "/etc/passwd"}), "plain name"),
        "map_empty_name": (index_dir(changes={"head.weight": ""}), "plain name"),
        "map_number": (index_dir(changes={"head.weight": 1}), "weight_map to hold strings"),
        "map_missing_file": (index_dir(changes={"head.weight": "gone.safetensors"}),
                             "gone.safetensors, which is missing"),
        "map_missing_tensor": (index_dir(changes={"other.weight": a}), "other.weight: expected in"),
        "map_wrong_file": (index_dir(changes={"head.weight": b}), "head.weight: expected in " + b),
        "unmapped_tensor": (index_dir(changes={"head.weight": None}), "head.weight is not in"),
        "duplicate_across": (index_dir(second=(1, 2, 3, 4)),
                             "duplicate tensor model.layers.0.down.weight"),
        "extra_file": ({**index_dir(), "model-00003-of-00003.safetensors": b""}, "extra file"),
        "no_map": ({"model.safetensors.index.json": b"{}"}, "weight_map"),
        "index_not_json": ({"model.safetensors.index.json": b"{"}, "line 1"),
        "shards_gap": (shard_dir(cut=16), "head.weight: rows [16, 17) columns [0, 12) are in no"),
        "shards_version": (shard_dir(version=2), '"version": 1'),
        "shards_no_files": (shard_dir(files=[]), "1 to 1024 ranks"),
        "shards_path": (shard_dir(files=[["../x"], [rank1]]), "plain name"),
        "shards_twice": (shard_dir(files=[[rank1], [rank1]]), "expected a new file name"),
        "shards_empty_rank": (shard_dir(files=[[rank1], []]), "expected file names"),
        "shards_extra_file": (shard_dir(files=[[rank1]]), "extra file"),
        "shards_missing_tensor": (shard_dir(extra={"x": {"dtype": "F32", "shape": [1]}}),
                                  "tensor x is in no rank's file"),
        "shards_unknown_tensor": (shard_dir(tensors={}), "is not in shards.json"),
        "shards_dtype": (shard_dir(extra={"head.weight": {"dtype": "F32", "shape": [37, 12]}}),
                         "head.weight: expected F32, found BF16"),
        "shards_shape": (shard_dir(extra={"head.weight": {"dtype": "BF16", "shape": [37]}}),
                         "of 2 dimensions"),
        "shards_outside": (shard_dir(extra={"head.weight": {"dtype": "BF16", "shape": [36, 12]}}),
                           "outside the whole tensor's 36"),
        "shards_no_info": ({**shard_dir(), rank1: tensor_file([whole(2)])}, "DCP_SHARDING_INFO"),
        "shards_no_offsets": ({**shard_dir(), rank1: shard_file([(2, None, (0, 12))], info={})},
                              "saved_offsets of 1 dimensions"),
    }
    return {"checkpoints/" + name: case for name, case in out.items()}


def write(root):
    table = ["# file or directory, then the words its message must hold; made by make_corpus.py"]
    for name, (raw, words) in files().items():
        (root / name).write_bytes(raw)
        table.append(f"{name} {words}")
    for name, (members, words) in directories().items():
        (root / name).mkdir(parents=True)
        for member, raw in members.items():
            (root / name / member).write_bytes(raw)
        table.append(f"{name} {words}")
    (root / "cases.txt").write_text("\n".join(table) + "\n")


def contents(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    if parser.parse_args().check:
        with tempfile.TemporaryDirectory() as fresh:
            write(pathlib.Path(fresh))
            same = contents(pathlib.Path(fresh)) == contents(CORPUS)
        print("corpus is current" if same else "corpus differs: run tests/make_corpus.py")
        return 0 if same else 1
    shutil.rmtree(CORPUS, ignore_errors=True)
    CORPUS.mkdir(parents=True)
    write(CORPUS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
