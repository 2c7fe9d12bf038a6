#!/usr/bin/env python3
"""Many requests at once: a burst, a common prefix, and a long prompt among running streams.

    bench_load.py --model DIR [--build build/release] [--only burst|prefix|prompt] [--repeats 3]

The model is that of bench_serve.py, on two ranks with one thread each. Prints markdown: medians,
with the smallest and largest value. Ratios hold on a busy machine too, seconds only on a quiet one.

  burst   16 requests at the same moment, 128 random tokens in and 64 out
  prefix  64 requests that begin with the same 512 tokens and add 16 of their own, 64 out, with the
          prefix cache and without
  prompt  a prompt of 2,000 tokens arrives while 1 and while 15 streams run: the time between two
          tokens of a stream, before and meanwhile, and the time of the prompt, alone and there
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time

import bench_serve

SETUP = ["-tp", "2", "--threads-per-rank", "1", "--kv-cache-memory", "256M"]
LONG_PROMPT = 2000
STREAMED = 1500  # tokens of a stream; more than a prompt takes steps


def random_ids(rng, count):
    return [rng.randrange(300, bench_serve.CONFIG["vocab_size"]) for _ in range(count)]


# ---- rounds of `tessera bench` ----------------------------------------------------------------


def bench(args, load, *options):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out.json"
        subprocess.run([args.build / "tessera", "bench", args.model, "--ignore-eos",
                        "--output-json", out, *load, "--", *bench_serve.COMMON, *SETUP, *options],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(out.read_text())["rounds"][0]


def burst(args, seed):
    figures = bench(args, ["--num-prompts", "16", "--random-input-len", "128",
                           "--random-output-len", "64", "--random-vocab", "32000",
                           "--seed", str(seed)])
    return {"burst: tokens/s": figures["output_throughput"],
            "burst: TTFT p50, s": figures["median_ttft_ms"] / 1e3,
            "burst: TTFT p99, s": figures["p99_ttft_ms"] / 1e3}


def prefix(args, seed):
    rng = random.Random(seed)
    common = random_ids(rng, 512)
    rate = {}
    with tempfile.TemporaryDirectory() as scratch:
        lines = pathlib.Path(scratch) / "prompts.jsonl"
        lines.write_text("".join(json.dumps({"prompt": common + random_ids(rng, 16),
                                             "max_tokens": 64}) + "\n" for _ in range(64)))
        for option in ("--enable-prefix-caching", "--no-enable-prefix-caching"):
            load = ["--num-prompts", "64", "--prompts", str(lines)]
            rate[option] = bench(args, load, option)["request_throughput"]
    hit, miss = rate.values()
    return {"prefix: requests/s with the cache": hit, "prefix: without": miss,
            "prefix: ratio": hit / miss}


# ---- a long prompt among streams --------------------------------------------------------------


class Streams:
    """Running streams, and when their tokens came."""

    def __init__(self, server, rng, count):
        self.times = [[] for _ in range(count)]
        self.stop = False
        self.threads = [threading.Thread(target=self.read, args=(server, random_ids(rng, 8), times))
                        for times in self.times]
        for thread in self.threads:
            thread.start()

    def read(self, server, prompt, times):
        with server.complete(prompt, STREAMED, stream=True) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
                if self.stop:
                    return

    def wait(self, tokens):
        target = [len(times) + tokens for times in self.times]
        while any(len(times) < wanted for times, wanted in zip(self.times, target)):
            time.sleep(0.01)

    def gaps(self, begin, end):
        """Seconds between tokens of the first stream that came in this time."""
        within = [at for at in self.times[0] if begin <= at <= end]
        return [after - before for before, after in zip(within, within[1:])]

    def close(self):
        self.stop = True
        for thread in self.threads:
            thread.join()


def prompt_seconds(server, rng):
    begin = time.perf_counter()
    server.complete(random_ids(rng, LONG_PROMPT), 1).read()
    return time.perf_counter() - begin


def prompt(args, seed):
    rng = random.Random(seed)
    figures = {}
    with bench_serve.Server(args.build / "tessera", args.model, SETUP) as server:
        server.wait_ready()
        alone = prompt_seconds(server, rng)
        figures["prompt: alone, s"] = alone
        for count in (1, 15):
            streams = Streams(server, rng, count)
            streams.wait(8)
            quiet = time.perf_counter()
            streams.wait(16)
            begin = time.perf_counter()
            among = prompt_seconds(server, rng)
            end = time.perf_counter()
            streams.close()
            pure = statistics.median(streams.gaps(quiet, begin))
            meanwhile = streams.gaps(begin, end)
            steps = len(meanwhile)
            name = f"prompt: among {count}"
            figures[f"{name}, step of decodes, s"] = pure
            figures[f"{name}, median step / that"] = statistics.median(meanwhile) / pure
            figures[f"{name}, longest step / that"] = max(meanwhile) / pure
            figures[f"{name}, prompt, s"] = among
            figures[f"{name}, (prompt - decodes' share) / alone"] = (among - steps * pure) / alone
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="made when missing")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    cases = {"burst": burst, "prefix": prefix, "prompt": prompt}
    parser.add_argument("--only", choices=cases)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    bench_serve.prepare_model(args.build / "tessera", args.model)
    samples = {}
    for seed in range(args.repeats):
        for name, case in cases.items():
            if args.only in (None, name):
                for row, value in case(args, seed).items():
                    samples.setdefault(row, []).append(value)
    print("| measure | median (smallest-largest) |\n| --- | --- |")
    for row, values in samples.items():
        print(f"| {row} | {bench_serve.spread(values, 3)} |")


if __name__ == "__main__":
    main()
