#!/usr/bin/env python3
"""Which rank of a mesh holds which part of a matrix, by enumeration.

Independent of the engine: a mesh is the list of all coordinate tuples in rank order, and a matrix
is cut by walking its blocks one after another.  Nothing here divides a rank by a stride.
"""

import functools
import itertools
import math
from fractions import Fraction

RANKS_MAX = 16


def meshes(axes, ranks_max=RANKS_MAX):
    """Every (sizes, first_fastest) with so many axes and at most so many ranks."""
    for sizes in itertools.product(range(1, ranks_max + 1), repeat=axes):
        if math.prod(sizes) <= ranks_max:
            yield sizes, False
            yield sizes, True


def coordinates(sizes, first_fastest):
    """The coordinates of rank 0, 1, ... in order."""
    if first_fastest:
        backwards = itertools.product(*(range(size) for size in reversed(sizes)))
        return [tuple(reversed(place)) for place in backwards]
    return list(itertools.product(*(range(size) for size in sizes)))


def spreads(axes):
    """Every way to lie over so many axes: ((row axes, column axes), partial axes)."""
    for kinds in itertools.product("RCP-", repeat=axes):
        rows = [axis for axis in range(axes) if kinds[axis] == "R"]
        cols = [axis for axis in range(axes) if kinds[axis] == "C"]
        partial = tuple(axis for axis in range(axes) if kinds[axis] == "P")
        for row_order in itertools.permutations(rows):
            for col_order in itertools.permutations(cols):
                yield (row_order, col_order), partial


def cut(units, pieces):
    """The pieces of range(units): piece x ends at the whole part of units (x + 1) / pieces."""
    begin = 0
    for piece in range(pieces):
        end = int(Fraction(units * (piece + 1), pieces))
        yield begin, end
        begin = end


@functools.cache
def held(sizes, order, units):
    """{coordinates along `order`: (begin, end)} of a dimension cut by these axes."""
    tuples = list(itertools.product(*(range(sizes[axis]) for axis in order)))
    return dict(zip(tuples, cut(units, len(tuples))))


def lines(axes, units, ranks_max=RANKS_MAX):
    """The set of lines that `test_mesh --table AXES UNITS` must print, in any order."""
    for sizes, first_fastest in meshes(axes, ranks_max):
        places = coordinates(sizes, first_fastest)
        head = " ".join(map(str, sizes))
        for (rows, cols), partial in spreads(axes):
            row_spans, col_spans = held(sizes, rows, units), held(sizes, cols, units)
            tail = "R{} C{} {}".format("".join(map(str, rows)), "".join(map(str, cols)),
                                       sum(2 ** axis for axis in partial))
            for rank, place in enumerate(places):
                numbers = (*row_spans[tuple(place[axis] for axis in rows)],
                           *col_spans[tuple(place[axis] for axis in cols)])
                yield (f"{head} {int(first_fastest)} {rank} {' '.join(map(str, place))} {tail} "
                       f"{' '.join(map(str, numbers))}")
