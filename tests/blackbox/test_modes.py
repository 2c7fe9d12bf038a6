"""Every layout through the whole server: the tokens of the goldens, and the bytes of the closed
forms in tests/oracle."""

import json
import os
import pathlib
import re
import sys
import threading

import pytest

import checkpoint
from harness import ROOT, eventually, is_sanitized, run, small_pages

sys.path.insert(0, str(ROOT / "tests/oracle"))
import mode_bytes  # noqa: E402
import tp1d_bytes  # noqa: E402

PLANS = ROOT / "engine/parallel/plans"
PAGE = os.sysconf("SC_PAGE_SIZE")
LAYOUTS = [("1d", 3), ("1d_sp", 3), ("1d_sp", 4), ("2d", 4), ("2d", 9), ("2.5d", 4), ("2.5d", 8),
           ("3d", 8), ("3d_gathered", 8), ("3d_gathered 2,3,1", 6), ("3d_gathered 5,1,1", 5)]


def layout(mode):
    """The options of "3d" or "3d w,a,b"."""
    name, _, mesh = mode.partition(" ")
    return ["--parallel-mode", name] + (["--mesh", mesh] if mesh else [])


def received(metrics, rank):
    return metrics.sum("tessera:comm_bytes_total", rank=rank)


def check_received(server, mode, ranks, shape, prompt, count, many_from=None):
    """A request alone: its prompt is one step, each further token another."""
    before = server.metrics()
    server.token_ids(prompt, count)
    steps = [(len(prompt), [len(prompt) - 1])] + [(1, [0])] * (count - 1)
    for rank in range(ranks):
        wanted = received(before, rank) + sum(
            mode_bytes.step_bytes(shape, mode, ranks, rank, rows, sampled,
                                  many_from is not None and rows >= many_from)
            for rows, sampled in steps)
        try:  # the last ranks may still be leaving the last collective
            eventually(lambda: received(server.metrics(), rank) == wanted, 2)
        except AssertionError:
            assert received(server.metrics(), rank) == wanted, f"rank {rank}"


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "headdim_bf16", "gemma2_f32", "gemma3_f32",
                                  "smollm3_window_f32", "seed_oss_out_f32", "glm4_f32",
                                  "granite_bias_f32", "olmo2_f32"])
def test_greedy_text(serve, name, mode, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, *layout(mode), "--dtype", "float32")
    for prompt, greedy in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == greedy[:24]


def plan_file(tmp_path, mode, many_from=None):
    """The built-in plan, its form for many rows from so many on, or never."""
    name, _, mesh = mode.partition(" ")
    plan = json.loads((PLANS / f"{name.replace('.', 'p')}.json").read_text())
    for axis, size in zip(plan["mesh"], map(int, mesh.split(",") if mesh else [])):
        axis["size"] = size
    if many_from:
        plan["phases"]["prefill"]["rows"] = many_from
    else:
        plan.pop("phases", None)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    return path


PROMPT = [3 + i for i in range(23)]


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
def test_received_bytes(serve, tmp_path, odd, mode, ranks):
    server = serve(odd, "-tp", ranks, "--plan", plan_file(tmp_path, mode),
                   "--load-format", "dummy", "--dtype", "float32")
    check_received(server, mode, ranks, checkpoint.shape_of(odd), PROMPT, 7)


@pytest.mark.parametrize("mode,ranks", [("2d", 4), ("2d", 9), ("2.5d", 8), ("3d", 8),
                                        ("3d 2,3,2", 12), ("3d 1,2,3", 6), ("3d_gathered", 8),
                                        ("3d_gathered 2,3,1", 6)])
def test_received_bytes_of_many_rows(serve, tmp_path, odd, mode, ranks):
    """The prompt is a step of many rows, its tokens are steps of few."""
    server = serve(odd, "-tp", ranks, "--plan", plan_file(tmp_path, mode, many_from=10),
                   "--load-format", "dummy", "--dtype", "float32")
    check_received(server, mode, ranks, checkpoint.shape_of(odd), PROMPT, 4, many_from=10)


