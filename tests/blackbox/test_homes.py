"""The KV cache placed by home: bytes received, KV held and limits, by closed forms, and the text of
the whole server."""

import json
import math
import re
import subprocess
import sys

import pytest

import checkpoint
from harness import BINARY, ROOT, eventually, run
from test_modes import block, layout, mapped, plan_file

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
                         [(*each, 1) for each in LAYOUTS])
@pytest.mark.parametrize("odd", ["llama", "olmo2"], indirect=True)
def test_received_bytes(tmp_path, odd, mode, ranks, many):
    """As integers, on every rank, however uneven homes are."""
    shape, path = checkpoint.shape_of(odd), plan_file(tmp_path, mode, many)
    for rows in spreads(mode_bytes.homes(mode, ranks)):
        sampled = list(range(1, sum(rows), 3)) or [0]
        wanted = [mode_bytes.step_bytes(shape, mode, ranks, rank, rows, sampled, many is not None)
                  for rank in range(ranks)]
        assert counted(odd, mode, ranks, rows, sampled, path) == wanted, rows


# ---- what plan says ------------------------------------------------------------------------------


def predicted(model, mode, ranks, *more):
    named = () if "--plan" in more else layout(mode)
    done = run("plan", model, "-tp", ranks, *named, "--json", "--load-format", "dummy",
               *more)
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
def test_plan_compares_placements(odd, mode, ranks):
    """KV bytes of a token by both, and homes, whichever is in use."""
    shape, names = checkpoint.shape_of(odd), ("heads", "home")
    wanted = {name: {"homes": mode_bytes.homes(mode, ranks) if name == "home" else 1,
                     "bytes_per_token": [
                         mode_bytes.kv_position_bytes(shape, mode, ranks, rank, name == "home", 2)
                         for rank in range(ranks)]} for name in names}
    for name in names:
        plan = predicted(odd, mode, ranks, "--kv-placement", name, "--dtype", "bfloat16")
        assert plan["kv_placement"] == name
        assert plan["kv_placements"] == wanted
        assert plan["kv_homes"] == wanted[name]["homes"]
        each = [entry["kv_bytes_per_token"] for entry in plan["per_rank"]]
        assert each == wanted[name]["bytes_per_token"]


@pytest.mark.parametrize("mode,ranks", LAYOUTS)
@pytest.mark.parametrize("rows", [64, 250, 257])
def test_rows_of_a_home(odd, mode, ranks, rows):
    """Where they do not divide, a home may have the larger part."""
    homes = mode_bytes.homes(mode, ranks)
    done = run("plan", odd, "-tp", ranks, *layout(mode), *HOME, "--load-format", "dummy",
               "--max-num-batched-tokens", rows)
    assert f" and {math.ceil(rows / homes)} rows in each of {homes} homes: room" in done.stdout


def compared(model, ranks, *more):
    """The cells of each line of --modes, by layout; bytes of a step of 8 rows as a number."""
    done = run("plan", model, "-tp", ranks, "--modes", "--load-format", "dummy", *more)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in block(done.stdout.splitlines(), "layout  "):
        name, _, kv, _, _, few, many, start, _, received, *_ = re.split(r"\s{2,}", line.strip())
        count, unit = received.rstrip("*").split()
        found[name] = (int(kv), int(few), int(many), start,
                       float(count) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit])
    return found


def most_received(shape, mode, ranks, rows, many):
    """In a layer, by the rank that receives most."""
    one, two = (shape._replace(layers=n) for n in (1, 2))
    return max(mode_bytes.step_bytes(two, mode, ranks, rank, rows, [], many, 2) -
               mode_bytes.step_bytes(one, mode, ranks, rank, rows, [], many, 2)
               for rank in range(ranks))


