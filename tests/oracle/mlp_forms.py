#!/usr/bin/env python3
"""The MLP of the layouts' example in numpy, and the bytes each layout moves for it, in closed form.

256 -> 1024 -> 256 with GELU and biases on a batch of 16; activations and weights travel as 4 bytes.
S_in and S_out are the sums of the linears' input and output widths, W their weights, T the rows.
"""

import math

import numpy

T, HIDDEN, WIDE = 16, 256, 1024
S_IN = S_OUT = HIDDEN + WIDE
W = 2 * HIDDEN * WIDE
ELEMENT = 4
X, W1, B1, W2, B2 = range(5)


def bytes_received(mode, q=2, d=2):
    """Of one rank, forward."""
    elements = {
        "1d": (q - 1) * T * HIDDEN,                                  # one-shot all-reduce
        "2d": (q - 1) * (T * S_IN + W) // q ** 2,                    # SUMMA
        "2.5d": (q - 1) * (T * S_IN // d + W) // q ** 2,
        "3d": (q - 1) * (T * (S_IN + S_OUT) + W) // q ** 3,
    }
    return elements[mode] * ELEMENT


def tensor(number, rows, cols):
    """Values in [-1, 1) by position, as the program makes them."""
    mask = numpy.uint32(0xffffffff)
    row = numpy.arange(rows, dtype=numpy.uint64)[:, None] * 0x85ebca6b
    col = numpy.arange(cols, dtype=numpy.uint64)[None, :] * 0xc2b2ae35
    x = ((number * 0x9e3779b1 + row + col) & mask).astype(numpy.uint64)
    x = ((x ^ x >> 15) * 0x2c1b3c6d) & mask
    x ^= x >> 13
    return ((x & 4095).astype(numpy.int64) - 2048) / 2048


def forward():
    """The network in double precision; biases added once."""
    erf = numpy.vectorize(math.erf)
    wide = tensor(X, T, HIDDEN) @ (tensor(W1, HIDDEN, WIDE) / 16) + tensor(B1, 1, WIDE)
    wide = wide * 0.5 * (1 + erf(wide / math.sqrt(2)))
    return wide @ (tensor(W2, WIDE, HIDDEN) / 16) + tensor(B2, 1, HIDDEN)
