#!/usr/bin/env python3
"""Bytes of a redistribution, in closed form, and which collective each transition is entitled to.

Independent of the engine: a spread is read from its text, each move is applied to it by the rules
below, and what a rank receives is counted from the blocks that mesh_forms cuts.  n is the size of
the axis, N the local block after a gather or before a scatter:

    all-reduce      2 (n-1)/n N, or (n-1) N one-shot     all-gather      (n-1)/n N
    reduce-scatter  (n-1)/n N                            all-to-all      (n-1)/n N
    slice, claim    0                                    permutation     N, nothing to itself
"""

import itertools
import math
import re

import mesh_forms

NAMES = "xyz"
ELEMENT = 4
ONESHOT_MAX_BYTES = 256 << 10

# What a single axis needs, by what the matrix is along it before and after.
COLLECTIVE = {
    ("partial", "copy"): "all-reduce",
    ("partial", "rows"): "reduce-scatter", ("partial", "cols"): "reduce-scatter",
    ("rows", "copy"): "all-gather", ("cols", "copy"): "all-gather",
    ("copy", "rows"): "slice", ("copy", "cols"): "slice",
    ("rows", "cols"): "all-to-all", ("cols", "rows"): "all-to-all",
    ("copy", "partial"): "claim",
}


def parse(text):
    """{"rows": [axes], "cols": [axes], "partial": [axes]}, outermost first."""
    found = {"rows": [], "cols": [], "partial": []}
    for name, axes in re.findall(r"(\w+)\(([\w,]*)\)", text):
        found[name] = [NAMES.index(axis) for axis in axes.split(",")]
    return found


def without_idle(spread, sizes):
    """Along an axis of one rank a part is the whole, and an addend the sum: nothing has to move."""
    return {name: [axis for axis in axes if sizes[axis] > 1] for name, axes in spread.items()}


def copy_of(spread):
    return {name: list(axes) for name, axes in spread.items()}


class Case:
    """A mesh and a matrix of rows x (cols units of `unit` elements)."""

    def __init__(self, sizes, rows, cols, unit):
        self.sizes, self.rows, self.cols, self.unit = sizes, rows, cols, unit
        self.places = mesh_forms.coordinates(sizes, False)

    def block(self, spread, dim, place):
        units, unit = (self.rows, 1) if dim == "rows" else (self.cols, self.unit)
        order = spread[dim]
        at = tuple(place[a] for a in order)
        begin, end = mesh_forms.held(self.sizes, tuple(order), units)[at]
        return (end - begin) * unit

    def local(self, spread, place):
        return self.block(spread, "rows", place) * self.block(spread, "cols", place)

    # ---- moves: (spread after, elements received by each rank) ----

    def move(self, spread, text):
        name, axis, rest = re.fullmatch(r"([\w-]+)\((\w)(.*)\)", text).groups()
        axis = NAMES.index(axis)
        after = copy_of(spread)
        words = rest.replace(":", " ").split()
        if name in ("all-reduce", "reduce-scatter"):
            after["partial"].remove(axis)
        if name == "all-gather":
            assert after[words[0]].pop() == axis, "only the innermost axis can be gathered"
        elif name == "all-to-all":
            assert after[words[0]].pop() == axis, "only the innermost axis can be exchanged"
            after[words[2]].append(axis)
        elif name in ("slice", "reduce-scatter"):
            after[words[1]].append(axis)
        elif name == "claim":
            after["partial"] = sorted(after["partial"] + [axis])
        elif name == "permutation":
            other = NAMES.index(words[1])
            trade = {axis: other, other: axis}
            for dim in ("rows", "cols"):
                after[dim] = [trade.get(a, a) for a in after[dim]]
        return after, [self.received(name, axis, words, spread, after, place)
                       for place in self.places]

    def received(self, name, axis, words, before, after, place):
        n, mine = self.sizes[axis], place[axis]
        held, got = self.local(before, place), self.local(after, place)
        if name == "all-reduce":
            if n == 2 or held * ELEMENT <= ONESHOT_MAX_BYTES:
                return (n - 1) * held
            begin, end = list(mesh_forms.cut(held, n))[mine]
            return (n - 1) * (end - begin) + held - (end - begin)
        if name == "reduce-scatter":
            return (n - 1) * got
        if name == "all-gather":
            return got - held
        if name == "all-to-all":  # all of the new part but where it meets the old one
            return got - (self.block(before, words[0], place) * self.block(after, words[2], place))
        if name == "permutation":
            other = NAMES.index(words[1])
            return 0 if place[axis] == place[other] else got
        return 0


def kind_along(spread, axis):
    return next((name for name, axes in spread.items() if axis in axes), "copy")


def entitled(before, after, sizes):
    """The collective a transition along a single axis must be, or None when several axes change."""
    changed = [axis for axis in range(len(sizes))
               if kind_along(before, axis) != kind_along(after, axis)]
    if len(changed) != 1:
        return None
    axis = changed[0]
    rest = [{name: [a for a in axes if a != axis] for name, axes in spread.items()}
            for spread in (before, after)]
    innermost = all(axis in spread["partial"] or axis not in itertools.chain(*spread.values())
                    or axis in (spread["rows"][-1:] + spread["cols"][-1:])
                    for spread in (before, after))
    if rest[0] != rest[1] or not innermost:
        return None
    return COLLECTIVE[kind_along(before, axis), kind_along(after, axis)]


def check(line, sizes, rows, cols, unit):
    """One line of `test_redistribute --table`: route legal, collective right, bytes equal."""
    before, after, moves, numbers = (part.strip() for part in line.split("|"))
    case = Case(sizes, rows, cols, unit)
    start, wanted = (without_idle(parse(text), sizes) for text in (before, after))
    steps = [step.strip() for step in moves.split(";") if step.strip()]
    at, total = start, [0] * math.prod(sizes)
    for step in steps:
        at, received = case.move(at, step)
        total = [a + b for a, b in zip(total, received)]
    assert at == wanted, f"{line}: ends at {at}"
    assert [ELEMENT * n for n in total] == list(map(int, numbers.split())), f"{line}: {total}"
    name = entitled(start, wanted, sizes)
    if name:
        assert [step.split("(")[0] for step in steps] == [name], line
    return name is not None
