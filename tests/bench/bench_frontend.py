#!/usr/bin/env python3
"""What the HTTP side of the server costs: `tessera bench` against a model of one tiny layer.

    bench_frontend.py [--build build/release] [--streams 1000] [--repeats 3]

The ranks have next to nothing to do, so that the rate is that of parsing, scheduling, detokenizing
and streaming. The client runs on the same cores; its CPU time is counted apart. Medians, with the
smallest and largest value. Prints markdown.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import bench_serve

CONFIG = bench_serve.CONFIG | {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 1024, "max_position_embeddings": 2048,
}
SERVE = ["--threads-per-rank", 1, "--max-num-seqs", 1024, "--max-num-batched-tokens", 2048,
         "--max-num-queued-reqs", 4096]
TOKENS = 256
IDLE_SECONDS = 10
ROWS = [
    ("streamed tokens/s", "output_throughput", "{:.0f}"),
    ("streams at once", "max_concurrent_streams", "{:.0f}"),
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
               "--ignore-eos", "--output-json", out, *load, "--", *SERVE]
    subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   check=False)  # exit code 1 only says that requests failed, which is a row
    return json.loads(out.read_text())["rounds"][0]


def cpu_seconds(pids):
    ticks = 0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


def idle_share(binary, model):
    """Part of a core that a server takes which has served and now waits, ranks included."""
    with bench_serve.Server(binary, model, SERVE) as server:
        server.wait_ready()
        server.complete([5, 6, 7], 16).read()
        time.sleep(1)
        pids = bench_serve.processes_of(server.process.pid)
        begin = cpu_seconds(pids)
        time.sleep(IDLE_SECONDS)
        return (cpu_seconds(pids) - begin) / IDLE_SECONDS


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
        idle = idle_share(binary, model)
    print(f"| {TOKENS} tokens each | {' | '.join(rounds)} |\n| --- |{' --- |' * len(rounds)}")
    for title, key, form in ROWS:
        cells = []
        for figures in rounds.values():
            values = [figure[key] for figure in figures]
            low, high = form.format(min(values)), form.format(max(values))
            cells.append(f"{form.format(statistics.median(values))} ({low} to {high})")
        print(f"| {title} | {' | '.join(cells)} |")
    print(f"\nAn idle server takes {100 * idle:.2f} % of a core.")


if __name__ == "__main__":
    main()
