#!/usr/bin/env python3
"""What guesses (--speculative-config ngram) gain at best, and cost at worst.

    bench_speculation.py --model DIR [--build build/release] [--repeats 3] [-- server's options]

The model is that of bench_serve.py, on two ranks with one thread each. Tokens per second of a
server without guesses and one with them, in turns, of 1, 4 and 16 streams: of answers that say one
token again and again, so that every guess is right, and of answers drawn from random weights, in
which nothing comes twice. Prints markdown: medians, with the smallest and largest value.
"""

import argparse
import concurrent.futures
import pathlib
import random
import statistics
import time

import bench_serve

SETUP = [*bench_serve.COMMON, "-tp", "2", "--threads-per-rank", "1", "--kv-cache-memory", "256M"]
STREAMS = 1, 4, 16
GENERATED = 96
ANSWERS = {"repeats": {"logit_bias": {"17": 100}}, "never repeats": {"temperature": 1}}


def rate(server, streams, fields, rng):
    prompts = [[rng.randrange(300, 32000) for _ in range(32)] for _ in range(streams)]
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        begin = time.perf_counter()
        list(pool.map(lambda prompt: server.complete(prompt, GENERATED, **fields).read(), prompts))
        return streams * GENERATED / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="made when missing")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    binary = args.build / "tessera"
    bench_serve.prepare_model(binary, args.model)
    samples = {}
    for seed in range(args.repeats):
        for spec in "none", "ngram":
            options = [*SETUP, "--speculative-config", spec, *args.options]
            with bench_serve.Server(binary, args.model, options) as server:
                server.wait_ready()
                rate(server, 1, {}, random.Random(99))  # which waits until steps are measured
                for name, fields in ANSWERS.items():
                    for streams in STREAMS:
                        value = rate(server, streams, fields, random.Random(seed))
                        samples.setdefault((name, streams), {}).setdefault(spec, []).append(value)
    print("| answers, streams | tokens/s without guesses | with them | ratio |\n"
          "| --- | --- | --- | --- |")
    for (name, streams), of in samples.items():
        ratio = statistics.median(of["ngram"]) / statistics.median(of["none"])
        print(f"| {name}, {streams} | {bench_serve.spread(of['none'], 3)} | "
              f"{bench_serve.spread(of['ngram'], 3)} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
