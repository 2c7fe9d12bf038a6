#!/usr/bin/env python3
"""Bytes that a rank receives in one step of a Llama model, for every layout, in closed form.

    mode_bytes.py config.json MODE P [--rows T] [--sampled R] [--many]     a line per rank
    mode_bytes.py --self-check                                             the published formulas

Independent of the engine.  The layouts:
  1d_sp   the residual stream split by rows over all ranks
  2d, 2.5d, 3d with few rows: weights stay, on a mesh (w, a, b) = (1, q, q), (d, 2, 2), (c, c, c);
          attention has whole rows and the heads split over all ranks
  3d_gathered  the same, and each rank stores one w-th of its weights' outputs, in whole tiles: the
          others come for every product
  2d, 2.5d with many rows: SUMMA, weights travel
  3d, 3d_gathered with many rows: the residual stream at rest is split by rows over (w, a) and by
          columns over b
With the KV cache at home (2d, 2.5d, 3d) rows are cut where those of each home end, those between
such ends evenly where axes do not count homes, and attention has the rows of one home and the heads
of one column of the mesh.  Homes are counted by depth or w, and in it by row or b.
Where all heads are normed together, the ranks that have the same rows in attention sum squares of
every head, over one axis of the heads after the other.
Models with latents (tp1d_bytes) are mixtures, which 1d and 1d_sp have alone: either completes the
latents of all rows on every rank.  Models with layers that recur have these two, too; such layers
move what those that attend do.  So have those whose layers take rows of their own of each token: in
1d_sp a rank makes its layers' of all rows, and gets all layers' of its own.
"""

import argparse
import json
import math
import sys

import tp1d_bytes

WORD = 4  # activations travel as fp32
TILE = 32  # a stored weight has whole tiles of outputs
TYPICAL, MEETING = 16, 2048  # what the choice between two ways to sum logits assumes


def block(units, *places):
    """(begin, end) of the block with these (index, pieces), outermost first."""
    index, pieces = 0, 1
    for at, count in places:
        index, pieces = index * count + at, pieces * count
    return units * index // pieces, units * (index + 1) // pieces


def size(units, *places):
    begin, end = block(units, *places)
    return end - begin


