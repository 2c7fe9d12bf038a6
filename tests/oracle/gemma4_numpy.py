"""Layers of llama_numpy's Gemma 4, in float64: two kinds of them, which differ in their heads, too;
the last ones may attend to keys and values of layers before them; a mixture may be beside the MLP,
small embeddings of each layer behind it."""

import math
import typing

import numpy as np

from rows_numpy import attention, gelu, rms_norm, rotate

MODELS = {"gemma4": "gemma4_text"}  # that also see and hear
DEFAULTS = {  # what a text_config need not say
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "head_dim": 256,
    "hidden_size_per_layer_input": 256,
    "layer_types": None,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_kv_shared_layers": 0,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "vocab_size": 262144,
}
ROTATIONS = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                       "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}


class Text(typing.NamedTuple):
    """What other families do not have."""

    heads: list  # of each layer: the size of a head, and how many keys and values have
    joint: bool  # layers without a window make keys and values of one product
    shared: int  # the first layer that attends to keys and values of one before; or so many as are
    chosen: int  # experts of a token; 0: no mixture
    small: int  # columns of a layer's small embeddings; 0: none
    small_scale: float  # multiplies them


def read_text(raw):
    """The part of a config.json that is about texts, with its defaults."""
    if raw["model_type"] in MODELS:
        outside = {key: raw[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings")
                   if key in raw}
        raw = {**outside, **raw["text_config"], "model_type": MODELS[raw["model_type"]]}
    raw = {**DEFAULTS, **raw}
    layers = raw["num_hidden_layers"]
    types = list(raw["layer_types"] or (["sliding_attention"] * 5 + ["full_attention"]) * layers)
    types = types[:layers - 1] + ["full_attention"]  # whatever it is said to be
    return {**raw, "layer_types": types, "rope_parameters": raw.get("rope_parameters") or ROTATIONS}


def heads_of(raw):
    """Of each layer, the size of a head, and how many keys and values have. transformers since 5.15
    writes what layers have of their own by their numbers."""
    own = {"head_dim": raw.get("global_head_dim", 512)}
    if raw["attention_k_eq_v"] and raw.get("num_global_key_value_heads") is not None:
        own["num_key_value_heads"] = raw["num_global_key_value_heads"]
    layers = {i: own for i, kind in enumerate(raw["layer_types"]) if kind == "full_attention"}
    if "per_layer_config" in raw:
        layers = {int(i): one for i, one in raw["per_layer_config"].items()}
    every = [{**raw, **layers.get(i, {})} for i in range(raw["num_hidden_layers"])]
    return [(one["head_dim"], one["num_key_value_heads"]) for one in every]


def text_of(raw, rounded_root):
    """None of another family. rounded_root: of a number, as weights hold it."""
    if raw["model_type"] not in MODELS.values():
        return None
    small = raw["hidden_size_per_layer_input"] or 0
    return Text(heads=heads_of(raw), joint=raw["attention_k_eq_v"],
                shared=raw["num_hidden_layers"] - raw["num_kv_shared_layers"],
                chosen=raw["top_k_experts"] if raw["enable_moe_block"] else 0,
                small=small, small_scale=rounded_root(small))


def proportional_frequencies(theta, scaling, head_dim):
    """Rotation per position of each pair of a head, an element of either half: the first ones turn
    as far as they would if the others did, too."""
    pairs = np.arange(head_dim // 2)
    turning = int(scaling.get("partial_rotary_factor", 1.0) * head_dim // 2)
    inverse = theta ** (-2.0 * pairs / head_dim) / scaling.get("factor", 1.0)
    return np.where(pairs < turning, inverse, 0.0)


def small_inputs(config, weights, ids, x, met):
    """What each layer adds to rows x, the scaled embeddings of ids: half of it is the token's own,
    half is made of the row. [n, layers, small]"""
    text, shape = config.gemma4, (len(ids), config.layers, -1)
    own = weights["model.embed_tokens_per_layer.weight"][np.asarray(ids)] * text.small_scale
    made = met(x, "per_layer_model_projection") \
        @ weights["model.per_layer_model_projection.weight"].T / math.sqrt(config.hidden)
    made = rms_norm(made.reshape(shape), weights["model.per_layer_projection_norm.weight"],
                    config.eps)
    return (own.reshape(shape) + made) / math.sqrt(2)


def mixture(config, weights, prefix, x, y, met):
    """The experts of each row of y by their shares, which the router makes of x: parts of a softmax
    among those chosen, each times the expert's own scale."""
    router = f"{prefix}router."
    seen = rms_norm(x, weights[f"{router}scale"], config.eps) / math.sqrt(config.hidden)
    scores = seen @ weights[f"{router}proj.weight"].T
    parts = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.zeros_like(y)
    for t, part in enumerate(parts):
        chosen = np.argsort(-part, kind="stable")[:config.gemma4.chosen]
        shares = part[chosen] / part[chosen].sum() * weights[f"{router}per_expert_scale"][chosen]
        for e, share in zip(chosen, shares):
            def project(name, row, e=e):
                return met(row, name) @ weights[f"{prefix}experts.{e}.{name}.weight"].T
            row = y[t:t + 1]
            row = gelu(project("gate_proj", row)) * project("up_proj", row)
            out[t] += share * project("down_proj", row)[0]
    return out


def attend(config, i, project, norm, y, rotation, window, stored, kept):
    """Attention of rows y in layer i; kept: the last keys and values of each kind of layer."""
    head_dim, kv_heads = config.gemma4.heads[i]
    config = config._replace(head_dim=head_dim, kv_heads=kv_heads)
    q = norm("self_attn.q_norm", project("self_attn.q_proj", y).reshape(len(y), -1, head_dim))
    q = rotate(q, *rotation, False)
    kind = window > 0
    if i < config.gemma4.shared:
        k = project("self_attn.k_proj", y)
        v = k if config.gemma4.joint and not kind else project("self_attn.v_proj", y)
        k, v = (one.reshape(len(y), -1, head_dim) for one in (k, v))
        k = rotate(norm("self_attn.k_norm", k), *rotation, False)
        kept[kind] = stored(k), stored(rms_norm(v, 1.0, config.eps))
    return project("self_attn.o_proj", attention(config, q, *kept[kind], window))


def layer(config, weights, i, x, small, rotation, window, stored, met, kept):
    """small: what layer i adds, or None."""
    prefix = f"model.layers.{i}."

    def project(name, y):
        return met(y, name) @ weights[f"{prefix}{name}.weight"].T

    def norm(name, y):
        return rms_norm(y, weights[f"{prefix}{name}.weight"], config.eps)

    y = attend(config, i, project, norm, norm("input_layernorm", x), rotation, window, stored, kept)
    x = x + norm("post_attention_layernorm", y)
    y = norm("pre_feedforward_layernorm", x)
    y = project("mlp.down_proj", gelu(project("mlp.gate_proj", y)) * project("mlp.up_proj", y))
    if config.gemma4.chosen > 0:
        also = norm("pre_feedforward_layernorm_2", x)
        also = mixture(config, weights, prefix, x, also, met)
        y = norm("post_feedforward_layernorm_1", y) + norm("post_feedforward_layernorm_2", also)
    x = x + norm("post_feedforward_layernorm", y)
    if small is not None:
        y = project("per_layer_projection", gelu(project("per_layer_input_gate", x)) * small)
        x = x + norm("post_per_layer_input_norm", y)
    return x * weights[f"{prefix}layer_scalar"]
