"""The form of a step, and the layout, by modelled time: what is decided from given prices is what
runs, as the bytes of each form show. Closed forms of bytes are those of tests/oracle; that of time
is written out here."""

import json
import re
import sys

import pytest

import checkpoint
from harness import ROOT, run
from test_modes import check_received, predicted

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402

LAYERS = 2


def prices(path, collective=0.0, received=0.0, weight=0.0, multiply=0.0):
    """A file of seconds."""
    path.write_text(json.dumps({"collective_s": collective, "received_byte_s": received,
                                "weight_byte_s": weight, "multiply_add_s": multiply}))
    return path


@pytest.fixture
def odd(tmp_path):
    """Nothing divides."""
    return checkpoint.write_config(tmp_path / "odd", hidden_size=72, num_hidden_layers=LAYERS,
                                   num_attention_heads=9, num_key_value_heads=3, head_dim=8,
                                   intermediate_size=131, vocab_size=301)


def seconds(shape, mode, ranks, rows, many, collective, received):
    """Of the rank that takes longest: collectives of a layer and around them, bytes of the step."""
    q = 2
    meetings, around = {"2d": {False: (12, 7), True: (24, 8)},
                        "2.5d": {False: (14, 10), True: (26, 11)}}[mode][many]
    assert {"2d": q * q, "2.5d": 2 * q * q}[mode] == ranks
    most = max(mode_bytes.step_bytes(shape, mode, ranks, rank, rows, [rows - 1], many)
               for rank in range(ranks))
    return (LAYERS * meetings + around) * collective + received * most


