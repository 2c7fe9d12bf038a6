"""The KV cache placed by home: bytes received, KV held and limits, by closed forms, and the text of
the whole server."""

import itertools
import json
import subprocess
import sys

import pytest

import checkpoint
from harness import BINARY, ROOT, run
from test_modes import layout, mapped, plan_file

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402

HOME = ("--kv-placement", "home")
LAYOUTS = [("2d", 4), ("2d", 9), ("2.5d", 8), ("2.5d", 12), ("3d", 8), ("3d 2,1,3", 6),
           ("3d 1,2,3", 6), ("3d 3,2,2", 12), ("3d_gathered", 8), ("3d_gathered 3,2,1", 6)]


def counted(model, mode, ranks, rows, sampled, path):
    """Bytes that each rank counts in one step of so many rows of each home."""
    done = subprocess.run(
        [str(BINARY.parent / "tests/test_homes"), "--received", str(model), str(ranks),
         ",".join(map(str, rows)), ",".join(map(str, sampled)), f"--plan={path}",
         "--kv-placement=home", "--load-format=dummy", "--dtype=float32", "--max-num-seqs=64",
         "--max-num-batched-tokens=256", "--max-model-len=64", "--kv-cache-memory=16M",
         "--threads-per-rank=1"], capture_output=True, text=True, check=True)
    return list(map(int, done.stdout.split()))


def spreads(homes):
    """Rows of each home: uneven with empty ones, all at one, one row alone, at the ends only."""
    yield [(5, 0, 3, 1)[home % 4] for home in range(homes)]
    yield [7 if home == homes // 2 else 0 for home in range(homes)]
    yield [int(home == homes - 1) for home in range(homes)]
    yield [4] + [0] * (homes - 2) + [3]


@pytest.mark.parametrize("mode,ranks,many", [(*each, None) for each in LAYOUTS] +
                         [(*each, 1) for each in LAYOUTS if each[0].startswith("2")])
def test_received_bytes(tmp_path, odd, mode, ranks, many):
    """As integers, on every rank, however uneven homes are."""
    shape, path = checkpoint.shape_of(odd), plan_file(tmp_path, mode, many)
    for rows in spreads(mode_bytes.homes(mode, ranks)):
        sampled = list(range(1, sum(rows), 3)) or [0]
        wanted = [mode_bytes.step_bytes(shape, mode, ranks, rank, rows, sampled, many is not None)
                  for rank in range(ranks)]
        assert counted(odd, mode, ranks, rows, sampled, path) == wanted, rows
