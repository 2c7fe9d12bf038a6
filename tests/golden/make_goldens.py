#!/usr/bin/env python3
"""Makes the small random checkpoints in this directory and their golden outputs.

    pip install -r requirements.txt
    python3 make_goldens.py [NAME ...]          # all checkpoints when no name is given

Everything it writes is committed, so a test run never needs torch or transformers.

Seeds are searched.  Greedy decoding is only a usable exact check when no step is a near tie, so
for each checkpoint the script tries seeds upwards from Spec.seed until, at each of the 128 steps
of both prompts, the gap between the two largest logits exceeds 1e-3 * max|logit|, and the
continuation is not one short loop; of a mixture in bfloat16, until rounding changes no choice of
experts.  A float32 engine errs by about 1e-6 * max|logit|, so it must
then reproduce every token.  The seeds recorded below are the ones the search found: a rerun
accepts each at the first try.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch_file

HERE = pathlib.Path(__file__).resolve().parent
PROMPT_LENGTHS = (37, 5)
GREEDY_STEPS = 128
MIN_RELATIVE_GAP = 1e-3
MAX_HELD_ERROR = 3e-2  # of a mixture in bfloat16, relative to max|logit|
MIN_DISTINCT = 40  # distinct tokens in a continuation: rejects runs that fall into a short loop
MAX_TRIES = 20000

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,  # small, so that 165 positions feel the scaling
    "rope_type": "llama3",
}
YARN = {  # as gpt-oss has it, from so few positions that 165 feel it
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "original_max_position_embeddings": 16,
    "rope_type": "yarn",
    "truncate": False,
}
DEEPSEEK_YARN = {  # DeepSeek-V3's, as far
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 32.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "type": "yarn",
}
DEEPSEEK_V3 = {
    "attention_bias": False,
    "ep_size": 1,
    "moe_layer_freq": 1,
    "n_group": 4,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 2,
    "topk_method": "noaux_tc",
}
MINISTRAL_YARN = {  # Ministral 3's, as far
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "rope_type": "yarn",
    "type": "yarn",
}
MXFP4 = {
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                               "model.embed_tokens", "lm_head"],
    "quant_method": "mxfp4",
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GEMMA = ("Gemma", "Gemma2", "Gemma3")  # norms multiply by 1 + weight, embeddings are scaled
TWO_ROTATIONS = ("Gemma3", "Gemma4", "Olmo3")
OLMO = ("Olmo2", "Olmo3", "Olmoe")
RECURRENT = ("Qwen3Next", "Qwen3_5", "Qwen3_5Moe")  # the same, but for norms of the gated delta rule
VISION = {  # of a multimodal checkpoint: one block of a tower that a text engine leaves alone
    "hidden_size": 8,
    "image_size": 8,
    "intermediate_size": 12,
    "model_type": "siglip_vision_model",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "patch_size": 4,
    "vision_use_head": False,
}
QWEN_VISION = {  # the same of Qwen3.5's
    "depth": 1,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 8,
    "in_channels": 3,
    "intermediate_size": 12,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
GEMMA4_VISION = {  # the same of Gemma 4's
    "head_dim": 4,
    "hidden_size": 8,
    "intermediate_size": 12,
    "model_type": "gemma4_vision",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 16,
}
GEMMA4_AUDIO = {  # and one that hears, as E2B and E4B have it
    "hidden_size": 8,
    "model_type": "gemma4_audio",
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "output_proj_dims": 12,
    "subsampling_conv_channels": [4, 2],
}
PROPORTIONAL = {"partial_rotary_factor": 0.25, "rope_type": "proportional"}
GEMMA4 = {  # what its specs share
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "num_global_key_value_heads": 2,
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "use_double_wide_mlp": False,
}
GEMMA4_SHAPE = dict(tied=True, heads=8, kv_heads=4, head_dim=16, rope_theta=1000000.0,
                    scaling=PROPORTIONAL, family="Gemma4", model_type="gemma4_text",
                    embed_std=0.08)


def kinds(letters):
    """layer_types by their first letters."""
    return ["sliding_attention" if one == "s" else "full_attention" for one in letters]


@dataclasses.dataclass(frozen=True)
class Spec:
    """One checkpoint: its shape, its storage, and the seed its weights and prompts come from."""

    name: str
    seed: int
    dtype: str
    tied: bool
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    head_dim: int
    dialect: str = "new"  # "new": rope_parameters and dtype; "old": rope_theta and torch_dtype
    rope_theta: float = 10000.0
    local_theta: float = 10000.0  # Gemma3, Gemma4, Olmo3: of the layers with a window
    scaling: dict | None = None
    family: str = "Llama"  # of transformers' classes
    model_type: str = ""  # family in small letters, where nothing else is said
    extra: dict = dataclasses.field(default_factory=dict)  # more config keys
    omit: tuple = ()  # config keys left out because the loader must know their default
    shard_bytes: int | None = None
    std: float = 0.2
    embed_std: float | None = None  # std where nothing else is said
    wrapped: bool = False  # inside a multimodal checkpoint


LLAMA31 = dict(tied=True, vocab=509, hidden=96, layers=2, heads=4, kv_heads=2, mlp=176,
               head_dim=24, rope_theta=500000.0, scaling=LLAMA3_SCALING)
SPECS = (
    Spec("tied_gqa2_f32", 0, "float32", tied=True, vocab=259, hidden=64, layers=3, heads=8,
         kv_heads=2, mlp=176, head_dim=8),
    # As in Llama 2 files: no rope_theta, no head_dim.
    Spec("untied_mha_bf16", 2, "bfloat16", tied=False, vocab=301, hidden=96, layers=2, heads=8,
         kv_heads=8, mlp=149, head_dim=12, dialect="old", omit=("rope_theta", "head_dim")),
    # Six query heads: at P = 8 two ranks own no head.
    Spec("untied_mqa_f16", 1, "float16", tied=False, vocab=131, hidden=48, layers=3, heads=6,
         kv_heads=1, mlp=131, head_dim=8, dialect="old", shard_bytes=100_000),
    Spec("headdim_bf16", 7, "bfloat16", tied=True, vocab=389, hidden=80, layers=2, heads=5,
         kv_heads=5, mlp=97, head_dim=24),
    Spec("llama31_rope_f32", 42, "float32", **LLAMA31),
    # As in Llama 3.1 files: no head_dim.
    Spec("llama31_rope_old_bf16", 23, "bfloat16", dialect="old", omit=("head_dim",), **LLAMA31),
    # As in Mistral Nemo files: head_dim is not hidden / heads; a window longer than the context.
    Spec("mistral_f32", 4, "float32", tied=False, vocab=211, hidden=64, layers=2, heads=4,
         kv_heads=2, mlp=112, head_dim=24, family="Mistral", extra={"sliding_window": 4096}),
    # As Ministral 3's files: YaRN, and queries that grow with their positions.
    Spec("ministral3_f32", 10, "float32", tied=True, vocab=229, hidden=64, layers=2, heads=6,
         kv_heads=2, mlp=97, head_dim=16, rope_theta=1000000.0, scaling=MINISTRAL_YARN,
         family="Ministral3", extra={"sliding_window": None}),
    Spec("ministral3_bf16", 4, "bfloat16", tied=False, vocab=283, hidden=80, layers=2, heads=5,
         kv_heads=1, mlp=112, head_dim=24, rope_theta=1000000.0,
         scaling={**MINISTRAL_YARN, "llama_4_scaling_beta": 0.5}, family="Ministral3"),
    # As in Qwen2.5 files of small models: no head_dim, a window that is off; seven query heads.
    Spec("qwen2_gqa_bf16", 19, "bfloat16", tied=True, vocab=307, hidden=84, layers=2, heads=7,
         kv_heads=1, mlp=149, head_dim=12, dialect="old", rope_theta=1000000.0, omit=("head_dim",),
         family="Qwen2", extra={"sliding_window": 64, "use_sliding_window": False,
                                "max_window_layers": 1}),
    Spec("qwen2_f32", 29, "float32", tied=False, vocab=241, hidden=64, layers=2, heads=8,
         kv_heads=2, mlp=96, head_dim=8, family="Qwen2"),
    Spec("qwen3_bf16", 49, "bfloat16", tied=True, vocab=311, hidden=64, layers=2, heads=6,
         kv_heads=3, mlp=112, head_dim=16, family="Qwen3", rope_theta=1000000.0,
         extra={"layer_types": ["full_attention"] * 2}),
    Spec("qwen3_f32", 32, "float32", tied=False, vocab=233, hidden=48, layers=3, heads=8,
         kv_heads=4, mlp=80, head_dim=12, dialect="old", family="Qwen3",
         extra={"use_sliding_window": False, "sliding_window": None, "max_window_layers": 3}),
    # As Phi-4's files: q, k and v in one tensor, gate and up in one; no head_dim.
    Spec("phi3_bf16", 0, "bfloat16", tied=False, vocab=263, hidden=60, layers=2, heads=5,
         kv_heads=5, mlp=74, head_dim=12, dialect="old", family="Phi3", omit=("head_dim",),
         extra={"sliding_window": None, "pad_token_id": 0}),
    Spec("phi3_gqa_f32", 3, "float32", tied=False, vocab=237, hidden=64, layers=2, heads=8,
         kv_heads=2, mlp=96, head_dim=8, family="Phi3", rope_theta=250000.0,
         extra={"sliding_window": 2047, "pad_token_id": 0}),
    # As Qwen's files whose context was stretched by hand.
    Spec("qwen3_yarn_f32", 38, "float32", tied=True, vocab=239, hidden=64, layers=2, heads=4,
         kv_heads=2, mlp=96, head_dim=32, dialect="old", family="Qwen3", rope_theta=10000.0,
         scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}),
    # All that YaRN's parameters can say, and a ramp that begins between pairs.
    Spec("qwen2_yarn_bf16", 19, "bfloat16", tied=False, vocab=217, hidden=64, layers=2, heads=4,
         kv_heads=4, mlp=80, head_dim=16, family="Qwen2", rope_theta=500.0,
         scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
                  "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 0.4,
                  "truncate": False}),
    Spec("linear_rope_f32", 6, "float32", tied=True, vocab=227, hidden=64, layers=2, heads=4,
         kv_heads=4, mlp=96, head_dim=16, scaling={"rope_type": "linear", "factor": 4.0}),
    # As Mixtral's files: tensors are named after its own layers; MLP columns that need not divide.
    Spec("mixtral_f32", 1, "float32", tied=False, vocab=223, hidden=48, layers=2, heads=6,
         kv_heads=2, mlp=37, head_dim=8, dialect="old", family="Mixtral", rope_theta=1000000.0,
         extra={"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None}),
    Spec("qwen3_moe_bf16", 33, "bfloat16", tied=False, vocab=251, hidden=64, layers=2, heads=8,
         kv_heads=2, mlp=16, head_dim=16, family="Qwen3Moe", model_type="qwen3_moe",
         rope_theta=1000000.0,
         extra={"num_experts": 12, "num_experts_per_tok": 4, "norm_topk_prob": True,
                "moe_intermediate_size": 40, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2}),
    # Shares among all experts, which then add up to less than one.
    Spec("qwen3_moe_f32", 4, "float32", tied=False, vocab=229, hidden=48, layers=3, heads=4,
         kv_heads=1, mlp=16, head_dim=12, dialect="old", family="Qwen3Moe",
         model_type="qwen3_moe", extra={"num_experts": 8, "num_experts_per_tok": 3,
                                        "norm_topk_prob": False, "moe_intermediate_size": 24},
         std=0.35),
    # Every layer has a window.
    Spec("mistral_window_f32", 17, "float32", tied=False, vocab=215, hidden=60, layers=2, heads=6,
         kv_heads=2, mlp=106, head_dim=20, family="Mistral", extra={"sliding_window": 24}),
    # The first layer has none; no layer_types.
    Spec("qwen2_window_bf16", 25, "bfloat16", tied=True, vocab=219, hidden=60, layers=3, heads=5,
         kv_heads=1, mlp=90, head_dim=12, dialect="old", rope_theta=1000000.0, omit=("head_dim",),
         family="Qwen2", extra={"sliding_window": 19, "use_sliding_window": True,
                                "max_window_layers": 1}),
    Spec("phi3_window_f32", 0, "float32", tied=False, vocab=221, hidden=60, layers=2, heads=5,
         kv_heads=1, mlp=74, head_dim=12, family="Phi3",
         extra={"sliding_window": 33, "pad_token_id": 0}),
    # As Phi-4-mini's files: a part of each head turns, every pair slowed by a factor of its own; all
    # contexts of more than 4 tokens are long.
    Spec("phi3_longrope_f32", 7, "float32", tied=True, vocab=243, hidden=64, layers=2, heads=4,
         kv_heads=2, mlp=90, head_dim=16, dialect="old", family="Phi3",
         scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 3.0],
                  "long_factor": [1.0, 1.5, 2.5, 6.0, 20.0, 60.0]},
         extra={"partial_rotary_factor": 0.75, "original_max_position_embeddings": 4,
                "sliding_window": None, "pad_token_id": 0}),
    # As Gemma 1.1's files: "gelu" means the tanh form there; nothing says tied.
    Spec("gemma_f32", 3, "float32", tied=True, vocab=225, hidden=60, layers=2, heads=3,
         kv_heads=1, mlp=106, head_dim=28, dialect="old", family="Gemma", embed_std=0.08,
         omit=("tie_word_embeddings", "rope_scaling"),
         extra={"hidden_act": "gelu", "pad_token_id": 0}),
    # As Gemma 2's files: no layer_types, nothing says tied.  Caps small enough to be felt.
    Spec("gemma2_f32", 11, "float32", tied=True, vocab=235, hidden=60, layers=3, heads=6,
         kv_heads=3, mlp=106, head_dim=20, dialect="old", family="Gemma2", embed_std=0.08,
         omit=("tie_word_embeddings", "rope_scaling"),
         extra={"hidden_act": "gelu_pytorch_tanh", "pad_token_id": 0, "sliding_window": 21,
                "query_pre_attn_scalar": 12, "attn_logit_softcapping": 5.0,
                "final_logit_softcapping": 1.5}),
    # As transformers 5 writes it: layer_types, and rotations of each kind of layer.
    Spec("gemma3_f32", 15, "float32", tied=True, vocab=245, hidden=60, layers=4, heads=5,
         kv_heads=1, mlp=90, head_dim=20, family="Gemma3", model_type="gemma3_text",
         rope_theta=1000.0, local_theta=100.0, scaling={"rope_type": "linear", "factor": 8.0},
         embed_std=0.08,
         extra={"layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                "sliding_attention"],
                "pad_token_id": 0, "sliding_window": 20, "query_pre_attn_scalar": 4}),
    # As gemma-3-1b's file: a pattern for layer_types; nothing says tied.
    Spec("gemma3_bf16", 14, "bfloat16", tied=True, vocab=255, hidden=60, layers=7, heads=4,
         kv_heads=1, mlp=74, head_dim=20, dialect="old", family="Gemma3",
         model_type="gemma3_text", rope_theta=1000000.0, omit=("tie_word_embeddings",),
         embed_std=0.08,
         extra={"attn_logit_softcapping": None, "final_logit_softcapping": None,
                "cache_implementation": "hybrid", "pad_token_id": 0, "sliding_window": 18,
                "sliding_window_pattern": 3, "query_pre_attn_scalar": 6}),
    # As gemma-3-4b's file: most keys are left to their defaults, the layers to a pattern of 6.
    Spec("gemma3_wrapped_bf16", 70, "bfloat16", tied=True, vocab=253, hidden=60, layers=7, heads=6,
         kv_heads=2, mlp=90, head_dim=36, dialect="old", family="Gemma3",
         model_type="gemma3_text", rope_theta=1000000.0,
         scaling={"rope_type": "linear", "factor": 8.0}, embed_std=0.08, wrapped=True,
         omit=("architectures", "attention_bias", "attention_dropout", "bos_token_id",
               "eos_token_id", "hidden_activation", "rms_norm_eps", "rope_local_base_freq",
               "rope_theta", "tie_word_embeddings", "use_cache"),
         extra={"sliding_window": 22, "rms_norm_eps": 1e-6}),
    # As gpt-oss-20b's file; MLP columns in three groups of 32, which eight leaves do not divide.
    Spec("gpt_oss_bf16", 6, "bfloat16", tied=False, vocab=247, hidden=64, layers=3, heads=8,
         kv_heads=2, mlp=96, head_dim=16, dialect="old", family="GptOss", model_type="gpt_oss",
         rope_theta=150000.0, scaling=YARN, omit=("torch_dtype",),
         extra={"attention_bias": True, "experts_per_token": 2, "initial_context_length": 16,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "num_experts_per_tok": 2, "num_local_experts": 6, "quantization_config": MXFP4,
                "sliding_window": 24, "swiglu_limit": 7.0}),
    # Without what is the family's default; an odd number of heads, all experts but one.
    Spec("gpt_oss_f32", 0, "float32", tied=True, vocab=239, hidden=96, layers=2, heads=5,
         kv_heads=1, mlp=32, head_dim=24, family="GptOss", model_type="gpt_oss",
         rope_theta=1000.0, scaling={"rope_type": "default"}, omit=("attention_bias",),
         extra={"num_experts_per_tok": 3, "num_local_experts": 4, "quantization_config": MXFP4,
                "sliding_window": 17}),
    # As SmolLM3-3B's file: a list of the layers without rotation; no head_dim.
    Spec("smollm3_f32", 19, "float32", tied=True, vocab=231, hidden=64, layers=5, heads=4,
         kv_heads=2, mlp=80, head_dim=16, dialect="old", rope_theta=5000000.0, family="SmolLM3",
         omit=("head_dim",),
         extra={"layer_types": ["full_attention"] * 5, "max_window_layers": 28,
                "no_rope_layer_interval": 4, "no_rope_layers": [1, 0, 1, 1, 0],
                "pad_token_id": 0, "sliding_window": None, "use_sliding_window": False}),
    # Every other layer does not turn, but slides; biases.
    Spec("smollm3_window_f32", 2669, "float32", tied=False, vocab=217, hidden=60, layers=4, heads=5,
         kv_heads=1, mlp=74, head_dim=12, rope_theta=2000000.0, family="SmolLM3",
         extra={"attention_bias": True, "no_rope_layer_interval": 2, "pad_token_id": 0,
                "sliding_window": 20, "use_sliding_window": True}),
    # As Seed-OSS-36B's file: biases of q, k and v; head_dim is not hidden / heads.
    Spec("seed_oss_f32", 1253, "float32", tied=False, vocab=221, hidden=64, layers=2, heads=6,
         kv_heads=2, mlp=90, head_dim=20, dialect="old", rope_theta=10000000.0, family="SeedOss",
         model_type="seed_oss", scaling={"rope_type": "default"},
         extra={"attention_bias": True, "attention_out_bias": False, "mlp_bias": False,
                "pad_token_id": 1, "residual_dropout": 0.1}),
    # A bias of o, and none of the others.
    Spec("seed_oss_out_f32", 151, "float32", tied=True, vocab=213, hidden=60, layers=2, heads=5,
         kv_heads=1, mlp=74, head_dim=12, family="SeedOss", model_type="seed_oss",
         extra={"attention_bias": False, "attention_out_bias": True, "pad_token_id": 1}),
    # As GLM-4-0414's files: half of each head turns, in pairs of neighbours; four norms a layer.
    Spec("glm4_f32", 100, "float32", tied=False, vocab=225, hidden=64, layers=2, heads=6,
         kv_heads=2, mlp=90, head_dim=20, dialect="old", family="Glm4", model_type="glm4",
         omit=("rope_scaling",),
         extra={"attention_bias": True, "pad_token_id": 0, "partial_rotary_factor": 0.5}),
    # As glm-4-9b-chat-hf's: two norms. Nothing says how much turns, nor that there are biases.
    Spec("glm_f32", 9283, "float32", tied=True, vocab=219, hidden=60, layers=2, heads=5, kv_heads=1,
         mlp=74, head_dim=24, family="Glm", omit=("attention_bias",), extra={"pad_token_id": 0}),
    # As ERNIE-4.5-0.3B's file: whole heads turn, in pairs of neighbours.
    Spec("ernie4_5_f32", 11, "float32", tied=True, vocab=223, hidden=64, layers=2, heads=6,
         kv_heads=2, mlp=90, head_dim=20, dialect="old", rope_theta=500000.0, family="Ernie4_5",
         extra={"pad_token_id": 0, "use_bias": False}),
    # As Granite 3's files; no head_dim.
    Spec("granite_f32", 3, "float32", tied=True, vocab=229, hidden=64, layers=3, heads=4,
         kv_heads=2, mlp=90, head_dim=16, dialect="old", family="Granite", embed_std=0.08, std=0.3,
         omit=("head_dim",),
         extra={"attention_bias": False, "attention_multiplier": 0.4, "embedding_multiplier": 12.0,
                "logits_scaling": 6.0, "mlp_bias": False, "residual_multiplier": 0.22}),
    # With biases, which are multiplied, too.
    Spec("granite_bias_f32", 167, "float32", tied=False, vocab=211, hidden=60, layers=2, heads=5,
         kv_heads=5, mlp=74, head_dim=12, family="Granite",
         extra={"attention_bias": True, "attention_multiplier": 0.5, "embedding_multiplier": 3,
                "logits_scaling": 8, "residual_multiplier": 0.7}),
    # As GLM-4.5-Air's file: one dense layer, a shared expert, no norms of heads.
    Spec("glm4_moe_f32", 143, "float32", tied=False, vocab=233, hidden=60, layers=3, heads=6,
         kv_heads=2, mlp=106, head_dim=16, dialect="old", rope_theta=1000000.0, family="Glm4Moe",
         model_type="glm4_moe",
         extra={"attention_bias": True, "first_k_dense_replace": 1, "moe_intermediate_size": 26,
                "n_group": 1, "n_routed_experts": 10, "n_shared_experts": 1,
                "norm_topk_prob": True, "num_experts_per_tok": 3, "num_nextn_predict_layers": 1,
                "partial_rotary_factor": 0.5, "routed_scaling_factor": 2.5, "topk_group": 1,
                "use_qk_norm": False}),
    # Norms of heads, no biases; two dense layers, two shared experts, shares of any sum; half of
    # each head turns, though nothing says so.
    Spec("glm4_moe_bf16", 7, "bfloat16", tied=False, vocab=237, hidden=64, layers=4, heads=4,
         kv_heads=1, mlp=74, head_dim=24, family="Glm4Moe", model_type="glm4_moe",
         extra={"first_k_dense_replace": 2, "moe_intermediate_size": 40, "n_routed_experts": 12,
                "n_shared_experts": 2, "norm_topk_prob": False, "num_experts_per_tok": 4,
                "routed_scaling_factor": 0.75, "use_qk_norm": True}),
    # As Qwen1.5-MoE-A2.7B's file, with a shared expert three times as wide.
    Spec("qwen2_moe_f32", 1629, "float32", tied=False, vocab=223, hidden=60, layers=2, heads=5,
         kv_heads=5, mlp=16, head_dim=12, dialect="old", rope_theta=1000000.0, omit=("head_dim",),
         family="Qwen2Moe", model_type="qwen2_moe",
         extra={"decoder_sparse_step": 1, "max_window_layers": 2, "moe_intermediate_size": 26,
                "norm_topk_prob": False, "num_experts": 9, "num_experts_per_tok": 3,
                "shared_expert_intermediate_size": 78, "sliding_window": 64,
                "use_sliding_window": False}),
    # Experts in whole groups of 32 columns, so that codes can be made of a shared one of two.
    Spec("qwen2_moe_bf16", 123, "bfloat16", tied=False, vocab=227, hidden=64, layers=2, heads=4,
         kv_heads=2, mlp=16, head_dim=16, family="Qwen2Moe", model_type="qwen2_moe",
         extra={"moe_intermediate_size": 32, "norm_topk_prob": True, "num_experts": 12,
                "num_experts_per_tok": 3, "shared_expert_intermediate_size": 64}),
    # As OLMo-2-1124-7B's file: norms of all heads of q together, and of k; those of rows behind
    # attention and MLP alone.
    Spec("olmo2_f32", 368, "float32", tied=False, vocab=239, hidden=72, layers=3, heads=6,
         kv_heads=2, mlp=106, head_dim=12, dialect="old", rope_theta=500000.0, family="Olmo2",
         omit=("bos_token_id", "head_dim"), extra={"pad_token_id": 0, "rms_norm_eps": 1e-6}),
    # An odd number of heads, and as many of KV; rms_norm_eps is left to its default.
    Spec("olmo2_bf16", 78, "bfloat16", tied=False, vocab=229, hidden=60, layers=2, heads=5,
         kv_heads=5, mlp=90, head_dim=12, family="Olmo2", omit=("head_dim", "rms_norm_eps"),
         extra={"pad_token_id": 0}),
    # As Olmo-3-7B's file, but for which layer is full: that one alone has YaRN, the others turn
    # without it.
    Spec("olmo3_f32", 8, "float32", tied=False, vocab=227, hidden=96, layers=4, heads=6,
         kv_heads=3, mlp=90, head_dim=16, dialect="old", rope_theta=500000.0,
         local_theta=500000.0, family="Olmo3", omit=("bos_token_id", "head_dim"),
         scaling={"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
                  "factor": 8.0, "original_max_position_embeddings": 64, "rope_type": "yarn"},
         extra={"layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                "sliding_attention"],
                "pad_token_id": 0, "rms_norm_eps": 1e-6, "sliding_window": 20}),
    # No layer_types: every fourth layer is full. A theta of each kind of layer: that of those with
    # a window is the one that transformers gives them in the old dialect, whatever rope_theta is.
    Spec("olmo3_bf16", 212, "bfloat16", tied=True, vocab=233, hidden=60, layers=5, heads=5,
         kv_heads=1, mlp=74, head_dim=12, rope_theta=10000.0, local_theta=500000.0,
         family="Olmo3", omit=("head_dim",), extra={"pad_token_id": 0, "sliding_window": 18}),
    # As OLMoE-1B-7B's file: norms of all heads together; shares among all experts.
    Spec("olmoe_f32", 10, "float32", tied=False, vocab=221, hidden=72, layers=2, heads=6,
         kv_heads=2, mlp=26, head_dim=12, dialect="old", family="Olmoe",
         omit=("bos_token_id", "head_dim"),
         extra={"clip_qkv": None, "norm_topk_prob": False, "num_experts": 8,
                "num_experts_per_tok": 3, "output_router_logits": False, "pad_token_id": 0,
                "router_aux_loss_coef": 0.01}),
    # As MiniMax-M2's file: the same norms, a part of each head turns, sigmoids choose; tensors are
    # named after Mixtral's layers.
    Spec("minimax_m2_f32", 198, "float32", tied=False, vocab=231, hidden=64, layers=2, heads=6,
         kv_heads=2, mlp=37, head_dim=20, dialect="old", rope_theta=5000000.0, family="MiniMaxM2",
         model_type="minimax_m2", omit=("rope_scaling",),
         extra={"attn_type_list": [1] * 2, "mtp_transformer_layers": 1, "num_experts_per_tok": 3,
                "num_local_experts": 10, "num_mtp_modules": 3, "qk_norm_type": "per_layer",
                "rms_norm_eps": 1e-6, "rotary_dim": 8, "scoring_func": "sigmoid",
                "shared_intermediate_size": 0, "use_mtp": True, "use_qk_norm": True,
                "use_routing_bias": True}),
    # As DeepSeek-V2-Lite's file, but for the sizes, which all differ: queries are made of the row,
    # and the dense layer comes first.
    Spec("deepseek_v2_f32", 10, "float32", tied=False, vocab=229, hidden=60, layers=3, heads=4,
         kv_heads=4, mlp=106, head_dim=16, dialect="old", family="DeepseekV2",
         model_type="deepseek_v2", omit=("head_dim",),
         extra={"attention_bias": False, "first_k_dense_replace": 1, "kv_lora_rank": 64,
                "moe_intermediate_size": 26, "moe_layer_freq": 1, "n_group": 1,
                "n_routed_experts": 10, "n_shared_experts": 2, "norm_topk_prob": False,
                "num_experts_per_tok": 3, "q_lora_rank": None, "qk_nope_head_dim": 48,
                "qk_rope_head_dim": 16, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
                "topk_group": 1, "topk_method": "greedy", "v_head_dim": 32}),
    # As DeepSeek-V2's file: queries of a latent, groups of experts by their largest, YaRN, whose
    # two factors differ here.
    Spec("deepseek_v2_groups_f32", 1, "float32", tied=False, vocab=231, hidden=60, layers=3,
         heads=5, kv_heads=5, mlp=90, head_dim=32, dialect="old", family="DeepseekV2",
         model_type="deepseek_v2", omit=("head_dim",),
         scaling={"beta_fast": 32, "beta_slow": 1, "factor": 32.0, "mscale": 1.0,
                  "mscale_all_dim": 0.707, "original_max_position_embeddings": 16, "type": "yarn"},
         extra={"attention_bias": False, "first_k_dense_replace": 1, "kv_lora_rank": 48,
                "moe_intermediate_size": 20, "moe_layer_freq": 1, "n_group": 4,
                "n_routed_experts": 12, "n_shared_experts": 1, "norm_topk_prob": False,
                "num_experts_per_tok": 3, "q_lora_rank": 40, "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 32, "routed_scaling_factor": 4.0, "scoring_func": "softmax",
                "topk_group": 2, "topk_method": "group_limited_greedy", "v_head_dim": 64}),
    # As DeepSeek-V3's file: groups by the sum of their two largest corrected sigmoids. An epsilon
    # that those of the latents' norms would be seen to take.
    Spec("deepseek_v3_f32", 9, "float32", tied=False, vocab=233, hidden=64, layers=3, heads=5,
         kv_heads=5, mlp=106, head_dim=16, dialect="old", family="DeepseekV3",
         model_type="deepseek_v3", omit=("head_dim",), scaling=DEEPSEEK_YARN,
         extra={**DEEPSEEK_V3, "first_k_dense_replace": 1, "kv_lora_rank": 32,
                "moe_intermediate_size": 26, "n_routed_experts": 12, "n_shared_experts": 1,
                "num_experts_per_tok": 3, "q_lora_rank": 24, "qk_nope_head_dim": 48,
                "qk_rope_head_dim": 16, "rms_norm_eps": 1e-3, "v_head_dim": 64}),
    # Columns in whole groups of 32, so that codes can be made of every linear.
    Spec("deepseek_v3_bf16", 5239, "bfloat16", tied=False, vocab=227, hidden=64, layers=3, heads=4,
         kv_heads=4, mlp=96, head_dim=16, family="DeepseekV3", model_type="deepseek_v3",
         omit=("head_dim",), scaling={**DEEPSEEK_YARN, "rope_type": "yarn"},
         extra={**DEEPSEEK_V3, "first_k_dense_replace": 1, "kv_lora_rank": 64,
                "moe_intermediate_size": 32, "n_routed_experts": 16, "n_shared_experts": 2,
                "num_experts_per_tok": 4, "q_lora_rank": 32, "qk_nope_head_dim": 48,
                "qk_rope_head_dim": 16, "rms_norm_eps": 1e-6, "routed_scaling_factor": 0.5,
                "v_head_dim": 32}),
    # As GLM-4.7-Flash's file: heads' values wider than what does not turn of their keys, one group.
    # That the first layer has none is what transformers takes for granted without the list.
    Spec("glm4_moe_lite_f32", 17, "float32", tied=False, vocab=237, hidden=60, layers=3, heads=5,
         kv_heads=5, mlp=106, head_dim=16, dialect="old", rope_theta=1000000.0,
         family="Glm4MoeLite", model_type="glm4_moe_lite", omit=("head_dim", "mlp_layer_types"),
         extra={"attention_bias": False, "first_k_dense_replace": 1, "kv_lora_rank": 32,
                "mlp_layer_types": ["dense", "sparse", "sparse"], "moe_intermediate_size": 26,
                "n_group": 1, "n_routed_experts": 10, "n_shared_experts": 1,
                "norm_topk_prob": True, "num_experts_per_tok": 3, "num_nextn_predict_layers": 1,
                "partial_rotary_factor": 1.0, "q_lora_rank": 36, "qk_nope_head_dim": 48,
                "qk_rope_head_dim": 16, "routed_scaling_factor": 1.8, "topk_group": 1,
                "topk_method": "noaux_tc", "v_head_dim": 64}),
    # As Mistral Small 4's file, as transformers names its tensors: latents, queries that grow with
    # their positions, shares of a softmax over those chosen, all layers with experts.
    Spec("mistral4_f32", 1, "float32", tied=False, vocab=235, hidden=64, layers=2, heads=5,
         kv_heads=5, mlp=106, head_dim=32, family="Mistral4", omit=("head_dim",),
         scaling={**MINISTRAL_YARN, "partial_rotary_factor": 0.5},
         extra={"attention_bias": False, "first_k_dense_replace": 0, "kv_lora_rank": 48,
                "moe_intermediate_size": 26, "n_group": 1, "n_routed_experts": 10,
                "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 3,
                "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
                "rope_interleave": True, "routed_scaling_factor": 1.0, "topk_group": 1,
                "v_head_dim": 32}),
    # Queries of the row, a dense layer, two shared experts.
    Spec("mistral4_plain_f32", 21, "float32", tied=False, vocab=239, hidden=64, layers=3, heads=4,
         kv_heads=4, mlp=96, head_dim=64, family="Mistral4", omit=("head_dim",),
         scaling={**MINISTRAL_YARN, "llama_4_scaling_beta": 0.5, "partial_rotary_factor": 0.25},
         extra={"first_k_dense_replace": 1, "kv_lora_rank": 32, "moe_intermediate_size": 32,
                "n_routed_experts": 12, "n_shared_experts": 2, "num_experts_per_tok": 4,
                "q_lora_rank": None, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
                "routed_scaling_factor": 0.75, "v_head_dim": 48}),
    # As Youtu-LLM-2B's file: latents, and plain MLPs.
    Spec("youtu_f32", 22, "float32", tied=True, vocab=227, hidden=60, layers=2, heads=4,
         kv_heads=4, mlp=90, head_dim=16, rope_theta=1600000.0, family="Youtu", omit=("head_dim",),
         extra={"attention_bias": False, "kv_lora_rank": 32, "q_lora_rank": 40,
                "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "rms_norm_eps": 1e-6,
                "rope_interleave": True, "v_head_dim": 32}),
    # As ERNIE-4.5-21B-A3B's file: corrections of scores by softmax, a dense layer, shared experts,
    # neighbours turn together.
    Spec("ernie4_5_moe_f32", 30, "float32", tied=True, vocab=229, hidden=60, layers=3, heads=5,
         kv_heads=1, mlp=90, head_dim=12, dialect="old", rope_theta=500000.0,
         family="Ernie4_5_Moe", model_type="ernie4_5_moe", omit=("head_dim", "rope_scaling"),
         extra={"moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_intermediate_size": 26,
                "moe_k": 3, "moe_layer_end_index": 2, "moe_layer_interval": 1,
                "moe_layer_start_index": 1, "moe_num_experts": 10, "moe_num_shared_experts": 2,
                "moe_use_aux_free": True, "num_nextn_predict_layers": 1, "use_bias": False}),
    # As ERNIE-4.5-300B-A47B's: no shared experts.
    Spec("ernie4_5_moe_bf16", 3, "bfloat16", tied=False, vocab=233, hidden=64, layers=2, heads=4,
         kv_heads=2, mlp=96, head_dim=16, rope_theta=500000.0, family="Ernie4_5_Moe",
         model_type="ernie4_5_moe",
         extra={"moe_intermediate_size": 32, "moe_k": 4, "moe_layer_end_index": -1,
                "moe_layer_start_index": 0, "moe_num_experts": 8, "moe_num_shared_experts": 0}),
    # As EXAONE-4.0-32B's file: norms of heads and behind attention and MLP alone; only layers that
    # slide turn.
    Spec("exaone4_f32", 4, "float32", tied=False, vocab=233, hidden=60, layers=4, heads=6,
         kv_heads=2, mlp=90, head_dim=16, dialect="old", rope_theta=1000000.0, family="Exaone4",
         scaling=LLAMA3_SCALING,
         extra={"layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                "full_attention"],
                "sliding_window": 20, "sliding_window_pattern": "LG"}),
    # As EXAONE-4.0-1.2B's: no window, all turn.
    Spec("exaone4_plain_f32", 63, "float32", tied=False, vocab=229, hidden=60, layers=3, heads=6,
         kv_heads=1, mlp=90, head_dim=16, rope_theta=1000000.0, family="Exaone4",
         extra={"layer_types": ["full_attention"] * 3, "sliding_window": None,
                "sliding_window_pattern": None}),
    # As K-EXAONE-236B's file: the same before its norms were moved back, with a mixture; no list of
    # layers: every fourth is full.
    Spec("exaone_moe_f32", 0, "float32", tied=False, vocab=231, hidden=60, layers=4, heads=4,
         kv_heads=2, mlp=90, head_dim=16, rope_theta=1000000.0, family="ExaoneMoe",
         model_type="exaone_moe",
         extra={"first_k_dense_replace": 1, "moe_intermediate_size": 26, "n_group": 1,
                "norm_topk_prob": True, "num_experts": 10, "num_experts_per_tok": 3,
                "num_shared_experts": 1, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
                "sliding_window": 20, "topk_group": 1}),
    # As dots.llm1's file, whose scores are called by their method.
    Spec("dots1_f32", 18, "float32", tied=False, vocab=237, hidden=60, layers=3, heads=4,
         kv_heads=4, mlp=106, head_dim=16, dialect="old", rope_theta=10000000.0,
         family="Dots1",
         extra={"attention_bias": False, "first_k_dense_replace": 1, "max_window_layers": 3,
                "moe_intermediate_size": 26, "moe_layer_freq": 1, "n_group": 1,
                "n_routed_experts": 10, "n_shared_experts": 2, "norm_topk_prob": True,
                "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
                "scoring_func": "noaux_tc", "sliding_window": None, "topk_group": 1}),
    # As Solar-Open-100B's file: a mixture in every layer.
    Spec("solar_open_f32", 0, "float32", tied=False, vocab=239, hidden=60, layers=2, heads=6,
         kv_heads=2, mlp=90, head_dim=16, rope_theta=1000000.0, family="SolarOpen",
         model_type="solar_open", scaling=YARN,
         extra={"attention_bias": False, "first_k_dense_replace": 0,
                "moe_intermediate_size": 22, "n_group": 1, "n_routed_experts": 10,
                "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 4,
                "routed_scaling_factor": 1.0, "topk_group": 1}),
    # As Qwen3-Next's file: every other layer here recurs, by an interval; what is made of a row by
    # key head; a shared expert; a quarter of each head turns, which nothing says.
    Spec("qwen3_next_f32", 19, "float32", tied=False, vocab=229, hidden=60, layers=4, heads=4,
         kv_heads=2, mlp=90, head_dim=24, dialect="old", rope_theta=10000.0, family="Qwen3Next",
         model_type="qwen3_next",
         extra={"attention_bias": False, "decoder_sparse_step": 1, "full_attention_interval": 2,
                "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
                "linear_num_key_heads": 4, "linear_num_value_heads": 8,
                "linear_value_head_dim": 32, "mlp_only_layers": [], "moe_intermediate_size": 18,
                "norm_topk_prob": True, "num_experts": 8, "num_experts_per_tok": 3,
                "output_router_logits": False, "rms_norm_eps": 1e-6,
                "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 36,
                "use_sliding_window": False}),
    # The text model of Qwen3.5's alone, as transformers writes it: layer_types, the first of which
    # attends; three value heads for each key head, three taps, half of each head turns.
    Spec("qwen3_5_f32", 3, "float32", tied=False, vocab=227, hidden=60, layers=5, heads=6,
         kv_heads=2, mlp=106, head_dim=16, rope_theta=10000.0, family="Qwen3_5",
         model_type="qwen3_5_text",
         scaling={"mrope_interleaved": True, "mrope_section": [2, 1, 1],
                  "partial_rotary_factor": 0.5, "rope_type": "default"},
         extra={"attention_bias": False, "layer_types": [
                    "full_attention", "linear_attention", "linear_attention", "full_attention",
                    "linear_attention"],
                "linear_conv_kernel_dim": 3, "linear_key_head_dim": 32,
                "linear_num_key_heads": 3, "linear_num_value_heads": 9,
                "linear_value_head_dim": 16, "rms_norm_eps": 1e-5}),
    # As Qwen3.5-2B's file: inside a multimodal one, tied; columns in whole groups of 32, so that
    # codes can be made of every linear. Published files have A_log and that norm in float32.
    Spec("qwen3_5_bf16", 31, "bfloat16", tied=True, vocab=235, hidden=64, layers=4, heads=4,
         kv_heads=1, mlp=96, head_dim=32, rope_theta=100000.0, family="Qwen3_5",
         model_type="qwen3_5_text", wrapped=True,
         scaling={"mrope_interleaved": True, "mrope_section": [2, 1, 1],
                  "partial_rotary_factor": 0.25, "rope_type": "default"},
         extra={"attention_bias": False, "attn_output_gate": True, "full_attention_interval": 4,
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
                "linear_num_key_heads": 4, "linear_num_value_heads": 4,
                "linear_value_head_dim": 32, "mamba_ssm_dtype": "float32",
                "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
                "rms_norm_eps": 1e-6}),
    # As Qwen3.5-35B-A3B's file: the same with a mixture, all experts of a layer in two tensors.
    Spec("qwen3_5_moe_f32", 0, "float32", tied=False, vocab=231, hidden=60, layers=4, heads=5,
         kv_heads=1, mlp=16, head_dim=24, rope_theta=10000.0, family="Qwen3_5Moe",
         model_type="qwen3_5_moe_text", wrapped=True, omit=("intermediate_size",),
         scaling={"mrope_interleaved": True, "mrope_section": [1, 1, 1],
                  "partial_rotary_factor": 0.25, "rope_type": "default"},
         extra={"attention_bias": False, "attn_output_gate": True,
                "layer_types": ["linear_attention", "linear_attention", "full_attention",
                                "linear_attention"],
                "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
                "linear_num_key_heads": 2, "linear_num_value_heads": 8,
                "linear_value_head_dim": 16, "mamba_ssm_dtype": "float32",
                "moe_intermediate_size": 22, "mtp_num_hidden_layers": 1, "num_experts": 8,
                "num_experts_per_tok": 2, "rms_norm_eps": 1e-6,
                "shared_expert_intermediate_size": 22}),
    # As the text model of Gemma 4's 31B: layers without a window have other heads, a quarter of
    # which turns, and make keys and values of one product.
    Spec("gemma4_f32", 5, "float32", vocab=241, hidden=60, layers=5, mlp=90, **GEMMA4_SHAPE,
         extra={**GEMMA4, "layer_types": kinds("ssfsf"), "sliding_window": 20}),
    # As its file: inside a multimodal one; columns in whole groups of 32.
    Spec("gemma4_bf16", 84, "bfloat16", vocab=247, hidden=96, layers=6, mlp=96, wrapped=True,
         **GEMMA4_SHAPE,
         extra={**GEMMA4, "expert_intermediate_size": None, "layer_types": kinds("sssssf"),
                "moe_intermediate_size": None, "num_experts": None, "sliding_window": 18,
                "top_k_experts": None, "use_bidirectional_attention": "vision"}),
    # Keys and values apart, as many heads in all layers; most of the rest is left to its default.
    Spec("gemma4_kv_f32", 0, "float32", vocab=239, hidden=60, layers=6, mlp=74, **GEMMA4_SHAPE,
         omit=("attention_bias", "attention_dropout", "attention_k_eq_v", "enable_moe_block",
               "hidden_activation", "layer_types", "num_kv_shared_layers", "rms_norm_eps",
               "rope_parameters", "tie_word_embeddings", "use_cache", "use_double_wide_mlp"),
         extra={**{key: value for key, value in GEMMA4.items()
                   if key != "num_global_key_value_heads"},
                "attention_k_eq_v": False, "layer_types": kinds("sssssf"), "sliding_window": 22}),
    # As 26B-A4B: a mixture beside the MLP; heads as transformers 5.23 writes them, by
    # numbers with the zeros that a file of more layers has.
    Spec("gemma4_moe_f32", 16, "float32", vocab=233, hidden=60, layers=4, mlp=58, **GEMMA4_SHAPE,
         omit=("global_head_dim", "num_global_key_value_heads"),
         extra={**GEMMA4, "enable_moe_block": True, "layer_types": kinds("sfsf"),
                "moe_intermediate_size": 22, "num_experts": 8,
                "per_layer_config": {layer: {"head_dim": 32, "num_key_value_heads": 2}
                                     for layer in ("01", "03")},
                "sliding_window": 19, "top_k_experts": 2}),
    # As its file.
    Spec("gemma4_moe_bf16", 35, "bfloat16", vocab=251, hidden=64, layers=4, mlp=64, wrapped=True,
         **GEMMA4_SHAPE,
         extra={**GEMMA4, "enable_moe_block": True, "layer_types": kinds("ssff"),
                "moe_intermediate_size": 32, "num_experts": 8, "sliding_window": 21,
                "top_k_experts": 2, "use_bidirectional_attention": "vision"}),
    # As E2B: a small embedding for each layer; the last layers have no keys and values, but those
    # of the last of their kind before, and an MLP twice as wide. Rows of those embeddings that no
    # token has.
    Spec("gemma4_ple_f32", 12, "float32", vocab=229, hidden=60, layers=7, mlp=45, **GEMMA4_SHAPE,
         omit=("num_global_key_value_heads",),
         extra={**GEMMA4, "attention_k_eq_v": False, "hidden_size_per_layer_input": 16,
                "layer_types": kinds("ssfsfsf"), "num_kv_shared_layers": 3, "sliding_window": 17,
                "use_double_wide_mlp": True, "vocab_size_per_layer_input": 240}),
    # As its file, which has keys and values of all layers nevertheless; fewer of their heads than
    # ranks may be.
    Spec("gemma4_ple_bf16", 11, "bfloat16", vocab=257, hidden=64, layers=6, mlp=64, wrapped=True,
         **{**GEMMA4_SHAPE, "kv_heads": 1},
         extra={**GEMMA4, "attention_k_eq_v": False, "hidden_size_per_layer_input": 32,
                "layer_types": kinds("sfssff"), "num_global_key_value_heads": None,
                "num_kv_shared_layers": 3, "sliding_window": 20, "use_double_wide_mlp": True,
                "vocab_size_per_layer_input": 257}),
)


def config_dict(spec, dialect):
    """config.json by hand: transformers writes only the new dialect, engines must read both."""
    config = {
        "architectures": [f"{spec.family}ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.mlp,
        "max_position_embeddings": 512,
        "model_type": spec.model_type or spec.family.lower(),
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": spec.tied,
        "use_cache": True,
        "vocab_size": spec.vocab,
        **spec.extra,
    }
    if spec.family == "GptOss":
        config["attention_bias"] = True
    if spec.family in ("Llama", "Qwen3", "Qwen3Moe", "Gemma4", *GEMMA, *OLMO):
        config["attention_bias"] = False
    if spec.family == "SmolLM3":
        config.setdefault("attention_bias", False)
    if spec.family in ("Llama", "SmolLM3"):
        config["mlp_bias"] = False
    if spec.family in ("Gemma4", *GEMMA):
        config["hidden_activation"] = "gelu_pytorch_tanh"
    if spec.family in ("Gemma3", "Gemma4"):
        del config["hidden_act"]
    config["dtype" if dialect == "new" else "torch_dtype"] = spec.dtype
    if dialect == "new" or spec.family == "Gemma4":  # which knows no other
        scaling = spec.scaling or {"rope_type": "default"}
        rope = {**scaling, "rope_theta": spec.rope_theta}
        if spec.family in TWO_ROTATIONS:
            local = {"rope_type": "default", "rope_theta": spec.local_theta}
            rope = {"full_attention": rope, "sliding_attention": local}
        config["rope_parameters"] = rope
    else:
        config["rope_scaling"] = spec.scaling
        config["rope_theta"] = spec.rope_theta
        if spec.family == "Gemma3":
            config["rope_local_base_freq"] = spec.local_theta
    return {k: v for k, v in sorted(config.items()) if k not in spec.omit}


def wrapped_config(spec, dialect):
    """config.json of a multimodal checkpoint whose text model spec describes."""
    text = config_dict(spec, dialect)
    dtype = "dtype" if dialect == "new" else "torch_dtype"
    if spec.family in RECURRENT:
        return {
            "architectures": [f"{spec.family}ForConditionalGeneration"],
            "image_token_id": spec.vocab - 1,
            "model_type": spec.model_type.removesuffix("_text"),
            "text_config": {key: value for key, value in text.items() if key != "architectures"},
            "tie_word_embeddings": spec.tied,
            "vision_config": {**QWEN_VISION, "model_type": spec.model_type.removesuffix("_text"),
                              "out_hidden_size": spec.hidden},
        }
    if spec.family == "Gemma4":
        hears = spec.extra["hidden_size_per_layer_input"] > 0
        return {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "audio_config": GEMMA4_AUDIO if hears else None,
            "audio_token_id": 258881,
            "boa_token_id": 256000,
            "boi_token_id": 255999,
            "dtype": spec.dtype,
            "eoa_token_id": 258883,
            "eoi_token_id": 258882,
            "eos_token_id": [1, 106],
            "image_token_id": 258880,
            "initializer_range": 0.02,
            "model_type": "gemma4",
            "text_config": {**{key: value for key, value in text.items()
                               if key != "architectures"}, "eos_token_id": 1},
            "tie_word_embeddings": True,
            "video_token_id": 258884,
            "vision_config": GEMMA4_VISION,
            "vision_soft_tokens_per_image": 280,
        }
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 2],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 1,
        "model_type": "gemma3",
        "text_config": {key: value for key, value in text.items() if key != dtype},
        dtype: text[dtype],
        "vision_config": VISION,
    }


def write_config(directory, spec, dialect):
    config = (wrapped_config if spec.wrapped else config_dict)(spec, dialect)
    text = json.dumps(config, indent=2) + "\n"
    (directory / "config.json").write_text(text)


def mxfp4(values):
    """The nearest MXFP4 of [..., columns]: blocks of 16 bytes, scales, and what they mean."""
    groups = values.reshape(*values.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(groups).max(-1, keepdims=True))) - 2
    codes = np.abs((groups / 2.0 ** exponent)[..., None] - E2M1).argmin(-1)
    blocks = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
    meant = (E2M1[codes] * 2.0 ** exponent).reshape(values.shape)
    return blocks, (exponent[..., 0] + 127).astype(np.uint8), meant


def is_experts(name):
    return name.endswith((".experts.gate_up_proj", ".experts.down_proj"))


def gemma4_value(name, value, noise):
    """A parameter of Gemma 4, where it is not what others have. Scores are not divided by anything,
    so gains of heads are what makes them moderate; the router sees rows of length one."""
    if name == "model.norm.weight":  # logits large enough to feel their cap
        return 6 * noise
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.7 + 0.15 * noise
    if name.endswith("router.scale"):
        return 1 + 0.3 * noise
    if name.endswith("per_expert_scale"):
        return 1 + 0.5 * np.tanh(noise)
    if name.endswith("router.proj.weight"):
        return 1.5 * noise
    if "embed_tokens_per_layer" in name:
        return 0.25 * noise
    return value


def random_model(spec, rng):
    """A float32 model whose every weight is exactly representable in the stored dtype.

    Matrices are much larger than the usual 0.02: that spreads the logits and lets attention pick
    out positions, so that a wrong mask, head or frequency cannot hide in a flat softmax.  Biases,
    which transformers begins as zeros, are as large as what they are added to.

    Gemma's embeddings are scaled and are the head too, so every token would repeat itself: they
    are small, and the last norm gives about half of the numbers the other sign.
    """
    text = "Text" if spec.family in ("Gemma3", "Gemma4", "Qwen3_5", "Qwen3_5Moe") else ""
    configuration = getattr(transformers, f"{spec.family}{text}Config")
    config = configuration(**config_dict(spec, "new"), **EAGER)
    model = plain_scores(getattr(transformers, f"{spec.family}ForCausalLM")(config).float().eval())
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = rng.standard_normal(tuple(parameter.shape))
            value = spec.std * noise
            if "norm" in name:
                value = (spec.family not in GEMMA) + 0.15 * noise
                if spec.family in GEMMA and name == "model.norm.weight":
                    value = noise - 1.0
                if spec.family in RECURRENT:
                    value = ("linear_attn" in name) + 0.15 * noise
            elif name.endswith("A_log"):  # from 0.01 to 1, so that some heads remember for long
                value = rng.uniform(np.log(0.01), 0, noise.shape)
            elif name.endswith("conv1d.weight"):
                value = 0.5 * noise
            elif name.endswith(("bias", "sinks")):  # dt_bias, too
                value = noise
            elif is_experts(name) and spec.family == "GptOss":  # so large that limits are felt
                value = np.swapaxes(mxfp4(3 * spec.std * np.swapaxes(noise, 1, 2))[2], 1, 2)
            elif "embed_tokens" in name:
                value = (spec.embed_std or spec.std) * noise
            if spec.family == "Gemma4":
                value = gemma4_value(name, value, noise)
            stored = torch.from_numpy(value).to(torch.float32).to(DTYPES[spec.dtype])
            parameter.copy_(stored.float())
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("e_score_correction_bias"):  # large enough to change the choice
                value = 0.3 * rng.standard_normal(tuple(buffer.shape))
                if spec.family == "DeepseekV3":
                    # A group that is not kept has scores of -inf in transformers 5.23, of 0 in
                    # earlier ones: alike where no corrected score is negative.
                    value = np.abs(value)
                buffer.copy_(torch.from_numpy(value))
            if name.endswith("layer_scalar"):
                value = rng.uniform(0.5, 1.5, tuple(buffer.shape))
                buffer.copy_(torch.from_numpy(value).to(DTYPES[spec.dtype]))
    return widened(model, DTYPES[spec.dtype])


def plain_scores(model):
    """Mistral 4 as it was published: YaRN without its magnitude (apply_scale false in Mistral's own
    format). transformers had it so until July 2026 (pull request 47435); vLLM (57563) and SGLang
    (26203) measured what multiplying scores costs."""
    if isinstance(model, transformers.Mistral4ForCausalLM):
        for layer in model.model.layers:
            layer.self_attn.scaling = layer.self_attn.qk_head_dim ** -0.5
    return model


def widened(model, dtype):
    """The model in float32, exactly: every stored dtype is a subset of it.

    Gemma scales embeddings by sqrt(hidden), which transformers rounds to the dtype that it runs
    in.  The goldens mean the scale that the stored dtype has, so it is rounded to that one here.
    """
    model = model.float()
    for module in model.modules():
        if hasattr(module, "embed_scale"):
            scale = torch.tensor(module.scalar_embed_scale).to(dtype)
            module.embed_scale = scale.float()
    return model


def wrapped(spec, model):
    """The text model inside a multimodal one, with a vision tower of small random weights."""
    rng = np.random.default_rng(spec.seed)
    full = dataclasses.replace(spec, omit=())
    config = getattr(transformers, f"{spec.family}Config")(**wrapped_config(full, "new"))
    whole = getattr(transformers, f"{spec.family}ForConditionalGeneration")(config)
    with torch.no_grad():
        for name, parameter in sorted(whole.named_parameters()):
            if "language_model" not in name:
                parameter.copy_(torch.from_numpy(0.02 * rng.standard_normal(parameter.shape)))
    whole.model.language_model.load_state_dict(model.model.state_dict())
    if not spec.tied:
        whole.lm_head.load_state_dict(model.lm_head.state_dict())
    return whole


def random_prompts(spec, rng):
    return [rng.integers(3, spec.vocab, n).astype(np.int32) for n in PROMPT_LENGTHS]


def prompt_logits(model, ids):
    with torch.no_grad():
        out = model(torch.tensor(ids, dtype=torch.long)[None], use_cache=False)
    return out.logits[0].float().numpy()


class HeldCache(transformers.DynamicCache):
    """Keys and values rounded to a dtype. What layers that recur keep is in float32."""

    def __init__(self, dtype, config=None):
        super().__init__(config=config)
        self.held = dtype

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(key_states.to(self.held).float(), value_states.to(self.held).float(),
                              *args, **kwargs)


def attend_latents(attention, query, latent, turns, mask, scaling, **_):
    """What attention is if latents are the keys and values, for a whole prompt: the matrices that
    make keys and values of them are multiplied with queries and with the result."""
    plain = attention.qk_nope_head_dim
    up = attention.kv_b_proj.weight.view(query.shape[1], -1, latent.shape[-1])
    linear = torch.nn.functional.linear
    query, result = [query[0, head] for head in range(query.shape[1])], []
    for head, q in enumerate(query):
        key = linear(q[:, :plain], up[head, :plain].T)
        scores = (key @ latent[0, 0].T + q[:, plain:] @ turns[0, 0].T) * scaling
        scores += torch.full_like(scores, -torch.inf).triu(1)
        result.append(linear(scores.softmax(-1) @ latent[0, 0], up[head, plain:]))
    return torch.stack(result, 1)[None], None


def held_logits(model, ids, dtype, noise=None):
    """Of a float32 model whose keys and values are held in dtype; so is, with bfloat16, what is
    multiplied with a weight. noise: a generator of further errors of bfloat16's size."""
    linear = torch.nn.functional.linear
    layers = getattr(model.model, "language_model", model.model).layers
    attends = [layer for layer in layers if hasattr(layer, "self_attn")]
    attention = type(attends[0].self_attn)
    recurs = len(attends) < len(layers)
    module, expand = sys.modules[attention.__module__], getattr(attention, "expand_kv", None)
    attend = module.eager_attention_forward

    def rounding(x, weight, bias=None):
        x = x.to(dtype).float() if dtype == torch.bfloat16 else x
        if noise:
            x = x * (1 + (torch.rand(x.shape, generator=noise) - 0.5) / 256)
        return linear(x, weight, bias)

    torch.nn.functional.linear = rounding
    if expand:
        attention.expand_kv = lambda self, latent, turns: (latent, turns)
        module.eager_attention_forward = attend_latents
    try:
        with torch.no_grad():
            out = model(torch.tensor(ids, dtype=torch.long)[None], use_cache=True,
                        past_key_values=HeldCache(dtype, model.config if recurs else None))
    finally:
        torch.nn.functional.linear = linear
        if expand:
            attention.expand_kv = expand
            module.eager_attention_forward = attend
    return out.logits[0].float().numpy()


