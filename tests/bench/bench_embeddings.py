#!/usr/bin/env python3
"""Tokens per second of vectors of texts: /v1/embeddings, and transformers in the same process size.

    bench_embeddings.py --model DIR [--build build/release] [--texts 64] [--tokens 128]
                        [--repeats 3] [--threads N] [--torch PYTHON]

DIR is made first, if it is not there: random bf16 weights of Qwen3-Embedding-0.6B's shape, with
32,000 tokens. All texts come in one request of token ids, which the server batches as it likes;
their vectors come back as base64. --torch: an interpreter that has torch and transformers, which
then computes the same, in the batch of 1 to 64 that is fastest for it, on as many threads. The
two take turns; medians. A token takes two operations for each weight of the layers, and what
attention adds is left out.
"""

import argparse
import base64
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import time
import urllib.request

SHAPE = {  # of https://huggingface.co/Qwen/Qwen3-Embedding-0.6B, but for the vocabulary
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768, "rope_theta": 1000000, "tie_word_embeddings": True,
    "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16"}

PEER = """
import json, sys, time
import torch, transformers
model, threads, kind, file = sys.argv[1:5]
torch.set_num_threads(int(threads))
ids = torch.tensor(json.load(open(file)))
m = transformers.AutoModel.from_pretrained(model, dtype=getattr(torch, kind)).eval()
with torch.inference_mode():
    def run(batch):
        begin = time.perf_counter()
        for part in ids.split(batch):
            last = m(input_ids=part, use_cache=False).last_hidden_state[:, -1]
            torch.nn.functional.normalize(last.float())
        return time.perf_counter() - begin
    best = min((1, 4, 16, 64), key=run)
    print(best, flush=True)
    for line in sys.stdin:
        print(run(best), flush=True)
"""


def weights_of_layers(shape):
    heads = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    return shape["num_hidden_layers"] * shape["hidden_size"] * (
        2 * heads + 2 * kv + 3 * shape["intermediate_size"])


def make_model(program, directory):
    if directory.exists():
        return
    config = directory.with_suffix(".json")
    config.write_text(json.dumps(SHAPE))
    subprocess.run([program, "synth", "--config", config, "-o", directory], check=True)


class Server:
    def __init__(self, program, model, threads, *options):
        self.process = subprocess.Popen(
            [program, "serve", model, "--runner", "pooling", "--port", "0", "-tp", "1",
             "--threads-per-rank", str(threads), "--no-enable-prefix-caching",
             "--skip-tokenizer-init", *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "listening on " in line:
                self.url = line.split("listening on ")[1].strip() + "/v1/embeddings"
            if "a step takes" in line:
                return
        raise SystemExit("the server did not start")

    def seconds(self, ids):
        body = json.dumps({"input": ids, "encoding_format": "base64"}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        begin = time.perf_counter()
        answer = json.load(urllib.request.urlopen(request))
        taken = time.perf_counter() - begin
        assert len(answer["data"]) == len(ids)
        last = base64.b64decode(answer["data"][-1]["embedding"])
        assert abs(sum(x * x for (x,) in struct.iter_unpack("<f", last)) - 1) < 1e-3
        return taken

    def close(self):
        self.process.terminate()
        self.process.wait()


class Torch:
    def __init__(self, python, model, threads, kind, ids):
        file = pathlib.Path(model).with_suffix(".ids.json")
        file.write_text(json.dumps(ids))
        self.process = subprocess.Popen([python, "-c", PEER, model, str(threads), kind, file],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.batch = self.process.stdout.readline().strip()

    def seconds(self, _):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--torch")
    args = parser.parse_args()
    program = args.build / "tessera"
    make_model(program, args.model)
    draw = random.Random(1)
    ids = [[draw.randrange(300, 32000) for _ in range(args.tokens)] for _ in range(args.texts)]
    tokens, work = args.texts * args.tokens, 2e-9 * weights_of_layers(SHAPE)
    contestants = [("bf16", lambda: Server(program, args.model, args.threads)),
                   ("int8", lambda: Server(program, args.model, args.threads,
                                           "--quantization", "int8"))]
    for kind in ("bfloat16", "float32") if args.torch else ():
        contestants.append((f"transformers, {kind}", lambda kind=kind: Torch(
            args.torch, args.model, args.threads, kind, ids)))
    seen = {name: [] for name, _ in contestants}
    for _ in range(args.repeats):
        for name, start in contestants:
            contestant = start()
            contestant.seconds(ids)  # the first finds caches cold
            seen[name].append(tokens / contestant.seconds(ids))
            contestant.close()
    print(f"\n{args.texts} texts of {args.tokens} tokens, {args.threads} threads\n\n"
          "| | tokens/s | GFLOP/s |\n| --- | --- | --- |")
    for name, speeds in seen.items():
        speed = statistics.median(speeds)
        print(f"| {name} | {speed:.0f} | {speed * work:.0f} |")


if __name__ == "__main__":
    main()
