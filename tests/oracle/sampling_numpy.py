#!/usr/bin/env python3
"""Sampling rules and logprobs in numpy, over the float64 forward pass of llama_numpy.py.

    sampling_numpy.py DIR            writes DIR/sampling.safetensors
    sampling_numpy.py --check DIR    recomputes it and compares

For a few mixes of rules the file holds the greedy continuation of a golden prompt and, for each of
its tokens, the logprob and the five most likely: of the raw logits, before any rule.  The formulas
are those of vLLM (vllm/v1/sample: logits_processor, ops/bad_words, ops/penalties), written here
once more and independently of the C code.

Tensors of mix i: prompt<i>, rules<i> F32 [repetition, frequency, presence, min_tokens],
bias_ids<i>, bias_values<i>, ban<i>, bad<i>, bad_end<i>; tokens<i> [n], logprobs<i> [n],
top_ids<i> [n, 5], top_logprobs<i> [n, 5].
"""

import argparse
import json
import pathlib
import struct
import sys

import numpy as np

import llama_numpy

STEPS, TOP = 40, 5
# A float32 engine cannot be asked to tell apart what is closer than this.
GAP = 1e-4


def apply_rules(logits, mix, prompt, produced):
    """The logits a token is chosen from."""
    x = logits.copy()
    for token, value in zip(mix["bias_ids"], mix["bias_values"]):
        x[token] += value
    repetition, frequency, presence, min_tokens = mix["rules"]
    if len(produced) < min_tokens:
        x[mix["ban"]] = -np.inf
    begin = 0
    for end in mix["bad_end"]:
        word, begin = mix["bad"][begin:end], end
        prefix = len(word) - 1
        if prefix <= len(produced) and produced[len(produced) - prefix:] == word[:prefix]:
            x[word[-1]] = -np.inf
    seen = np.unique(prompt + produced)
    x[seen] = np.where(x[seen] > 0, x[seen] / repetition, x[seen] * repetition)
    counts = np.bincount(np.array(produced, np.int64), minlength=len(x))
    return x - frequency * counts - presence * (counts > 0)


def run(config, weights, mix):
    """tokens, logprobs, top ids, top logprobs of the greedy continuation."""
    prompt, produced, rows = list(mix["prompt"]), [], []
    for _ in range(STEPS):
        raw = llama_numpy.forward(config, weights, np.array(prompt + produced))[-1]
        x = apply_rules(raw, mix, prompt, produced)
        order = np.argsort(-x, kind="stable")
        assert x[order[0]] - x[order[1]] > GAP, "the choice is too close"
        logprobs = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        best = np.argsort(-raw, kind="stable")[:TOP + 1]
        assert -np.diff(raw[best]).max() > GAP, "the best are too close"
        token = int(order[0])
        rows.append((token, logprobs[token], best[:TOP], logprobs[best[:TOP]]))
        produced.append(token)
    return [np.array(column) for column in zip(*rows)]


def mixes(directory):
    """Rules that change the plain continuation from its first tokens on."""
    golden = llama_numpy.read_safetensors(pathlib.Path(directory) / "golden.safetensors")
    prompts = [golden[f"prompt{i}"].tolist() for i in (0, 1)]
    plain = [golden[f"greedy{i}"].tolist() for i in (0, 1)]
    nothing = {"bias_ids": [], "bias_values": [], "ban": [], "bad": [], "bad_end": []}
    yield {**nothing, "prompt": prompts[0], "rules": [1, 0, 0, 0]}
    yield {**nothing, "prompt": prompts[0], "rules": [1.4, 0, 0, 0]}
    yield {**nothing, "prompt": prompts[1], "rules": [1, 0.3, 0.4, 0]}
    yield {**nothing, "prompt": prompts[1], "rules": [0.8, -0.2, 0.6, 5],
           "ban": plain[1][:5], "bias_ids": [9, 77], "bias_values": [0.75, -1.5]}
    yield {**nothing, "prompt": prompts[0], "rules": [1.1, 0.1, 0.1, 3],
           "ban": [2, plain[0][1]],
           "bad": [plain[0][0], *plain[0][3:5], *plain[0][8:11]], "bad_end": [1, 3, 6]}


def compute(directory):
    config = llama_numpy.read_config(directory)
    weights = llama_numpy.read_weights(directory)
    tensors = {}
    for i, mix in enumerate(mixes(directory)):
        tokens, logprobs, top_ids, top_logprobs = run(config, weights, mix)
        reals = {"rules": mix["rules"], "bias_values": mix["bias_values"],
                 "logprobs": logprobs, "top_logprobs": top_logprobs}
        ids = {name: mix[name] for name in ("prompt", "bias_ids", "ban", "bad", "bad_end")}
        ids |= {"tokens": tokens, "top_ids": top_ids}
        tensors |= {f"{name}{i}": np.array(value, "<f4") for name, value in reals.items()}
        tensors |= {f"{name}{i}": np.array(value, "<i4") for name, value in ids.items()}
    return tensors


def write(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        kind = "F32" if array.dtype.kind == "f" else "I32"
        header[name] = {"dtype": kind, "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    parser = argparse.ArgumentParser(description="Reference of sampling rules and logprobs.")
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    args = parser.parse_args()
    path = args.directory / "sampling.safetensors"
    tensors = compute(args.directory)
    if not args.check:
        write(path, tensors)
        return 0
    there = llama_numpy.read_safetensors(path)
    same = there.keys() == tensors.keys() and all(
        np.allclose(there[name].ravel(), tensors[name].ravel(), atol=1e-6) for name in tensors)
    print(f"{path}: {'ok' if same else 'FAILED'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