def greedy(model, prompt, give_up=False):
    """Greedy tokens, their top-1 to top-2 gaps, and those gaps relative to max|logit|.

    The end-of-sequence id is an ordinary token here.  np.argmax takes the lowest id of a tie.
    With give_up, returns None at the first gap that is too small: the seed search is done there.
    """
    tokens, gaps, relative = [], [], []
    cache = transformers.DynamicCache(config=model.config)
    step = torch.tensor(prompt, dtype=torch.long)[None]
    for _ in range(GREEDY_STEPS):
        with torch.no_grad():
            out = model(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
        logits = out.logits[0, -1].numpy()
        second, first = np.sort(logits)[-2:]
        tokens.append(int(np.argmax(logits)))
        gaps.append(first - second)
        relative.append((first - second) / np.abs(logits).max())
        if give_up and relative[-1] <= MIN_RELATIVE_GAP:
            return None
        step = torch.tensor([[tokens[-1]]])
    return np.array(tokens, np.int32), np.array(gaps, np.float32), np.array(relative)


def is_steady(spec, model, ids):
    """Whether rounding to bfloat16 changes no choice of experts, or none that matters; with latents,
    which GPUs round in more places, nor does some noise. What recurs remembers errors, and Gemma 4
    divides its scores by nothing."""
    touchy = {"num_experts_per_tok", "moe_k", "linear_num_key_heads"} & set(spec.extra)
    touchy = touchy or spec.family == "Gemma4"
    if spec.dtype != "bfloat16" or not touchy:
        return True
    exact = prompt_logits(model, ids)
    trials = [None]
    if "kv_lora_rank" in spec.extra:
        trials += [torch.Generator().manual_seed(trial) for trial in range(5)]
    return all(np.abs(held_logits(model, ids, torch.bfloat16, noise) - exact).max()
               <= MAX_HELD_ERROR * np.abs(exact).max() for noise in trials)


def search(spec):
    """The first seed from spec.seed on whose two greedy runs are both decided and varied."""
    for seed in range(spec.seed, spec.seed + MAX_TRIES):
        rng = np.random.default_rng(seed)
        model = random_model(spec, rng)
        prompts = random_prompts(spec, rng)
        if not is_steady(spec, model, prompts[0]):
            continue
        runs = (greedy(model, prompt, give_up=True) for prompt in prompts)
        if all(run is not None and len(set(run[0].tolist())) >= MIN_DISTINCT for run in runs):
            return seed, model, prompts
    raise SystemExit(f"{spec.name}: no seed in {MAX_TRIES} tries")


def save_packed(path):
    """Experts as they are published: [experts, rows, groups, 16] and a scale for each group."""
    tensors = load_file(path)
    for name in [name for name in tensors if is_experts(name)]:
        values = tensors.pop(name).float().numpy().swapaxes(1, 2).astype(np.float64)
        blocks, scales, meant = mxfp4(values)
        assert np.array_equal(meant, values), name
        tensors[f"{name}_blocks"] = torch.from_numpy(np.ascontiguousarray(blocks))
        tensors[f"{name}_scales"] = torch.from_numpy(np.ascontiguousarray(scales))
    save_torch_file(tensors, path, metadata={"format": "pt"})


def save_recurrent(directory, spec, model):
    """As Qwen3.5's files are published: experts are not apart, some tensors are in float32, and there
    is what predicts more than one token."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()
               if not (spec.tied and name == "lm_head.weight")}
    for name in tensors:
        if name.endswith(("A_log", "linear_attn.norm.weight")):
            tensors[name] = tensors[name].float()
    for name in ("mtp.norm.weight", "mtp.layers.0.input_layernorm.weight"):
        tensors[name] = torch.zeros(spec.hidden, dtype=DTYPES[spec.dtype])
    save_torch_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def save_shared(path, spec):
    """Keys and values of layers that take those of others, which published files have all the same."""
    tensors, rng = load_file(path), np.random.default_rng(spec.seed)
    for i in range(spec.layers - spec.extra["num_kv_shared_layers"], spec.layers):
        part = f"model.language_model.layers.{i}.self_attn"
        dim = len(tensors[f"{part}.q_norm.weight"])
        shapes = {"k_norm": [dim], "k_proj": [spec.kv_heads * dim, spec.hidden],
                  "v_proj": [spec.kv_heads * dim, spec.hidden]}
        for name, shape in shapes.items():
            value = torch.from_numpy(rng.standard_normal(shape)).to(DTYPES[spec.dtype])
            tensors[f"{part}.{name}.weight"] = value
    save_torch_file(tensors, path, metadata={"format": "pt"})


def save_checkpoint(directory, spec, model):
    """Writes the weights as transformers lays them out, and the hand-written config.json."""
    shutil.rmtree(directory, ignore_errors=True)
    if spec.wrapped:
        model = wrapped(spec, model)
    model.to(DTYPES[spec.dtype]).save_pretrained(
        directory, max_shard_size=spec.shard_bytes or 10**9)
    (directory / "generation_config.json").unlink(missing_ok=True)
    if spec.family == "GptOss":
        save_packed(directory / "model.safetensors")
    if spec.wrapped and spec.family in RECURRENT:
        save_recurrent(directory, spec, model)
    elif spec.family == "Gemma4":
        if spec.wrapped and spec.extra["num_kv_shared_layers"] > 0:
            save_shared(directory / "model.safetensors", spec)
    elif spec.wrapped:  # published files have one more level in the tower's names
        tensors = load_file(directory / "model.safetensors")
        named = {re.sub(r"^vision_tower\.", "vision_tower.vision_model.", name): tensor
                 for name, tensor in tensors.items()}
        save_torch_file(named, directory / "model.safetensors", metadata={"format": "pt"})
    write_config(directory, spec, spec.dialect)
    shards = len(list(directory.glob("model*.safetensors")))
    assert shards == (2 if spec.shard_bytes else 1), shards


def load(directory):
    family = transformers.AutoModelForCausalLM
    if "mistral4" in directory.name:  # which transformers 5.23 has, and not in that list
        family = transformers.Mistral4ForCausalLM
    return plain_scores(family.from_pretrained(directory, dtype="auto", **EAGER).eval())


def check_dialects(directory, spec, ids, expected):
    """Both config dialects, with nothing omitted, must give bit-identical logits."""
    full = dataclasses.replace(spec, omit=())
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / spec.name
        shutil.copytree(directory, copy)
        for dialect in ("old", "new"):
            write_config(copy, full, dialect)
            model = load(copy)
            assert model.dtype == DTYPES[spec.dtype], (dialect, model.dtype)
            model = widened(model, model.dtype)
            assert np.array_equal(prompt_logits(model, ids), expected), dialect


def check_teacher_forced(model, prompt, tokens):
    """One uncached pass over prompt and continuation must choose the same tokens."""
    logits = prompt_logits(model, np.concatenate([prompt, tokens]))
    assert np.array_equal(logits[len(prompt) - 1:-1].argmax(-1), tokens)


def golden_tensors(directory, prompts):
    """All golden outputs, computed from the files just written, and the smallest relative gap."""
    model = load(directory)
    tensors, smallest = {}, np.inf
    if model.dtype == torch.bfloat16:
        tensors["logits0_bf16"] = prompt_logits(model, prompts[0])
    dtype = model.dtype
    model = widened(model, dtype)
    if dtype != torch.float32:
        tensors["logits0_held"] = held_logits(model, prompts[0], dtype)
    for i, prompt in enumerate(prompts):
        tokens, gaps, relative = greedy(model, prompt)
        check_teacher_forced(model, prompt, tokens)
        tensors[f"prompt{i}"] = prompt
        tensors[f"logits{i}"] = prompt_logits(model, prompt)
        tensors[f"greedy{i}"] = tokens
        tensors[f"gap{i}"] = gaps
        smallest = min(smallest, relative.min())
    return tensors, smallest


def make(spec):
    seed, model, prompts = search(spec)
    directory = HERE / spec.name
    save_checkpoint(directory, spec, model)
    tensors, smallest = golden_tensors(directory, prompts)
    assert smallest > MIN_RELATIVE_GAP
    check_dialects(directory, spec, prompts[0], tensors["logits0"])
    save_file(tensors, directory / "golden.safetensors")
    for path in directory.iterdir():
        path.chmod(0o644)  # safetensors creates files that only the owner may read
    report = f"{spec.name}: seed {seed}, min gap / max|logit| {smallest:.2e}"
    for i in range(len(prompts)):
        report += f", gap{i} >= {tensors[f'gap{i}'].min():.3g}"
        report += f" ({len(set(tensors[f'greedy{i}'].tolist()))} distinct)"
    if "logits0_bf16" in tensors:
        error = np.abs(tensors["logits0_bf16"] - tensors["logits0"]).max()
        report += f", bf16 error / max|logit| {error / np.abs(tensors['logits0']).max():.2e}"
    print(report, flush=True)


def main():
    parser = argparse.ArgumentParser(description="Make the golden checkpoints.")
    parser.add_argument("names", nargs="*", help="checkpoints to make (default: all)")
    wanted = parser.parse_args().names
    torch.set_num_threads(1)  # one order of summation; these models gain nothing from more
    torch.backends.cuda.matmul.allow_tf32 = False
    transformers.utils.logging.disable_progress_bar()
    for spec in SPECS:
        if not wanted or spec.name in wanted:
            make(spec)


if __name__ == "__main__":
    main()
