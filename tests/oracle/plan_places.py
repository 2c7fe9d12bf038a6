"""Which part of each tensor every rank holds, worked out from nothing but a plan file and a
config.json: an independent reading of the plan format.

A tensor is [outputs, inputs] (a table [vocabulary, hidden]); each side is cut by a list of axes,
outermost first, in units that are not cut.  Norms are whole everywhere: each form of a step scales
with another part of them.  Where weights are gathered, what a product takes is cut once more, by
tiles of its outputs; fused outputs lie in blocks [Q|K|V] or [gate|up], one for each rank that the
product's rank sends some to.
"""

import fnmatch
import itertools
import math

SQUARE, CUBE = "sqrt(ranks)", "cbrt(ranks)"

# parameter of the plan -> its tensors, and what their outputs and inputs consist of
PARTS = {
    "model.embed_tokens": (["model.embed_tokens"], "vocab", "hidden"),
    "lm_head": (["lm_head"], "vocab", "hidden"),
    "self_attn.qkv_proj": (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "heads",
                           "hidden"),
    "self_attn.o_proj": (["self_attn.o_proj"], "hidden", "heads"),
    "mlp.gate_up_proj": (["mlp.gate_proj", "mlp.up_proj"], "mlp", "hidden"),
    "mlp.down_proj": (["mlp.down_proj"], "hidden", "mlp"),
}


def axis_size(size, ranks):
    if isinstance(size, int):
        return size
    if size == SQUARE:
        return math.isqrt(ranks)
    if size == CUBE:
        return round(ranks ** (1 / 3))
    _, _, divisor = size.partition("/")
    return ranks // int(divisor or 1)


def coordinates(plan, ranks):
    """{axis: coordinate} of rank 0, 1, ..., and {axis: size}."""
    sizes = {axis["name"]: axis_size(axis["size"], ranks) for axis in plan["mesh"]}
    names = list(sizes)
    if plan.get("rank_order") == "first-fastest":
        names.reverse()
    walk = itertools.product(*(range(sizes[name]) for name in names))
    return [dict(zip(names, place)) for place in walk], sizes


def spelled_out(entry):
    """A pairwise entry is a colwise and a rowwise one."""
    if entry["style"] != "pairwise":
        return [entry]
    return [{**entry, "match": f"{entry['match']}.{entry[which]}", "style": style}
            for which, style in (("first", "colwise"), ("second", "rowwise"))]


def rule_of(plan, name):
    """The entry with the most literal characters among those that match, dot by dot."""
    def matches(pattern):
        ours, theirs = pattern.split("."), name.split(".")
        return len(ours) == len(theirs) and all(map(fnmatch.fnmatchcase, theirs, ours))
    entries = itertools.chain(*map(spelled_out, plan["plan"]))
    found = [entry for entry in entries if matches(entry["match"])]
    return max(found, key=lambda entry: len(entry["match"].replace("*", "")))


def as_list(value):
    return [value] if isinstance(value, str) else list(value or [])


def cuts(rule, only_axis):
    """(axes that cut the outputs, axes that cut the inputs)."""
    style, axis = rule["style"], rule.get("axis", only_axis)
    if style == "colwise":
        return [axis], []
    if style == "rowwise":
        return [], [axis]
    if style == "vocab":
        return as_list(rule.get("vocab", axis)), as_list(rule.get("hidden"))
    out, into = rule.get("a", "a"), rule.get("b", "b")
    return ([out], [into]) if rule["dir"] == "in" else ([into], [out])


def held(units, axes, place, sizes):
    index, pieces = 0, 1
    for axis in axes:
        index, pieces = index * sizes[axis] + place[axis], pieces * sizes[axis]
    return units * index // pieces, units * (index + 1) // pieces


def scaled(span, unit):
    return span[0] * unit, span[1] * unit


TILE = 32


def kept(fused, rule, place, sizes):
    """Of a product's outputs, [(tensor, row)] in order, those of the rank's tiles."""
    begin, end = held(-(-len(fused) // TILE), [rule["w"]], place, sizes)
    rows = {}
    for tensor, row in fused[begin * TILE:end * TILE]:
        rows.setdefault(tensor, set()).add(row)
    return rows


def is_at_home(plan):
    return plan.get("attention", {}).get("placement") == "home"


def fused_outputs(name, rule, config, place, sizes, at_home):
    """What the product of this rank makes, in order."""
    (out,), _ = cuts(rule, None)
    if name.endswith(("o_proj", "down_proj")):
        return [(PARTS[name][0][0], row)
                for row in range(*held(config["hidden_size"], [out], place, sizes))]
    heads, width = config["num_attention_heads"], config["head_dim"]
    group, fused = heads // config["num_key_value_heads"], []
    axes = [out, rule["b"]]
    if name.endswith("qkv_proj"):
        axes = [out] if at_home else axes + [rule["w"]]
    for inner in itertools.product(*(range(sizes[axis]) for axis in axes[1:])):
        at = {out: place[out], **dict(zip(axes[1:], inner))}
        if name.endswith("qkv_proj"):
            begin, end = held(heads, axes, at, sizes)
            kv = (begin // group, -(-end // group)) if end > begin else (0, 0)
            spans = [scaled(span, width) for span in ((begin, end), kv, kv)]
        else:
            spans = [held(config["intermediate_size"], axes, at, sizes)] * 2
        fused += [(tensor, row) for tensor, span in zip(PARTS[name][0], spans)
                  for row in range(*span)]
    return fused


def places(plan, config, ranks):
    """For each rank {tensor: ((first row, past row), (first column, past column))}; the rows of a
    gathered weight are a list."""
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    width, hidden = config["head_dim"], config["hidden_size"]
    units = {"hidden": (hidden, 1), "heads": (heads, width),
             "mlp": (config["intermediate_size"], 1), "vocab": (config["vocab_size"], 1)}
    spots, sizes = coordinates(plan, ranks)
    only_axis = plan["mesh"][0]["name"]
    result = []
    for place in spots:
        mine = {}
        for layer in range(config["num_hidden_layers"]):
            for norm in ("input_layernorm", "post_attention_layernorm"):
                mine[f"model.layers.{layer}.{norm}.weight"] = ((0, 1), (0, hidden))
        mine["model.norm.weight"] = ((0, 1), (0, hidden))
        for name, (tensors, rows_of, cols_of) in PARTS.items():
            inner = "." in name and not name.startswith("model")
            for layer in range(config["num_hidden_layers"] if inner else 1):
                prefix = f"model.layers.{layer}." if inner else ""
                out, into = cuts(rule_of(plan, prefix + name), only_axis)
                rule = rule_of(plan, prefix + name)
                rows = held(units[rows_of][0], out, place, sizes)
                cols = held(units[cols_of][0], into, place, sizes)
                if rule.get("weights") == "gathered":
                    some = kept(fused_outputs(name, rule, config, place, sizes, is_at_home(plan)),
                                rule, place, sizes)
                    for tensor in tensors:
                        mine[f"{prefix}{tensor}.weight"] = (sorted(some.get(tensor, [])),
                                                            scaled(cols, units[cols_of][1]))
                    continue
                for tensor in tensors:
                    at, unit = rows, units[rows_of][1]
                    if tensor.endswith(("k_proj", "v_proj")):  # those that the query heads read
                        group = heads // kv
                        at = (0, 0)
                        if rows[1] > rows[0]:
                            at = (rows[0] // group, -(-rows[1] // group))
                    mine[f"{prefix}{tensor}.weight"] = (scaled(at, unit),
                                                        scaled(cols, units[cols_of][1]))
        result.append(mine)
    return result