@pytest.mark.parametrize("mode,ranks", [("2d", 4), ("2.5d", 8)])
def test_forms_cross_where_their_times_do(tmp_path, odd, mode, ranks):
    """The dearer a collective, the later; twice as much of everything changes nothing."""
    shape, crossed = checkpoint.shape_of(odd), []
    for cost in ((0, 1e-9), (1e-6, 1e-9), (5e-6, 1e-9), (1e-5, 2e-9)):
        file = prices(tmp_path / "prices.json", *cost)
        plan = predicted(odd, mode, ranks, "--dtype", "float32", "--prices", file)
        crossed.append(plan["many_rows_from"])
        for rows, many_wins in ((crossed[-1] * 98 // 100, False), (crossed[-1] * 102 // 100, True)):
            few, many = (seconds(shape, mode, ranks, rows, form, *cost) for form in (False, True))
            assert (many < few) == many_wins, (cost, rows)
    assert crossed[0] < crossed[1] < crossed[2] == crossed[3]


@pytest.mark.parametrize("collective", [0, 1e-6])
def test_the_form_that_is_less_time_runs(serve, tmp_path, odd, collective):
    """Counted bytes on both sides of the crossover, which moves with the price of a collective."""
    file = prices(tmp_path / "prices.json", collective, 1e-9)
    options = ("-tp", 4, "--parallel-mode", "2d", "--dtype", "float32", "--prices", file,
               "--max-num-batched-tokens", 2048, "--max-model-len", 2048)
    server = serve(odd, "--load-format", "dummy", "--no-enable-prefix-caching", *options)
    said = re.search(r"layout 2d: mesh row=2 col=2, 12 collectives per layer, 24 in steps of "
                     r"(\d+) rows or more, where less time is modelled", server.log)
    rows = int(said.group(1))
    assert 100 < rows < 2000
    for length in (rows - 1, rows):
        prompt = [3 + i % 290 for i in range(length)]
        check_received(server, "2d", 4, checkpoint.shape_of(odd), prompt, 2, many_from=rows)
        few, many = (mode_bytes.step_bytes(checkpoint.shape_of(odd), "2d", 4, 1, length,
                                           [length - 1], form) for form in (False, True))
        assert few != many, "the bytes tell the forms apart"


def test_auto_picks_from_prices(serve, tmp_path):
    """Where waiting is all, 1d has the fewest collectives; where bytes are all, copies of the
    weights move least. What is picked is served, and gives the golden's text."""
    model = checkpoint.GOLDEN / "tied_gqa2_f32"
    prompt, greedy = checkpoint.golden_runs("tied_gqa2_f32")[0]
    for cost, picked in (((1e-3,), "1d"), ((0, 1e-6), "3d 4,1,1")):
        file = prices(tmp_path / "prices.json", *cost)
        server = serve(model, "-tp", 4, "--auto", "--prices", file)
        assert f"--auto picks {picked} of " in server.log
        assert server.token_ids(prompt, 24) == greedy[:24]


@pytest.mark.parametrize("multiply, picked", [(1e-6, "3d 1,4,1"), (1e-5, "1d")])
def test_little_is_not_worth_it(tmp_path, multiply, picked):
    """Work that all layouts have in common leaves a gain of 13 % in one case, of 2 in the other."""
    file = prices(tmp_path / "prices.json", 0, 1e-6, 0, multiply)
    done = run("plan", checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", 4, "--auto", "--prices", file)
    assert done.returncode == 0 and f"--auto picks {picked} of " in done.stderr, done.stderr


def test_memory_bounds_the_pick(tmp_path):
    """Copies of the weights for which there is no room are no choice, however fast."""
    free = predicted(checkpoint.GOLDEN / "tied_gqa2_f32", "1d", 1)["available_bytes"]
    width = 512  # the layers: enough to come near a third of what is free, few enough to be allowed
    while free / 3 / (4 * 16 * width**2) > 100:
        width *= 2
    model = checkpoint.write_config(
        tmp_path / "large", hidden_size=width, intermediate_size=4 * width,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, head_dim=64,
        vocab_size=512, num_hidden_layers=round(free / 3 / (4 * 16 * width**2)),
        torch_dtype="float32")
    file = prices(tmp_path / "prices.json", 0, 1e-6)
    done = run("plan", model, "-tp", 4, "--load-format", "dummy", "--auto", "--prices", file,
               "--max-num-seqs", 1, "--max-model-len", 16, "--modes")
    assert done.returncode == 0 and "--auto picks 3d 2,2,1 of " in done.stderr
    assert re.search(r"^3d 4,1,1 +! ", done.stdout, re.M)
    assert re.search(r"^3d 2,2,1 +\d", done.stdout, re.M)


def test_a_printed_plan_keeps_its_crossover(tmp_path, odd):
    file = prices(tmp_path / "prices.json", 1e-6, 1e-9)
    options = "-tp", 4, "--load-format", "dummy", "--parallel-mode", "2d", "--prices", file
    path = tmp_path / "printed.json"
    path.write_text(run("plan", odd, *options, "--print-plan").stdout)
    want = predicted(odd, "2d", 4, "--prices", file)["many_rows_from"]
    assert predicted(odd, "1d", 4, "--plan", path)["many_rows_from"] == want
    assert json.loads(path.read_text())["phases"]["prefill"]["rows"] == want


def test_measured_prices_can_be_given(tmp_path, odd):
    """The same numbers, the same decisions; what was measured may also say that the form for many
    rows never pays, and then there is no number of rows."""
    plan = predicted(odd, "2d", 4, "--measure")
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(plan["prices"]))
    assert all(0 <= seconds < 1 for seconds in plan["prices"].values())
    again = predicted(odd, "2d", 4, "--prices", path)
    assert again["prices"] == plan["prices"]
    assert again.get("many_rows_from") == plan.get("many_rows_from")


def test_rows_can_be_said(odd):
    assert predicted(odd, "2d", 4, "--prefill-rows", 77)["many_rows_from"] == 77


def test_leaders_by_rows(tmp_path, odd):
    """Which layout is fastest from which power of two on, against the table of times above."""
    file = prices(tmp_path / "prices.json", 1e-5, 1e-9, 1e-10, 1e-12)
    done = run("plan", odd, "-tp", 4, "--load-format", "dummy", "--modes", "--prices", file)
    start = done.stdout.index("modelled ms")
    heads, *lines = done.stdout[start:].split("\n\n")[0].splitlines()[1:]
    columns = [int(word) for word in heads.split()[1:]]
    fastest = {False: {}, True: {}}
    for line in lines:
        name, *cells = re.split(r"\s{2,}", line.rstrip())
        fastest[name.endswith(" home")].update(
            {rows: name for rows, cell in zip(columns, cells) if cell.endswith("*")})
    said = done.stdout[done.stdout.index("least modelled"):].splitlines()[:2]
    assert said[1].startswith("with homes: ")
    for text, home in zip(said, (False, True)):
        leaders = [(name, int(rows)) for name, rows in re.findall(
            r"[:,] (\S+(?: \d,\d,\d)?(?: home)?) from (\d+)", text)]
        assert len(leaders) > 1 or home
        for rows in (1, 8, 32, 128):
            assert [name for name, first in leaders if first <= rows][-1] == fastest[home][rows]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("text, wanted", [
    ("{}", "expected an object of the 4 numbers"),
    ("[1, 2, 3, 4]", "expected an object of the 4 numbers"),
    ('{"collective_s": 1, "received_byte_s": 1, "weight_byte_s": 1, "mac_s": 1}',
     "multiply_add_s must be a number of seconds"),
    ('{"collective_s": -1, "received_byte_s": 1, "weight_byte_s": 1, "multiply_add_s": 1}',
     "collective_s must be a number of seconds from 0 to 1"),
    ('{"collective_s": "1", "received_byte_s": 1, "weight_byte_s": 1, "multiply_add_s": 1}',
     "collective_s must be a number of seconds"),
    ("{", "line 1"),
])
def test_broken_prices(tmp_path, odd, text, wanted):
    path = tmp_path / "prices.json"
    path.write_text(text)
    done = run("plan", odd, "-tp", 4, "--load-format", "dummy", "--prices", path)
    assert done.returncode == 2 and not done.stdout
    assert f"{path}" in done.stderr and wanted in done.stderr


@pytest.mark.parametrize("options, wanted", [
    (("--parallel-mode", "1d", "--prefill-rows", 5), "built-in plan 1d has one form"),
    (("--prices", "x.json", "--measure"), "--prices has what --measure would find"),
    (("--prices", "missing.json"), "missing.json: No such file"),
])
def test_what_says_nothing_is_refused(odd, options, wanted):
    done = run("plan", odd, "-tp", 4, "--load-format", "dummy", *options)
    assert done.returncode == 2
    assert wanted in done.stderr


def test_a_plan_says_its_rows_itself(tmp_path, odd):
    plan = json.loads((ROOT / "engine/parallel/plans/2d.json").read_text())
    plan["phases"]["prefill"]["rows"] = 9
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    assert predicted(odd, "1d", 4, "--plan", path)["many_rows_from"] == 9
    done = run("plan", odd, "-tp", 4, "--load-format", "dummy", "--plan", path,
               "--prefill-rows", 10)
    assert done.returncode == 2 and "says itself from how many rows" in done.stderr
