"""Layers that recur, of llama_numpy's Qwen3-Next and Qwen3.5: the gated delta rule (Yang et al.
2024, arXiv 2412.06464, equation 10) one row after the other, in float64; and how their checkpoints
name and group what others have apart."""

import re
import typing

import numpy as np

from rows_numpy import sigmoid

MODELS = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}  # that also see
RECURRENT = ("qwen3_next", *MODELS.values())
MIXTURES = ("qwen3_next", "qwen3_5_moe_text")
DEFAULTS = {  # what a text_config need not say
    "qwen3_next": {"vocab_size": 151936, "num_attention_heads": 16, "num_key_value_heads": 2,
                   "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True},
    "qwen3_5_text": {"vocab_size": 248320, "num_attention_heads": 16, "num_key_value_heads": 4},
    "qwen3_5_moe_text": {"vocab_size": 248320, "num_attention_heads": 16,
                         "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8},
}
EPSILON = 1e-6  # of the lengths of queries and keys


class Heads(typing.NamedTuple):
    """Those that recur: of queries and keys, and of values; the sizes of each; rows that the
    convolution sees."""

    keys: int
    values: int
    key_dim: int
    value_dim: int
    taps: int

    @property
    def key_width(self):
        return self.keys * self.key_dim

    @property
    def value_width(self):
        return self.values * self.value_dim


def read_text(raw):
    """The part of a config.json that is about texts, with its defaults."""
    inner = MODELS.get(raw["model_type"])
    if inner:
        outside = {key: raw[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings")
                   if key in raw}
        raw = {**raw["text_config"], **outside, "model_type": inner}
    return {**DEFAULTS[raw["model_type"]], "head_dim": 256, **raw}


def heads_of(raw):
    if raw["model_type"] not in RECURRENT:
        return None
    return Heads(keys=raw.get("linear_num_key_heads", 16),
                 values=raw.get("linear_num_value_heads", 32),
                 key_dim=raw.get("linear_key_head_dim", 128),
                 value_dim=raw.get("linear_value_head_dim", 128),
                 taps=raw.get("linear_conv_kernel_dim", 4))


def recurs_of(raw):
    """Of each layer, whether it recurs."""
    types, every = raw.get("layer_types"), raw.get("full_attention_interval", 4)
    return [types[i] == "linear_attention" if types else (i + 1) % every != 0
            for i in range(raw["num_hidden_layers"])]


def by_key_head(values, heads, sizes):
    """Rows of every key head together, which are so many of each part, as parts of all heads."""
    ends = np.cumsum(sizes)[:-1]
    parts = np.split(values.reshape(heads.keys, sum(sizes), -1), ends, axis=1)
    return [part.reshape(-1, values.shape[-1]) for part in parts]


def apart(raw, weights):
    """q, k and v together, z, b and a, as Qwen3.5 has them and Qwen3-Next does not; queries and
    their gates, which both have by heads; experts, which Qwen3.5 has in two tensors."""
    heads, split = heads_of(raw), {}
    each = heads.values // heads.keys
    wide = each * heads.value_dim
    for name, values in weights.items():
        stem, experts = name.rpartition(".")[0], re.fullmatch(
            r"(.*experts\.)(gate_up|down)_proj", name)
        if name.endswith("in_proj_qkvz.weight"):
            q, k, v, z = by_key_head(values, heads, [heads.key_dim] * 2 + [wide] * 2)
            stem = stem.removesuffix("_qkvz")
            split.update({f"{stem}_qkv.weight": np.concatenate([q, k, v]), f"{stem}_z.weight": z})
        elif name.endswith("in_proj_ba.weight"):
            b, a = by_key_head(values, heads, [each] * 2)
            stem = stem.removesuffix("_ba")
            split.update({f"{stem}_b.weight": b, f"{stem}_a.weight": a})
        elif name.endswith("self_attn.q_proj.weight"):
            both = values.reshape(raw["num_attention_heads"], 2, -1, values.shape[-1])
            split[name] = both[:, 0].reshape(-1, values.shape[-1])
            split[name.replace("q_proj", "gate_proj")] = both[:, 1].reshape(-1, values.shape[-1])
        elif experts:
            for e, one in enumerate(values):
                parts = zip(("gate", "up"), np.split(one, 2)) if experts[2] == "gate_up" else (
                    ("down", one),)
                split.update({f"{experts[1]}{e}.{part}_proj.weight": rows for part, rows in parts})
        else:
            split[name] = values
    return split


def convolved(x, taps):
    """silu of a sum of rows of x [n, channels], its own and the ones before, by taps [channels, n],
    that of the row itself last."""
    count = taps.shape[-1]
    before = np.concatenate([np.zeros((count - 1, x.shape[-1])), x])
    y = sum(before[i:i + len(x)] * taps[:, i] for i in range(count))
    return y * sigmoid(y)


def unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + EPSILON)


def delta_rule(q, k, v, decay, strength):
    """Of rows q, k [n, heads, key_dim] and v [n, heads, value_dim]: a head's matrix forgets by its
    decay [n, heads], then what it has for the row's key moves to the row's value by its strength,
    and what it has for the query is the result."""
    state = np.zeros((*k.shape[1:], v.shape[-1]))
    out = np.empty_like(v)
    for t in range(len(v)):
        state *= decay[t][:, None, None]
        known = np.einsum("hkv,hk->hv", state, k[t])
        state += np.einsum("hk,hv->hkv", k[t], (v[t] - known) * strength[t][:, None])
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out


def recur(config, weights, prefix, project, y):
    """What a layer that recurs makes of rows y, which have no state before them."""
    heads, part = config.recurrent, f"{prefix}linear_attn."
    mixed = convolved(project("linear_attn.in_proj_qkv", y),
                      weights[f"{part}conv1d.weight"].reshape(-1, heads.taps))
    z, b, a = (project(f"linear_attn.in_proj_{name}", y) for name in "zba")
    q, k, v = np.split(mixed, [heads.key_width, 2 * heads.key_width], axis=-1)
    q, k = (unit(one.reshape(len(y), heads.keys, -1)).repeat(heads.values // heads.keys, axis=1)
            for one in (q, k))
    v, z = (one.reshape(len(y), heads.values, -1) for one in (v, z))
    softplus = np.logaddexp(0, a + weights[f"{part}dt_bias"])
    decay = np.exp(-np.exp(weights[f"{part}A_log"]) * softplus)
    out = delta_rule(q / np.sqrt(heads.key_dim), k, v, decay, sigmoid(b))
    out /= np.sqrt(np.mean(out * out, axis=-1, keepdims=True) + config.eps)
    out *= weights[f"{part}norm.weight"] * z * sigmoid(z)
    return project("linear_attn.out_proj", out.reshape(len(y), -1))