@pytest.mark.parametrize("mode,ranks,many_from", [
    ("1d", 3, None), ("1d_sp", 3, None), ("2d", 4, 10), ("2d", 9, 10), ("2.5d", 8, 10),
    ("3d", 8, 10), ("3d 1,2,3", 6, 10), ("3d_gathered 2,3,1", 6, 10)])
@pytest.mark.parametrize("odd", ["olmo2"], indirect=True)
def test_received_bytes_of_joint_norms(serve, tmp_path, odd, mode, ranks, many_from):
    """Sums of squares of every head besides, in a step of either form."""
    server = serve(odd, "-tp", ranks, "--plan", plan_file(tmp_path, mode, many_from),
                   "--load-format", "dummy", "--dtype", "float32")
    check_received(server, mode, ranks, checkpoint.shape_of(odd), PROMPT, 4, many_from)


def mappings(pid):
    """(what is mapped, {"Rss": bytes, ...}) of a process, by the kernel's count."""
    found = []
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            found.append((" ".join(words[5:]), {}))
        elif words[-1] == "kB":
            found[-1][1][words[0].rstrip(":")] = 1024 * int(words[1])
    return found


def mapped(pid, name):
    """Bytes in use of a memory file."""
    return sum(sizes["Rss"] for what, sizes in mappings(pid) if f"memfd:{name} " in what)


@pytest.mark.parametrize("mode,ranks", [("3d_gathered", 8), ("3d_gathered 3,2,1", 6),
                                        ("3d_gathered 4,1,1", 4)])
def test_gathered_weights_are_held_once(serve, tmp_path, mode, ranks):
    """A rank holds 1/P of the weights, by the closed form, by `plan` and by the kernel's count."""
    model = checkpoint.write_config(tmp_path / "model", hidden_size=384, num_hidden_layers=3,
                                    num_attention_heads=12, num_key_value_heads=6, head_dim=32,
                                    intermediate_size=1000, vocab_size=1000)
    more = ("--dtype", "bfloat16", "--load-format", "dummy")
    server = serve(model, "-tp", ranks, *layout(mode), *more)
    server.token_ids(PROMPT, 3)
    said = predicted(model, mode, ranks, *more)["per_rank"]
    shape, total = checkpoint.shape_of(model), 0
    for rank, pid in enumerate(server.ranks()):
        wanted = mode_bytes.stored(shape, *mode_bytes.mesh_place(mode, ranks, rank), 2)
        gaps = 64 * 40  # each weight begins at a multiple of 64 bytes
        assert 0 <= said[rank]["weight_bytes"] - wanted < gaps, rank
        assert 0 <= mapped(pid, "tessera-weights") - wanted < gaps + PAGE, rank
        total += wanted
    norms = 7 * 384 * 4
    elements = sum(tp1d_bytes.weight_elements(shape, 1, 0).values())
    assert total - ranks * norms == pytest.approx(2 * elements, rel=0.1)  # tiles are padded


def activations(serve, model, mode, ranks, rows):
    """Of each rank (bytes that `plan` predicts, bytes by the kernel's count): its own memory, which
    includes what does not depend on the rows, and its share of the communicator's."""
    more = ["--dtype", "float32", "--max-num-batched-tokens", rows]
    planned = predicted(model, mode, ranks, *more)["per_rank"]
    server = serve(model, "-tp", ranks, *layout(mode), *more, "--load-format", "dummy",
                   "--max-num-seqs", 4, "--max-model-len", 64, before=small_pages)
    held = []
    for pid in server.ranks():
        sizes = mappings(pid)
        shared = sum(size["Size"] for what, size in sizes if "memfd:tessera-comm" in what)
        held.append(sum(size["Anonymous"] for _, size in sizes) + shared / ranks)
    server.stop()
    return [(entry["activation_bytes"] + entry["comm_buffer_bytes"], bytes_)
            for entry, bytes_ in zip(planned, held)]


FEW, MANY = 256, 1280  # rows


