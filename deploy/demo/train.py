"""Trains the demo model from nothing and writes it as a Hugging Face directory.

    python train.py --work ../../build/demo --out model

The model is a Llama in plain PyTorch whose parameters carry Hugging Face's names and whose numerics
are those of transformers' LlamaForCausalLM. A run that was stopped goes on from its checkpoint.
"""

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from stories import stories

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": None,
    "add_bos_token": True,
    "add_eos_token": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": CONFIG["max_position_embeddings"],
    "sp_model_kwargs": {},
}
GENERATION_CONFIG = {"bos_token_id": 1, "eos_token_id": 2, "do_sample": False}

BOS, EOS = CONFIG["bos_token_id"], CONFIG["eos_token_id"]
# Steps, tokens per row, tokens per step, names of either gender. To repeat a name from earlier in
# the story is the hard part: it is learnt soon from short rows with few names, where the name is
# never far and seldom another, and hardly at all in our time if training begins with the rest.
STAGES = [(500, 64, 1536, 6), (300, 128, 2048, 16), (300, 192, 3072, None), (1100, 384, 4096, None)]
# Now and then a row as long as the context, so that every position is learnt.
LONG_ROW_TOKENS, LONG_ROW_EVERY, TEST_ROW_TOKENS = CONFIG["max_position_embeddings"], 16, 384
# One seed per purpose: the model never sees the stories it is tested on.
TOKENIZER_SEED, TEST_SEED, TRAIN_SEED = 1, 2, 1000
MUON_RATE, ADAM_RATE, WARMUP_STEPS = 0.006, 0.001, 30
PROMPTS = ["Once upon a time", "One day, a little fox named Pip"]


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.dim = c["hidden_size"], c["head_dim"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        q = self.q_proj(x).view(rows, length, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        # Query head i reads key-value head i // group.
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=c["rms_norm_eps"])
        cos, sin = rope_tables(c)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialize(c)

    def initialize(self, c):
        """Small embeddings, so that the tied output does not begin by repeating its input token,
        which the layers would have to unlearn by attention heads that do the opposite of copying.
        """
        for p in self.layers.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=c["hidden_size"] ** -0.5)
        nn.init.normal_(self.embed_tokens.weight, std=c["initializer_range"])
        nn.init.constant_(self.norm.weight, 3.0)

    def forward(self, ids):
        length = ids.shape[1]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return F.linear(self.norm(x), self.embed_tokens.weight)


def rope_tables(c):
    """Cosines and sines of every position, in Hugging Face's layout: both halves alike."""
    dim = c["head_dim"]
    inverse = c["rope_theta"] ** -(torch.arange(0, dim, 2).float() / dim)
    angles = torch.outer(torch.arange(c["max_position_embeddings"]).float(), inverse)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def train_tokenizer(path, count=30000):
    """BPE with Llama's options, so that any implementation of its tokenizer can read it."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=stories(TOKENIZER_SEED, count), model_prefix=str(path.with_suffix("")),
        model_type="bpe", vocab_size=CONFIG["vocab_size"], byte_fallback=True,
        character_coverage=1.0, split_digits=True, allow_whitespace_only_pieces=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True,
        unk_id=0, bos_id=BOS, eos_id=EOS, pad_id=-1, max_sentence_length=16384,
        required_chars="".join(chr(i) for i in range(33, 127)), minloglevel=1)


def encode(tokenizer, text):
    return [BOS, *tokenizer.encode(text), EOS]


def rows_of(tokenizer, seed, rows, length, names=None):
    """Rows of whole stories, each row beginning with one: generation begins there as well."""
    source = stories(seed, 10 ** 9, names)
    out = np.empty((rows, length + 1), dtype=np.int64)
    for row in out:
        ids = []
        while len(ids) < length + 1:
            ids += encode(tokenizer, next(source))
        row[:] = ids[:length + 1]
    return torch.from_numpy(out)


def loss_of(model, rows):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def test_loss(model, tokenizer):
    return loss_of(model, rows_of(tokenizer, TEST_SEED, 32, TEST_ROW_TOKENS)).item()


@torch.no_grad()
def greedy(model, tokenizer, prompt, count=130):
    ids = [BOS, *tokenizer.encode(prompt)]
    for _ in range(count):
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
        if ids[-1] == EOS:
            break
    return tokenizer.decode(ids)


def make_optimizers(model):
    """Muon for the matrices inside the layers, which learn faster with it; Adam for the rest."""
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    return [torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.05,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)]


def tokens_of(stages):
    return sum(steps * tokens for steps, _, tokens, _ in stages)


def rate_scale(step, tokens):
    """A linear warm-up, then a cosine down to two percent of the full rate."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    progress = min(1.0, tokens / tokens_of(STAGES))
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def train_step(model, optimizers, rows, scale):
    for optimizer, rate in zip(optimizers, (MUON_RATE, ADAM_RATE)):
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        optimizer.zero_grad(set_to_none=True)
    loss = loss_of(model, rows)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def export(model, tokenizer_path, out):
    """Writes the directory file by file, each one whole at any moment for those who read it."""
    staging = out.with_name(out.name + ".partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    weights = {f"model.{name}": p.detach().to(torch.bfloat16).contiguous()
               for name, p in model.named_parameters()}
    save_file(weights, staging / "model.safetensors", metadata={"format": "pt"})
    shutil.copyfile(tokenizer_path, staging / "tokenizer.model")
    write_json(staging / "config.json", CONFIG)
    write_json(staging / "tokenizer_config.json", TOKENIZER_CONFIG)
    write_json(staging / "generation_config.json", GENERATION_CONFIG)
    out.mkdir(parents=True, exist_ok=True)
    for path in staging.iterdir():
        path.chmod(0o644)
        os.replace(path, out / path.name)
    staging.rmdir()