def kv_heads(shape, *places):
    """Those that the query heads of these places read."""
    group = shape.heads // shape.kv_heads
    return {head // group for head in range(*block(shape.heads, *places))}


class Rows:
    """Of a step: so many, cut evenly, or a list of how many each home has."""

    def __init__(self, rows):
        self.at_home = not isinstance(rows, int)
        self.homes = list(rows) if self.at_home else None
        self.count = sum(rows) if self.at_home else rows

    @staticmethod
    def of(rows):
        return rows if isinstance(rows, Rows) else Rows(rows)

    def block(self, *places):
        if not self.at_home:
            return block(self.count, *places)
        outer = list(places)
        while len(self.homes) % math.prod(count for _, count in outer):
            outer.pop()
        first, past = block(len(self.homes), *outer)  # whole homes
        begin, end = sum(self.homes[:first]), sum(self.homes[:past])
        inner = block(end - begin, *places[len(outer):])
        return begin + inner[0], begin + inner[1]

    def size(self, *places):
        begin, end = self.block(*places)
        return end - begin

    def among(self, sampled, *places):
        """How many of the sampled rows lie in a block of rows."""
        begin, end = self.block(*places)
        return sum(begin <= row < end for row in sampled)


class Widths:
    """Columns of what flows through a layer.  Q, K and V lie fused in `finest` pieces."""

    def __init__(self, shape, finest):
        self.shape, self.finest, self.pieces = shape, finest, []
        for x in range(finest):
            query, kv = size(shape.heads, (x, finest)), len(kv_heads(shape, (x, finest)))
            self.pieces.append((query + 2 * kv) * shape.head_dim)

    def qkv(self, *places):
        return sum(self.pieces[slice(*block(self.finest, *places))])

    def attended(self, *places):
        return size(self.shape.heads, *places) * self.shape.head_dim

    def hidden(self, *places):
        return size(self.shape.hidden, *places)

    def mlp(self, *places):
        return size(self.shape.mlp, *places)

    def gate_up(self, *places):
        return 2 * self.mlp(*places)


def turns(shape, reducing, table, others):
    """Are the rows of the logits cut by `others` before they are summed, to change places for
    columns after?  It saves most of the sums and costs a collective, which counts as much as
    MEETING numbers; a step is taken to sample TYPICAL rows."""
    columns = shape.vocab * reducing / math.prod(pieces for _, pieces in table)
    depth = math.prod(pieces for _, pieces in others)
    sums = TYPICAL * columns * (reducing - 1) / reducing
    turned = TYPICAL * columns / reducing / depth * (depth - 1) / depth
    return reducing > 1 and depth > 1 and MEETING + sums / depth + turned <= sums


def logits(shape, rows, sampled, reducing, table, others=()):
    """Sums are scattered over the last axis of `table`, which has `reducing` ranks; what remains
    alike is cut by the others, and each rank's own columns are gathered."""
    own, count = size(shape.vocab, *table, *others), len(sampled)
    summed, turned = count, 0
    if turns(shape, reducing, table, others):  # a row where it is from
        summed = rows.among(sampled, *others)
        turned = count - summed
    return ((reducing - 1) * summed * size(shape.vocab, *table) + turned * own
            + count * (shape.vocab - own))


def squares(shape, rows, *places):
    """Bytes of joint norms in a layer: attention has so many rows and the heads of these places."""
    count = rows * (shape.heads + shape.kv_heads) * shape.joint_norm
    return sum(tp1d_bytes.all_reduce_bytes(count, pieces, index) for index, pieces in places)


def sequence_parallel(shape, ranks, rank, rows, sampled):
    own, width, at = rows.size((rank, ranks)), shape.hidden, (rank, ranks)
    scatter, gather = (ranks - 1) * own * width, (rows.count - own) * width
    head = (len(sampled) - rows.among(sampled, at)) * width
    head += len(sampled) * (shape.vocab - size(shape.vocab, at))
    latents = tp1d_bytes.latent_gather_bytes(shape, ranks, rank, rows.count)
    inputs = tp1d_bytes.input_gather_bytes(shape, ranks, rank, own)
    inputs += WORD * gather * (shape.inputs.columns > 0)
    return (WORD * (scatter + shape.layers * shape.sums * (gather + scatter) + head) + inputs +
            shape.layers * (squares(shape, rows.count, at) + latents))


def tiles(outputs, *places):
    """Outputs of whole tiles, among these places."""
    return TILE * size(-(-outputs // TILE), *places)


def weights(m, at_a, at_b):
    """(outputs, inputs) of the linears of a layer in the products of rank (j, l)."""
    return ((m.qkv(at_a), m.hidden(at_b)), (m.hidden(at_b), m.attended(at_a)),
            (m.gate_up(at_a), m.hidden(at_b)), (m.hidden(at_b), m.mlp(at_a)))


def stored(shape, mesh, place, weight_size):
    """Bytes of weights that a rank of 3d_gathered holds: its part of both tables, of every linear,
    and the norms whole but for those of heads, which are the same ones as in attention."""
    (w, a, b), (i, j, l) = mesh, place
    m = Widths(shape, w * a * b)
    table = tiles(size(shape.vocab, (j, a), (i, w))) * m.hidden((l, b)) * weight_size
    layer = sum(tiles(out, (i, w)) * into for out, into in weights(m, (j, a), (l, b)))
    norms = (shape.norms * shape.layers + 1) * shape.hidden * WORD
    if shape.joint_norm:
        normed = size(shape.heads, (j, a), (l, b), (i, w))
        normed += len(kv_heads(shape, (j, a), (l, b), (i, w)))
        norms += shape.layers * normed * shape.head_dim * WORD
    return (1 if shape.tied else 2) * table + shape.layers * layer * weight_size + norms


def stationary(shape, mesh, place, rows, sampled, gathered=0, table_over_w=True):
    """Rank (i, j, l): rows i, at rest hidden block l and in it sub-block j.  gathered: bytes of an
    element of the weights that travel."""
    (w, a, b), (i, j, l) = mesh, place
    at_w, at_a, at_b = (i, w), (j, a), (l, b)
    rows = Rows.of(rows)
    m, own = Widths(shape, a if rows.at_home else w * a * b), rows.size(at_w)
    hidden, rest = m.hidden(at_b), m.hidden(at_b, at_a)
    gather, scatter = own * (hidden - rest), (a - 1) * own * rest
    if rows.at_home:  # sums scattered to the rows of homes, and those gathered
        home = rows.size(at_w, at_b)
        layer = (b - 1) * home * m.qkv(at_a) + (own - home) * m.attended(at_a)
        joint = squares(shape, home, at_a)
    else:
        joint = squares(shape, rows.count, at_a, at_b, at_w)
        layer = (b - 1) * own * m.qkv(at_a, at_b)
        layer += (rows.count - own) * m.qkv(at_a, at_b, at_w)  # rows for heads, and back
        layer += own * (m.attended(at_a, at_b) - m.attended(at_a, at_b, at_w))
        layer += own * (m.attended(at_a) - m.attended(at_a, at_b))
    layer += gather + scatter
    layer += gather + (b - 1) * own * m.gate_up(at_a, at_b)
    layer += own * (m.mlp(at_a) - m.mlp(at_a, at_b)) + scatter
    travels = sum((tiles(out) - tiles(out, at_w)) * into for out, into in weights(m, at_a, at_b))
    norm = (a - 1 + b - 1) * own  # sums of squares, one per row
    look_up, table, others = scatter, [at_a, at_b], [at_w]
    if table_over_w:  # found in parts over a and w: summed over the shorter axis first
        table, others = [at_a, at_w, at_b], []
        look_up = scatter + (w - 1) * own * hidden
        if a < w:
            look_up = (a - 1) * rows.count * rest + (w - 1) * own * rest
    count = len(sampled)
    head = (count - rows.among(sampled, at_w)) * rest + count * (hidden - rest)
    head += logits(shape, rows, sampled, b, table, others)
    return (WORD * (look_up + norm + shape.layers * (layer + shape.norms * norm) + head) +
            shape.layers * (joint + gathered * travels))


def by_rows(shape, mesh, place, rows, sampled, gathered=0):
    """Rank (i, j, l): at rest rows (i, j) of hidden block l."""
    (w, a, b), (i, j, l) = mesh, place
    at_w, at_a, at_b = (i, w), (j, a), (l, b)
    rows = Rows.of(rows)
    m, own = Widths(shape, a if rows.at_home else w * a * b), rows.size(at_w)
    rest, other, hidden = rows.size(at_w, at_a), rows.size(at_w, at_b), m.hidden(at_b)
    gather, scatter = (own - rest) * hidden, (a - 1) * rest * hidden
    if rows.at_home:
        layer = (b - 1) * other * m.qkv(at_a) + (own - other) * m.attended(at_a)
        joint = squares(shape, other, at_a)
    else:
        joint = squares(shape, rows.count, at_a, at_b, at_w)
        layer = (b - 1) * own * m.qkv(at_a, at_b)
        layer += (rows.count - own) * m.qkv(at_a, at_b, at_w)  # rows for heads, and back
        layer += own * (m.attended(at_a) - m.attended(at_a, at_b, at_w))
    layer += gather + scatter
    layer += gather + (b - 1) * own * m.gate_up(at_a, at_b)
    layer += own * (m.mlp(at_a) - m.mlp(at_a, at_b)) + scatter
    travels = sum((tiles(out) - tiles(out, at_w)) * into for out, into in weights(m, at_a, at_b))
    norm = (b - 1) * rest
    look_up, count = (w - 1) * own * hidden + scatter, len(sampled)
    head = (count - rows.among(sampled, at_w, at_a)) * hidden
    head += logits(shape, rows, sampled, b, [at_a, at_w, at_b])
    return (WORD * (look_up + norm + shape.layers * (layer + shape.norms * norm) + head) +
            shape.layers * (joint + gathered * travels))


def summa(shape, q, depth, place, rows, sampled, weight_size):
    """Rank (k, i, j): rows (k, i), columns j.  O and down compute on the transposed grid, because
    that is how they are stored; what changes places with (k, j, i) is nothing where i is j."""
    k, i, j = place
    at_k, at_i, at_j = (k, depth), (i, q), (j, q)
    m = Widths(shape, q if rows.at_home else q * q * depth)
    own, deep, turned = rows.size(at_k, at_i), rows.size(at_k), rows.size(at_k, at_j)
    moves = i != j

    def product(height, inputs, at_input, outputs, at_output):
        """Panels of x from the other columns, blocks of the weight from the other rows."""
        others = [(t, q) for t in range(q)]
        panels = sum(height * inputs(t) for t in others if t != at_output)
        tiles = -(-outputs(at_output) // TILE) * TILE
        blocks = sum(tiles * inputs(t) for t in others if t != at_input)
        return WORD * panels + weight_size * blocks

    heads = back = 0
    joint = squares(shape, own, at_j)
    if not rows.at_home:  # rows for heads, and back
        joint = squares(shape, rows.count, at_j, at_i, at_k)
        heads = (deep - own) * m.qkv(at_j, at_i) + (rows.count - deep) * m.qkv(at_j, at_i, at_k)
        back = deep * (m.attended(at_j, at_i) - m.attended(at_j, at_i, at_k))
        back += own * (m.attended(at_j) - m.attended(at_j, at_i))
    back += moves * turned * m.attended(at_i)
    down = moves * turned * m.mlp(at_i)
    after = 2 * moves * own * m.hidden(at_j)  # of O and of down
    norm = (q - 1) * own
    layer = WORD * (heads + back + down + after + shape.norms * norm) + joint
    layer += product(own, m.hidden, at_i, m.qkv, at_j)
    layer += product(turned, m.attended, at_j, m.hidden, at_i)
    layer += product(own, m.hidden, at_i, m.gate_up, at_j)
    layer += product(turned, m.mlp, at_j, m.hidden, at_i)
    if q > 2:  # summed into rows of the other axis, then the two change places
        look_up = (q - 1) * turned * m.hidden(at_i) + moves * own * m.hidden(at_j)
    else:  # columns for rows first and then summed: as much on average
        look_up = own * (shape.hidden - m.hidden(at_i)) + (q - 1) * own * m.hidden(at_j)
    count, swapped = len(sampled), rows.among(sampled, at_k, at_j)
    head = (moves * swapped + count - swapped) * m.hidden(at_i)
    head += logits(shape, rows, sampled, q, [at_j, at_i], [at_k])
    return WORD * (look_up + norm + head) + shape.layers * layer


def mesh_place(mode, ranks, rank):
    """Of "3d" or "3d w,a,b"."""
    c = round(ranks ** (1 / 3))
    w, a, b = map(int, mode.split()[1].split(",")) if " " in mode else (c, c, c)
    return (w, a, b), (rank % w, rank // w % a, rank // w // a)


def step_bytes(shape, mode, ranks, rank, rows, sampled, many=False, weight_size=4):
    """rows: their number, or with the KV cache at home that of each home.  sampled: indices of the
    sampled rows.  many: the step takes the form for many rows."""
    rows = Rows.of(rows)
    if mode == "1d":
        step = tp1d_bytes.step_bytes(shape, ranks, rank, rows.count, len(sampled))
        return sum(received for _, received in step.values())
    if mode == "1d_sp":
        return sequence_parallel(shape, ranks, rank, rows, sampled)
    assert not (shape.latent or shape.recurrent), mode
    if mode.startswith("3d"):
        mesh, place = mesh_place(mode, ranks, rank)
        gathered = weight_size if "gathered" in mode else 0
        if many:
            return by_rows(shape, mesh, place, rows, sampled, gathered)
        return stationary(shape, mesh, place, rows, sampled, gathered)
    q = math.isqrt(ranks) if mode == "2d" else 2
    depth = ranks // q ** 2
    k, i, j = rank // q ** 2, rank // q % q, rank % q
    if many:
        return summa(shape, q, depth, (k, i, j), rows, sampled, weight_size)
    return stationary(shape, (depth, q, q), (k, j, i), rows, sampled, table_over_w=False)


def homes(mode, ranks):
    """How many a layout has."""
    if mode.startswith("3d"):
        (w, _, b), _ = mesh_place(mode, ranks, 0)
        return w * b
    return ranks // (math.isqrt(ranks) if mode == "2d" else 2)


def kv_position_bytes(shape, mode, ranks, rank, at_home, element):
    """Of one position of a sequence, on a rank that has it."""
    if mode.startswith("3d"):
        (w, a, b), (i, j, l) = mesh_place(mode, ranks, rank)
    else:
        q = math.isqrt(ranks) if mode == "2d" else 2
        (w, a, b), (i, l, j) = (ranks // q ** 2, q, q), (rank // q ** 2, rank // q % q, rank % q)
    places = [(j, a)] if at_home else [(j, a), (l, b), (i, w)]
    return 2 * shape.layers * len(kv_heads(shape, *places)) * shape.head_dim * element


# ---- self-check: the formulas of the literature, where everything divides -----------------------

LLAMA3_8B = tp1d_bytes.LLAMA3_8B


def layer_bytes(shape, mode, ranks, rows, many=False):
    """Of one layer, on rank 1."""
    two = [step_bytes(shape._replace(layers=n), mode, ranks, 1, rows, [], many, 2) for n in (1, 2)]
    return two[1] - two[0]


def check():
    shape, rows, q = LLAMA3_8B, 4096, 2
    h, f = shape.hidden, shape.mlp
    wide, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    params = h * (2 * wide + 2 * kv + 3 * f)
    # Stationary on (1, q, q): T [4h(a-1) + (W/h)(b-1)] / P activations, and the norms.
    formula = rows * (4 * h * (q - 1) + params // h * (q - 1)) // q ** 2
    tp1d_bytes.expect("2d stationary, q=2", layer_bytes(shape, "2d", 4, rows),
                      WORD * (formula + 4 * (q - 1) * rows))
    # At home the same: (q-1)/q of a row's QKV and attention either way.
    tp1d_bytes.expect("2d stationary at home, q=2", layer_bytes(shape, "2d", 4, [rows // 2] * 2),
                      WORD * (formula + 4 * (q - 1) * rows))
    # SUMMA: (q-1)/q^2 (T S_in words + W stored), S_in = 2h + A + F; rows for heads and back; the
    # swaps of O and down on rank 1, which is off the diagonal; norms.
    panels = (q - 1) * rows * (2 * h + wide + f) // q ** 2
    exchange = (q - 1) * rows * (2 * wide + 2 * kv) // q ** 3
    swaps = rows * (wide + f + 2 * h) // q ** 2
    norms = 2 * (q - 1) * rows // q
    tp1d_bytes.expect("2d summa, q=2", layer_bytes(shape, "2d", 4, rows, True),
                      WORD * (panels + exchange + swaps + norms) + 2 * params * (q - 1) // q ** 2)
    # At home without the exchange.
    tp1d_bytes.expect("2d summa at home, q=2", layer_bytes(shape, "2d", 4, [rows // 2] * 2, True),
                      WORD * (panels + swaps + norms) + 2 * params * (q - 1) // q ** 2)
    # 3d with weights cached: (q-1)/q^3 T (S_in + S_out), and the norms.
    sides = (2 * h + wide + f) + (2 * h + wide + 2 * kv + 2 * f)
    tp1d_bytes.expect("3d cached at home, q=2", layer_bytes(shape, "3d", 8, [rows // 4] * 4),
                      WORD * (rows * (q - 1) * sides // q ** 3 + 4 * (q - 1) * rows // q))
    # Weight-gathered on (q, q, q): W (q-1)/q^3 stored bytes more.
    cached, gathered = (layer_bytes(shape, mode, 8, rows) for mode in ("3d", "3d_gathered"))
    tp1d_bytes.expect("3d gathered, q=2", gathered - cached,
                      2 * params * (q - 1) // q ** 3)
    # Rows at rest: what columns at rest move, but norms over b alone.
    columns, rested = (layer_bytes(shape, "3d", 8, rows, many) for many in (False, True))
    tp1d_bytes.expect("3d, columns for rows, q=2", columns - rested,
                      WORD * 2 * (2 * (q - 1) * rows // q - (q - 1) * rows // q ** 2))
    tp1d_bytes.expect("1d_sp moves what 1d's two-shot all-reduces do",
                      layer_bytes(shape, "1d_sp", 4, rows), WORD * 4 * 3 * rows * h // 4)
    check_joint_norms(rows)
    # 4096 rows of three quarters of 2112 columns, besides what 1d_sp moves of any model so wide.
    shape = tp1d_bytes.DEEPSEEK_V3
    moved = [layer_bytes(s, "1d_sp", 4, rows) for s in (shape, shape._replace(latent=None))]
    tp1d_bytes.expect("latents, 1d_sp, P=4", moved[0] - moved[1], WORD * rows * 1584)


def check_joint_norms(rows):
    """What OLMo 2 moves more for them in a layer: squares of 64 heads, one-shot along an axis of
    two ranks."""
    shape, table = tp1d_bytes.OLMO2_7B, WORD * rows * 64
    homes = [rows // 4] * 4

    def more(mode, ranks, step, many=False):
        plain = shape._replace(joint_norm=False)
        return layer_bytes(shape, mode, ranks, step, many) - layer_bytes(plain, mode, ranks, step,
                                                                         many)
    # Two-shot over all ranks: 2 * 3/4 of all.
    for mode in ("1d", "1d_sp"):
        tp1d_bytes.expect(f"joint norms, {mode}, P=4", more(mode, 4, rows), table * 3 // 2)
    # Over each of the two or three axes of the heads; those at home over one, for a part of the
    # rows.
    for many in (False, True):
        tp1d_bytes.expect("joint norms, 2d, q=2", more("2d", 4, rows, many), 2 * table)
        tp1d_bytes.expect("joint norms, 2.5d, q=2", more("2.5d", 8, rows, many), 3 * table)
        tp1d_bytes.expect("joint norms, 3d, q=2", more("3d", 8, rows, many), 3 * table)
        tp1d_bytes.expect("joint norms, 2.5d at home", more("2.5d", 8, homes, many), table // 4)
        tp1d_bytes.expect("joint norms, 3d at home", more("3d", 8, homes, many), table // 4)
    # Two-shot twice over three: 2 * 2/3 of all each, of one row one-shot 2 * 2.
    tp1d_bytes.expect("joint norms, 2d, q=3", more("2d", 9, 3 * rows), 8 * table)
    tp1d_bytes.expect("joint norms of a row, 2d, q=3", more("2d", 9, 1), 4 * WORD * 64)
    # A rank's gains: 4 of 32 and 4 of 32 heads in each layer.
    held = [stored(s, (2, 2, 2), (1, 0, 1), 2) for s in (shape, shape._replace(joint_norm=False))]
    tp1d_bytes.expect("joint norms' gains, 3d_gathered, q=2", held[0] - held[1],
                      32 * 8 * 128 * WORD)


def main():
    parser = argparse.ArgumentParser(description="Closed forms of every layout.")
    parser.add_argument("config", nargs="?")
    parser.add_argument("mode", nargs="?", help="1d, 1d_sp, 2d, 2.5d, 3d or 3d_gathered; the last "
                        "two with sizes as \"3d 1,4,2\"")
    parser.add_argument("ranks", nargs="?", type=int)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--sampled", type=int, default=1)
    parser.add_argument("--many", action="store_true", help="the form for many rows")
    parser.add_argument("--self-check", action="store_true")
    args = parser.parse_args()
    if args.self_check:
        check()
        return 0
    if not args.ranks:
        parser.error("give --self-check, or config.json, MODE and P")
    with open(args.config, encoding="utf-8") as file:
        shape = tp1d_bytes.shape_of(json.load(file))
    sampled = range(args.rows - args.sampled, args.rows)
    for rank in range(args.ranks):
        print(rank, step_bytes(shape, args.mode, args.ranks, rank, args.rows, sampled, args.many))
    return 0


if __name__ == "__main__":
    sys.exit(main())
