#!/usr/bin/env python3
"""Every layout: what is predicted, what the server counts, and what the kernel has seen.

    TESSERA=build/release/tessera bench_witness.py

Per layout, of rank 1: bytes received for a prompt of 1000 tokens and 7 more (closed forms of
tests/oracle; /metrics; the sockets of MPI ranks in network namespaces, which also carry headers),
the weights it stores (closed form of its memory file; its pages in use), and the activations that
each row of the largest step takes (`tessera plan`; what the process holds more with more rows). No
number is compared here, tests/blackbox does that. Wants root and Open MPI. Prints markdown.
"""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/blackbox"))
import checkpoint  # noqa: E402
import conftest  # noqa: E402
import test_modes  # noqa: E402
import test_mpi_network  # noqa: E402
from test_modes import mode_bytes  # noqa: E402

LAYOUTS = [("1d", 4), ("1d_sp", 4), ("2d", 4), ("3d 2,2,1", 4), ("3d_gathered 2,2,1", 4),
           ("2.5d", 8), ("3d", 8), ("3d_gathered", 8)]
PROMPT, COUNT, RANK = [3 + i % 500 for i in range(1000)], 8, 1
STEPS = [(len(PROMPT), [len(PROMPT) - 1])] + [(1, [0])] * (COUNT - 1)
OPTIONS = ["--load-format", "dummy", "--dtype", "float32", "--max-num-batched-tokens", 1000,
           "--no-enable-prefix-caching"]


def counted(serve, model, mode, ranks):
    """(bytes that rank 1 counts, bytes of its weights by the kernel's count)"""
    server = serve(model, "-tp", ranks, *test_modes.layout(mode), *OPTIONS)
    before = test_modes.received(server.metrics(), RANK)
    server.token_ids(PROMPT, COUNT)
    after = test_modes.received(server.metrics(), RANK)
    weights = test_modes.mapped(server.ranks()[RANK], "tessera-weights")
    server.stop()
    return after - before, weights


def witnessed(model, mode, ranks, directory):
    network = test_mpi_network.Network(ranks)
    try:
        server = test_mpi_network.NetworkServer(network, model, *test_modes.layout(mode), *OPTIONS,
                                                directory=directory).wait_ready()
        before = network.received(RANK)
        server.token_ids(PROMPT, COUNT)
        after = network.received(RANK)
        server.stop()
        return after - before
    finally:
        network.close()


def main():
    print("| layout, ranks | received: predicted | counted | on its sockets | weights | in use | "
          "activations per row: planned | held |\n|" + " --- |" * 8)
    with tempfile.TemporaryDirectory() as path:
        directory = pathlib.Path(path)
        serve = conftest.Starter(directory)
        model = checkpoint.write_config(directory / "model", hidden_size=1024, num_hidden_layers=2,
                                        num_attention_heads=16, num_key_value_heads=8, head_dim=64,
                                        intermediate_size=2048, vocab_size=512)
        shape = checkpoint.shape_of(model)
        for mode, ranks in LAYOUTS:
            plan = test_modes.predicted(model, mode, ranks, "--dtype", "float32")
            many_from = plan.get("many_rows_from", 1 << 30)
            predicted = sum(mode_bytes.step_bytes(shape, mode, ranks, RANK, rows, sampled,
                                                  rows >= many_from) for rows, sampled in STEPS)
            own, in_use = counted(serve, model, mode, ranks)
            sockets = witnessed(model, mode, ranks, directory)
            planned, held = test_modes.bytes_per_row(serve, model, mode, ranks)[RANK]
            weights = plan["per_rank"][RANK]["weight_bytes"]
            print(f"| {mode}, {ranks} | {predicted:,} | {own:,.0f} | {sockets:,} | {weights:,} | "
                  f"{in_use:,} | {planned:,.0f} | {held:,.0f} |", flush=True)
        serve.close()


if __name__ == "__main__":
    main()
