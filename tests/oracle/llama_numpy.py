#!/usr/bin/env python3
"""An independent float64 forward pass of a Llama, Mistral, Mixtral, SmolLM3, Seed-OSS, ERNIE
4.5, GLM-4, Granite, Phi-3, Qwen, Gemma, gpt-oss, OLMo, MiniMax-M2 or DeepSeek checkpoint, in numpy
(what recurs of a Qwen's is in recurrent_numpy.py, Gemma 4's layers in gemma4_numpy.py, what is done
with rows in rows_numpy.py).

    llama_numpy.py DIR --ids 5,6,7 [--greedy N]    the next token's top logits, or N greedy tokens
    llama_numpy.py --check DIR [DIR ...]           compare with each DIR's golden.safetensors

As a module: logits(DIR, ids) -> float64 [n, V], and greedy(DIR, ids, steps) -> tokens, gaps.

It reads config.json in either dialect (rope_parameters, or rope_theta with rope_scaling) and
model.safetensors or the files model.safetensors.index.json lists.  Of a multimodal one it reads the
text model.  It exists so that a test can
check any checkpoint, a synthetic or a resharded one too, and is written for clarity: nothing is
cached between calls and every step recomputes the whole sequence.
"""

import argparse
import json
import math
import pathlib
import re
import struct
import sys
import typing

import numpy as np

import gemma4_numpy
import recurrent_numpy
from recurrent_numpy import RECURRENT
from rows_numpy import attention, capped, gelu, rms_norm, rotate, sigmoid, silu

# Tolerances of --check, relative to max|golden|.  The goldens are float32, whose rope angles
# alone are off by position * 2^-24.
LOGITS_TOLERANCE = 2e-5
GAP_TOLERANCE = 1e-4

GEMMA = ("gemma", "gemma2", "gemma3_text", "gemma4_text")
GLM = ("glm", "glm4")
HALVES = (*GLM, "glm4_moe")  # whose heads turn by half, if nothing else is said
OLMO = ("olmo2", "olmo3", "olmoe")
EXAONE = ("exaone4", "exaone_moe")
PLAIN = ("ernie4_5", "exaone4", *GLM, "granite", "iquestcoder", "llama", "ministral3", "mistral",
         "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3", "youtu")
V3_LATENTS = ("deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4")
LATENTS = ("deepseek_v2", *V3_LATENTS, "youtu")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "dots1", "ernie4_5_moe", "exaone_moe", "glm4_moe",
            "gpt_oss", "olmoe", "minimax_m2", "solar_open", *recurrent_numpy.MIXTURES,
            "deepseek_v2", *V3_LATENTS)
AMONG = ("mixtral", "gpt_oss", "minimax_m2", "qwen3_5_moe_text", "ernie4_5_moe")
BIASES = (*GLM, "glm4_moe", "gpt_oss", "granite", *OLMO, "seed_oss",
          "smollm3")  # whose attention_bias may be true
NO_WINDOWS = ("llama", "gemma", "granite", "seed_oss", "ernie4_5", "ernie4_5_moe", "glm4_moe",
              "iquestcoder", "minimax_m2", "olmo2", "olmoe", "solar_open", *GLM, *LATENTS)
TWO_ROTATIONS = ("gemma3_text", "gemma4_text", "olmo3")  # one of the layers with a window
THETAS = {"ernie4_5": 500000.0, "ernie4_5_moe": 500000.0, "gemma3_text": 1000000.0,
          "minimax_m2": 5000000.0, "olmo3": 500000.0, "smollm3": 2000000.0,
          "solar_open": 1000000.0}
EPSILONS = {"ernie4_5": 1e-5, "ernie4_5_moe": 1e-5, "glm4_moe_lite": 1e-5, "glm": 1.5625e-7,
            "glm4": 1.5625e-7, "iquestcoder": 1e-5, "solar_open": 1e-5,
            **dict.fromkeys((*OLMO, *EXAONE), 1e-5)}
