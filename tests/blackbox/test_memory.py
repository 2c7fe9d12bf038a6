"""What was planned is resident soon after the start, and stays all there is."""

import concurrent.futures
import json
import pathlib
import random
import re

import pytest

import checkpoint
from harness import eventually, is_sanitized, run, small_pages

SETUP = ["-tp", 2, "--threads-per-rank", 1, "--kv-cache-memory", "24M", "--max-num-seqs", 8]
GROWTH_MAX = 2 << 20


def resident(pid, kind="VmRSS"):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(rf"^{kind}:\s+(\d+)", status, re.M)[1])


def knows_populate():
    version = re.match(r"(\d+)\.(\d+)", pathlib.Path("/proc/sys/kernel/osrelease").read_text())
    return (int(version[1]), int(version[2])) >= (5, 14)


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
@pytest.mark.skipif(not knows_populate(), reason="the kernel cannot touch memory ahead")
def test_resident_memory_is_flat(serve):
    plan = json.loads(run("plan", checkpoint.DEMO, *SETUP[:6], "--json").stdout)
    wanted = [rank["kv_bytes"] + rank["weight_bytes"] for rank in plan["per_rank"]]
    server = serve(checkpoint.DEMO, *SETUP, before=small_pages)
    ranks = server.ranks()
    eventually(lambda: all(resident(pid, "RssShmem") >= bytes_planned
                           for pid, bytes_planned in zip(ranks, wanted)), 60, "planned memory")
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
