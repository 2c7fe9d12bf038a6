"""What was planned is resident soon after the start, and stays all there is."""

import concurrent.futures
import json
import operator
import pathlib
import random
import re
import threading

import pytest

import checkpoint
from harness import eventually, is_sanitized, run, small_pages
from test_modes import mappings

SETUP = ["-tp", 2, "--threads-per-rank", 1, "--kv-cache-memory", "24M", "--max-num-seqs", 8]
GROWTH_MAX = 2 << 20


def resident(pid, kind="VmRSS"):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(rf"^{kind}:\s+(\d+)", status, re.M)[1])


def all_resident(ranks, planned):
    """What each rank planned to share is there, and all is touched: the cache, and then what ranks
    exchange, by every rank for itself."""
    touched = ("memfd:tessera-kv ", "memfd:tessera-comm ")
    return (all(resident(pid, "RssShmem") >= bytes_ for pid, bytes_ in zip(ranks, planned)) and
            all(sizes["Rss"] == sizes["Size"] for pid in ranks for what, sizes in mappings(pid)
                if any(name in what for name in touched)))


def knows_populate():
    version = re.match(r"(\d+)\.(\d+)", pathlib.Path("/proc/sys/kernel/osrelease").read_text())
    return (int(version[1]), int(version[2])) >= (5, 14)


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
@pytest.mark.skipif(not knows_populate(), reason="the kernel cannot touch memory ahead")
def test_resident_memory_is_flat(serve):
    plan = json.loads(run("plan", checkpoint.DEMO, *SETUP, "--json").stdout)
    buffers = sum(rank["comm_buffer_bytes"] for rank in plan["per_rank"])
    wanted = [rank["kv_bytes"] + rank["weight_bytes"] + buffers for rank in plan["per_rank"]]
    server = serve(checkpoint.DEMO, *SETUP, before=small_pages)
    ranks = server.ranks()
    eventually(lambda: all_resident(ranks, wanted), 60, "planned memory")
    before = [resident(pid) for pid in ranks]
    rng = random.Random(1)
    tokens = plan["kv_blocks"] * plan["block_tokens"]
    count = 3 * tokens // 2 // 400  # more than the cache holds
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        prompts = [[rng.randrange(300, 1000) for _ in range(400)] for _ in range(count)]
        answers = list(pool.map(lambda prompt: server.complete(prompt, max_tokens=2), prompts))
    assert sum(answer["usage"]["prompt_tokens"] for answer in answers) > tokens
    grown = [resident(pid) - was for pid, was in zip(ranks, before)]
    assert max(grown) < GROWTH_MAX, grown


# ---- the decode path -----------------------------------------------------------------------------

KINDS = [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 5}, {"logprobs": 2},
         {"temperature": 1, "presence_penalty": 0.5, "logit_bias": {"300": 1}, "top_k": 20}]


def threads(pid):
    """Names of the threads of a process."""
    return {int(task.name): (task / "comm").read_text().strip()
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}


@pytest.mark.parametrize("options", [
    ("-tp", 2, "--threads-per-rank", 2), ("-tp", 2, "--sampler", "distributed"),
    ("-tp", 4, "--parallel-mode", "2d", "--kv-placement", "home", "--threads-per-rank", 1)])
def test_decodes_allocate_nothing(serve, allocations, options):
    """While four streams get 200 tokens each: no allocation on the engine thread or in a rank. What
    is left are buffers of the answers, which double when a client reads late."""
    server = serve(checkpoint.DEMO, *options)
    got, enough = [0] * len(KINDS), threading.Event()

    def read(i):
        prompt = "Once upon a time" + " there" * i
        for _ in server.stream(prompt, max_tokens=900, ignore_eos=True, **KINDS[i]):
            got[i] += 1
            if enough.is_set():
                break

    with concurrent.futures.ThreadPoolExecutor(len(KINDS)) as pool:
        readers = [pool.submit(read, i) for i in range(len(KINDS))]
        eventually(lambda: min(got) >= 30, 30, "streams run")
        with allocations() as found:
            begun = list(got)
            eventually(lambda: min(map(operator.sub, got, begun)) >= 200, 60, "200 tokens each")
        names = threads(server.pid)
        enough.set()
        for reader in readers:
            reader.result()
    assert "tessera-engine" in names.values()
    asked = [(names.get(thread, pid), *rest) for pid, thread, *rest in found]
    assert [each for each in asked if each[0] not in names.values()] == [], "of ranks"
    assert [each for each in asked if each[0] == "tessera-engine"] == []
    assert len(asked) < 800 / 20, asked
