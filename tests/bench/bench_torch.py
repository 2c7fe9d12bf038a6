#!/usr/bin/env python3
"""The peer of bench_forward: the same steps of the same Llama in plain PyTorch.

    bench_torch.py MODEL [--device cuda] [--context 1024] [--batches 1,64] [--prompt 8192]
                         [--beside FILE...]
    bench_torch.py --check MODEL...

MODEL is a folder with a config.json; weights are random bf16, made on the device. A decode step is
a CUDA graph: fused products of q, k, v and of gate and up, keys and values in caches of exactly the
context (nothing is masked, nothing padded), attention with a KV head's queries as its rows, argmax
on the device. A prompt runs op by op. Each step is timed with every attention that PyTorch has for
it, and the fastest counts. Limits are measured in the same process: the bytes of a copy, read and
written, or of a sum, which only reads, and the best product of bf16 matrices.

Prints a line of a markdown table for each step, beside the lines of bench_forward that the files
hold. All shares are of the same limits, the highest that were measured.

--check compares the logits of the checkpoints in tests/golden with those of transformers that lie
beside them, in fp32: of a prompt, and of its last token as a decode step.

Exit code 77 without PyTorch, or without a device for it.
"""

import argparse
import contextlib
import json
import math
import pathlib
import re
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    print(f"bench_torch: skipped: {missing}")
    sys.exit(77)
try:
    from safetensors.torch import load_file
except ImportError:
    load_file = None  # only --check reads checkpoints

RUNS = 3
DECODES = 32  # replays of a run
PROMPTS = 2
LIMIT_BYTES, LIMIT_CALLS = 1 << 30, 8
ATTENTIONS = {"": None, ", flash": SDPBackend.FLASH_ATTENTION,
              ", cuDNN": SDPBackend.CUDNN_ATTENTION}


# ---- the model --------------------------------------------------------------------------------


class Unsupported(Exception):
    pass


class Shape:
    """Of config.json: D hidden, F MLP width, V vocabulary, L layers, H, K heads, E their size."""

    def __init__(self, folder):
        c = json.loads((pathlib.Path(folder) / "config.json").read_text())
        if c["model_type"] not in ("llama", "mistral"):
            raise Unsupported(f"{folder}: {c['model_type']} has more than a Llama")
        if c.get("sliding_window") and c.get("use_sliding_window", True):
            raise Unsupported(f"{folder}: attention in a window")
        self.D, self.F, self.V = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
        self.L, self.H = c["num_hidden_layers"], c["num_attention_heads"]
        self.K = c.get("num_key_value_heads") or self.H
        self.E = c.get("head_dim") or self.D // self.H
        self.eps = c["rms_norm_eps"]
        self.tied = c.get("tie_word_embeddings", False)
        self.rope = {"rope_theta": c.get("rope_theta", 10000.0)}
        self.rope |= c.get("rope_parameters") or c.get("rope_scaling") or {}
        if self.rope.get("rope_type", "default") not in ("default", "llama3"):
            raise Unsupported(f"{folder}: {self.rope['rope_type']} positions")

    def frequencies(self):
        """Llama 3.1's are slower where a turn takes longer than the context it was trained with."""
        pairs = torch.arange(0, self.E, 2, dtype=torch.float64)
        plain = self.rope["rope_theta"] ** (-pairs / self.E)
        if self.rope.get("rope_type", "default") == "default":
            return plain
        low, high = self.rope["low_freq_factor"], self.rope["high_freq_factor"]
        turns = self.rope["original_max_position_embeddings"] * plain / (2 * math.pi)
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return plain * (keep + (1 - keep) / self.rope["factor"])

    def layer_weights(self):
        heads = (self.H + 2 * self.K) * self.E
        return {"qkv": (heads, self.D), "o": (self.D, self.H * self.E),
                "gate_up": (2 * self.F, self.D), "down": (self.D, self.F)}

    def parameters(self):
        """Those that a step multiplies with: not the embedding's rows, which it only looks up."""
        return self.V * self.D + self.L * sum(a * b for a, b in self.layer_weights().values())


