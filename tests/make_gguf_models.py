#!/usr/bin/env python3
"""Makes tests/corpus/gguf_models: small random models as llama.cpp's own converter writes them.

    pip install -r tests/golden/requirements.txt gguf
    python3 tests/make_gguf_models.py LLAMA_CPP [NAME ...]   # a checkout, or the one in the source
                                                             # distribution of llama-cpp-python

What it writes is committed. NAME.json has the config.json that the converter saw and the shape of
each of its tensors; the values follow from the tensors' names (see `values`) and are whole numbers
of 2^-7, which every type holds exactly, and one more or less, too. Of models whose layers recur,
of those with latents, of those whose queries grow and of later ones (see `ANSWERED`), it also has
what transformers answers.
"""

import importlib
import json
import pathlib
import pkgutil
import sys
import tempfile
import zlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parent / "corpus/gguf_models"

BASE = {
    "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32, "intermediate_size": 64,
    "max_position_embeddings": 256, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-5, "vocab_size": 64,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
        "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "rope_theta": 1000.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.1, 1.25, 1.5], "long_factor": [1.0, 1.5, 2.5, 4.0],
        "partial_rotary_factor": 1.0}


def plain(theta):
    return {"rope_type": "default", "rope_theta": theta}


RECURRENT = {"head_dim": 16, "linear_conv_kernel_dim": 4, "tie_word_embeddings": False,
             "rope_parameters": {**plain(1000.0), "partial_rotary_factor": 0.25}}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
           "shared_expert_intermediate_size": 64}

LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 64, "qk_rope_head_dim": 16,
          "first_k_dense_replace": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
          "tie_word_embeddings": False}


TWO_SIZES = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 24,
             "hidden_size_per_layer_input": 0}


def two_rotations(part):
    """Of Gemma 4's layers without a window, where a part of the pairs turns, and with one."""
    return {"full_attention": {**plain(1000.0), "rope_type": "proportional",
                               "partial_rotary_factor": part}, "sliding_attention": plain(100.0)}


def heads(keys, values, key_dim, value_dim):
    """Of layers that recur."""
    return {"linear_num_key_heads": keys, "linear_num_value_heads": values,
            "linear_key_head_dim": key_dim, "linear_value_head_dim": value_dim}


def layers(text):
    """Those that recur, R, and those that attend."""
    kinds = {"R": "linear_attention", "A": "full_attention"}
    return {"num_hidden_layers": len(text), "layer_types": [kinds[letter] for letter in text]}


