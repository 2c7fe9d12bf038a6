"""Plan files other than the built-in ones, through the whole server: named sub-meshes, the pairwise
shorthand, inputs prepared at a module's boundary, another numbering of the ranks, any (w, a, b)."""

import json
import sys

import pytest

import checkpoint
from harness import ROOT, eventually, run
from test_modes import check_received, received

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402

PLANS, CORPUS = ROOT / "engine/parallel/plans", ROOT / "tests/corpus/plans"
MESHES = [(1, 2, 3), (4, 2, 1), (3, 2, 1), (2, 1, 3), (2, 3, 1), (1, 1, 5), (5, 1, 1), (2, 3, 2)]


def written(tmp_path, plan):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    return path


def dummy(serve, model, ranks, *layout):
    return serve(model, "-tp", ranks, *layout, "--load-format", "dummy", "--dtype", "float32",
                 "--no-enable-prefix-caching")


PROMPT = [3 + i for i in range(23)]


# ---- what each says ------------------------------------------------------------------------------


@pytest.mark.parametrize("name, ranks, mode", [("ok_prepare", 3, "1d_sp"),
                                               ("ok_pairwise", 3, "1d")])
def test_other_words_for_a_built_in_layout(serve, odd, name, ranks, mode):
    """prepare_in, with a second input that stays as it is, is 1d_sp; pairwise is 1d."""
    server = dummy(serve, odd, ranks, "--plan", CORPUS / f"{name}.json")
    check_received(server, mode, ranks, checkpoint.shape_of(odd), PROMPT, 3)


