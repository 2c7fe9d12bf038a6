#!/usr/bin/env python3
"""What the HTTP side of the server costs: `tessera bench` against a model of one tiny layer.

    bench_frontend.py [--build build/release] [--streams 1000] [--repeats 3]

The ranks have next to nothing to do, so that the rate is that of parsing, scheduling, detokenizing
and streaming. The client runs on the same cores; its CPU time is counted apart. Medians, with the
smallest and largest value. Prints markdown.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 1024, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "bfloat16",
}
TOKENS = 256
ROWS = [
    ("streamed tokens/s", "output_throughput", "{:.0f}"),
    ("requests/s", "request_throughput", "{:.0f}"),
    ("failed requests", "failed", "{:.0f}"),
    ("server CPU per token, µs", "server_cpu_us_per_token", "{:.2f}"),
    ("client CPU per token, µs", "client_cpu_us_per_token", "{:.2f}"),
    ("ranks' CPU, s", "ranks_cpu_seconds", "{:.2f}"),
    ("TTFT p50, ms", "median_ttft_ms", "{:.1f}"),
    ("TTFT p99, ms", "p99_ttft_ms", "{:.1f}"),
    ("ITL p99, ms", "p99_itl_ms", "{:.2f}"),
]


def measure(binary, model, out, *load):
    command = [binary, "bench", model, "--random-input-len", 8, "--random-output-len", TOKENS,
               "--ignore-eos", "--output-json", out, *load, "--", "--threads-per-rank", 1,
               "--max-num-seqs", 1024, "--max-num-batched-tokens", 2048,
               "--max-num-queued-reqs", 4096]
    subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   check=False)  # exit code 1 only says that requests failed, which is a row
    return json.loads(out.read_text())["rounds"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    binary = args.build / "tessera"
    loads = {f"{args.streams} streams": ["--max-concurrency", args.streams, "--num-prompts",
                                         3 * args.streams],
             "80 requests/s": ["--request-rate", 80, "--num-prompts", 800]}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "config.json").write_text(json.dumps(CONFIG))
        model = scratch / "model"
        subprocess.run([binary, "synth", "--config", scratch / "config.json", "-o", model],
                       check=True, stdout=subprocess.DEVNULL)
        rounds = {name: [measure(binary, model, scratch / "out.json", *load)
                         for _ in range(args.repeats)] for name, load in loads.items()}
    print(f"| {TOKENS} tokens each | {' | '.join(rounds)} |\n| --- |{' --- |' * len(rounds)}")
    for title, key, form in ROWS:
        cells = []
        for figures in rounds.values():
            values = [figure[key] for figure in figures]
            low, high = form.format(min(values)), form.format(max(values))
            cells.append(f"{form.format(statistics.median(values))} ({low} to {high})")
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