def bytes_per_row(serve, model, mode, ranks):
    """Of each rank (predicted, witnessed): what a step of so many more rows takes more."""
    few, many = (activations(serve, model, mode, ranks, rows) for rows in (FEW, MANY))
    return [tuple((b - a) / (MANY - FEW) for a, b in zip(*pair)) for pair in zip(few, many)]


@pytest.mark.skipif(is_sanitized(), reason="sanitizers keep memory of their own")
def test_activations_are_what_was_planned(serve, tmp_path):
    """By the kernel's count. Every layout but 1d holds far less than 1d: none gathers everything
    and runs that."""
    model = checkpoint.write_config(tmp_path / "wide", hidden_size=1024, num_hidden_layers=1,
                                    num_attention_heads=16, num_key_value_heads=8, head_dim=32,
                                    intermediate_size=512, vocab_size=512)
    most = {}
    for mode, ranks in (("1d", 8), ("1d_sp", 8), ("2d", 4), ("2.5d", 8), ("3d", 8),
                        ("3d_gathered", 8)):
        found = bytes_per_row(serve, model, mode, ranks)
        for rank, (planned, witnessed) in enumerate(found):
            assert witnessed == pytest.approx(planned, rel=0.08), (mode, rank)
        most[mode] = max(witnessed for _, witnessed in found)
    assert most["1d"] > 6 * 4 * 1024  # the stream, its norm, a product, and sums in two turns
    assert all(most[mode] < 0.7 * most["1d"] for mode in most if mode != "1d"), most


def test_quantised_weights_are_not_gathered(odd):
    done = run("plan", odd, "-tp", 2, *layout("3d_gathered 2,1,1"), "--load-format", "dummy",
               "--quantization", "fp8")
    assert done.returncode == 2
    assert "quantised weights are not gathered; use cached weights" in done.stderr


@pytest.mark.parametrize("vocab", [2045, 2048, 4099])
@pytest.mark.parametrize("mode,ranks,many_from", [("2.5d", 8, None), ("2.5d", 8, 10),
                                                  ("2.5d", 12, None), ("3d", 8, None)])
def test_received_bytes_of_many_logits(serve, tmp_path, mode, ranks, many_from, vocab):
    """From some size on their sums are worth another collective."""
    model = checkpoint.write_config(tmp_path / "wide", hidden_size=72, num_hidden_layers=1,
                                    num_attention_heads=9, num_key_value_heads=3, head_dim=8,
                                    intermediate_size=131, vocab_size=vocab)
    server = serve(model, "-tp", ranks, "--plan", plan_file(tmp_path, mode, many_from),
                   "--load-format", "dummy", "--dtype", "float32")
    shape = checkpoint.shape_of(model)
    check_received(server, mode, ranks, shape, PROMPT, 4, many_from)
    if vocab != 4099:
        return
    before = server.metrics()  # all of a step's samples may come from the rows of one rank
    body = {"prompt": PROMPT * 5, "max_tokens": 0, "echo": True, "logprobs": 1}
    assert server.post("/v1/completions", body).status == 200
    chunks = [range(begin, min(begin + 64, 115)) for begin in range(0, 115, 64)]
    for rank in range(ranks):
        wanted = received(before, rank)
        for chunk in chunks:
            many = many_from is not None and len(chunk) >= many_from
            sampled = [i for i, row in enumerate(chunk) if row < 114]
            wanted += mode_bytes.step_bytes(shape, mode, ranks, rank, len(chunk), sampled, many)
        assert received(server.metrics(), rank) == wanted, f"rank {rank}"


# ---- what plan says ------------------------------------------------------------------------------


def predicted(model, mode, ranks, *more):
    named = () if "--plan" in more else layout(mode)
    done = run("plan", model, "-tp", str(ranks), *named, "--json", "--load-format", "dummy",
               "--max-num-seqs", "4", "--max-model-len", "64", *map(str, more))
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
@pytest.mark.parametrize("odd", ["llama", "olmo2"], indirect=True)
def test_plan_predicts_bytes(odd, mode, ranks):
    """Of one layer, from headers alone: the difference of two closed forms."""
    plan = predicted(odd, mode, ranks, "--max-num-batched-tokens", 12, "--dtype", "float32")
    shape = checkpoint.shape_of(odd)
    for rank, entry in enumerate(plan["per_rank"]):
        for rows, name in ((1, "decode_1"), (12, "prefill_12")):
            many = rows >= plan.get("many_rows_from", 1 << 30)
            deep, flat = (mode_bytes.step_bytes(shape._replace(layers=n), mode, ranks, rank, rows,
                                                [], many) for n in (2, 1))
            assert entry["received_bytes_per_layer"][name] == deep - flat, (rank, rows)


