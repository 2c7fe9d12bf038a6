"""Many requests at once with their KV at home: every answer is the one it has alone."""

import concurrent.futures

import pytest

from harness import eventually
from test_modes import layout
from test_recovery import answer, kill, lose_a_rank

COMMON = list(range(100, 180))  # what half of the prompts begin with
REQUESTS = [
    {"prompt": (COMMON if i % 2 else []) + [20 + i] * (1 + 6 * i), "max_tokens": 40 + 5 * i,
     "temperature": i % 3 / 2, "seed": i, "n": 1 + (i % 4 == 0), "logprobs": i % 2,
     "frequency_penalty": 0.3 * (i % 2), "ignore_eos": True} for i in range(12)]


def together(server, requests):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        with server.halted():  # so that all come together
            asked = [pool.submit(answer, server, request) for request in requests]
            eventually(lambda: server.requests("running") + server.requests("waiting")
                       == sum(request["n"] for request in requests), what="all requests")
        return [one.result() for one in asked]


def at_home(serve, model, mode, ranks, *more):
    # alone they decode in one form of a step, together in the other
    return serve(model, "-tp", ranks, *layout(mode), "--kv-placement", "home", "--prefill-rows", 8,
                 "--max-model-len", 256, *more)


@pytest.mark.parametrize("mode,ranks", [("2d", 4), ("2.5d", 8), ("3d 2,1,3", 6)])
def test_answers_are_the_same(serve, synthetic, mode, ranks):
    """In short steps, of which each home has only a few rows, and then once more with a loss."""
    server = at_home(serve, synthetic, mode, ranks, "--max-num-batched-tokens", 24,
                     "--max-num-seqs", 20)
    wanted = [answer(server, request) for request in REQUESTS]
    assert together(server, REQUESTS) == wanted
    assert server.metrics().sum("vllm:prefix_cache_hits_total") > 0
    assert lose_a_rank(server, REQUESTS, kill(ranks - 1)) == wanted
    assert server.metrics().sum("vllm:kv_cache_usage_perc") == 0


def test_short_of_blocks(serve, synthetic):
    """Homes hold hardly more than one request: others give way in each, and come back anywhere."""
    server = at_home(serve, synthetic, "2d", 4, "--kv-cache-memory", "600K")
    wanted = [answer(server, request) for request in REQUESTS]
    assert together(server, REQUESTS) == wanted
    assert server.metrics().sum("vllm:num_preemptions_total") > 0
    assert server.metrics().sum("vllm:kv_cache_usage_perc") == 0