HEAD_DIMS = {"gemma": 256, "gemma2": 256, "gemma3_text": 256, "iquestcoder": 128,
             "minimax_m2": 128, "solar_open": 128}
LATENT_EPSILON = 1e-6  # of latents' norms, whatever rms_norm_eps is
SCALES = {"deepseek_v3": 2.5, "kimi_k2": 2.5, "exaone_moe": 2.5, "glm4_moe_lite": 1.8}
GROUPS = {"deepseek_v3": (8, 4), "kimi_k2": (8, 4)}
GEMMA_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm",
               "post_feedforward_layernorm")
GLM4_NORMS = ("post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GEMMA3 = {  # what a multimodal checkpoint's text_config need not say
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


class Latent(typing.NamedTuple):
    """Columns of the latents of queries, 0: none, and of keys and values; elements of a head's
    query and key that turn and that do not, and of its value."""

    query: int
    value: int
    turns: int
    plain: int
    head: int


class Config(typing.NamedTuple):
    """What the forward pass needs of config.json, the same for both dialects."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # elements of a head that turn: the first ones
    local_rotary_dim: int  # the same of the layers with a window
    interleaved: bool  # neighbours turn together, not an element of each half
    eps: float
    tied: bool
    theta: float
    scaling: dict  # {"rope_type": "default"}, or the parameters of another
    local: tuple  # theta and scaling of the layers with a window, if not those above
    windows: list  # of each layer: how many of the latest positions it sees; 0: all
    turns: list  # of each layer: whether its queries and keys turn
    chosen: int  # experts of a token; 0: no mixture
    among: bool  # whether their shares add up to one
    scale: float  # multiplies their shares
    groups: tuple  # of experts, and how many of them a token keeps
    latent: Latent | None
    recurrent: recurrent_numpy.Heads | None
    gemma4: gemma4_numpy.Text | None
    act: typing.Callable  # of the gate
    norm_offset: float  # added to the weights of norms
    embed_scale: float  # multiplies embeddings
    residual_scale: float  # multiplies what is added to them
    logit_scale: float
    query_scalar: float  # scores are divided by its root
    score_cap: float | None  # tanh keeps scores within it
    logit_cap: float | None


# ---- reading ----------------------------------------------------------------------------------


def decode(raw, dtype):
    """The elements of a safetensors tensor as a flat array; floats are widened to float64."""
    if dtype == "BF16":  # numpy has no bfloat16: it is the upper half of a float32
        wide = np.frombuffer(raw, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).astype(np.float64)
    plain = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "u1"}
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


def read_json(directory):
    """config.json, or the part of it that is about the text model."""
    raw = json.loads((pathlib.Path(directory) / "config.json").read_text())
    if raw["model_type"] in (*RECURRENT, *recurrent_numpy.MODELS):
        return recurrent_numpy.read_text(raw)
    if raw["model_type"] in ("gemma4", "gemma4_text"):
        return gemma4_numpy.read_text(raw)
    if raw["model_type"] != "gemma3":
        return raw
    dtype = {key: raw[key] for key in ("dtype", "torch_dtype") if key in raw}
    return {"model_type": "gemma3_text", **GEMMA3, **dtype, **raw["text_config"]}


def text_part(weights):
    """A multimodal Gemma's or Qwen3.5's text model, by the names that it has alone; those of a
    model without a head, as with one."""
    inner = "language_model."
    if "embed_tokens.weight" in weights:
        return {f"model.{name}": values for name, values in weights.items()}
    if any(name.startswith(f"model.{inner}") for name in weights):
        return {name.replace(f"model.{inner}", "model."): values
                for name, values in weights.items()}
    if not any(name.startswith(inner) for name in weights):
        return weights
    return {name[len(inner):]: values for name, values in weights.items()
            if name.startswith(inner)}


def split_fused(directory, weights):
    """Phi-3 has q, k and v in one tensor, and gate and up in another, as GLM has; here they are
    apart. So is what Qwen3-Next and Qwen3.5 have together."""
    config = read_json(directory)
    if config["model_type"] in RECURRENT:
        return recurrent_numpy.apart(config, weights)
    if config["model_type"] not in ("phi3", *GLM):
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


def split_experts(weights):
    """gpt-oss has all experts in one tensor, MXFP4: groups of 32 columns, two codes a byte and a
    power of two for each group; gates and ups take turns. So have Mistral 4 and Gemma 4, ups behind
    gates. Here they are apart."""
    split = {}
    for name, values in weights.items():
        both = re.fullmatch(r"(.*experts\.)(gate_up|down)_proj", name)
        for e, one in enumerate(values if both else ()):
            keys = both[2].split("_")
            for key, rows in zip(keys, np.split(one, len(keys))):
                split[f"{both[1]}{e}.{key}_proj.weight"] = rows
        if both:
            continue
        part = re.fullmatch(r"(.*experts\.)(gate_up|down)_proj_(blocks|bias)", name)
        if part and part[3] == "blocks":
            codes = np.stack([E2M1[values & 15], E2M1[values >> 4]], axis=-1)
            scale = 2.0 ** (weights[name.replace("_blocks", "_scales")].astype(int) - 127)
            codes = codes.reshape(*scale.shape, 32) * scale[..., None]
            values = codes.reshape(*scale.shape[:2], -1)
        what = "weight" if part and part[3] == "blocks" else "bias"
        for e, one in enumerate(values if part else ()):
            parts = ({"gate": one[0::2], "up": one[1::2]} if part[2] == "gate_up"
                     else {"down": one})
            for key, rows in parts.items():
                split[f"{part[1]}{e}.{key}_proj.{what}"] = rows
        if not part and not name.endswith("_scales"):
            split[name] = values
    return split


def read_weights(directory):
    """The weights of a checkpoint directory, by name, from its index or its single file."""
    directory = pathlib.Path(directory)
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        weights = text_part(read_safetensors(directory / "model.safetensors"))
        return split_experts(split_fused(directory, weights))
    where = json.loads(index.read_text())["weight_map"]
    files = {file: read_safetensors(directory / file) for file in set(where.values())}
    weights = {name: files[file][name] for name, file in where.items()}
    return split_experts(split_fused(directory, text_part(weights)))


def turns_of(raw):
    """Of each layer, whether its queries and keys turn."""
    layers = range(raw["num_hidden_layers"])
    if raw["model_type"] in EXAONE and raw.get("sliding_window", 4096) is not None:
        return [window > 0 for window in windows_of(raw)]
    if raw["model_type"] != "smollm3":
        return [True for _ in layers]
    if raw.get("no_rope_layers"):
        return [raw["no_rope_layers"][i] == 1 for i in layers]
    return [(i + 1) % raw.get("no_rope_layer_interval", 4) != 0 for i in layers]


def windows_of(raw):
    """Of each layer, how many of the latest positions it sees; 0: all."""
    kind, layers = raw["model_type"], range(raw["num_hidden_layers"])
    unsaid = None if kind in ("ministral3", "mixtral", "phi3", "smollm3") else \
        128 if kind == "gpt_oss" else 4096
    window = raw.get("sliding_window", unsaid) or 0
    may_slide = "qwen" not in kind and kind != "smollm3" or raw.get("use_sliding_window")
    if kind in (*NO_WINDOWS, *RECURRENT) or not may_slide:
        window = 0
    if kind in ("ministral3", "mistral", "mixtral", "phi3", "qwen3_moe"):
        slides = [True for _ in layers]
    elif raw.get("layer_types"):
        slides = [given == "sliding_attention" for given in raw["layer_types"]]
    elif "gemma" in kind or kind in ("gpt_oss", "olmo3", *EXAONE):
        pattern = raw.get("sliding_window_pattern", 6) if kind == "gemma3_text" else \
            raw.get("sliding_window_pattern", 4) if kind in EXAONE else 4 if kind == "olmo3" else 2
        slides = [(i + 1) % pattern != 0 for i in layers]
    elif kind == "smollm3":
        slides = [not turns for turns in turns_of(raw)]
    else:
        slides = [i >= raw.get("max_window_layers", 62 if kind == "dots1" else 28) for i in layers]
    return [window if one else 0 for one in slides]


def rotations_of(raw):
    """theta and scaling, and the same of the layers with a window."""
    def rotation(rope, theta):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "longrope":
            rope = {"original_max_position_embeddings":
                    raw.get("original_max_position_embeddings", 4096), **rope,
                    "context": raw["max_position_embeddings"]}
        return rope.get("rope_theta", theta), {**rope, "rope_type": kind}

    two = raw["model_type"] in TWO_ROTATIONS
    theta = raw.get("rope_theta", THETAS.get(raw["model_type"], 10000.0))
    rope = raw.get("rope_parameters") or {}
    whole = rope.get("full_attention", {}) if two else rope
    whole = rotation(whole or raw.get("rope_scaling") or {}, theta)
    if not two:
        return whole, whole
    # transformers 5 knows no other theta for OLMo 3 here than that of its files; vLLM reads it.
    local = theta if raw["model_type"] == "olmo3" else raw.get("rope_local_base_freq", 10000.0)
    return whole, rotation(rope.get("sliding_attention", {}), local)


def rounded_root(raw, number):
    """The root of a number, rounded to the dtype of the weights."""
    scale = np.float32(math.sqrt(number))
    dtype = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    if dtype == "bfloat16":  # to nearest: no root below 256 lies half way
        bits = np.array([scale]).view(np.uint32) + np.uint32(0x8000) & np.uint32(0xffff0000)
        return float(bits.view(np.float32)[0])
    return float(np.dtype(dtype).type(scale))


def embed_scale_of(raw):
    """What embeddings are multiplied with."""
    if raw["model_type"] not in GEMMA:
        return raw.get("embedding_multiplier", 1.0) if raw["model_type"] == "granite" else 1.0
    return rounded_root(raw, raw["hidden_size"])


def latent_of(raw):
    if raw["model_type"] not in LATENTS:
        return None
    kind = raw["model_type"]
    default = (768, 192, 256) if kind == "glm4_moe_lite" else \
        (1024, 64, 128) if kind == "mistral4" else (1536, 128, 128)
    return Latent(query=raw.get("q_lora_rank", default[0]) or 0,
                  value=raw.get("kv_lora_rank", 256 if kind == "mistral4" else 512),
                  turns=raw.get("qk_rope_head_dim", 64),
                  plain=raw.get("qk_nope_head_dim", default[1]),
                  head=raw.get("v_head_dim", default[2]))


def latent_scalar(latent, scaling):
    """Scores are divided by its root: the width of a query, less what YaRN's mscale_all_dim makes
    of them, twice, but for Mistral 4."""
    plain = scaling["rope_type"] == "default" or "llama_4_scaling_beta" in scaling
    all_dim = 0 if plain else scaling.get("mscale_all_dim", 0)
    factor = max(scaling.get("factor", 1), 1)
    return (latent.plain + latent.turns) / (0.1 * all_dim * math.log(factor) + 1) ** 4


def groups_of(raw):
    """DeepSeek-V2's are none unless topk_method says so."""
    if raw["model_type"] == "deepseek_v2" and raw.get("topk_method", "greedy") == "greedy":
        return 1, 1
    default = GROUPS.get(raw["model_type"], (1, 1))
    return raw.get("n_group", default[0]), raw.get("topk_group", default[1])


def read_config(directory):
    """config.json with its defaults filled in; refuses what the forward pass does not do."""
    raw = read_json(directory)
    kind = raw["model_type"]
    (theta, scaling), local = rotations_of(raw)
    unsupported = [key for key in ("attention_bias", "mlp_bias", "use_bias",
                                   "use_bidirectional_attention")
                   if raw.get(key) and (key != "attention_bias" or kind not in BIASES)]
    gemma, mixture = kind in GEMMA, kind in MIXTURES
    later = kind in ("gemma2", "gemma3_text", "gemma4_text")
    gemma4 = gemma4_numpy.text_of(raw, lambda number: rounded_root(raw, number))
    if gemma4 and raw.get("use_bidirectional_attention") == "vision":
        unsupported.remove("use_bidirectional_attention")  # texts are not concerned
    mixture = mixture and raw.get("num_experts") != 0
    if not (gemma or mixture) and kind not in (*PLAIN, *RECURRENT):
        unsupported.append("model_type")
    if later:  # these do not read hidden_act
        known = raw.get("hidden_activation", "gelu_pytorch_tanh") == "gelu_pytorch_tanh"
    elif gemma:  # "gelu" means the form with tanh, too; hidden_activation is not read
        known = raw.get("hidden_act", "gelu") in ("gelu", "gelu_pytorch_tanh")
    else:
        known = raw.get("hidden_act", "silu") == "silu"
    if not known:
        unsupported.append("hidden_act")
    if raw.get("attn_logit_softcapping") and kind == "gemma3_text":
        unsupported.append("attn_logit_softcapping")  # transformers does not apply it there
    known = all(one["rope_type"] in ("default", "linear", "llama3", "longrope", "yarn")
                or gemma4 and one["rope_type"] == "proportional" for one in (scaling, local[1]))
    heads = raw["num_attention_heads"]
    latent = latent_of(raw)
    head_dim = raw.get("head_dim") or HEAD_DIMS.get(kind, raw["hidden_size"] // heads)
    head_dim = latent.turns if latent else head_dim
    turned = 0.5 if kind in HALVES else 0.25 if kind in RECURRENT else 1.0
    if kind == "minimax_m2":
        turned = raw.get("rotary_dim", head_dim) / head_dim
    partial = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor", turned))
    if kind == "mistral4":  # whose factor is of a whole query
        partial = partial * (latent.plain + latent.turns) / latent.turns
    if gemma4:  # where it means something else
        head_dim, partial = gemma4.heads[-1][0], 1
    if not known or partial != 1 and kind not in ("phi3", "minimax_m2", *HALVES, *RECURRENT):
        unsupported.append("rope")
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        unsupported.append("layers without experts")
    if raw.get("clip_qkv") is not None:
        unsupported.append("clip_qkv")
    if raw.get("moe_layer_freq", 1) != 1 or kind == "deepseek_v2" and raw.get("norm_topk_prob"):
        unsupported.append("moe_layer_freq or norm_topk_prob")
    if latent and raw.get("num_key_value_heads", heads) != heads:
        unsupported.append("num_key_value_heads")
    if unsupported:
        raise ValueError(f"{directory}: unsupported in config.json: {', '.join(unsupported)}")
    return Config(
        vocab=raw["vocab_size"],
        hidden=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        rotary_dim=int(head_dim * partial),
        local_rotary_dim=raw["head_dim"] if gemma4 else int(head_dim * partial),
        interleaved=kind in ("ernie4_5", "ernie4_5_moe", "deepseek_v2", *GLM)
        or bool(latent) and raw.get("rope_interleave", True),
        eps=raw.get("rms_norm_eps", EPSILONS.get(kind, 1e-6)),
        tied=raw.get("tie_word_embeddings",
                     gemma or kind in ("ernie4_5", "ernie4_5_moe", "smollm3", "youtu")),
        theta=theta,
        scaling=scaling,
        local=local,
        windows=windows_of(raw),
        turns=turns_of(raw),
        chosen=raw.get("moe_k", raw.get("num_experts_per_tok")) if mixture else 0,
        among=kind in AMONG or raw.get("norm_topk_prob", kind in (
            "glm4_moe", "exaone_moe", "solar_open", *V3_LATENTS)),
        scale=raw.get("routed_scaling_factor", SCALES.get(kind, 1.0)),
        groups=groups_of(raw),
        latent=latent,
        recurrent=recurrent_numpy.heads_of(raw),
        gemma4=gemma4,
        act=gelu if gemma else silu,
        norm_offset=float(gemma and not gemma4 or kind in RECURRENT),
        embed_scale=embed_scale_of(raw),
        residual_scale=raw.get("residual_multiplier", 1.0) if kind == "granite" else 1.0,
        logit_scale=1 / raw.get("logits_scaling", 1.0) if kind == "granite" else 1.0,
        query_scalar=latent_scalar(latent, scaling) if latent else 1 if gemma4 else
        raw.get("attention_multiplier", 1.0) ** -2 if kind == "granite" else
        raw.get("query_pre_attn_scalar", 256) if later else head_dim,
        score_cap=raw.get("attn_logit_softcapping", 50.0) if kind == "gemma2" else None,
        logit_cap=raw.get("final_logit_softcapping", 30.0 if kind == "gemma2" else None)
        if later else None,
    )


# ---- forward ----------------------------------------------------------------------------------


def inverse_frequencies(config):
    """Rotation per position of each of the pairs that turn, in radians."""
    pairs = np.arange(0, config.rotary_dim, 2) / config.rotary_dim
    inverse = config.theta ** -pairs
    if config.scaling["rope_type"] == "default":
        return inverse
    if config.scaling["rope_type"] == "proportional":
        return gemma4_numpy.proportional_frequencies(config.theta, config.scaling,
                                                     config.rotary_dim)
    if config.scaling["rope_type"] == "linear":
        return inverse / config.scaling["factor"]
    if config.scaling["rope_type"] == "yarn":
        return yarn_frequencies(config, inverse)
    if config.scaling["rope_type"] == "longrope":  # as vLLM: by the longest context, not by now's
        long = config.scaling["context"] > config.scaling["original_max_position_embeddings"]
        return inverse / np.array(config.scaling["long_factor" if long else "short_factor"])
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
    """What YaRN and LongRoPE multiply cosines and sines with."""
    def scale(by):
        return 0.1 * by * math.log(given["factor"]) + 1 if given["factor"] > 1 else 1.0

    given = config.scaling
    if given["rope_type"] not in ("longrope", "yarn"):
        return 1.0
    if given.get("attention_factor") is not None:
        return given["attention_factor"]
    if given["rope_type"] == "longrope":
        original = given["original_max_position_embeddings"]
        stretch = max(1, given.get("factor") or given["context"] / original)
        return math.sqrt(1 + math.log(stretch) / math.log(original))
    if given.get("mscale") and given.get("mscale_all_dim"):
        return scale(given["mscale"]) / scale(given["mscale_all_dim"])
    return scale(1)


def query_scale(config, count):
    """What queries of positions are multiplied with: Ministral 3's, which Llama 4 has, too."""
    beta = config.scaling.get("llama_4_scaling_beta", 0.0)
    if not beta:
        return np.ones(count)
    original = config.scaling["original_max_position_embeddings"]
    return 1 + beta * np.log(1 + np.arange(count) // original)


def clamped(gate, up):
    """gpt-oss's SwiGLU."""
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return (up + 1) * gate * (0.5 + 0.5 * np.tanh(0.851 * gate))  # gate * sigmoid(1.702 gate)


def choose(config, scores, corrected):
    """The experts with the largest scores of one token, of those in the groups that it keeps: those
    with the largest score in them, or where there are corrections, sum of their two largest."""
    groups, kept = config.groups
    inside = np.sort(scores.reshape(groups, -1), axis=-1)
    worth = inside[:, -2:].sum(axis=-1) if corrected else inside[:, -1]
    left = np.argsort(-worth, kind="stable")[kept:]
    scores = scores.reshape(groups, -1).copy()
    scores[left] = -np.inf
    return np.argsort(-scores.reshape(-1), kind="stable")[:config.chosen]


def mixture(config, weights, prefix, y, met):
    """The experts of each row of y by their shares: parts of the softmax, or, where the choice has
    corrections, sigmoids, but for ERNIE.  Added to that: the MLP that all rows share."""
    mixtral = f"{prefix}block_sparse_moe.gate.weight" in weights
    where = f"{prefix}block_sparse_moe." if mixtral else f"{prefix}mlp."
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    router = f"{where}router" if f"{where}router.weight" in weights else f"{where}gate"
    shares = y @ weights[f"{router}.weight"].T + weights.get(f"{router}.bias", 0.0)
    statics = weights.get(f"{where}moe_statics.e_score_correction_bias")  # ERNIE's
    corrections = weights.get(f"{router}.e_score_correction_bias", weights.get(
        f"{where}e_score_correction_bias", statics if statics is None else statics[0]))
    if corrections is not None and statics is None:
        shares = sigmoid(shares)
    else:
        shares = np.exp(shares - shares.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
    out = np.zeros_like(y)
    for name in ("shared_experts", "shared_expert"):
        if f"{where}{name}.{gate}.weight" in weights:
            def shared(part, x, name=name):
                return met(x, f"shared.{part}") @ weights[f"{where}{name}.{part}.weight"].T
            out = shared(down, silu(shared(gate, y)) * shared(up, y))
    if f"{where}shared_expert_gate.weight" in weights:
        out *= sigmoid(y @ weights[f"{where}shared_expert_gate.weight"].T)
    for t, share in enumerate(shares):
        scores = share if corrections is None else share + corrections
        chosen = choose(config, scores, corrections is not None)
        total = (share[chosen].sum() if config.among else 1.0) / config.scale
        for e in chosen:
            def project(name, x, e=e):
                part = f"{where}experts.{e}.{name}"
                return met(x, name) @ weights[f"{part}.weight"].T + weights.get(f"{part}.bias", 0.0)
            x = y[t:t + 1]
            g, u = project(gate, x), project(up, x)
            g = clamped(g, u) if router.endswith("router") else silu(g) * u
            out[t] += share[e] / total * project(down, g)[0]
    return out


def latent_heads(config, project, norm, y, stored):
    """Queries, keys and values [n, heads, ...] of rows y by section 2.1 of DeepSeek-V2's paper
    (arXiv 2405.04434), equations 37 to 47 before the rotation: those of all heads are made of
    latents, but for a part of keys that turns, which heads share. Elements that turn come first
    here, last in the checkpoint. A KV cache holds the latent and that part."""
    latent = config.latent
    if latent.query > 0:
        y_query = norm("q_a_layernorm", project("self_attn.q_a_proj", y))
        q = project("self_attn.q_b_proj", y_query)
    else:
        q = project("self_attn.q_proj", y)
    compressed = project("self_attn.kv_a_proj_with_mqa", y)
    value = stored(norm("kv_a_layernorm", compressed[:, :latent.value]))
    kv = project("self_attn.kv_b_proj", value).reshape(len(y), config.heads, -1)
    q = q.reshape(len(y), config.heads, -1)
    shared = np.repeat(compressed[:, None, latent.value:], config.heads, axis=1)
    q = np.concatenate([q[..., latent.plain:], q[..., :latent.plain]], axis=-1)
    k = np.concatenate([shared, kv[..., :latent.plain]], axis=-1)
    return q, k, kv[..., latent.plain:]


def layer(config, weights, prefix, x, rotation, window, stored, met):
    def project(name, y):
        bias = weights.get(f"{prefix}{name}.bias", 0.0)
        return met(y, name) @ weights[f"{prefix}{name}.weight"].T + bias

    def norm(name, y):
        return rms_norm(y, config.norm_offset + weights[f"{prefix}{name}.weight"], config.eps)

    def joint_or_own(name, y):
        """A norm as wide as its weight: of all heads together, as OLMo and MiniMax-M2 have it, or
        of each, as Qwen3 and Gemma 3."""
        return norm(name, y.reshape(len(x), -1, weights[f"{prefix}{name}.weight"].size))

    def latent_norm(name, y):
        return rms_norm(y, weights[f"{prefix}self_attn.{name}.weight"], LATENT_EPSILON)

    def attend(y):
        if config.latent:
            q, k, v = latent_heads(config, project, latent_norm, y, stored)
        else:
            q, k, v = (project(f"self_attn.{name}_proj", y) for name in "qkv")
            if f"{prefix}self_attn.q_norm.weight" in weights:
                q, k = joint_or_own("self_attn.q_norm", q), joint_or_own("self_attn.k_norm", k)
            q, k, v = (one.reshape(len(x), -1, config.head_dim) for one in (q, k, v))
        if rotation:
            q, k = (rotate(one, *rotation, config.interleaved) for one in (q, k))
        q = q * query_scale(config, len(x))[:, None, None]
        if config.latent:
            k[..., :config.latent.turns] = stored(k[..., :config.latent.turns])
        else:
            k, v = stored(k), stored(v)
        out = attention(config, q, k, v, window,
                        weights.get(f"{prefix}self_attn.sinks"))  # gpt-oss
        if config.recurrent:
            out *= sigmoid(project("self_attn.gate_proj", y))
        return project("self_attn.o_proj", out)

    # Names of norms behind attention, before and behind the MLP: of Gemma 2 and 3, and GLM-4-0414,
    # which have all four; of OLMo 2 and 3, which have none before anything
    behind_only = f"{prefix}input_layernorm.weight" not in weights
    gemma = f"{prefix}post_feedforward_layernorm.weight" in weights
    after = gemma or f"{prefix}post_mlp_layernorm.weight" in weights
    behind, before, last = GEMMA_NORMS if gemma else GLM4_NORMS
    y = x if behind_only else norm("input_layernorm", x)
    if f"{prefix}linear_attn.A_log" in weights:
        y = recurrent_numpy.recur(config, weights, prefix, project, y)
    else:
        y = attend(y)
    x = x + config.residual_scale * (norm(behind, y) if after else y)
    y = x if behind_only else norm(before, x)
    if config.chosen > 0 and f"{prefix}mlp.gate_proj.weight" not in weights:
        return x + mixture(config, weights, prefix, y, met)
    gate, up = project("mlp.gate_proj", y), project("mlp.up_proj", y)
    y = project("mlp.down_proj", config.act(gate) * up)
    return x + config.residual_scale * (norm(last, y) if after else y)


def hidden(config, weights, ids, stored=lambda x: x, met=lambda x, name: x):
    """Hidden states [n, D] behind the last norm at every position of ids; stored: what a KV cache
    makes of keys and values; met: what the weight of that name makes of its input."""
    def rotation(theta, scaling, dim):
        own = config._replace(theta=theta, scaling=scaling, rotary_dim=dim)
        angles = np.outer(np.arange(len(ids)), inverse_frequencies(own))[:, None, :]
        return [rotation_scale(own) * turn(angles) for turn in (np.cos, np.sin)]

    embedding = weights["model.embed_tokens.weight"]
    whole = rotation(config.theta, config.scaling, config.rotary_dim)
    local = rotation(*config.local, config.local_rotary_dim)
    x = embedding[np.asarray(ids)] * config.embed_scale
    small = config.gemma4 and config.gemma4.small > 0
    small, kept = gemma4_numpy.small_inputs(config, weights, ids, x, met) if small else None, {}
    for i, window in enumerate(config.windows):
        turn = (local if window else whole) if config.turns[i] else None
        if config.gemma4:
            own = None if small is None else small[:, i]
            x = gemma4_numpy.layer(config, weights, i, x, own, turn, window, stored, met, kept)
            continue
        x = layer(config, weights, f"model.layers.{i}.", x, turn, window, stored, met)
    return rms_norm(x, config.norm_offset + weights["model.norm.weight"], config.eps)


def forward(config, weights, ids, stored=lambda x: x, met=lambda x, name: x):
    """Logits [n, V], likewise."""
    x = hidden(config, weights, ids, stored, met)
    head = weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
    return capped(config.logit_scale * (met(x, "lm_head") @ head.T), config.logit_cap)


def vector(directory, ids):
    """The hidden state of the last of ids, divided by its length."""
    last = hidden(read_config(directory), read_weights(directory), ids)[-1]
    return last / np.linalg.norm(last)


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
