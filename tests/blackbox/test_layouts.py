"""Meshes and layouts equal what tests/oracle works out on its own."""

import subprocess
import sys

import numpy
import pytest

from harness import BINARY, ROOT

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mesh_forms  # noqa: E402
import mlp_forms  # noqa: E402
import redistribute_forms  # noqa: E402

PROGRAMS = BINARY.parent / "tests"


def printed(program, *arguments):
    """The lines a unit test program prints as a table."""
    command = [str(PROGRAMS / program), "--table", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("units", [3, 131])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_rank_holds_its_part(axes, units):
    """All meshes of up to 16 ranks, all spreads: coordinates, offsets and sizes."""
    got = printed("test_mesh", axes, units)
    wanted = list(mesh_forms.lines(axes, units))
    assert len(got) == len(wanted)
    assert set(got) == set(wanted)


@pytest.mark.parametrize("sizes", [(2,), (4,), (9,), (16,), (2, 2), (3, 2), (1, 5), (4, 4),
                                   (2, 2, 2), (3, 1, 4), (2, 3, 2)])
def test_redistributed_bytes(sizes):
    """Every transition: a legal route, the right collective, bytes as integers."""
    lines = printed("test_redistribute", *sizes)
    single = sum(redistribute_forms.check(line, sizes, 5, 7, 3) for line in lines)
    assert single >= 10


@pytest.mark.parametrize("mode", ["1d", "2d", "2.5d", "3d"])
def test_example_network(mode):
    """The MLP of the layouts' example equals numpy, and moves what the closed form says."""
    received, *rows = printed("test_mlp", mode)
    assert set(map(int, received.split())) == {mlp_forms.bytes_received(mode)}
    got = numpy.array([list(map(float, row.split())) for row in rows])
    wanted = mlp_forms.forward()
    assert got.shape == wanted.shape
    assert abs(got - wanted).max() < 1e-5 * abs(wanted).max()
