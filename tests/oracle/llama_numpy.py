#!/usr/bin/env python3
"""An independent float64 forward pass of a Llama, Mistral, Mixtral, Phi-3 or Qwen checkpoint, in
numpy.

    llama_numpy.py DIR --ids 5,6,7 [--greedy N]    the next token's top logits, or N greedy tokens
    llama_numpy.py --check DIR [DIR ...]           compare with each DIR's golden.safetensors

As a module: logits(DIR, ids) -> float64 [n, V], and greedy(DIR, ids, steps) -> tokens, gaps.

It reads config.json in either dialect (rope_parameters, or rope_theta with rope_scaling) and
model.safetensors or the files model.safetensors.index.json lists.  It exists so that a test can
check any checkpoint, a synthetic or a resharded one too, and is written for clarity: nothing is
cached between calls and every step recomputes the whole sequence.
"""

import argparse
import json
import math
import pathlib
import struct
import sys
import typing

import numpy as np

# Tolerances of --check, relative to max|golden|.  The goldens are float32, whose rope angles
# alone are off by position * 2^-24.
LOGITS_TOLERANCE = 2e-5
GAP_TOLERANCE = 1e-4


class Config(typing.NamedTuple):
    """What the forward pass needs of config.json, the same for both dialects."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    tied: bool
    theta: float
    scaling: dict  # {"rope_type": "default"}, or the parameters of another
    chosen: int  # experts of a token; 0: no mixture
    among: bool  # whether their shares add up to one


# ---- reading ----------------------------------------------------------------------------------


def decode(raw, dtype):
    """The elements of a safetensors tensor as a flat array; floats are widened to float64."""
    if dtype == "BF16":  # numpy has no bfloat16: it is the upper half of a float32
        wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)
    plain = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8"}
    array = np.frombuffer(raw, plain[dtype])
    return array.astype(np.float64) if dtype.startswith("F") else array


def read_safetensors(path):
    """All tensors of one file: an 8-byte header length, a JSON header, then the data."""
    blob = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = decode(blob[begin:end], entry["dtype"]).reshape(entry["shape"])
    return tensors


def split_fused(directory, weights):
    """Phi-3 has q, k and v in one tensor, and gate and up in another; here they are apart."""
    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] != "phi3":
        return weights
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    dim, split = config.get("head_dim") or config["hidden_size"] // heads, {}
    for name, values in weights.items():
        fused = [part for part in ("qkv_proj", "gate_up_proj") if part in name]
        parts, at = (("q", "k", "v"), [heads * dim, (heads + kv_heads) * dim]) \
            if "qkv_proj" in name else (("gate", "up"), 2)
        for part, rows in zip(parts, np.split(values, at) if fused else ()):
            split[name.replace(fused[0], f"{part}_proj")] = rows
        if not fused:
            split[name] = values
    return split


def read_weights(directory):
    """The weights of a checkpoint directory, by name, from its index or its single file."""
    directory = pathlib.Path(directory)
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return split_fused(directory, read_safetensors(directory / "model.safetensors"))
    where = json.loads(index.read_text())["weight_map"]
    files = {file: read_safetensors(directory / file) for file in set(where.values())}
    return split_fused(directory, {name: files[file][name] for name, file in where.items()})


def read_config(directory):
    """config.json with its defaults filled in; refuses what the forward pass does not do."""
    raw = json.loads((pathlib.Path(directory) / "config.json").read_text())
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    scaling = {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}
    unsupported = [key for key in ("attention_bias", "mlp_bias", "use_sliding_window")
                   if raw.get(key)]
    mixture = raw["model_type"] in ("mixtral", "qwen3_moe")
    if not mixture and raw["model_type"] not in ("llama", "mistral", "phi3", "qwen2", "qwen3"):
        unsupported.append("model_type")
    if raw.get("hidden_act", "silu") != "silu":
        unsupported.append("hidden_act")
    known = scaling["rope_type"] in ("default", "linear", "llama3", "yarn")
    if not known or "partial_rotary_factor" in rope:
        unsupported.append("rope")
    if unsupported:
        raise ValueError(f"{directory}: unsupported in config.json: {', '.join(unsupported)}")
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        unsupported.append("layers without experts")
    heads = raw["num_attention_heads"]
    return Config(
        vocab=raw["vocab_size"],
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        eps=raw.get("rms_norm_eps", 1e-6),
        tied=raw.get("tie_word_embeddings", False),
        theta=rope.get("rope_theta", raw.get("rope_theta", 10000.0)),
        scaling=scaling,
        chosen=raw["num_experts_per_tok"] if mixture else 0,
        among=raw["model_type"] == "mixtral" or raw.get("norm_topk_prob", False),
    )


# ---- forward ----------------------------------------------------------------------------------


def inverse_frequencies(config):
    """Rotation per position of each of the head_dim / 2 pairs, in radians."""
    pairs = np.arange(0, config.head_dim, 2) / config.head_dim
    inverse = config.theta ** -pairs
    if config.scaling["rope_type"] == "default":
        return inverse
    if config.scaling["rope_type"] == "linear":
        return inverse / config.scaling["factor"]
    if config.scaling["rope_type"] == "yarn":
        return yarn_frequencies(config, inverse)
    factor, low, high, context = (config.scaling[key] for key in (
        "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    # How often a pair turns within the original context decides: at least `high` times, it is
    # kept; at most `low` times, slowed by `factor`; between the two, blended.
    turns = context * inverse / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return inverse * (keep + (1 - keep) / factor)


def yarn_frequencies(config, inverse):
    """Peng et al. 2023 (arXiv 2309.00071), section 3.2: a ramp over the pairs, from those that turn
    beta_fast times within the original context and are kept, to those that turn beta_slow times and
    are slowed by the factor.  transformers rounds the ramp's ends outwards."""
    given = config.scaling
    context = given["original_max_position_embeddings"]
    ends = [config.head_dim * math.log(context / (turns * 2 * math.pi)) /
            (2 * math.log(config.theta))
            for turns in (given.get("beta_fast") or 32, given.get("beta_slow") or 1)]
    if given.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], config.head_dim - 1)
    slowed = np.clip((np.arange(len(inverse)) - low) / max(high - low, 0.001), 0, 1)
    return inverse / given["factor"] * slowed + inverse * (1 - slowed)