def save_checkpoint(path, model, optimizers, state):
    partial = path.with_suffix(".partial")
    torch.save({"model": model.state_dict(), "state": state,
                "optimizers": [o.state_dict() for o in optimizers]}, partial)
    os.replace(partial, path)


def load_checkpoint(path, model, optimizers):
    if not path.exists():
        return {"step": 0, "tokens": 0, "seconds": 0.0}
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    for optimizer, values in zip(optimizers, saved["optimizers"]):
        optimizer.load_state_dict(values)
    return saved["state"]


def stage_of(step):
    for steps, *stage in STAGES:
        if step < steps:
            return stage
        step -= steps
    raise ValueError("no stage is left")


def next_rows(tokenizer, step):
    length, tokens, names = stage_of(step)
    if names is None and step % LONG_ROW_EVERY == 0:
        length = LONG_ROW_TOKENS
    return rows_of(tokenizer, TRAIN_SEED + step, tokens // length, length, names)


def report(state, loss, total):
    rate = state["tokens"] / state["seconds"]
    left = (total - state["tokens"]) / rate / 60
    print(f"step {state['step']:5d}  loss {loss:.4f}  {rate:6.0f} tokens/s  "
          f"{state['tokens'] / 1e6:.2f} of {total / 1e6:.2f} M tokens  left {left:5.1f} min",
          flush=True)


def save(model, optimizers, state, tokenizer, args):
    save_checkpoint(args.work / "checkpoint.pt", model, optimizers, state)
    export(model, args.work / "tokenizer.model", args.out)
    print(f"test loss {test_loss(model, tokenizer):.4f}", flush=True)
    for prompt in PROMPTS:
        print(greedy(model, tokenizer, prompt), flush=True)


def train(model, tokenizer, args):
    optimizers = make_optimizers(model)
    state = load_checkpoint(args.work / "checkpoint.pt", model, optimizers)
    last, total = sum(steps for steps, *_ in STAGES), tokens_of(STAGES)
    recent = []
    while state["step"] < last:
        start = time.monotonic()
        rows = next_rows(tokenizer, state["step"])
        scale = rate_scale(state["step"], state["tokens"])
        recent.append(train_step(model, optimizers, rows, scale))
        state["step"] += 1
        state["tokens"] += rows[:, 1:].numel()
        state["seconds"] += time.monotonic() - start
        if state["step"] % 25 == 0:
            report(state, sum(recent) / len(recent), total)
            recent = []
        if state["step"] % args.save_every == 0 or state["step"] == last:
            save(model, optimizers, state, tokenizer, args)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="tokenizer and checkpoint go here")
    parser.add_argument("--out", type=Path, required=True, help="the Hugging Face directory")
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def main():
    args = arguments()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer_path = args.work / "tokenizer.model"
    if not tokenizer_path.exists():
        train_tokenizer(tokenizer_path)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_path))
    model = Llama(CONFIG)
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, test loss {test_loss(model, tokenizer):.4f}", flush=True)
    if not args.out.exists():
        export(model, tokenizer_path, args.out)
    train(model, tokenizer, args)


if __name__ == "__main__":
    main()
