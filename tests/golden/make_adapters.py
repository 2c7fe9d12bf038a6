#!/usr/bin/env python3
"""Makes the LoRA adapters in adapters/ and what PEFT computes with them.

    pip install -r requirements.txt
    python3 make_adapters.py

Each is saved by PEFT for one of the float32 checkpoints beside it (base_model_name_or_path), loaded
again, and run without being merged. Seeds are searched as in make_goldens.py; golden.safetensors
has the same tensors as there.
"""

import json
import pathlib
import re
import shutil

import numpy as np
import peft
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file, save_file as save_torch_file

import make_goldens

HERE = pathlib.Path(__file__).resolve().parent
SPECS = {  # name: (checkpoint, dtype of the file, what PEFT is asked for)
    "all_linears": ("tied_gqa2_f32", torch.float32, {
        "r": 4, "lora_alpha": 8, "target_modules": "all-linear",
        "rank_pattern": {"down_proj": 3, "layers.1.self_attn.q_proj": 6},
        "alpha_pattern": {"self_attn.o_proj": 16, "model.layers.0.mlp.up_proj": 1.5}}),
    "fused_rslora": ("phi3_gqa_f32", torch.bfloat16, {
        "r": 5, "lora_alpha": 3, "use_rslora": True,
        "target_modules": ["qkv_proj", "gate_up_proj", "down_proj"]}),
    "with_head": ("qwen2_f32", torch.float16, {
        "r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj", "lm_head"]}),
}


def vocabulary(name):
    return json.loads((HERE / name / "config.json").read_text())["vocab_size"]


def save(directory, base, dtype, asked, rng):
    """The adapter's files, with random values that are exact in its dtype."""
    model = peft.get_peft_model(make_goldens.load(HERE / base),
                                peft.LoraConfig(task_type="CAUSAL_LM", **asked))
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                value = torch.from_numpy(0.3 * rng.standard_normal(tuple(parameter.shape)))
                parameter.copy_(value.to(dtype).float())
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    (directory / "README.md").unlink()
    file = directory / "adapter_model.safetensors"
    save_torch_file({name: value.to(dtype) for name, value in load_file(file).items()}, file,
                    metadata={"format": "pt"})
    settings = directory / "adapter_config.json"
    text = re.sub(r'("base_model_name_or_path": )"[^"]*"', rf'\1"{base}"', settings.read_text())
    config = json.loads(text)
    if isinstance(config["target_modules"], list):  # a set, whose order changes
        config["target_modules"].sort()
    settings.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def search(name, base, dtype, asked):
    for seed in range(make_goldens.MAX_TRIES):
        rng = np.random.default_rng(seed)
        save(HERE / "adapters" / name, base, dtype, asked, rng)
        model = peft.PeftModel.from_pretrained(make_goldens.load(HERE / base),
                                               HERE / "adapters" / name).eval()
        model = model.float()
        prompts = [rng.integers(3, vocabulary(base), n).astype(np.int32)
                   for n in make_goldens.PROMPT_LENGTHS]
        runs = [make_goldens.greedy(model, prompt, give_up=True) for prompt in prompts]
        if all(run is not None and len(set(run[0].tolist())) >= make_goldens.MIN_DISTINCT
               for run in runs):
            return seed, model, prompts, runs
    raise SystemExit(f"{name}: no seed found")


def main():
    for name, (base, dtype, asked) in SPECS.items():
        seed, model, prompts, runs = search(name, base, dtype, asked)
        tensors = {}
        for i, (prompt, (tokens, gaps, _)) in enumerate(zip(prompts, runs)):
            make_goldens.check_teacher_forced(model, prompt, tokens)
            tensors[f"prompt{i}"] = prompt
            tensors[f"logits{i}"] = make_goldens.prompt_logits(model, prompt)
            tensors[f"greedy{i}"] = tokens
            tensors[f"gap{i}"] = gaps
        save_file(tensors, HERE / "adapters" / name / "golden.safetensors")
        print(f"{name}: seed {seed}")


if __name__ == "__main__":
    main()
