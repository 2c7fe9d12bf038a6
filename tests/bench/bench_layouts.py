#!/usr/bin/env python3
"""Every layout on the shape of Llama 3.2 1B: bytes and collectives per layer, and modelled times.

    bench_layouts.py [--build build/release]

Bytes are of the rank that receives most, as `tessera plan` says, and must equal the closed forms of
tests/oracle or the script fails. Times are modelled from what collectives and linears cost here
(`tessera plan --modes --measure`), with more ranks than cores: they show that the model works, not
what a machine with a core per rank would do. Needs no weights. Prints markdown.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from bench_serve import CONFIG

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402
import tp1d_bytes  # noqa: E402

STEPS = [("prefill 128", 128), ("prefill 2k", 2048), ("prefill 8k", 8192), ("decode 1", 1),
         ("decode 8", 8), ("decode 32", 32)]
LAYOUTS = {  # mode, mesh, where the KV cache lies
    4: [("1d", None, "heads"), ("1d_sp", None, "heads"), ("2d", None, "heads"),
        ("2d", None, "home"), ("2.5d", "1,2,2", "heads"), ("3d", "1,2,2", "heads"),
        ("3d", "2,2,1", "heads"), ("3d_gathered", "2,2,1", "heads")],
    8: [("1d", None, "heads"), ("1d_sp", None, "heads"), ("2.5d", "2,2,2", "heads"),
        ("2.5d", "2,2,2", "home"), ("3d", "2,2,2", "heads"), ("3d", "2,2,2", "home"),
        ("3d_gathered", "2,2,2", "heads"), ("3d", "1,4,2", "heads")],
}  # 8 ranks are no square: there is no 2d
WEIGHT_BYTES = 2  # CONFIG's dtype


def plan(binary, model, ranks, *options):
    command = [binary, "plan", model, "-tp", ranks, "--load-format", "dummy", "--max-num-seqs", 1,
               "--kv-cache-memory", "64M", "--max-model-len", 256, *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode not in (0, 4):  # what does not fit into this machine has a plan all the same
        raise SystemExit(done.stderr)
    return done.stdout


def closed_form(shape, mode, mesh, placement, ranks, rows, many):
    """Bytes of one layer, of the rank that receives most; homes have equally many rows."""
    name = f"{mode} {mesh}" if mode.startswith("3d") else mode
    homes = mode_bytes.homes(name, ranks) if placement == "home" else 1
    parts = [mode_bytes.size(rows, (home, homes)) for home in range(homes)]

    def step(layers, rank):
        return mode_bytes.step_bytes(shape._replace(layers=layers), name, ranks, rank,
                                     parts if homes > 1 else rows, [], many, WEIGHT_BYTES)
    return max(step(2, rank) - step(1, rank) for rank in range(ranks))


def row_of(binary, model, shape, ranks, mode, mesh, placement):
    """(bytes, collectives) for each of STEPS."""
    cells = []
    for _, rows in STEPS:
        text = plan(binary, model, ranks, "--parallel-mode", mode, "--max-num-batched-tokens", rows,
                    "--json", *(["--mesh", mesh] if mesh else []),
                    *(["--kv-placement", "home"] if placement == "home" else []))
        found = json.loads(text)
        many = rows >= found.get("many_rows_from", 1 << 30)
        most = max(rank["received_bytes_per_layer"][f"prefill_{rows}" if rows > 1 else "decode_1"]
                   for rank in found["per_rank"])
        wanted = closed_form(shape, mode, mesh, placement, ranks, rows, many)
        if most != wanted:
            raise SystemExit(f"{mode} {mesh} at {ranks} ranks, {rows} rows: {most} bytes, the "
                             f"closed form says {wanted}")
        cells.append((most, found["collectives_per_layer"]["many_rows" if many else "few_rows"]))
    return cells


def times(binary, model, ranks):
    """Modelled ms of a step, by layout and rows."""
    text = plan(binary, model, ranks, "--modes", "--measure", "--max-num-batched-tokens",
                max(rows for _, rows in STEPS))
    heads, *lines = text[text.index("modelled ms"):].split("\n\n")[0].splitlines()[1:]
    found = {}
    for layout, *cells in (re.split(r"\s{2,}", line.rstrip()) for line in lines):
        for rows, cell in zip(heads.split()[1:], cells):
            found[layout, int(rows)] = float(cell.rstrip("* "))
    return found


def table(title, names, rows):
    print(f"\n{title}\n\n| | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}")
    for name, cells in rows:
        print(f"| {name} | {' | '.join(cells)} |")


def size(n):
    return f"{n / 1024:.1f} KiB" if n < 1 << 20 else f"{n / (1 << 20):.1f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=str(ROOT / "build/release"))
    binary = pathlib.Path(parser.parse_args().build) / "tessera"
    names = [name for name, _ in STEPS]
    with tempfile.TemporaryDirectory() as model:
        config = pathlib.Path(model) / "config.json"
        config.write_text(json.dumps(CONFIG))
        shape = tp1d_bytes.shape_of(CONFIG)
        for ranks, layouts in LAYOUTS.items():
            took = times(binary, model, ranks)
            counted, modelled = [], []
            for mode, mesh, placement in layouts:
                cells = row_of(binary, model, shape, ranks, mode, mesh, placement)
                name = f"{mode} {mesh}" if mesh else mode
                if placement == "home":
                    counted.append((f"{name}, KV at home", [f"{size(n)}, {meetings}"
                                                            for n, meetings in cells]))
                    continue
                known = "2d" if mesh == "1,2,2" and mode == "2.5d" else name  # of depth 1
                counted.append((name, [f"{size(n)}, {meetings}" for n, meetings in cells]))
                modelled.append((name, [f"{took[known, rows]:.1f}" for _, rows in STEPS]))
            table(f"{ranks} ranks: bytes received per layer by the rank that receives most, and "
                  "collectives", names, counted)
            table(f"{ranks} ranks: modelled ms of a step (functional only: ranks exceed cores)",
                  names, modelled)


if __name__ == "__main__":
    main()
