#!/usr/bin/env python3
"""Writes tests/corpus/spm, where the fuzzer of tokenizer.model begins: the demo's file cut to a few
pieces, whole and broken in one place each. Plain protobuf by hand; deterministic.
"""
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
DEMO = HERE.parent / "deploy/demo/model/tokenizer.model"
MAPPED = HERE / "corpus/tokenizer/collapse/tokenizer.model"  # it has a normalisation map
MARKED = HERE / "corpus/tokenizer/gemma/tokenizer.model"  # it has marks of turns


def varint(value):
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def take_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def field(number, value):
    """A length-delimited field, a varint or a float."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def parts(data):
    """[(number, bytes)] of the top level, which has length-delimited fields only."""
    at, found = 0, []
    while at < len(data):
        key, at = take_varint(data, at)
        length, at = take_varint(data, at)
        found.append((key >> 3, data[at:at + length]))
        at += length
    return found


def piece(text, score=-1.0, kind=1):
    return field(1, field(1, text) + field(2, score) + field(3, kind))


def cut(path, special, normal):
    """The file with its first special pieces, and the first normal ones of those behind them."""
    whole = parts(path.read_bytes())
    pieces = [data for number, data in whole if number == 1]
    kept = pieces[:special] + pieces[-normal:]
    rest = [(number, data) for number, data in whole if number in (2, 3)]
    return b"".join(field(1, data) for data in kept) + \
        b"".join(field(number, data) for number, data in rest)


def files():
    good = cut(DEMO, 3, 24)
    bytes_too = cut(DEMO, 3 + 256, 24)
    return {
        "good": good,
        "byte_pieces": bytes_too,
        "mapped": cut(MAPPED, 3, 40),
        "marked": cut(MARKED, 16, 24),
        "empty": b"",
        "truncated": good[:-3],
        "long_varint": good + b"\x80" * 11,
        "long_field": good + b"\x0a\x7f",
        "group": good + b"\x0b\x0c",
        "two_unknown": good + piece(b"<unk2>", 0.0, 2),
        "twice": good + piece(b"<s>", 0.0, 3),
        "not_text": good + piece(b"\xed\xa0\x80"),
        "no_score": good + piece(b"zz", float("nan")),
        "no_kind": good + piece(b"zz", 0.0, 7),
        "no_byte": good + piece(b"<0xG0>", 0.0, 6),
        "far_bos": good + field(2, field(41, 1 << 20)),
        "short_map": good + field(3, field(2, struct.pack("<I", 1024) + bytes(8))),
        "open_map": good + field(3, field(2, struct.pack("<II", 1024, 256 << 10) + bytes(1020) +
                                          b"x\0")),
    }


def main():
    folder = HERE / "corpus/spm"
    folder.mkdir(exist_ok=True)
    for name, data in files().items():
        (folder / f"{name}.model").write_bytes(data)


if __name__ == "__main__":
    main()