@pytest.mark.parametrize("mode,ranks", [("3d_gathered", 8), ("3d_gathered 2,3,1", 6),
                                        ("3d_gathered 5,1,1", 5)])
@pytest.mark.parametrize("odd", ["olmo2"], indirect=True)
def test_plan_predicts_gains_of_heads(odd, mode, ranks):
    """Each rank has those of its heads in attention: by the difference to a Llama."""
    shape, held = checkpoint.shape_of(odd), {}
    for family in ("olmo2", "llama"):
        checkpoint.edit_config(odd, lambda config: config.update(model_type=family))
        held[family] = [entry["weight_bytes"] for entry in predicted(odd, mode, ranks)["per_rank"]]
    for rank in range(ranks):
        mesh, place = mode_bytes.mesh_place(mode, ranks, rank)
        with_, without = (mode_bytes.stored(shape._replace(joint_norm=joint), mesh, place, 2)
                          for joint in (True, False))
        gaps = 64 * 4  # each vector begins at a multiple of 64 bytes
        more = held["olmo2"][rank] - held["llama"][rank]
        assert 0 <= more - (with_ - without) < gaps, rank


@pytest.mark.parametrize("mode,ranks", [("1d_sp", 4), ("2d", 4), ("2.5d", 8), ("3d", 8)])
def test_activations_are_split(tmp_path, mode, ranks):
    """No layout holds the residual stream whole, as one that gathers everything would."""
    model = checkpoint.write_config(tmp_path / "even", hidden_size=512, num_hidden_layers=1,
                                    num_attention_heads=16, num_key_value_heads=8, head_dim=32,
                                    intermediate_size=1408, vocab_size=512)
    whole = 1024 * 512 * 4
    more = ("--max-num-batched-tokens", 1024)
    one = predicted(model, "1d", ranks, *more)["per_rank"]
    assert {entry["residual_bytes"] for entry in one} == {whole}
    split = predicted(model, mode, ranks, *more)["per_rank"]
    assert {entry["residual_bytes"] for entry in split} == {whole // ranks}


def test_printed_plan_is_the_layout(tmp_path, odd):
    """--print-plan gives a file that --plan takes for the same layout."""
    for mode, ranks in LAYOUTS:
        done = run("plan", odd, "-tp", str(ranks), *layout(mode), "--load-format", "dummy",
                   "--print-plan")
        path = tmp_path / "printed.json"
        path.write_text(done.stdout)
        keys = "per_rank", "mesh", "collectives_per_layer"
        want, got = predicted(odd, mode, ranks), predicted(odd, "1d", ranks, "--plan", path)
        assert [got[key] for key in keys] == [want[key] for key in keys]


def block(lines, head):
    """The lines after the one that begins so, up to an empty one."""
    start = next(i for i, line in enumerate(lines) if line.startswith(head)) + 1
    return lines[start:lines.index("", start)]


def test_modes_are_compared(odd):
    done = run("plan", odd, "-tp", "8", "--load-format", "dummy", "--modes", "--explain")
    lines = done.stdout.splitlines()
    names = [line.split("  ")[0] for line in block(lines, "layout  ")]
    meshes = [(w, a, 8 // w // a) for w in (1, 2, 4, 8) for a in (1, 2, 4, 8) if 8 % (w * a) == 0]
    by_mesh = [(f"{mode} %d,%d,%d" % mesh, mesh[0] * mesh[2] > 1) for mesh in meshes
               for mode in (["3d", "3d_gathered"] if mesh[0] > 1 else ["3d"])]
    assert names == ["1d", "1d_sp"] + [
        name + more for name, has_homes in [("2.5d 2,2,2", True)] + by_mesh
        for more in (["", " home"] if has_homes else [""])]


EXPLAINED = re.compile(r"  ((?:each|q and k) norm|\w+) +(before|after)? +(\S.*?)  +(\d+)  "
                       r"(=|about) +(.+?); (.+)")


def explained(model, ranks, mode, rows):
    """[form][(point, when, move, bytes, exact?, formula, {letter: number})] of one rank."""
    done = run("plan", model, "-tp", ranks, *layout(mode), "--explain", "--load-format", "dummy",
               "--dtype", "float32", "--max-num-batched-tokens", rows)
    forms = [[]]
    for line in block(done.stdout.splitlines(), "bytes rank"):
        found = EXPLAINED.match(line)
        if line.startswith("steps of many"):
            forms.append([])
        elif line.startswith("Bytes a rank"):
            return forms
        elif found:
            *words, count, exact, formula, letters = found.groups()
            forms[-1].append((*words, int(count), exact == "=", formula,
                              {name: int(number) for name, number in
                               (pair.split(" ") for pair in letters.split(", "))}))
    return forms


@pytest.mark.parametrize("mode,ranks", [("1d", 4), ("1d_sp", 4), ("2d", 4), ("2d", 9),
                                        ("2.5d", 8), ("3d", 8), ("3d_gathered 2,1,1", 2)])
@pytest.mark.parametrize("family", ["llama", "olmo2"])
def test_formulas_stand_beside_numbers(tmp_path, family, mode, ranks):
    """Each formula gives its number, and a layer's numbers add up to the oracle's."""
    model = checkpoint.write_config(tmp_path / "even", hidden_size=576, num_hidden_layers=1,
                                    num_attention_heads=72, num_key_value_heads=72, head_dim=8,
                                    intermediate_size=576, vocab_size=576, model_type=family)
    rows, shape = 144, checkpoint.shape_of(model)
    forms = explained(model, ranks, mode, rows)
    assert len(forms) == (1 if mode in ("1d", "1d_sp", "3d_gathered 2,1,1") else 2)
    for many, moves in enumerate(forms):
        total = 0
        for point, _, _, count, exact, formula, letters in moves:
            python = formula.replace(" N", "*N").replace(" B", "*B").replace("2(", "2*(")
            value = eval(python, {}, letters)
            if point not in ("lm_head", "logits"):  # of one row, which is not even
                assert exact, (point, formula)
            assert not exact or value == count, (point, formula, letters, count)
            if point not in ("embed_tokens", "lm_head", "logits"):
                total += count * (2 if point == "each norm" else 1)
        deep, flat = (mode_bytes.step_bytes(shape._replace(layers=n), mode, ranks, 1, rows, [],
                                            bool(many)) for n in (2, 1))
        assert total == deep - flat


def costs(model, ranks, *more):
    """The numbers of the cost table by layout: compute, parameters, activations, bandwidth,
    latency; then the stated bandwidth and the right one. None where ranks form no such mesh."""
    done = run("plan", model, "-tp", str(ranks), "--load-format", "dummy", "--explain",
               *map(str, more))
    lines, found, name = done.stdout.splitlines(), {}, None
    for line in lines[next(i for i, l in enumerate(lines) if l.startswith("Costs as")):]:
        words = line.replace(",", "").split()
        if " stated " in line and not line.startswith(" "):
            name = words[0]
        elif words and words[0] == "here":
            found[name] = [float(w) for w in words[1:6]] + [float(words[-3]), float(words[-1])]
        elif "not for this model" in line:
            found[name] = None
    return found


@pytest.mark.parametrize("ranks", [4, 8])
def test_costs_beside_the_tables(tmp_path, ranks):
    """Against the closed forms, and the tables' own arithmetic by hand."""
    model = checkpoint.write_config(tmp_path / "even", hidden_size=512, num_hidden_layers=1,
                                    num_attention_heads=16, num_key_value_heads=8, head_dim=32,
                                    intermediate_size=1408, vocab_size=512)
    rows, shape = 1024, checkpoint.shape_of(model)
    found = costs(model, ranks, "--max-num-batched-tokens", rows, "--dtype", "float32")
    tables = {4: {"1d": (1.5, 1.5), "2d": (3, 1.5), "2.5d": (3, 1.5), "3d": None},
              8: {"1d": (1.75, 1.75), "2d": None, "2.5d": (2.25, 1.125), "3d": (0.75, 0.75)}}
    assert found.keys() == tables[ranks].keys()
    for mode, stated in tables[ranks].items():
        if stated is None:
            assert found[mode] is None
            continue
        compute, parameters, activations, bandwidth, _, *given = found[mode]
        assert tuple(given) == stated
        assert compute == 1 / ranks
        assert parameters == (1 / 4 if ranks == 8 and mode != "1d" else 1 / ranks)
        assert activations == (1 if mode == "1d" else 1 / ranks)
        deep, flat = (max(mode_bytes.step_bytes(shape._replace(layers=n), mode, ranks, rank, rows,
                                                [], mode != "1d") for rank in range(ranks))
                      for n in (2, 1))
        assert bandwidth == pytest.approx((deep - flat) / (4 * rows * 512), abs=1e-4), mode


def times(lines):
    """Modelled ms by layout, and the layouts that the bytes are printed of."""
    rows = [re.split(r"\s{2,}", line) for line in block(lines, "modelled ms")[1:]]
    return {row[0]: [float(t.rstrip("* ")) for t in row[1:]] for row in rows}


def test_times_are_modelled(odd):
    """Beside the bytes, a time for every layout; the numbers they come from are printed."""
    done = run("plan", odd, "-tp", "4", "--load-format", "dummy", "--modes", "--measure")
    lines = done.stdout.splitlines()
    found = times(lines)
    assert {"1d", "1d_sp", "2d", "3d 2,2,1"} <= found.keys()
    assert all(t > 0 for row in found.values() for t in row)
    assert all(row[0] <= row[-1] for row in found.values()), "512 rows take no less than one"
    assert any(re.match(r"measured here with 4 ranks of \d+ threads?: \d", line) for line in lines)


def test_auto_picks_and_serves(serve):
    """The layout it names is the one in use, and gives the same text."""
    server = serve(checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", "4", "--auto")
    prompt, greedy = checkpoint.golden_runs("tied_gqa2_f32")[0]
    assert server.token_ids(prompt, 24) == greedy[:24]
    done = run("plan", checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", "4", "--auto")
    picked = re.search(r"--auto picks (\S+)", done.stderr).group(1)
    assert f"layout {picked}:" in done.stdout


@pytest.mark.parametrize("other", [("--parallel-mode", "1d"), ("--mesh", "1,2,2"),
                                   ("--plan", "x.json")])
def test_auto_picks_alone(odd, other):
    done = run("plan", odd, "-tp", "4", "--load-format", "dummy", "--auto", *other)
    assert done.returncode == 2
    assert f"--auto picks the layout, and {other[0]} names one" in done.stderr


@pytest.mark.parametrize("text", ["--modes", "--explain"])
def test_text_is_not_mixed_with_json(odd, text):
    done = run("plan", odd, "-tp", "4", "--load-format", "dummy", "--json", text)
    assert done.returncode == 2 and not done.stdout
    assert "leave out --json" in done.stderr


def test_a_plan_that_changes_during_start_up(tmp_path):
    """Server and ranks read the file each; a rank that reads another one says so (E21)."""
    path = tmp_path / "plan.json"
    os.mkfifo(path)
    first = (PLANS / "1d.json").read_text()
    other = first.replace('"tp"', '"other"')

    def feed():
        for text in (first, other):
            with open(path, "w", encoding="ascii") as pipe:  # waits for the reader
                os.mkfifo(tmp_path / "next")
                os.replace(tmp_path / "next", path)  # the next reader opens another one
                pipe.write(text)

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    done = run("serve", checkpoint.GOLDEN / "tied_gqa2_f32", "-tp", "1", "--port", "0", "--plan",
               path)
    assert done.returncode == 2
    assert "E21 rank 0 read another plan" in done.stderr