def test_modes_by_placement(odd):
    """Every layout that has homes stands there both ways; KV and bytes by the closed forms."""
    shape, ranks, rows = checkpoint.shape_of(odd), 8, 8
    found = compared(odd, ranks, "--dtype", "bfloat16")
    for name, (kv, *_, start, received) in found.items():
        mode, at_home = name.removesuffix(" home"), name.endswith(" home")
        if mode.startswith("1d"):
            continue
        mode = "2.5d" if mode.startswith("2.5d") else mode
        homes = mode_bytes.homes(mode, ranks)
        assert (f"{name} home" in found) == (homes > 1 and not at_home), name
        assert kv == max(mode_bytes.kv_position_bytes(shape, mode, ranks, rank, at_home, 2)
                         for rank in range(ranks)) // (homes if at_home else 1), name
        wanted = most_received(shape, mode, ranks, [rows // homes] * homes if at_home else rows,
                               start != "-" and rows >= int(start))
        assert received == pytest.approx(wanted, rel=0.05), name  # two digits at least
    assert sum(name.endswith(" home") for name in found) == 1 + 9 + 6


def test_modes_of_one_placement(odd):
    """--kv-placement says which are compared; the layout in use need not have homes."""
    every = compared(odd, 4)
    heads, home = (compared(odd, 4, "--kv-placement", name) for name in ("heads", "home"))
    assert heads == {name: cells for name, cells in every.items() if not name.endswith(" home")}
    assert home.pop("3d 1,4,1 home")[0] == heads["3d 1,4,1"][0], "one home has all sequences"
    assert home == {name: cells for name, cells in every.items() if name.endswith(" home")}
    done = run("plan", odd, "-tp", 4, "--modes", *HOME, "--load-format", "dummy")
    assert "\n1d has no --kv-placement home: above, every rank has all sequences\n" in done.stdout


@pytest.mark.parametrize("mode", ["1d", "1d_sp"])
def test_no_homes(odd, mode):
    done = run("plan", odd, "-tp", 2, *layout(mode), *HOME, "--load-format", "dummy")
    assert done.returncode == 2
    assert "E17 model.layers.0.self_attn.qkv_proj: attention.placement is home" in done.stderr
    plan = predicted(odd, mode, 2)
    assert list(plan["kv_placements"]) == ["heads"]


def test_printed_plan_has_the_placement(tmp_path, odd):
    done = run("plan", odd, "-tp", 4, *layout("2d"), *HOME, "--print-plan", "--load-format",
               "dummy")
    path = tmp_path / "plan.json"
    path.write_text(done.stdout)
    assert json.loads(done.stdout)["attention"]["placement"] == "home"
    got = predicted(odd, "1d", 4, "--plan", path)
    assert got["per_rank"] == predicted(odd, "2d", 4, *HOME)["per_rank"]
    back = predicted(odd, "1d", 4, "--plan", path, "--kv-placement", "heads")
    assert back["per_rank"] == predicted(odd, "2d", 4)["per_rank"]


def test_placement_that_a_file_contradicts(tmp_path, odd):
    plan = json.loads((ROOT / "engine/parallel/plans/2d.json").read_text())
    for phase in plan["phases"].values():
        phase["attention"] = "heads"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    done = run("plan", odd, "-tp", 4, "--plan", path, *HOME, "--load-format", "dummy")
    assert done.returncode == 2
    assert "E17 attention is heads, attention.placement home" in done.stderr
    del plan["attention"], plan["phases"]
    path.write_text(json.dumps(plan))
    done = run("plan", odd, "-tp", 4, "--plan", path, *HOME, "--load-format", "dummy")
    assert done.returncode == 2
    assert "set attention.placement there" in done.stderr


def test_explained(odd):
    for more, text in (((), "attention cols(col,row): a rank has the KV cache of all sequences"),
                       (HOME, "attention rows(row) cols(col): a rank has the KV cache of the "
                              "sequences of one of 2 homes")):
        done = run("plan", odd, "-tp", 4, *layout("2d"), "--explain", "--load-format", "dummy",
                   *more)
        assert text in done.stdout


def test_context_fits_one_home(odd):
    """What a request may hold is what its home holds, not what all of them do."""
    more = ("--dtype", "float32", "--kv-cache-memory", "64k")
    plan = predicted(odd, "2d", 4, *HOME, *more)
    positions = 16 * plan["kv_blocks"]
    assert plan["max_model_len"] == positions
    done = run("plan", odd, "-tp", 4, *layout("2d"), *HOME, "--load-format", "dummy", *more,
               "--max-model-len", positions + 1)
    assert done.returncode == 4
    assert f"each home of the KV cache, of which a request has one, holds {positions} positions" \
        in done.stderr


# ---- the whole server ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode,ranks", [("2d", 4), ("2d", 9), ("2.5d", 8), ("3d", 8),
                                        ("3d_gathered 2,1,3", 6)])
