"""Long context: a prompt of 16 k tokens works within what was planned and reserved."""

import json
import pathlib
import random

import pytest

import checkpoint
from harness import PATIENCE, is_sanitized, run, small_pages

LENGTH = 2048 if is_sanitized() else 16384  # sanitized ranks are slow
MIB = 1 << 20
PROGRAM = 16 * MIB  # the program itself, its libraries, stacks and the board


def resident(pid):
    """Bytes of memory of a process, by kind; VmHWM is the peak of all."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {name: value.split() for name, value in (line.split(":", 1) for line in lines)}
    return {name: int(sizes[name][0]) << 10 for name in ("VmHWM", "RssAnon")}


@pytest.mark.timeout(120 * PATIENCE)
def test_prompt_of_16k_tokens(serve, tmp_path):
    """The same continuation whatever the ranks and chunks; no memory beyond the plan; and none
    that was not there before the first request, KV cache and buffers apart."""
    model = checkpoint.write_config(
        tmp_path / "long", hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=2048,
        max_position_embeddings=LENGTH + 64)
    dice = random.Random(16)
    prompt = [dice.randrange(3, 2048) for _ in range(LENGTH)]
    options = ("--load-format", "dummy", "--max-num-seqs", 2, "--max-model-len", LENGTH + 64)
    answers = []
    for ranks, chunk in ((1, 1024), (2, 500)):
        options_here = (*options, "-tp", ranks, "--max-num-batched-tokens", chunk)
        planned = json.loads(run("plan", model, "--kv-cache-memory", "24M", "--json",
                                 *options_here).stdout)
        server = serve(model, *options_here, before=small_pages)
        before = [resident(pid) for pid in server.ranks()]
        answers.append(server.complete(prompt, timeout=300, max_tokens=8, temperature=0.8, seed=1,
                                       ignore_eos=True, return_token_ids=True)["choices"])
        shared = ranks * planned["per_rank"][0]["comm_buffer_bytes"]
        for rank, pid in enumerate(server.ranks()):
            after, plan = resident(pid), planned["per_rank"][rank]
            most = shared + sum(plan[f"{what}_bytes"] for what in ("weight", "kv", "activation"))
            if is_sanitized():  # which has memory of its own
                continue
            assert after["VmHWM"] <= most + PROGRAM
            assert after["RssAnon"] - before[rank]["RssAnon"] <= MIB, f"rank {rank}"
        server.stop()
    assert answers[0] == answers[1]
    assert len(answers[0][0]["token_ids"]) == 8
