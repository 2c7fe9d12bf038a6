#!/usr/bin/env python3
"""Tables of where the time of a step goes, of what trace.c has written.

    trace.py trace.csv [--steps 5]

A step begins with the kernel that finds its tokens, and steps whose kernels have the same names and
grids in the same order are of one kind. Of each kind with so many steps there is a
table: the places of a layer, between one layer's rotation of queries and keys and the next one's,
with the microseconds from the end of the kernel before (others may run meanwhile, so these add up),
medians of all layers and steps; then all that is not in a layer, of a step.
"""

import argparse
import collections
import csv
import re
import statistics

Kernel = collections.namedtuple("Kernel", "begin end name")


def short(mangled):
    """Of a mangled name the function's, of cuBLAS's the kind of kernel."""
    named = re.search(r"\d+([a-z_0-9]+?_kernel)", mangled)
    return named.group(1) if named else re.sub(r"_[0-9x]+_.*", "", mangled)[:24]


def kernels(path):
    with open(path, newline="") as file:
        for begin, end, _, x, y, z, name in csv.reader(file):
            grid = f" {x} x {y} x {z}" if name != "copy" else ""
            yield Kernel(int(begin), int(end), short(name) + grid)


def steps(trace):
    step = []
    for kernel in sorted(trace, key=lambda k: k.end):
        if kernel.name.startswith("resolve_kernel"):
            yield step
            step = []
        step.append(kernel)


def tails(step):
    """Microseconds from one end to the next."""
    return [(b.name, (b.end - a.end) / 1e3) for a, b in zip(step, step[1:])]


def layers(timed):
    """The places of whole layers, [[(name, microseconds)]], and the rest."""
    at = [i for i, (name, _) in enumerate(timed) if name.startswith("rope_")
          and "table" not in name]
    if not at:  # decodes: rotated where they are attended to
        at = [i for i, (name, _) in enumerate(timed) if name.startswith("attend_")]
    if len(at) < 2 or len({b - a for a, b in zip(at, at[1:])}) != 1:
        return [], timed
    width = at[1] - at[0]
    # the last layer lacks the product before the next one's rotation
    return [timed[i : i + width] for i in at[:-1]], timed[: at[0]] + timed[at[-1] + width - 1 :]


def table(kind):
    count, timed = len(kind), [tails(step) for step in kind]
    split = [layers(t) for t in timed]
    total = statistics.median((s[-1].end - s[0].end) / 1e3 for s in kind)
    print(f"\n{count} steps of {total:.0f} us, {len(split[0][0])} whole layers\n")
    print("| us | |\n| --- | --- |")
    places = [layer for found, _ in split for layer in found]
    for place in zip(*places):
        print(f"| {statistics.median(us for _, us in place):.1f} | {place[0][0]} |")
    for place in zip(*(rest for _, rest in split)):
        print(f"| {statistics.median(us for _, us in place):.1f} | outside: {place[0][0]} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--steps", type=int, default=5, help="fewer of a kind are not shown")
    args = parser.parse_args()
    kinds = collections.defaultdict(list)
    for step in steps(kernels(args.trace)):
        kinds[tuple(k.name for k in step)].append(step)
    for names, kind in kinds.items():
        if names and len(kind) >= args.steps:
            table(kind)


if __name__ == "__main__":
    main()