def test_a_named_sub_mesh(serve, odd):
    """1d along an axis of three, along the other ranks do the same: every linear moves what 1d of
    three ranks does; of the logits each of the six ranks has its own part, so that the last gather
    is one of six parts."""
    server = dummy(serve, odd, 6, "--plan", CORPUS / "ok_sub_mesh.json")
    before, shape = server.metrics(), checkpoint.shape_of(odd)
    server.token_ids(PROMPT, 1)
    for rank in range(6):
        third = rank % 3
        step = mode_bytes.step_bytes(shape, "1d", 3, third, len(PROMPT), [len(PROMPT) - 1])
        gathered = 4 * (shape.vocab - mode_bytes.size(shape.vocab, (third, 3)))
        own = 4 * mode_bytes.size(shape.vocab, (third, 3), (rank // 3, 2))
        wanted = received(before, rank) + step - gathered + 4 * shape.vocab - own
        eventually(lambda: received(server.metrics(), rank) == wanted, 2, f"rank {rank}")


@pytest.mark.parametrize("name", ["tied_gqa2_f32", "untied_mqa_f16"])
@pytest.mark.parametrize("plan, ranks", [("ok_prepare", 3), ("ok_pairwise", 5), ("ok_sub_mesh", 4),
                                         ("ok_3d", 4)])
def test_greedy_text(serve, name, plan, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, "--dtype", "float32",
                   "--plan", CORPUS / f"{plan}.json")
    for prompt, greedy in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == greedy[:24]


@pytest.mark.parametrize("form", [mode_bytes.stationary, mode_bytes.by_rows])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_received_bytes_of_any_mesh(serve, odd, mesh, form):
    """Uneven sizes, and a batch of one on every mesh, in both forms of a step."""
    (w, a, b), shape = mesh, checkpoint.shape_of(odd)
    server = dummy(serve, odd, w * a * b, "--parallel-mode", "3d", "--mesh",
                   ",".join(map(str, mesh)), "--prefill-rows",
                   1 if form == mode_bytes.by_rows else 1000)
    before = server.metrics()
    server.token_ids(PROMPT, 3)
    for rank in range(w * a * b):
        place = rank % w, rank // w % a, rank // (w * a)
        wanted = received(before, rank) + sum(
            form(shape, mesh, place, rows, sampled)
            for rows, sampled in [(len(PROMPT), [len(PROMPT) - 1]), (1, [0]), (1, [0])])
        eventually(lambda: received(server.metrics(), rank) == wanted, 2, f"rank {rank}")


def test_another_numbering_of_ranks(serve, tmp_path, odd):
    """Rank (i, j) of a grid counted the other way round receives what rank (j, i) did."""
    counts = []
    for order in ("last-fastest", "first-fastest"):
        plan = json.loads((PLANS / "2d.json").read_text())
        plan["rank_order"] = order
        server = dummy(serve, odd, 4, "--plan", written(tmp_path, plan))
        before = server.metrics()
        tokens = server.token_ids(PROMPT, 3)
        mine = []
        for rank in range(4):
            i, j = (rank // 2, rank % 2) if order == "last-fastest" else (rank % 2, rank // 2)
            wanted = received(before, rank) + sum(
                mode_bytes.stationary(checkpoint.shape_of(odd), (1, 2, 2), (0, j, i), rows, sampled,
                                      table_over_w=False)
                for rows, sampled in [(len(PROMPT), [len(PROMPT) - 1]), (1, [0]), (1, [0])])
            eventually(lambda: received(server.metrics(), rank) == wanted, 2, f"rank {rank}")
            mine.append(received(server.metrics(), rank) - received(before, rank))
        counts.append((tokens, mine))
    assert counts[0][0] == counts[1][0], "the numbering changes no token"
    assert counts[0][1] != counts[1][1], "but who receives what"


# ---- bytes are a line in rows --------------------------------------------------------------------


def counted(server, rows):
    """What rank 1, which is off the diagonal of its grid, receives in a step of so many rows."""
    def count():
        return received(server.metrics(), 1)
    before = count()
    server.token_ids([3 + i % 280 for i in range(rows)], 1)
    eventually(lambda: count() > before, 2)
    return settled(count) - before


def settled(count):
    """The last ranks may still be leaving the last collective."""
    seen = []
    eventually(lambda: seen.append(count()) or len(seen) > 3 and len(set(seen[-4:])) == 1, 2)
    return seen[-1]


@pytest.mark.parametrize("ranks", [4, 9])
@pytest.mark.parametrize("many", [False, True])
def test_bytes_are_a_line_in_rows(serve, tmp_path, ranks, many):
    """Counted at three numbers of rows: what a layer adds is c0 + c1 T, with c1 of the activations
    and c0 of the weights that travel, by the published formulas."""
    h = f = 576  # whole tiles and heads on four and on nine ranks
    q, weights = {4: 2, 9: 3}[ranks], h * (4 * h + 3 * f)
    plan = json.loads((PLANS / "2d.json").read_text())
    plan["phases"]["prefill"]["rows"] = 2 if many else 1000
    steps, layers = (36, 72, 180), []
    for depth in (1, 2):
        model = checkpoint.write_config(tmp_path / f"even{depth}", hidden_size=h,
                                        num_hidden_layers=depth, num_attention_heads=36,
                                        num_key_value_heads=36, head_dim=16, intermediate_size=f,
                                        vocab_size=288)
        server = dummy(serve, model, ranks, "--plan", written(tmp_path, plan))
        layers.append([counted(server, rows) for rows in steps])
    layer = [two - one for one, two in zip(*layers)]
    norms = 2 * (q - 1) / q if many else 4 * (q - 1)
    if many:  # S_in; rows for heads and back; transposes of O and down
        row = (q - 1) / q ** 2 * (3 * h + f) + (q - 1) / q ** 3 * 4 * h + (3 * h + f) / q ** 2
    else:  # 4h(a-1) + (W/h)(b-1)
        row = (4 * h * (q - 1) + weights / h * (q - 1)) / ranks
    once = (q - 1) / q ** 2 * weights if many else 0
    assert layer == pytest.approx([4 * (once + rows * (row + norms)) for rows in steps], rel=1e-12)


def test_ranks_is_another_name():
    one, other = (run("plan", checkpoint.DEMO, name, 3, "--json") for name in ("-tp", "--ranks"))
    assert (one.returncode, other.returncode) == (0, 0), other.stderr
    one, other = json.loads(one.stdout), json.loads(other.stdout)
    assert one.pop("available_bytes") > 0 < other.pop("available_bytes")  # changes by itself
    assert other == one and one["ranks"] == 3