# name: (type that the converter writes, model_type, what differs from BASE)
MODELS = {
    "llama": ("F16", "llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": False}),
    "llama_q8_0": ("Q8_0", "llama", {"rope_parameters": plain(10000.0), "head_dim": 16,
                                     "tie_word_embeddings": True}),
    "mixtral": ("F16", "mixtral", {"num_local_experts": 3, "num_experts_per_tok": 2,
                                    "rope_parameters": plain(1e6), "sliding_window": None,
                                    "tie_word_embeddings": False}),
    "qwen2": ("F32", "qwen2", {"rope_parameters": plain(1e6), "tie_word_embeddings": True}),
    "qwen3": ("BF16", "qwen3", {"rope_parameters": YARN, "head_dim": 16,
                                "tie_word_embeddings": False}),
    "qwen3_moe": ("BF16", "qwen3_moe", {
        "rope_parameters": plain(1e6), "head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": True, "tie_word_embeddings": False}),
    "qwen2_moe": ("BF16", "qwen2_moe", {
        "rope_parameters": plain(1e6), "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
        "norm_topk_prob": False, "tie_word_embeddings": False}),
    "gemma": ("BF16", "gemma", {"head_dim": 16, "rope_parameters": plain(10000.0),
                                "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}),
    "gemma2": ("BF16", "gemma2", {
        "head_dim": 16, "rope_parameters": plain(10000.0), "query_pre_attn_scalar": 16,
        "sliding_window": 24, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True}),
    "gemma3": ("BF16", "gemma3_text", {
        "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24, "num_hidden_layers": 6,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": plain(100.0)},
        "tie_word_embeddings": True}),
    "gemma4": ("BF16", "gemma4_text", {
        **TWO_SIZES, "num_hidden_layers": 6, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1, "final_logit_softcapping": 30.0,
        "rope_parameters": two_rotations(0.25)}),
    "gemma4_kv": ("F32", "gemma4_text", {
        **TWO_SIZES, "num_hidden_layers": 3, "global_head_dim": 24, "sliding_window": 40,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": two_rotations(0.5), "tie_word_embeddings": False}),
    "gemma4_q8_0": ("Q8_0", "gemma4_text", {
        **TWO_SIZES, "num_hidden_layers": 6, "attention_k_eq_v": True,
        "rope_parameters": two_rotations(1.0)}),
    "gemma4_moe": ("BF16", "gemma4_text", {
        **TWO_SIZES, "num_hidden_layers": 3, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 6,
        "top_k_experts": 2, "moe_intermediate_size": 32, "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "rope_parameters": two_rotations(0.25)}),
    "gemma4_small": ("F16", "gemma4_text", {
        **TWO_SIZES, "num_hidden_layers": 7, "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 64,
        "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2 + ["full_attention"],
        "rope_parameters": two_rotations(0.25)}),
    "phi3": ("BF16", "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64,
                              "sliding_window": 40, "tie_word_embeddings": False}),
    "granite": ("BF16", "granite", {
        "rope_parameters": plain(10000.0), "attention_bias": True, "attention_multiplier": 0.25,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
        "tie_word_embeddings": True}),
    "smollm3": ("BF16", "smollm3", {
        "rope_parameters": plain(2e6), "num_hidden_layers": 4, "no_rope_layer_interval": 4,
        "tie_word_embeddings": True}),
    "seed_oss": ("BF16", "seed_oss", {
        "rope_parameters": plain(1e7), "head_dim": 16, "attention_bias": True,
        "attention_out_bias": True, "tie_word_embeddings": False}),
    "ernie4_5": ("BF16", "ernie4_5", {"rope_parameters": plain(5e5), "head_dim": 16,
                                      "tie_word_embeddings": True}),
    "glm4": ("BF16", "glm4", {
        "rope_parameters": {**plain(10000.0), "partial_rotary_factor": 0.5}, "head_dim": 16,
        "attention_bias": True, "tie_word_embeddings": False}),
    "glm4_moe": ("BF16", "glm4_moe", {
        "rope_parameters": {**plain(10000.0), "partial_rotary_factor": 0.5}, "head_dim": 16,
        "attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 1,
        "num_hidden_layers": 3, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "routed_scaling_factor": 2.5,
        "norm_topk_prob": True, "num_nextn_predict_layers": 1, "tie_word_embeddings": False}),
    "qwen3_next": ("BF16", "qwen3_next", {
        **RECURRENT, **EXPERTS, **heads(2, 4, 16, 32), **layers("RRA"), "norm_topk_prob": True,
        "mtp_num_hidden_layers": 1}),
    "qwen3_next_old": ("F16", "qwen3_next", {
        **RECURRENT, **EXPERTS, **heads(2, 4, 32, 16), **layers("RARA")}),
    "qwen3_5": ("BF16", "qwen3_5_text", {
        **RECURRENT, **heads(2, 6, 16, 32), **layers("RARRA"), "linear_conv_kernel_dim": 3,
        "rope_parameters": {**plain(1000.0), "partial_rotary_factor": 0.5,
                            "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
        "mtp_num_hidden_layers": 1}),
    "qwen3_5_q8_0": ("Q8_0", "qwen3_5_text", {
        **RECURRENT, **heads(2, 6, 32, 16), **layers("RRA"), "tie_word_embeddings": True}),
    "qwen3_5_moe": ("F32", "qwen3_5_moe_text", {
        **RECURRENT, **EXPERTS, **heads(3, 6, 16, 16), **layers("RRA")}),
    "deepseek_v2": ("BF16", "deepseek_v2", {
        **LATENT, "q_lora_rank": None, "n_routed_experts": 6, "n_shared_experts": 2,
        "routed_scaling_factor": 1.0, "topk_method": "group_limited_greedy", "n_group": 2,
        "topk_group": 1,
        "qk_nope_head_dim": 32, "v_head_dim": 16, "norm_topk_prob": False,
        "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "deepseek_v2_old": ("F16", "deepseek_v2", {
        **LATENT, "q_lora_rank": 32, "n_routed_experts": 3, "n_shared_experts": 1,
        "routed_scaling_factor": 16.0, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
        "qk_nope_head_dim": 16, "v_head_dim": 32, "norm_topk_prob": False,
        "rope_parameters": plain(1000.0)}),
    "deepseek_v3": ("F32", "deepseek_v3", {
        **LATENT, "q_lora_rank": 32, "n_routed_experts": 4, "n_shared_experts": 1,
        "routed_scaling_factor": 2.5, "n_group": 2, "topk_group": 1, "norm_topk_prob": True,
        "qk_nope_head_dim": 16, "v_head_dim": 32, "scoring_func": "sigmoid",
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek_v3_q8_0": ("Q8_0", "deepseek_v3", {
        **LATENT, "q_lora_rank": 32, "n_routed_experts": 4, "n_shared_experts": 1,
        "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "qk_nope_head_dim": 32, "v_head_dim": 32, "scoring_func": "sigmoid",
        "rope_parameters": plain(1000.0)}),
    "ministral3": ("F32", "ministral3", {
        "head_dim": 16, "tie_word_embeddings": True,
        "rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0,
                            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}}),
    "ministral3_sharp": ("BF16", "ministral3", {
        "head_dim": 16, "num_attention_heads": 6, "num_key_value_heads": 3,
        "tie_word_embeddings": False,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5,
                            "original_max_position_embeddings": 32, "factor": 8.0,
                            "llama_4_scaling_beta": 0.1}}),
    "mistral3": ("BF16", "mistral", {
        "head_dim": 16, "rope_parameters": plain(1e6), "sliding_window": None,
        "tie_word_embeddings": False}),
    "exaone4": ("BF16", "exaone4", {
        "head_dim": 16, "num_hidden_layers": 5, "sliding_window": 24, "rope_parameters": LLAMA3,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
        "tie_word_embeddings": False}),
    "exaone4_plain": ("F32", "exaone4", {
        "sliding_window": None, "rope_parameters": plain(1e6),
        "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True}),
    "ernie4_5_moe": ("F16", "ernie4_5_moe", {
        "rope_parameters": plain(5e5), "num_hidden_layers": 3, "intermediate_size": 128,
        "moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 32, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1, "tie_word_embeddings": True}),
    "ernie4_5_moe_old": ("BF16", "ernie4_5_moe", {
        "rope_parameters": plain(5e5), "head_dim": 16, "moe_num_experts": 4, "moe_k": 2,
        "moe_intermediate_size": 32, "moe_num_shared_experts": 0, "moe_layer_start_index": 0,
        "tie_word_embeddings": False}),
    "dots1": ("BF16", "dots1", {
        "rope_parameters": plain(1e7), "num_hidden_layers": 3, "head_dim": 16,
        "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_routed_experts": 6,
        "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "sliding_window": None, "tie_word_embeddings": False}),
    "exaone_moe": ("BF16", "exaone_moe", {
        "rope_parameters": plain(1e6), "num_hidden_layers": 4, "head_dim": 16,
        "sliding_window": 24, "first_k_dense_replace": 1, "num_experts": 6,
        "num_experts_per_tok": 3, "num_shared_experts": 1, "moe_intermediate_size": 32,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "scoring_func": "sigmoid",
        "num_nextn_predict_layers": 1, "tie_word_embeddings": False}),
}
# one of these keys, or the type
ANSWERED = {"linear_num_key_heads", "kv_lora_rank", "llama_4_scaling_beta", "exaone4",
            "ernie4_5_moe", "dots1", "exaone_moe", "gemma4_text"}
SEEING = {"mistral3": "Mistral3ForConditionalGeneration"}  # written as the text of a larger model
FUSED = ["qwen3_5_moe"]       # gates and ups of all experts are one tensor
MIXED = ["qwen3_next"]        # gates of layers that recur are of another type

PROMPT = [5 + i * 7 % 53 for i in range(150)]  # beyond every window, and each original context


def values(name, shape):
    """Of a tensor of the checkpoint; tests make them again."""
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    whole = draw.integers(-40, 41, size=shape)
    if name.endswith(("norm.weight", "layer_scalar")):
        whole = 96 + whole // 2
    return (whole / 128).astype(np.float32)


def guessing_layer(shapes, config):
    """What GLM-4.5, Qwen3.5 and K-EXAONE have behind their layers to guess the token after next, of
    which the last has the MLP of its first layer there; transformers has none of it."""
    size, last = config.hidden_size, config.num_hidden_layers - 1
    dense = config.model_type == "exaone_moe"
    above = f"model.layers.{0 if dense else last}."
    own = {name.replace(above, ""): shape for name, shape in shapes.items() if above in name}
    if getattr(config, "num_nextn_predict_layers", 0) and not dense:
        more = {"eh_proj.weight": [size, 2 * size], "enorm.weight": [size], "hnorm.weight": [size],
                "shared_head.norm.weight": [size]}
        return {f"model.layers.{last + 1}.{name}": shape for name, shape in {**own, **more}.items()}
    if dense or getattr(config, "mtp_num_hidden_layers", 0):
        more = {"fc": [size, 2 * size], "norm": [size], "pre_fc_norm_embedding": [size],
                "pre_fc_norm_hidden": [size]}
        return {**{f"mtp.layers.0.{name}": shape for name, shape in own.items()},
                **{f"mtp.{name}.weight": shape for name, shape in more.items()}}
    return {}


def answers(directory):
    """Greedy tokens of transformers', and the logarithms of their probabilities, in fp32."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens, found = list(PROMPT), []
    with torch.inference_mode():
        for _ in range(24):
            scores = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(scores.argmax()))
            found.append(float(scores.max()))
    return {"tokens": tokens[len(PROMPT):], "logprobs": found}


def write_checkpoint(directory, model_type, changes):
    """config.json and tensors, by transformers' names; returns both."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    config = transformers.AutoConfig.for_model(model_type, **{**BASE, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    shapes = {name: list(t.shape) for name, t in sorted(load_file(path).items())}
    shapes.update(guessing_layer(shapes, config))
    save_file({name: torch.from_numpy(values(name, shape)) for name, shape in shapes.items()},
              path, {"format": "pt"})
    return json.loads((directory / "config.json").read_text()), shapes


def whole(model, name):
    """A tensor that the converter cuts, and did not at first."""
    usual = model.modify_tensors
    model.modify_tensors = lambda data, tensor, layer: (
        [(model.map_tensor_name(tensor), data)] if name in tensor else usual(data, tensor, layer))


def as_earlier_next(model):
    """Qwen3-Next's queries, keys, values and gates in one tensor, as llama.cpp still reads it,
    vectors of one dimension, and layers that attend by their interval alone."""
    whole(model, "in_proj_qkvz")
    usual = model.modify_tensors
    model.modify_tensors = lambda data, tensor, layer: (
        (name, t.squeeze() if "shexp" in name else t) for name, t in usual(data, tensor, layer))
    types = model.hparams.pop("layer_types")
    model.hparams["full_attention_interval"] = 1 + types.index("full_attention")


def as_earlier_deepseek(model):
    """Keys and values of all heads in one tensor, and widths of heads, not of latents."""
    whole(model, "kv_b_proj")
    usual, known = model.set_gguf_parameters, dict(model.hparams)

    def set_parameters():
        usual()
        keys = model.gguf_writer.kv_data[0]
        for name in ("key_length", "value_length"):
            keys[f"deepseek2.attention.{name}"] = keys.pop(f"deepseek2.attention.{name}_mla")
        keys["deepseek2.attention.head_count_kv"].value = known["num_attention_heads"]

    model.set_gguf_parameters = set_parameters


def as_earlier_ernie(model):
    """Corrections of one dimension, so in fp32."""
    usual = model.modify_tensors
    model.modify_tensors = lambda data, tensor, layer: (
        (name, t.squeeze() if "exp_probs_b" in name else t)
        for name, t in usual(data, tensor, layer))


EARLIER = {"qwen3_next_old": as_earlier_next, "deepseek_v2_old": as_earlier_deepseek,
           "ernie4_5_moe_old": as_earlier_ernie}


def convert(directory, out, kind):
    import conversion
    import gguf
    import torch
    from conversion import base

    (directory / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {str(i): i for i in range(BASE["vocab_size"])}},
                    "added_tokens": []}))
    for module in pkgutil.iter_modules(conversion.__path__):
        importlib.import_module("conversion." + module.name)
    if out.stem in SEEING:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()),
                                    "architectures": [SEEING[out.stem]]}))
    hparams = base.ModelBase.load_hparams(directory, False)
    name = base.get_model_architecture(hparams, base.ModelType.TEXT)
    kinds = {"F32": gguf.LlamaFileType.ALL_F32, "F16": gguf.LlamaFileType.MOSTLY_F16,
             "BF16": gguf.LlamaFileType.MOSTLY_BF16, "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    model_class = base.ModelBase.from_model_architecture(name, model_type=base.ModelType.TEXT)
    if "linear_num_key_heads" in hparams:
        model_class.no_mtp = not hparams.get("mtp_num_hidden_layers")
    with torch.inference_mode():
        model = model_class(directory, kinds[kind], out, eager=True,
                            fuse_gate_up_exps=out.stem in FUSED)
        own = getattr(model, "impl", model)  # Mistral 3's class hands everything to another
        own.set_vocab = own._set_vocab_none
        if out.stem in EARLIER:
            EARLIER[out.stem](model)
        if out.stem in MIXED:
            model.tensor_force_quant = lambda name, new_name, layer, dims: (
                gguf.GGMLQuantizationType.F32 if "attn_gate" in new_name else False)
        model.write()


def main():
    checkout = pathlib.Path(sys.argv[1])
    sys.path[:0] = [str(checkout), str(checkout / "gguf-py")]
    OUT.mkdir(parents=True, exist_ok=True)
    for name, (kind, model_type, changes) in MODELS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            directory = pathlib.Path(scratch) / name
            config, shapes = write_checkpoint(directory, model_type, changes)
            known = {"type": kind, "config": config, "tensors": shapes}
            asked = {*config, *config["rope_parameters"], model_type}
            if ANSWERED & asked and kind != "Q8_0":
                known["answers"] = answers(directory)
            convert(directory, OUT / f"{name}.gguf", kind)
        (OUT / f"{name}.json").write_text(json.dumps(known, indent=1) + "\n")
        print(name, (OUT / f"{name}.gguf").stat().st_size)


if __name__ == "__main__":
    main()
