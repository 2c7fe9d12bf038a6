#!/usr/bin/env python3
"""What a server makes of ten times as many requests as it can serve.

    bench_overload.py [--build build/release] [--model deploy/demo/model] [--seconds 120]

Capacity is what a closed loop gets that keeps all seats and half of the queue taken, before and
after; in between, requests arrive at ten times that rate (Poisson, with a client that never waits).
A request is good when its first token and its pace are within three times the p99 at capacity: a
full queue alone doubles the wait. Exit code 1 when anything but 429 was refused with, when goodput
was below 95 % of capacity, or when resident memory (of front end and ranks together, once per
second) grew by 2 MiB in the second half. The client runs on the same cores. Prints markdown.
"""

import argparse
import itertools
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading

import bench_serve

SEATS, QUEUE = 16, 32
LENGTHS = ["--random-input-len", 64, "--random-output-len", 64, "--ignore-eos"]
SLACK = 3
GOODPUT_SHARE = 0.95
MEMORY_GROWTH = 2 << 20  # more than allocators and pages touched late add
seeds = itertools.count()  # no load repeats another's prompts, or the prefix cache would have them


def run(binary, server, out, *load):
    command = [binary, "bench", f"http://127.0.0.1:{server.port}", *LENGTHS, "--seed", next(seeds),
               "--output-json", out, *load]
    subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=False)
    return json.loads(out.read_text())["rounds"][0]


class Memory(threading.Thread):
    """Resident bytes of some processes, once per second, while in the context."""

    def __init__(self, pids):
        super().__init__()
        self.pids, self.samples, self.over = pids, [], threading.Event()

    def run(self):
        while not self.over.wait(1):
            texts = [pathlib.Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
            self.samples.append(1024 * sum(int(re.search(r"^VmRSS:\s+(\d+)", text, re.M)[1])
                                           for text in texts))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def halves(self):
        middle = len(self.samples) // 2
        return max(self.samples[:middle]), max(self.samples[middle:])


def report(args, full, rate, over, memory):
    first, second = memory.halves()
    capacity = statistics.mean(one["request_throughput"] for one in full)
    share = over["request_goodput"] / capacity
    columns = [full[0], over, full[1]]
    rows = [
        ("served requests/s", *(f"{one['request_throughput']:.2f}" for one in columns)),
        ("requests/s sent", "", f"{rate:.1f}", ""),
        ("good requests/s", "", f"{over['request_goodput']:.2f}, {100 * share:.1f} %", ""),
        ("refused", *(json.dumps(one["errors"]) for one in columns)),
        ("refused after p50 / p99, ms", "",
         f"{over['median_http_error_ms']:.1f} / {over['p99_http_error_ms']:.1f}", ""),
        *((f"{key.upper()} p50 / p99, ms",
           *(f"{one[f'median_{key}_ms']:.1f} / {one[f'p99_{key}_ms']:.1f}" for one in columns))
          for key in ("ttft", "tpot")),
        ("resident memory, MiB", "", f"{first / 2**20:.1f}, then {second / 2**20:.1f}", ""),
    ]
    print(f"| {args.seconds:.0f} s | capacity before | at {args.factor:g} times that "
          "| capacity after |\n| --- | --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    good = (full[0]["failed"] + full[1]["failed"] == 0 and set(over["errors"]) <= {"http_429"}
            and share >= GOODPUT_SHARE and second - first < MEMORY_GROWTH)
    print("\n" + ("Kept." if good else "Not kept."))
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("deploy/demo/model"))
    parser.add_argument("--serve", default="-tp 2 --threads-per-rank 1", help="options of serve")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--factor", type=float, default=10)
    args = parser.parse_args()
    binary = args.build / "tessera"
    serve = [*args.serve.split(), "--max-num-seqs", SEATS, "--max-num-queued-reqs", QUEUE]
    with tempfile.TemporaryDirectory() as scratch, \
            bench_serve.Server(binary, args.model, serve) as server:
        out = pathlib.Path(scratch) / "out.json"
        server.wait_ready()
        closed = ["--max-concurrency", SEATS + QUEUE // 2, "--num-prompts"]
        speed = run(binary, server, out, *closed, 4 * SEATS)["request_throughput"]  # warms up, too
        count = max(4 * SEATS, int(speed * args.seconds / 4))
        full = [run(binary, server, out, *closed, count)]
        bounds = ",".join(f"{key}:{SLACK * full[0][f'p99_{key}_ms']:.3f}"
                          for key in ("ttft", "tpot"))
        rate = args.factor * full[0]["request_throughput"]
        with Memory(bench_serve.processes_of(server.process.pid)) as memory:
            over = run(binary, server, out, "--request-rate", rate, "--num-prompts",
                       int(rate * args.seconds), "--goodput", bounds)
        full.append(run(binary, server, out, *closed, count))
    return report(args, full, rate, over, memory)


if __name__ == "__main__":
    sys.exit(main())