def rotation_scale(config):
    """What YaRN multiplies cosines and sines with."""
    def scale(by):
        return 0.1 * by * math.log(given["factor"]) + 1 if given["factor"] > 1 else 1.0

    given = config.scaling
    if given["rope_type"] != "yarn":
        return 1.0
    if given.get("attention_factor") is not None:
        return given["attention_factor"]
    if given.get("mscale") and given.get("mscale_all_dim"):
        return scale(given["mscale"]) / scale(given["mscale_all_dim"])
    return scale(1)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, cos, sin):
    """Rotary embedding of x [n, heads, head_dim]: element i is paired with i + head_dim / 2."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(config, q, k, v):
    """Causal attention of q [n, heads, head_dim] on k and v [n, kv_heads, head_dim]."""
    n = q.shape[0]
    future = np.triu(np.ones((n, n), bool), 1)
    out = np.empty_like(q)
    for head in range(config.heads):
        kv = head // (config.heads // config.kv_heads)
        scores = q[:, head] @ k[:, kv].T / math.sqrt(config.head_dim)
        scores[future] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, kv]
    return out.reshape(n, -1)


def silu(x):
    """As x * (1 + tanh(x / 2)) / 2, which cannot overflow."""
    return x * (0.5 + 0.5 * np.tanh(0.5 * x))


def mixture(config, weights, prefix, y, met):
    """The experts of each row of y by their shares of the softmax."""
    mixtral = f"{prefix}block_sparse_moe.gate.weight" in weights
    where = f"{prefix}block_sparse_moe." if mixtral else f"{prefix}mlp."
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    shares = y @ weights[f"{where}gate.weight"].T
    shares = np.exp(shares - shares.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    out = np.zeros_like(y)
    for t, share in enumerate(shares):
        chosen = np.argsort(-share, kind="stable")[:config.chosen]
        total = share[chosen].sum() if config.among else 1.0
        for e in chosen:
            def project(name, x, e=e):
                return met(x, name) @ weights[f"{where}experts.{e}.{name}.weight"].T
            x = y[t:t + 1]
            out[t] += share[e] / total * project(down, silu(project(gate, x)) * project(up, x))[0]
    return out


def layer(config, weights, prefix, x, cos, sin, stored, met):
    def project(name, y):
        bias = weights.get(f"{prefix}{name}.bias", 0.0)  # Qwen2: of q, k and v
        return met(y, name) @ weights[f"{prefix}{name}.weight"].T + bias

    y = rms_norm(x, weights[f"{prefix}input_layernorm.weight"], config.eps)
    q, k, v = (project(f"self_attn.{name}_proj", y).reshape(len(x), -1, config.head_dim)
               for name in "qkv")
    if f"{prefix}self_attn.q_norm.weight" in weights:  # Qwen3: of each head
        q = rms_norm(q, weights[f"{prefix}self_attn.q_norm.weight"], config.eps)
        k = rms_norm(k, weights[f"{prefix}self_attn.k_norm.weight"], config.eps)
    y = attention(config, rotate(q, cos, sin), stored(rotate(k, cos, sin)), stored(v))
    x = x + project("self_attn.o_proj", y)
    y = rms_norm(x, weights[f"{prefix}post_attention_layernorm.weight"], config.eps)
    if config.chosen > 0:
        return x + mixture(config, weights, prefix, y, met)
    gate, up = project("mlp.gate_proj", y), project("mlp.up_proj", y)
    return x + project("mlp.down_proj", silu(gate) * up)


def forward(config, weights, ids, stored=lambda x: x, met=lambda x, name: x):
    """Logits [n, V] at every position of ids; stored: what a KV cache makes of keys and values;
    met: what the weight of that name makes of its input."""
    embedding = weights["model.embed_tokens.weight"]
    angles = np.outer(np.arange(len(ids)), inverse_frequencies(config))[:, None, :]
    cos, sin = (rotation_scale(config) * turn(angles) for turn in (np.cos, np.sin))
    x = embedding[np.asarray(ids)]
    for i in range(config.layers):
        x = layer(config, weights, f"model.layers.{i}.", x, cos, sin, stored, met)
    head = embedding if config.tied else weights["lm_head.weight"]
    return met(rms_norm(x, weights["model.norm.weight"], config.eps), "lm_head") @ head.T


def logits(directory, ids, stored=lambda x: x):
    """Logits [n, V] of a checkpoint directory at every position of ids."""
    return forward(read_config(directory), read_weights(directory), ids, stored)


def greedy(directory, ids, steps):
    """steps greedy tokens after ids (ties to the lowest id, no stop token) and their top gaps."""
    config, weights = read_config(directory), read_weights(directory)
    ids, gaps = list(ids), []
    for _ in range(steps):
        last = forward(config, weights, ids)[-1]
        second, first = np.sort(last)[-2:]
        ids.append(int(np.argmax(last)))
        gaps.append(first - second)
    return ids[len(ids) - steps:], gaps


# ---- command line -----------------------------------------------------------------------------


def difference(value, golden):
    """max|value - golden| / max|golden|"""
    return np.abs(value - golden).max() / np.abs(golden).max()


def check(directory):
    """Compares a checkpoint's goldens with this file; prints the errors, returns success."""
    config, weights = read_config(directory), read_weights(directory)
    golden = read_safetensors(pathlib.Path(directory) / "golden.safetensors")
    ok, report = True, []
    for i in range(sum(name.startswith("prompt") for name in golden)):
        prompt, tokens = golden[f"prompt{i}"], golden[f"greedy{i}"]
        # Feeding the golden tokens back gives every step's logits in one pass.
        full = forward(config, weights, np.concatenate([prompt, tokens]))
        steps = full[len(prompt) - 1:-1]
        top = np.sort(steps, axis=-1)
        error = difference(full[:len(prompt)], golden[f"logits{i}"])
        gap_error = np.abs(top[:, -1] - top[:, -2] - golden[f"gap{i}"]).max() / np.abs(steps).max()
        wrong = np.count_nonzero(steps.argmax(axis=-1) != tokens)
        margin = (golden[f"gap{i}"] / np.abs(steps).max(axis=-1)).min()
        ok &= bool(error < LOGITS_TOLERANCE and gap_error < GAP_TOLERANCE and wrong == 0)
        report.append(f"prompt{i}: logits {error:.1e}, gaps {gap_error:.1e}, "
                      f"{wrong} of {len(tokens)} tokens differ, min gap {margin:.2e}")
        if f"logits{i}_bf16" in golden:
            bf16 = difference(golden[f"logits{i}_bf16"], full[:len(prompt)])
            report.append(f"bf16 execution {bf16:.1e}")
    print(f"{directory}: {'ok' if ok else 'FAILED'}: {'; '.join(report)}")
    return ok


def main():
    parser = argparse.ArgumentParser(description="Float64 reference forward of a checkpoint.")
    parser.add_argument("directories", nargs="+", metavar="DIR")
    parser.add_argument("--check", action="store_true", help="compare with golden.safetensors")
    parser.add_argument("--ids", help="prompt token ids, separated by commas")
    parser.add_argument("--greedy", type=int, metavar="N", help="print N greedy tokens")
    args = parser.parse_args()
    if args.check:
        return 0 if all([check(directory) for directory in args.directories]) else 1
    if not args.ids or len(args.directories) != 1:
        parser.error("give --check, or one DIR and --ids")
    ids = [int(token) for token in args.ids.split(",")]
    if args.greedy:
        print(*greedy(args.directories[0], ids, args.greedy)[0], sep=",")
        return 0
    last = logits(args.directories[0], ids)[-1]
    for token in np.argsort(-last, kind="stable")[:10]:
        print(f"{token}\t{last[token]:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