class Llama:
    def __init__(self, shape, dtype, device, take=None):
        """take(name, shape): a tensor of a checkpoint; without, weights are random."""
        s = self.shape = shape
        take = take or (lambda name, size: torch.empty(size, dtype=dtype, device=device)
                        .normal_(len(size) == 1, 0.02))
        self.embed = take("embed", (s.V, s.D))
        self.head = self.embed if s.tied else take("head", (s.V, s.D))
        self.norm = take("norm", (s.D,))
        sizes = s.layer_weights() | {"norm1": (s.D,), "norm2": (s.D,)}
        self.layers = [{name: take(f"{i}.{name}", size) for name, size in sizes.items()}
                       for i in range(s.L)]
        self.dtype, self.device = dtype, device
        self.frequencies = s.frequencies().to(device)

    def cache(self, batch, positions):
        """Keys and values of each layer."""
        s = self.shape
        return [torch.zeros((2, batch, s.K, positions, s.E), dtype=self.dtype, device=self.device)
                for _ in range(s.L)]

    def turns(self, positions):
        """Cosines, and sines with the sign of their half: [T, 1, E]."""
        angle = torch.outer(positions.double(), self.frequencies)[:, None]
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((-angle, angle), -1).sin()
        return cos.to(self.dtype), sin.to(self.dtype)

    def attend(self, q, k, v, cache, positions):
        """[B, T, heads, E] each. A prompt brings all its keys; a decode finds them in the cache."""
        s, batch, rows = self.shape, q.shape[0], q.shape[1]
        cache[0].index_copy_(2, positions, k.transpose(1, 2))
        cache[1].index_copy_(2, positions, v.transpose(1, 2))
        if rows > 1:
            out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2),
                                                 v.transpose(1, 2), is_causal=True,
                                                 enable_gqa=s.H != s.K)
            return out.transpose(1, 2).reshape(batch * rows, s.H * s.E)
        group = q.reshape(batch, s.K, s.H // s.K, s.E)
        return F.scaled_dot_product_attention(group, *cache).reshape(batch, s.H * s.E)

    def layer(self, w, x, turns, cache, positions, batch):
        """Adds to x[B T, D], in place."""
        s = self.shape
        cos, sin = turns
        heads = F.linear(F.rms_norm(x, (s.D,), w["norm1"], s.eps), w["qkv"])
        heads = heads.view(batch, -1, s.H + 2 * s.K, s.E)
        qk, v = heads.split((s.H + s.K, s.K), 2)
        qk = torch.addcmul(qk * cos, qk.roll(s.E // 2, -1), sin)
        q, k = qk.split((s.H, s.K), 2)
        x.addmm_(self.attend(q, k, v, cache, positions), w["o"].t())
        gate, up = F.linear(F.rms_norm(x, (s.D,), w["norm2"], s.eps), w["gate_up"]).chunk(2, -1)
        x.addmm_(F.silu(gate).mul_(up), w["down"].t())

    def forward(self, tokens, positions, caches, all_rows=False):
        """Logits behind tokens[B, T] at positions[T]: of the last row of each, or of all."""
        batch = tokens.shape[0]
        x = F.embedding(tokens.flatten(), self.embed)
        turns = self.turns(positions)
        for w, cache in zip(self.layers, caches):
            self.layer(w, x, turns, cache, positions, batch)
        if not all_rows:
            x = x.view(batch, -1, self.shape.D)[:, -1]
        return F.linear(F.rms_norm(x, (self.shape.D,), self.norm, self.shape.eps), self.head)


# ---- steps ------------------------------------------------------------------------------------


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def captured(step):
    """What replays the step. It runs on a side stream first, so that libraries have made what they
    make once; the graph's own memory stays with it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def decoder(model, tokens, context, caches):
    """A step that reads the last of so many positions and puts the next token into tokens[B, 1]."""
    position = torch.tensor([context - 1], device=model.device)

    def step():
        logits = model.forward(tokens, position, caches)
        torch.argmax(logits, -1, keepdim=True, out=tokens)
    return captured(step) if model.device == "cuda" else step


def seconds(device, step, calls):
    """Best time of one call, over several runs of some that follow each other."""
    step()
    best = math.inf
    for _ in range(RUNS):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        synchronize(device)
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


def fastest(make, device, calls):
    """(seconds, name) of the best attention. One that refuses these shapes does so on its first
    call, which is outside of any capture."""
    found, refused = [], None
    for name, attention in ATTENTIONS.items():
        try:
            with sdpa_kernel(attention) if attention else contextlib.nullcontext():
                found.append((seconds(device, make(), calls), name))
        except RuntimeError as error:
            refused = error
    if not found:
        raise refused
    return min(found)


def decode(model, batch, context):
    caches = model.cache(batch, context)
    for cache in caches:
        cache.normal_()
    tokens = torch.zeros((batch, 1), dtype=torch.long, device=model.device)
    return fastest(lambda: decoder(model, tokens, context, caches), model.device, DECODES)


def prompt(model, rows):
    caches = model.cache(1, rows)
    tokens = torch.arange(rows, device=model.device)[None] % model.shape.V
    positions = torch.arange(rows, device=model.device)

    def step():
        return model.forward(tokens, positions, caches).argmax(-1)
    return fastest(lambda: step, model.device, PROMPTS)


# ---- the table --------------------------------------------------------------------------------


def limits(device):
    """Bytes and operations a second."""
    shrink = 4 if device == "cpu" else 0
    size = LIMIT_BYTES >> shrink
    source, target = (torch.zeros(size // 4, device=device) for _ in range(2))
    moved = max(2 * size / seconds(device, lambda: target.copy_(source), LIMIT_CALLS),
                size / seconds(device, source.sum, LIMIT_CALLS))
    done = 0
    for shape in [(8192, 8192, 8192), (8192, 4096, 28672)]:
        rows, depth, cols = (n >> shrink for n in shape)
        a, b, out = (torch.zeros(size, dtype=torch.bfloat16, device=device).normal_()
                     for size in [(rows, depth), (cols, depth), (rows, cols)])
        spent = seconds(device, lambda: torch.matmul(a, b.t(), out=out), LIMIT_CALLS)
        done = max(done, 2 * rows * depth * cols / spent)
    return moved, done


HEAD = ("| step | by | time | tokens/s | bytes | of the limit | operations | of the limit | "
        "memory |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
ROW = re.compile(r"\| ([^|]+) \| ([^|]+) \| ([\d.]+) ms \| [^|]+ \| ([\d.]+) GB/s \| [^|]+ \| "
                 r"([\d.]+) TFLOP/s \| [^|]+ \| ([\d.]+) GiB \|")
LIMITS = re.compile(r"limits: ([\d.]+) GB/s, ([\d.]+) TFLOP/s")


class Row:
    """Of the table: rows of one step come to lie side by side."""

    def __init__(self, step, by, ms, tokens, gbytes, tflops, gib):
        self.step, self.by, self.ms, self.tokens = step, by, ms, tokens
        self.gbytes, self.tflops, self.gib = gbytes, tflops, gib

    def text(self, moved, done):
        return (f"| {self.step} | {self.by} | {self.ms:.3f} ms | {1e3 * self.tokens / self.ms:.1f} "
                f"| {self.gbytes:.1f} GB/s | {1e11 * self.gbytes / moved:.1f} % "
                f"| {self.tflops:.3f} TFLOP/s | {1e14 * self.tflops / done:.1f} % "
                f"| {self.gib:.2f} GiB |")


def tokens_of(step):
    """ "decode, 64 x 1024" makes 64 tokens, "prompt, 1 x 8192" takes 8192."""
    kind, batch, length = re.fullmatch(r"(\w+), (\d+) x (\d+)", step).groups()
    return int(batch) * (int(length) if kind == "prompt" else 1)


def measure(model, kind, batch, length):
    """A decode attends to `length` keys, a prompt's row to all before it and to itself."""
    s = model.shape
    if model.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    spent, name = decode(model, batch, length) if kind == "decode" else prompt(model, length)
    pairs = batch * length if kind == "decode" else length * (length + 1) // 2
    rows = batch if kind == "decode" else length
    moved = 2 * s.parameters() + (4 * s.L * s.K * s.E * pairs if kind == "decode" else 0)
    done = (2 * (rows * (s.parameters() - s.V * s.D) + batch * s.V * s.D) +
            4 * s.L * s.H * s.E * pairs)
    peak = torch.cuda.max_memory_allocated() if model.device == "cuda" else 0
    version = torch.__version__.split("+")[0]
    return Row(f"{kind}, {batch} x {length}", f"PyTorch {version}{name}", spent * 1e3,
               rows, moved / spent * 1e-9, done / spent * 1e-12, peak / 2**30)


def read_beside(paths):
    """(rows, limits) of bench_forward."""
    rows, moved, done = [], 0, 0
    for path in paths:
        text = path.read_text()
        for step, by, *numbers in ROW.findall(text):
            ms, gbytes, tflops, gib = map(float, numbers)
            rows.append(Row(step, by, ms, tokens_of(step), gbytes, tflops, gib))
        for gbytes, tflops in LIMITS.findall(text):
            moved, done = max(moved, 1e9 * float(gbytes)), max(done, 1e12 * float(tflops))
    return rows, moved, done


def measure_all(args):
    """Rows, and what failed: of one step that does, the others are still told."""
    model = Llama(Shape(args.model[0]), torch.bfloat16, args.device)
    rows, failures = [], []
    steps = [("decode", int(batch), args.context) for batch in args.batches.split(",")]
    for kind, batch, length in [*steps, ("prompt", 1, args.prompt)]:
        try:
            rows.append(measure(model, kind, batch, length))
            print(f"{rows[-1].step}: {rows[-1].ms:.3f} ms", file=sys.stderr, flush=True)
        except RuntimeError as error:
            failures.append(f"{kind}, {batch} x {length}: {error}")
    return rows, failures


@torch.inference_mode()
def bench(args):
    beside, moved, done = read_beside(args.beside)
    own = limits(args.device)
    moved, done = max(moved, own[0]), max(done, own[1])
    mine, failures = measure_all(args)
    steps = dict.fromkeys(row.step for row in [*beside, *mine])
    print(HEAD)
    for step in steps:
        for row in [*beside, *mine]:
            if row.step == step:
                print(row.text(moved, done))
    print(f"\nlimits: {moved * 1e-9:.1f} GB/s, {done * 1e-12:.3f} TFLOP/s "
          f"(PyTorch found {own[0] * 1e-9:.1f} GB/s, {own[1] * 1e-12:.3f} TFLOP/s)")
    print(*failures, sep="\n", end="")
    return 1 if failures else 0


# ---- against transformers ---------------------------------------------------------------------

NAMES = {"embed": ["model.embed_tokens"], "head": ["lm_head"], "norm": ["model.norm"],
         "norm1": ["input_layernorm"], "norm2": ["post_attention_layernorm"],
         "qkv": [f"self_attn.{x}_proj" for x in "qkv"], "o": ["self_attn.o_proj"],
         "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"]}


def checkpoint(folder, device):
    tensors = {name: tensor for path in folder.glob("model*.safetensors")
               for name, tensor in load_file(path, device).items()}

    def take(name, size):
        layer, _, part = name.rpartition(".")
        prefix = f"model.layers.{layer}." if layer else ""
        whole = torch.cat([tensors[f"{prefix}{x}.weight"].float() for x in NAMES[part]])
        assert whole.shape == size, (name, whole.shape, size)
        return whole
    return Llama(Shape(folder), torch.float32, device, take)


def differences(folder, device):
    """Largest ones of the logits, relative to the largest logit: of the prompt, of a decode; and
    whether the decode's token is that of transformers."""
    golden = load_file(folder / "golden.safetensors", device)
    model = checkpoint(folder, device)
    ids, wanted = golden["prompt0"].long()[None], golden["logits0"]
    n = ids.shape[1]
    caches, positions = model.cache(1, n), torch.arange(n, device=device)
    got = model.forward(ids, positions, caches, all_rows=True)
    model.forward(ids[:, :-1], positions[:-1], caches)
    for cache in caches:
        cache[:, :, :, -1] = math.nan  # the decode's to write
    last = model.forward(ids[:, -1:], positions[-1:], caches)
    token = ids[:, -1:].clone()
    # the captured step has run before it is replayed: it is given its token again
    step = decoder(model, token, n, caches)
    token.copy_(ids[:, -1:])
    step()
    largest = wanted.abs().max()
    return ((got - wanted).abs().max() / largest, (last[0] - wanted[-1]).abs().max() / largest,
            token.item() == golden["greedy0"][0])


@torch.inference_mode()
def check(args):
    good = True
    if load_file is None:
        print("bench_torch: skipped: no module safetensors to read checkpoints with")
        return 77
    for folder in args.model:
        try:
            whole, last, same = differences(folder, args.device)
        except Unsupported as e:
            print(f"bench_torch: skipped: {e}")
            continue
        good = good and max(whole, last) <= args.tolerance and same
        print(f"{folder.name}: largest difference of the logits {whole:.1e} of a prompt, "
              f"{last:.1e} of a decode; greedy token {'the same' if same else 'DIFFERS'}")
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, nargs="+")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--beside", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("bench_torch: skipped: PyTorch finds no CUDA device")
        return 77
    torch.manual_seed(1)
    try:
        return check(args) if args.check else bench(args)
    except Unsupported as e:
        sys.exit(f"bench_torch: {e}")


if __name__ == "__main__":
    sys.exit(main())