@pytest.mark.parametrize("name", ["tied_gqa2_f32", "headdim_bf16"])
def test_greedy_text(serve, name, mode, ranks):
    server = serve(checkpoint.GOLDEN / name, "-tp", ranks, *layout(mode), *HOME, "--dtype",
                   "float32")
    for prompt, greedy in checkpoint.golden_runs(name):
        assert server.token_ids(prompt, 24) == greedy[:24]


def test_kv_is_split(serve, tmp_path):
    """By the kernel's count: with two KV heads on eight ranks each rank of 3d by heads holds one
    head of every sequence, at home one head of those of one home."""
    model = checkpoint.write_config(tmp_path / "model", hidden_size=128, num_hidden_layers=2,
                                    num_attention_heads=8, num_key_value_heads=2, head_dim=64,
                                    intermediate_size=128, vocab_size=300)
    shape, positions = checkpoint.shape_of(model), {}
    for placement, memory in (("heads", 8 << 20), ("home", 2 << 20)):
        more = ("--kv-placement", placement, "--max-model-len", 512, "--kv-cache-memory", memory)
        plan = predicted(model, "3d", 8, *more, "--dtype", "float32")
        server = serve(model, "-tp", 8, *layout("3d"), *more, "--dtype", "float32",
                       "--load-format", "dummy")
        server.token_ids([5, 6, 7], 2)
        for rank, pid in enumerate(server.ranks()):
            each = mode_bytes.kv_position_bytes(shape, "3d", 8, rank, placement == "home", 4)
            assert 16 * plan["kv_blocks"] * each == memory
            eventually(lambda: mapped(pid, "tessera-kv") == memory, 20, f"rank {rank}")
        positions[placement] = 16 * plan["kv_blocks"] * plan["kv_homes"]
        server.stop()
    assert positions["heads"] == positions["home"] == (8 << 20) // (2 * 2 * 64 * 4)


WORDS = [3 + (7 * i) % 250 for i in range(40)]


def crowd(count):
    """Requests of unequal length that share a beginning, greedy and sampled with penalties."""
    for i in range(count):
        fields = {}
        if i % 2:
            fields = {"temperature": 0.9, "seed": i, "top_k": 20, "presence_penalty": 0.7,
                      "frequency_penalty": 0.4, "repetition_penalty": 1.2}
        yield WORDS[:24] + [5 + i] * (1 + 5 * i % 17), 36 + 5 * i % 25, fields


@pytest.mark.parametrize("mode,ranks", [("2d", 4), ("2.5d", 8), ("3d", 8), ("3d 1,3,2", 6)])
def test_a_crowd_has_the_answers_of_one_rank(serve, mode, ranks):
    """Homes fill unevenly, sequences give way and come back, perhaps elsewhere, and beginnings are
    found in caches: every answer is what one rank gives to the request alone."""
    model, requests = checkpoint.GOLDEN / "tied_gqa2_f32", list(crowd(24))
    more = ("--dtype", "float32", "--max-model-len", 128)
    alone = serve(model, "-tp", 1, *more, "--no-enable-prefix-caching")
    wanted = [alone.token_ids(prompt, count, **fields) for prompt, count, fields in requests]
    alone.stop()
    shape = checkpoint.shape_of(model)
    most = max(mode_bytes.kv_position_bytes(shape, mode, ranks, rank, True, 4)
               for rank in range(ranks))
    server = serve(model, "-tp", ranks, *layout(mode), *HOME, *more, "--max-num-batched-tokens", 64,
                   "--kv-cache-memory", 10 * 16 * most)
    for _ in range(2):
        assert server.token_ids_together(requests, held=True) == wanted
    metrics = server.metrics()
    assert metrics.sum("vllm:num_preemptions_total") > 0
    assert metrics.sum("vllm:prefix_cache_hits_total") > 0
